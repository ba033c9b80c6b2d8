"""Compare the pauses of all hash tags of a Redis Cluster, and finish interrupted calls.

A call writes a pause, or its end, to one tag after the other. The first tag comes first, so it has
what the last call was to write to all. That holds for an interrupted pause and an interrupted
resume.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import NamedTuple

from celery_delayq.errors import CommandRefused
from celery_delayq.store.schedule import Store
from celery_delayq.store.shards import Shards, write_pause

#: Seconds between two looks at a difference: a call may be writing.
SETTLE = 0.5

#: How often to write again because the first tag has changed meanwhile.
TRIES = 3


class Pause(NamedTuple):
    """What is paused: a queue, or a task in all queues. One of the two is None."""

    queue: str | None
    task: str | None


class Unfinished(NamedTuple):
    """A pause that is in some tags only; *pausing* says whether it is in the first one."""

    pause: Pause
    pausing: bool

    @property
    def kind(self) -> str:
        """The kind of the finding."""
        return "unfinished_pause" if self.pausing else "unfinished_resume"

    @property
    def name(self) -> str:
        """The queue or the task."""
        return self.pause.queue or self.pause.task or ""


def unfinished_pauses(shards: Shards, queue: str | None = None) -> list[Unfinished]:
    """Return the pauses that are in some tags only: all, or that of a queue.

    None where a key of pauses has the wrong type, which is a finding of its own.
    """
    try:
        if shards.has_one or not (seen := _differing(shards, queue)):
            return []
        time.sleep(SETTLE)
        still = seen & _differing(shards, queue)
        first = _pauses(shards.first)
    except CommandRefused:
        return []
    return [Unfinished(pause, pause in first) for pause in sorted(still, key=str)]


def finish_pause(shards: Shards, pause: Pause) -> bool:
    """Have all tags agree with the first one.

    False where that changes again and again, or a tag refuses it, as for a key of the wrong type.
    """
    first, *others = shards
    with suppress(CommandRefused):
        for _ in range(TRIES):
            pausing = pause in _pauses(first)
            for store in others:
                write_pause(store, *pause, resume=not pausing)
            if pausing is (pause in _pauses(first)):
                return True
    return False


def _differing(shards: Shards, queue: str | None) -> set[Pause]:
    found = [_pauses(store) for store in shards]
    differing = found[0].union(*found) - found[0].intersection(*found)
    return {pause for pause in differing if queue in (None, pause.queue)}


def _pauses(store: Store) -> set[Pause]:
    found = store.control.controls()
    return {*(Pause(name, None) for name in found.queues), *(Pause(None, t) for t in found.tasks)}
