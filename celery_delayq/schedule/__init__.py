"""Scheduled tasks: schedule, list, cancel, reschedule and revoke."""
