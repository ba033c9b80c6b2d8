"""Loads the Lua scripts, calls the scripts and reads their replies."""
