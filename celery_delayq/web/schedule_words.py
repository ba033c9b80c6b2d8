"""Schedules in words, and as the texts of a form. No I/O."""

from __future__ import annotations

import re
from datetime import datetime

from celery.schedules import BaseSchedule, ParseException, crontab, schedule

from celery_delayq.errors import InvalidSchedule
from celery_delayq.model.envelope import parse_iso
from celery_delayq.periodic.crontab import read_crontab
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.serialization import describe
from celery_delayq.utils.text import seconds_of

#: A day of the week by its number, which is no step; and the names of the days.
_DAY = re.compile(r"(?<!/)\b[0-6]\b")
_DAYS = dict(zip("0123456", ("sun", "mon", "tue", "wed", "thu", "fri", "sat"), strict=True))


def in_words(given: BaseSchedule) -> str:
    """Return a schedule in words; of one that is no crontab what the command line shows."""
    if isinstance(given, clocked):
        return f"once at {given.at.isoformat()}"
    if type(given) is not crontab:
        return describe(given)
    minute, hour = str(given._orig_minute), str(given._orig_hour)
    parts = [_time_of_day(minute, hour)]
    fields = {
        "on": _DAY.sub(lambda day: _DAYS[day[0]], str(given._orig_day_of_week)),
        "on day": given._orig_day_of_month,
        "in month": given._orig_month_of_year,
    }
    parts += [f"{word} {_listed(text)}" for word, text in fields.items() if str(text) != "*"]
    return ", ".join(parts)


def read_schedule(text: str) -> BaseSchedule | datetime:
    """Return the schedule of a text, as
    :func:`~celery_delayq.periodic.serialization.describe` writes it; a datetime for a single run.

    Raises
    ------
    InvalidSchedule
        The text is no interval, crontab, rule or time. Schedules by the sun and of the app's own
        classes have no text that can be read.
    """
    is_interval = text.startswith("every ")
    every, is_relative, _ = text.removeprefix("every ").partition(", rounded")
    try:
        if "FREQ=" in text.upper():
            return rrule(text)
        if len(text.split()) == 5 and not is_interval:
            return read_crontab(text)
        seconds = seconds_of(every.replace(" ", ""), bare=is_interval)
        if seconds is not None:
            return schedule(seconds, bool(is_relative))
        return parse_iso(text.removeprefix("at "))
    except InvalidSchedule:
        raise
    except (ValueError, OverflowError, ParseException) as exc:
        raise InvalidSchedule(
            f"schedule={text!r}: expected an interval, like every 30m, a crontab such as "
            "0 9 * * mon-fri, a rule such as FREQ=MONTHLY;BYDAY=-1FR, or a time such as "
            f"2030-01-31T09:00; {exc}"
        ) from exc


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
