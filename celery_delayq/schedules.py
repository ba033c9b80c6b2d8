"""Schedules of periodic entries: the public path of :mod:`celery_delayq.periodic.schedules`."""

from celery_delayq.periodic.schedules import Polled, Rule, clocked, latest, register, rrule, rule_of

__all__ = ["Polled", "Rule", "clocked", "latest", "register", "rrule", "rule_of"]
