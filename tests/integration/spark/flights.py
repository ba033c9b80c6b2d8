"""Made-up rows, and the tasks that they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from celery_delayq import DelayQ

_BEGIN = datetime(2031, 1, 1, tzinfo=timezone.utc)

#: So long that rows do not wait in Spark's buffers.
_NOTE = "x" * 200

#: Columns of the row with a number ``id``: due one second after the other. Of each 500 rows one has
#: no time, and one a time that is out of range.
COLUMNS = (
    "concat('UA', id) AS flight",
    "CASE WHEN id % 500 = 7 THEN NULL WHEN id % 500 = 13 THEN timestamp_seconds(300000000000) "
    f"ELSE timestamp_seconds({int(_BEGIN.timestamp())} + id) END AS remind_at",
    "concat('B', id % 40) AS gate",
    "id AS pax",
    f"'{_NOTE}' AS note",
)

#: The columns of rows of `flight`, and how they are written.
SCHEMA = "flight string, remind_at timestamp, gate string, pax int"
OPTIONS = {"task": "mail.remind", "idcolumn": "flight", "etacolumn": "remind_at"}

NOON = datetime(2031, 5, 17, 12, tzinfo=timezone.utc)

NO_TIME = "remind_at is null: nothing says when"
OUT_OF_RANGE = "remind_at lies outside the years 1970 to 9999"

Row = tuple[Any, ...]
Calls = Mapping[str, tuple[datetime, dict[str, Any] | None]]


def why_refused(number: int) -> str | None:
    """Return why a row cannot be scheduled, None for one that can."""
    return {7: NO_TIME, 13: OUT_OF_RANGE}.get(number % 500)


def good(count: int) -> list[int]:
    """Return the numbers of the rows that can be scheduled."""
    return [number for number in range(count) if why_refused(number) is None]


def calls_of(numbers: Iterable[int]) -> Calls:
    """Return the expected calls of the tasks of rows: ETA and arguments by id."""
    return {
        f"mail.remind:UA{n}": (
            _BEGIN + timedelta(seconds=n),
            {"gate": f"B{n % 40}", "pax": n, "note": _NOTE},
        )
        for n in numbers
    }


def flight(n: int, gate: str = "B7", minutes: int = 0) -> Row:
    """Return a row that is due *n* minutes after `NOON`, or some minutes later."""
    return f"UA{n:03}", NOON + timedelta(minutes=n + minutes), gate, n


def flights(number: int, **changed: Any) -> list[Row]:
    return [flight(n, **changed) for n in range(number)]


def expected(*rows: Row) -> Calls:
    """Return the expected calls of the tasks of such rows."""
    return {f"mail.remind:{key}": (at, {"gate": gate, "pax": pax}) for key, at, gate, pax in rows}


def calls(delayq: DelayQ) -> Calls:
    """Return the calls of scheduled tasks, and check that no id is there twice."""
    found = [*delayq.entries()]
    assert len({each.id for each in found}) == len(found)
    assert all(each.args == [] for each in found if each.id.startswith("mail.remind:"))
    return {each.id: (each.due, each.kwargs) for each in found}
