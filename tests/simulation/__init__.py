"""A fleet of dispatchers in virtual time: the package's policy with a model of Redis."""
