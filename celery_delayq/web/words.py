"""Schedules in words. No I/O."""

from __future__ import annotations

from celery.schedules import BaseSchedule, crontab

from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.serialization import describe


def in_words(given: BaseSchedule) -> str:
    """Return a schedule in words; of one that is no crontab what the command line shows."""
    if isinstance(given, clocked):
        return f"once at {given.at.isoformat()}"
    if type(given) is not crontab:
        return describe(given)
    minute, hour = str(given._orig_minute), str(given._orig_hour)
    parts = [_time_of_day(minute, hour)]
    fields = {
        "on": given._orig_day_of_week,
        "on day": given._orig_day_of_month,
        "in month": given._orig_month_of_year,
    }
    parts += [f"{word} {_listed(text)}" for word, text in fields.items() if str(text) != "*"]
    return ", ".join(parts)


def _time_of_day(minute: str, hour: str) -> str:
    if minute.isdigit() and hour.isdigit():
        return f"at {int(hour):02}:{int(minute):02}"
    hours = "every hour" if hour == "*" else _every(hour, "hour")
    if minute == "*":
        return "every minute" if hour == "*" else f"every minute of {hours}"
    if minute.startswith("*/"):
        every = _every(minute, "minute")
        return every if hour == "*" else f"{every} of {hours}"
    return f"at minute {_listed(minute)} of {hours}"


def _every(text: str, unit: str) -> str:
    """Return ``*/2`` as ``every 2 hours``, and other texts as ``hour 1, 2``."""
    step = text.removeprefix("*/")
    if step == text:
        return f"{unit} {_listed(text)}"
    return f"every {unit}" if step == "1" else f"every {step} {unit}s"


def _listed(text: object) -> str:
    return ", ".join(part.strip() for part in str(text).split(","))
