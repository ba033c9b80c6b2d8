"""Durations, times, numbers and ids as people read and type them. No I/O."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timezone

from celery_delayq.model.envelope import entry_id, parse_iso
from celery_delayq.utils.text import UNIT_SECONDS, span, spelled

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile(
    r"([+-]?)\s*" + r"\s*".join(f"(?:({_NUMBER}){unit})?" for unit in UNIT_SECONDS), re.IGNORECASE
)
_SECONDS = re.compile(rf"[+-]?{_NUMBER}")


def quoted(text: str) -> str:
    r"""Return a text quoted for bash and zsh: ``mail-7``, ``'a b'``, ``$'a\nb'``."""
    if text.isprintable():
        return shlex.quote(text)
    special = {"\\": r"\\", "'": r"\'"}
    return f"$'{spelled(''.join(special.get(one, one) for one in text))}'"


def shown_id(id: str) -> str:
    """Return an id that can be pasted into a command line, with ``%00`` for a NUL."""
    return quoted(entry_id(id))


def number_of(number: int, one: str, many: str) -> str:
    """Return ``1 entry``, ``1,204 entries``."""
    return f"{number:,} {one if number == 1 else many}"


def distance(seconds: float) -> str:
    """Return a distance in time: ``in 2h 5m``, ``5m ago``, ``now``."""
    if abs(seconds) < 0.5:
        return "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(seconds)} ago"


def stamp(moment: datetime) -> str:
    """Return a time by this machine's clock, such as ``2030-01-31T09:00:00+01:00``.

    The text is exact and one word for a shell. :func:`read_stamp` reads it as the same time.
    """
    try:
        there = moment.astimezone()
    except (OverflowError, ValueError, OSError):  # at the limits of datetime
        there = moment.astimezone(timezone.utc)
    whole = there.microsecond % 1000 == 0
    return there.isoformat(timespec="milliseconds" if there.microsecond and whole else "auto")


def read_stamp(text: str) -> datetime:
    """Read ISO 8601. A time without an offset is local time, as :func:`stamp` shows it.

    Raises
    ------
    ValueError
        The text is not ISO 8601, or the time is outside the years 1 to 9999.
    """
    try:
        # When clocks are set back a local time occurs twice: the first one counts.
        return parse_iso(text).astimezone(timezone.utc)
    except (OverflowError, OSError) as exc:
        raise ValueError(f"{text!r} lies outside the years 1 to 9999") from exc


def seconds_of(text: str, *, bare: bool = True) -> float | None:
    """Read a duration such as ``90``, ``90s``, ``1h30m`` or ``-10m``; None for other texts.

    Parameters
    ----------
    bare : bool
        Whether a number without a unit is a duration in seconds.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text) if bare else None
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        return None
    sign, *numbers = match.groups()
    pairs = zip(numbers, UNIT_SECONDS.values(), strict=True)
    return (-1 if sign == "-" else 1) * sum(float(n) * size for n, size in pairs if n is not None)
