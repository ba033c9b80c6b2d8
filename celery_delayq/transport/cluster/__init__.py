"""The transport for a Redis Cluster: a channel for each hash tag, behind the channel for kombu."""
