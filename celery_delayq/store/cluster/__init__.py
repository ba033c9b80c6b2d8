"""Redis Cluster: a store for each hash tag, on the node that has the tag's slot."""
