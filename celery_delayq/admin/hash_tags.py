"""Compare the pauses and revokes of all hash tags of a Redis Cluster, and finish interrupted calls.

A call writes a pause, its end or a revoke to one tag after the other. The first tag comes first, so
it has what the last call was to write to all, also where the call was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from celery_delayq.errors import CommandRefused
from celery_delayq.model.lookup import to_text
from celery_delayq.store.repair import MAX_EXAMPLES
from celery_delayq.store.schedule import Store
from celery_delayq.store.stores import Stores, write_pause
from celery_delayq.utils.portions import batches

#: Seconds between two looks at a difference: a call may be writing.
SETTLE_SECONDS = 0.5

#: How often to write again because the first tag has changed meanwhile.
WRITE_ATTEMPTS = 3

#: Seconds before a revoke is forgotten in which tags may differ: each forgets at its own time.
REVOKE_EXPIRY_SECONDS = 60.0

#: Most revokes that are written by one call.
REVOKE_BATCH = 100


class Unfinished(NamedTuple):
    """What an interrupted call wrote to some tags only, and the function that finishes the call.

    *finish* returns how many pauses or revokes are in all tags afterwards. It does not count those
    that a tag refuses, for example because a key has the wrong type, or that keep changing.
    """

    kind: str
    queue: str
    number: int
    examples: list[str]
    finish: Callable[[], int]


class Pause(NamedTuple):
    """A paused queue, or a task that is paused in all queues; the other is None."""

    queue: str | None
    task: str | None


def unfinished(
    stores: Stores, revoke_expires: float, queue: str | None = None
) -> Iterator[Unfinished]:
    """Yield the pauses and revokes that are in some tags only, or only the pause of one queue.

    Parameters
    ----------
    revoke_expires : float
        Seconds for which revokes are remembered.

    Raises
    ------
    CommandRefused
        A key of pauses or revokes has the wrong type, or the account may not read it.
    """
    if stores.has_one:
        return
    for pause, pausing in _unfinished_pauses(stores, queue):
        kind = "unfinished_pause" if pausing else "unfinished_resume"
        examples = [pause.queue or pause.task or ""]
        finish = partial(_finish_pause, stores, pause)
        yield Unfinished(kind, pause.queue or "", 1, examples, finish)
    lacking = [] if queue is not None else _unfinished_revokes(stores, revoke_expires)
    if lacking:
        examples = [to_text(member[1:]) for member in lacking[:MAX_EXAMPLES]]
        finish = partial(_finish_revokes, stores, revoke_expires, lacking)
        yield Unfinished("unfinished_revoke", "", len(lacking), examples, finish)


def _unfinished_pauses(stores: Stores, queue: str | None) -> Iterable[tuple[Pause, bool]]:
    """Return the pauses that are in some tags only, and whether they are in the first one."""
    if not (seen := _differing(stores, queue)):
        return []
    time.sleep(SETTLE_SECONDS)
    still = seen & _differing(stores, queue)
    first = _pauses(stores.common)
    return [(pause, pause in first) for pause in sorted(still, key=str)]


def _finish_pause(stores: Stores, pause: Pause) -> int:
    """Have all tags agree with the first one."""
    first, *others = stores
    with suppress(CommandRefused):
        for _ in range(WRITE_ATTEMPTS):
            pausing = pause in _pauses(first)
            for store in others:
                write_pause(store, *pause, resume=not pausing)
            if pausing is (pause in _pauses(first)):
                return 1
    return 0


def _differing(stores: Stores, queue: str | None) -> set[Pause]:
    found = [_pauses(store) for store in stores]
    differing = found[0].union(*found) - found[0].intersection(*found)
    return {pause for pause in differing if queue in (None, pause.queue)}


def _pauses(store: Store) -> set[Pause]:
    found = store.control.controls()
    return {*(Pause(name, None) for name in found.queues), *(Pause(None, t) for t in found.tasks)}


def _unfinished_revokes(stores: Stores, seconds: float) -> list[bytes]:
    """Return the revokes that the first tag remembers and another tag does not."""
    first, *others = stores
    since = first.now_ms() - int((seconds - min(REVOKE_EXPIRY_SECONDS, seconds / 2)) * 1000)
    found = (_lacking(others, some) for some, _ in first.control.revoked_members(since))
    seen = [member for some in found for member in some]
    if seen:
        time.sleep(SETTLE_SECONDS)
    return [member for some in batches(seen, REVOKE_BATCH) for member in _lacking(others, some)]


def _finish_revokes(stores: Stores, seconds: float, members: list[bytes]) -> int:
    """Write revokes to all tags, for the full expiry; return how many were written."""
    _, *others = stores
    finished = 0
    with suppress(CommandRefused):
        for some in batches(members, REVOKE_BATCH):
            for store in others:
                if lacking := store.control.not_remembered(some):
                    store.control.remember_revoked(seconds, lacking)
            finished += len(some)
    return finished


def _lacking(stores: list[Store], members: list[bytes]) -> list[bytes]:
    """Return the members that at least one of the stores does not remember, in their order."""
    lacking = {each for store in stores for each in store.control.not_remembered(members)}
    return [member for member in members if member in lacking]
