"""Moves due entries to their queues, extends leases and sends acknowledgements."""
