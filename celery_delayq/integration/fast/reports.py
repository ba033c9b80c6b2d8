"""Have the child of a prefork worker pickle plain reports with the standard pickler.

A child sends two reports for each task: at its begin and at its end. billiard pickles each report
with a class that copies a table first. This takes longer than sending the report. Benchmark row:
``fast-reports``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace

#: Types whose values are read back equal from either pickler.
_PLAIN_TYPES = frozenset((int, float, str, bool, type(None)))


def pickling_plainly(_owner: type, put: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``put`` of a child's queue, for messages that both picklers write alike."""

    def put_plainly(queue: Any, message: Any) -> None:
        if _is_plain(message):
            queue.send_payload(pickle.dumps(message))
        else:
            put(queue, message)

    return put_plainly


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in _PLAIN_TYPES or (kind is tuple and all(map(_is_plain, value)))


GROUP = Group(
    name="reports",
    worker=(
        Replace(
            target="billiard.queues:_SimpleQueue.put",
            by=pickling_plainly,
            why="a child takes longer to pickle what it reports than to send it",
        ),
    ),
    upstream="billiard: have `ForkingPickler` build its dispatch table once, when a reducer is "
    "registered, not for each object that is pickled.",
)
