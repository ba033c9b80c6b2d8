"""Times as people type them, on pages and on the command line. No I/O, no clock."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from datetime import time as time_of_day
from typing import Literal

from celery_delayq.model.envelope import due_of_eta, parse_iso
from celery_delayq.model.scheduled import moment
from celery_delayq.utils.text import seconds_of

#: Where a distance without a sign leads.
Direction = Literal["from now", "ago"]

#: What people may type, for errors: points in time, and distances.
TIME_HELP = "a time such as 2030-01-31T09:00, 17:00, today or tomorrow 9:00"
DISTANCE_HELP = "a distance such as 5m, 1h30m, 2 days, in 2 hours or 3d ago"

#: The words for days, with their distance from today.
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}

#: A day in words, a time of day, or both.
_DAY_AND_TIME = re.compile(
    rf"({'|'.join(_DAYS)})?(?:(?:^|[ ,]+)(?:at +)?(\d\d?):(\d\d)(?::(\d\d))?)?", re.ASCII
)

#: An hour of one digit, as people write it.
_ONE_DIGIT_HOUR = re.compile(r"^(\d{4}-\d\d-\d\d)[ T]+(\d:)")


def read_typed_time(
    text: str, now: datetime, zone: tzinfo | None = None, unsigned: Direction = "from now"
) -> datetime:
    """Return the time that somebody has typed.

    A day without a time of day begins at 0:00. A time of day without a day is one of today.

    Parameters
    ----------
    text : str
        ``now``; ``today``, ``tomorrow`` or ``yesterday`` and a time of day, or one of them; a
        distance such as ``1h30m``, ``in 2 hours`` or ``3d ago``; or ISO 8601.
    now : datetime
        From where distances and days count.
    zone : tzinfo | None
        The zone of times without an offset; None for that of this machine.
    unsigned : Direction
        Where a distance without a sign leads.

    Raises
    ------
    ValueError, OverflowError
        The text is no such time, or the time is outside the years 1 to 9999.
    """
    words = " ".join(text.lower().split())
    if words == "now":
        return now
    seconds = _distance(words, unsigned)
    if seconds is not None:
        return now + timedelta(seconds=seconds)
    if words and (match := _DAY_AND_TIME.fullmatch(words)):
        day, *numbers = match.groups()
        date = now.astimezone(zone).date() + timedelta(days=_DAYS.get(day, 0))
        hour, minute, second = (int(each or 0) for each in numbers)
        found = datetime.combine(date, time_of_day(hour, minute, second))
    else:
        found = parse_iso(_ONE_DIGIT_HOUR.sub(r"\1T0\2", text.strip()))
    try:
        return moment(due_of_eta(_with_zone(found, zone)).ms)
    except OSError as exc:  # of the zone of this machine, at the limits of its clock
        raise ValueError(f"{text!r} lies outside the years 1 to 9999") from exc


def _distance(words: str, unsigned: Direction) -> float | None:
    """Return a distance in seconds; None for other texts."""
    is_ago, is_signed = words.endswith(" ago"), words.startswith(("+", "-", "in "))
    says_it_twice = (is_ago and is_signed) or words.startswith(("in +", "in -"))
    seconds = seconds_of(words.removeprefix("in ").removesuffix(" ago"), bare=False)
    if seconds is None or says_it_twice:
        return None
    return -seconds if is_ago or (unsigned == "ago" and not is_signed) else seconds


def _with_zone(time: datetime, zone: tzinfo | None) -> datetime:
    if time.tzinfo is not None:
        return time
    # When clocks are set back, a local time occurs twice: the first one counts.
    return time.astimezone(timezone.utc) if zone is None else time.replace(tzinfo=zone)
