"""Schedules of periodic entries beside those of Celery, and how to register your own classes."""

from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import clocked, register

__all__ = ["clocked", "register", "rrule"]
