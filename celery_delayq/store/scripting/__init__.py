"""Loads the Lua scripts, calls them and reads their replies."""
