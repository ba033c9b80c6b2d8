"""Has the child of a prefork worker pickle plain reports in the plain way.

A child reports twice for each task, when it begins and when it ends. billiard pickles each report
by a class that copies a table first, which takes longer than to send the report. Row
``fast-reports`` of the benchmark.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace

#: Classes of values that read the same, whichever way they are pickled.
_PLAIN_TYPES = frozenset((int, float, str, bool, type(None)))


def pickling_plainly(_owner: type, put: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``put`` of the queue of a child, for messages that both ways pickle alike."""

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
