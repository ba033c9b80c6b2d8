"""Redis Cluster: a store for each hash tag, on whichever node has its slot."""
