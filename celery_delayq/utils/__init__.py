"""Helpers without a room of their own."""
