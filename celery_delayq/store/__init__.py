"""The only code that sends commands to Redis."""
