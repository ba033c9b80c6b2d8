"""Values and policy: no I/O, no clock."""
