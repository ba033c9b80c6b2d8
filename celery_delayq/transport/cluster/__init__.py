"""The transport for a Redis Cluster: a channel for each hash tag, behind that which kombu sees."""
