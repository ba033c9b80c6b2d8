"""Runs that have ended, and their form in the history. No I/O.

An entry of the stream has one field, ``r``, one line of text::

    1 <id> <task> <queue> <worker> <due> <promoted> <started> <ended> <state> <retries>
    <deliveries> <reason>

Fields are separated by one space. Times are in ms since 1970, ``-`` if unknown. Names are
percent-encoded. The reason is the rest of the line. ``1`` is the version of the format.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from celery import states
from celery.exceptions import Ignore, Reject, Retry

from celery_delayq.errors import InvalidCursor, InvalidFilter, RecordError
from celery_delayq.model.scheduled import moment
from celery_delayq.utils.numbers import is_integer
from celery_delayq.utils.text import described

logger = logging.getLogger(__name__)

#: Most characters of a reason; the rest is cut.
MAX_REASON_CHARACTERS = 200

#: The first offset, before all runs.
START_OFFSET = "0"

_PLAIN_TEXT = re.compile(r"[\w.:@-]+", re.ASCII).fullmatch
_OFFSET = re.compile(r"\d{1,19}(-\d{1,19})?", re.ASCII).fullmatch


class RunRecord(NamedTuple):
    """A run as Redis stores it; times are in ms since 1970, None if unknown."""

    id: str
    task: str
    queue: str
    worker: str
    due: int | None
    promoted: int | None
    started: int | None
    ended: int
    state: str
    retries: int
    deliveries: int
    reason: str = ""

    def pack(self) -> bytes:
        """Return the bytes to store."""
        id, task, queue, worker, due, promoted, started, *rest = self
        line = (
            f"1 {id if _PLAIN_TEXT(id) else _field(id)} {_names(task, queue, worker)} "
            f"{'-' if due is None else due} {'-' if promoted is None else promoted} "
            f"{'-' if started is None else started} {' '.join(map(str, rest))}"
        )
        return line.encode("utf-8", "backslashreplace")

    @classmethod
    def unpack(cls, data: bytes) -> RunRecord:
        """Read what :meth:`pack` wrote.

        Raises
        ------
        RecordError
            The bytes are no record of this version.
        """
        try:
            version, *rest = data.decode("utf-8", "replace").split(" ", 12)
            id, task, queue, worker, due, promoted, started, ended, state, *numbers, reason = rest
            retries, deliveries = map(int, numbers)
            if version == "1":
                id, task, queue, worker = map(unquote, (id, task, queue, worker))
                times = _time(due), _time(promoted), _time(started), int(ended)
                return cls(id, task, queue, worker, *times, state, retries, deliveries, reason)
        except ValueError:
            pass
        raise RecordError(f"unreadable run, it begins with {data[:60]!r}")


def id_field(id: str) -> bytes:
    """Return the id of a task as the records of its runs spell it."""
    return _field(id).encode("utf-8", "backslashreplace")


def _field(text: str) -> str:
    return text if _PLAIN_TEXT(text) else quote(text, errors="backslashreplace") or "%00"


@lru_cache(maxsize=1024)  # unlike ids, only a few names occur
def _names(*names: str) -> str:
    return " ".join(map(_field, names))


def _time(text: str) -> int | None:
    return None if text == "-" else int(text)


def reason_of(cause: Any) -> str:
    """Return an exception, or the reason of a ``Reject``, as one short line."""
    return " ".join(described(cause)[: 2 * MAX_REASON_CHARACTERS].split())[:MAX_REASON_CHARACTERS]


class Ending(NamedTuple):
    """How a run ended: a state of Celery, with the reason or ``""``."""

    state: str
    reason: str = ""

    @classmethod
    def of(cls, exc: BaseException) -> Ending:
        """Return the ending of a run that raised *exc*."""
        if isinstance(exc, Retry):
            return cls(states.RETRY, reason_of(exc.exc))
        if isinstance(exc, Reject):
            return cls(states.REJECTED, reason_of(exc.reason))
        if isinstance(exc, Ignore):
            return cls(states.IGNORED)
        return cls(states.FAILURE, reason_of(exc))


SUCCEEDED = Ending(states.SUCCESS)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a task that has ended; each attempt of a task is one run.

    Attributes
    ----------
    offset : str
        The place of the run in the history, from which reading continues.
    id, task, queue : str
        Id and name of the task, and its queue.
    worker : str
        The name of the worker node.
    due : datetime | None
        The ETA of the task; None without an ETA. All times are in UTC.
    promoted : datetime | None
        When the task became ready, by Redis' clock; None if unknown, or if the task was published
        to run at once.
    started, ended : datetime | None, datetime
        By the worker's clock; *started* is None if the task was revoked before its start.
    state : str
        ``SUCCESS``, ``FAILURE``, ``RETRY``, ``REJECTED``, ``REVOKED`` or ``IGNORED``.
    retries : int
        Number of retries before this run, as ``self.request.retries``.
    deliveries : int
        How often the message was delivered, this delivery included.
    reason : str
        The exception, or the reason of the revoke or reject: one line, at most 200 characters.
    """

    offset: str
    id: str
    task: str
    queue: str
    worker: str
    due: datetime | None
    promoted: datetime | None
    started: datetime | None
    ended: datetime
    state: str
    retries: int
    deliveries: int
    reason: str

    @classmethod
    def of(cls, offset: str, record: RunRecord) -> Run:
        """Return the run of a record."""
        due, promoted, started = (
            None if ms is None else moment(ms)
            for ms in (record.due, record.promoted, record.started)
        )
        return cls(offset, *record[:4], due, promoted, started, moment(record.ended), *record[8:])

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON types."""
        return {each.name: _as_json(getattr(self, each.name)) for each in fields(self)}


def _as_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def read_runs(entries: Iterable[tuple[str, bytes]]) -> Iterator[Run]:
    """Yield the runs of stream entries; unreadable entries are logged and left out."""
    for offset, data in entries:
        try:
            run = Run.of(offset, RunRecord.unpack(data))
        except RecordError as exc:
            logger.warning("Entry %s of the history is left out: %s", offset, exc)
        else:
            yield run


def place_of(offset: str) -> tuple[int, int]:
    """Return an offset as two numbers that can be compared: ms since 1970, and a count."""
    ms, _, number = offset.partition("-")
    return int(ms), int(number or 0)


def check_range(after: Any, count: Any) -> None:
    """Check the arguments of a read of the history.

    Raises
    ------
    InvalidCursor
        *after* is no offset.
    InvalidFilter
        *count* is neither None nor a number from 0.
    """
    if not isinstance(after, str) or not _OFFSET(after):
        raise InvalidCursor(
            f"after={after!r}: expected the offset of a run such as '1700000000000-0', or '0'"
        )
    if count is not None and not is_integer(count, 0):
        raise InvalidFilter(f"count={count!r}: expected a number of runs, or None for all")
