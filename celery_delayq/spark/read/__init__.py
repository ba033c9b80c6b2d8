"""Reads the tables of the data source, in batches and as a stream."""
