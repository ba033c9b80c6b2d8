"""Periodic entries: their schedules, their ticks, and the runners that fire them."""
