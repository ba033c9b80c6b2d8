"""How failed tasks are retried: policies, and the options that choose one. No I/O."""
