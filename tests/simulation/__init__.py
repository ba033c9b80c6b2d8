"""A fleet of dispatchers in virtual time: the policy of the package, a model of Redis."""
