"""Checks of the names of queues and tasks."""

from __future__ import annotations

import re
from typing import Any

from celery_delayq.errors import InvalidFilter

#: What errors expect instead of a text that is not :func:`is_utf8`.
UTF8_TEXT = "a text that UTF-8 can hold, without lone surrogates"

#: What errors expect instead of a queue whose ready list :func:`is_own_key`.
OWN_KEY_TEXT = (
    "another name, the list of that queue would be a key of celery_delayq: those begin with "
    "'delayq:', or are '{…}:due' and the like"
)

#: What follows ``{queue}:`` in the keys of a queue (``store.keys.QueueKeys``).
QUEUE_KEYS = frozenset(
    {
        *("answer", "dead", "dead_at", "deliveries", "due", "duplicate_ids", "entries"),
        *("leased", "leased_index", "leases", "moved", "moved_before", "pace", "paused_due"),
        *("quarantine_turn", "quarantined", "readers", "ready_index", "request_numbers", "tasks"),
        *("totals", "unique", "wake"),
    }
)

_OF_QUEUE = re.compile(r"\{.*\}:(\w+)(:.*)?", re.DOTALL)


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode a text; UTF-8 cannot encode lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_own_key(queue: str) -> bool:
    """Return whether the ready list of a queue would be one of our own keys.

    The ready list of a queue has the queue's name.
    """
    match = _OF_QUEUE.fullmatch(queue)
    return queue.startswith("delayq:") or (match is not None and match[1] in QUEUE_KEYS)


def check_name(field: str, name: Any, *, as_key: bool = True) -> None:
    """Check the name of a queue or task; None is valid.

    Parameters
    ----------
    as_key : bool
        Whether the name is part of a key in Redis.

    Raises
    ------
    InvalidFilter
        The name is empty or no text, or no key can hold the name.
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidFilter(f"{field}={name!r}: expected a name, or None for any")
    if as_key and name is not None and not is_utf8(name):
        raise InvalidFilter(f"{field}={name!r}: expected {UTF8_TEXT}")
    if field == "queue" and name is not None and is_own_key(name):
        raise InvalidFilter(f"queue={name!r}: expected {OWN_KEY_TEXT}")
