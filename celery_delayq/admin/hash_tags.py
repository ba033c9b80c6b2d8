"""Compares pauses, revokes and changes of limits in the hash tags of a Redis Cluster; finishes
interrupted calls.

A call writes to the tags one by one, first to the first tag. So the first tag always has the result
of the last call, even if the call was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

from celery_delayq.errors import CommandRefused
from celery_delayq.model.script_values import to_text
from celery_delayq.store.repair import MAX_EXAMPLES
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores, write_pause
from celery_delayq.utils.portions import batches

T = TypeVar("T")

#: Seconds between two comparisons. A difference that disappears comes from a call in progress.
SETTLE_SECONDS = 0.5

#: Attempts to write a pause. An attempt fails if the first tag changes meanwhile.
WRITE_ATTEMPTS = 3

#: Time before the expiry of a revoke in which a difference is ignored, in seconds. Each tag removes
#: the revoke at its own time.
REVOKE_EXPIRY_SECONDS = 60.0

#: Most revokes of one call.
REVOKE_BATCH = 100


class Unfinished(NamedTuple):
    """A pause, resume, revoke or change of a limit that is in some tags only, since a call was
    interrupted.

    *finish* finishes the call, and returns the number of pauses, revokes or limits that are then
    the same in all tags. It does not count those that a tag refuses, for example because a key has
    the wrong type, or that keep changing.
    """

    kind: str
    queue: str
    number: int
    examples: list[str]
    finish: Callable[[], int]


class Pause(NamedTuple):
    """A paused queue, or a task that is paused in all queues. The other field is None."""

    queue: str | None
    task: str | None


def unfinished(
    stores: Stores, revoke_expires: float, queue: str | None = None
) -> Iterator[Unfinished]:
    """Yield the pauses, revokes and changes of limits that are not in all tags; with *queue*, only
    its pause.

    Parameters
    ----------
    revoke_expires : float
        Seconds for which Redis remembers revokes.

    Raises
    ------
    CommandRefused
        A key of pauses, revokes or limits has the wrong type, or the account may not read it.
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
    limits = [] if queue is not None else _unfinished_limits(stores)
    if limits:
        examples = [unquote(name) for name in limits[:MAX_EXAMPLES]]
        finish = partial(_finish_limits, stores, limits)
        yield Unfinished("unfinished_limit", "", len(limits), examples, finish)


def _lasting(find: Callable[[], set[T]]) -> set[T]:
    """Return what *find* returns both now and a while later, when calls in progress have ended."""
    seen = find()
    if not seen:
        return seen
    time.sleep(SETTLE_SECONDS)
    return seen & find()


def _unfinished_pauses(stores: Stores, queue: str | None) -> Iterable[tuple[Pause, bool]]:
    """Return the pauses that are in some tags only, and for each whether the first tag has it."""
    lasting = _lasting(partial(_differing, stores, queue))
    first = _pauses(stores.common) if lasting else set()
    return [(pause, pause in first) for pause in sorted(lasting, key=str)]


def _finish_pause(stores: Stores, pause: Pause) -> int:
    """Write the state of the first tag to all other tags; return 1, or 0 on failure."""
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
    """Return the revokes that the first tag has and another tag lacks."""
    first, *others = stores
    since = first.now_ms() - int((seconds - min(REVOKE_EXPIRY_SECONDS, seconds / 2)) * 1000)
    found = (_lacked_by_any(others, some) for some, _ in first.control.revoked_members(since))
    seen = [member for some in found for member in some]
    if seen:
        time.sleep(SETTLE_SECONDS)
    return [
        member for some in batches(seen, REVOKE_BATCH) for member in _lacked_by_any(others, some)
    ]


def _finish_revokes(stores: Stores, seconds: float, members: list[bytes]) -> int:
    """Write revokes to all tags, with the full expiry time; return their number."""
    _, *others = stores
    finished = 0
    with suppress(CommandRefused):
        for some in batches(members, REVOKE_BATCH):
            for store in others:
                if lacking := store.control.missing_revoked_members(some):
                    store.control.add_revoked_members(seconds, lacking)
            finished += len(some)
    return finished


def _unfinished_limits(stores: Stores) -> list[str]:
    """Return the limits for which people have not set the same in all tags."""
    return sorted(_lasting(partial(_differing_limits, stores)))


def _differing_limits(stores: Stores) -> set[str]:
    found = [
        {(name, each.override) for name, each in its.items() if each.override}
        for its in (store.task_limits.definitions() for store in stores)
    ]
    return {name for name, _ in found[0].union(*found) - found[0].intersection(*found)}


def _finish_limits(stores: Stores, names: list[str]) -> int:
    """Write what the first tag has to all other tags; return the number of limits."""
    finished = 0
    with suppress(CommandRefused):
        for name in names:
            stores.follow_limit(name)
            finished += 1
    return finished


def _lacked_by_any(stores: list[Store], members: list[bytes]) -> list[bytes]:
    """Return the members that at least one store lacks, in the order of *members*."""
    lacking = {each for store in stores for each in store.control.missing_revoked_members(members)}
    return [member for member in members if member in lacking]
