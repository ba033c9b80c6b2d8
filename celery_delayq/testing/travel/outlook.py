"""Reads what is due now, what is ready, and what is due next, in one round trip."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from celery_delayq.model.script_values import to_text
from celery_delayq.store.keys import queue_name
from celery_delayq.store.store import Store

#: Time until the next look while a quarantined message waits, in ms.
QUARANTINE_LOOK_MS = 1000


class Outlook(NamedTuple):
    """What there is to do at one moment.

    Attributes
    ----------
    due : list[str]
        Queues whose schedule is worth a look.
    ready : dict[str, int]
        By queue: the number of messages that may be ready.
    has_due_tick : bool
        Whether a periodic entry is worth a look.
    next_ms : int | None
        The next moment at which something is due, in ms since 1970; None for none.
    queues : list[str]
        The registered queues.
    """

    due: list[str]
    ready: dict[str, int]
    has_due_tick: bool
    next_ms: int | None
    queues: list[str]


def look(
    store: Store, queues: Sequence[str], now_ms: int, failing_entries: Collection[str] = ()
) -> Outlook:
    """Return what there is to do.

    Parameters
    ----------
    queues : Sequence[str]
        The queues to read.
    failing_entries : Collection[str]
        Periodic entries that are left out, since they cannot be fired.
    """
    keys, lists = store.keys, {}
    with store.client.pipeline(transaction=False) as pipe:
        pipe.zrangebyscore(keys.next_due, "-inf", now_ms)
        pipe.zrangebyscore(keys.next_due, f"({now_ms}", "+inf", 0, 1, withscores=True)
        pipe.zrange(keys.periodic_at, 0, len(failing_entries) + 1, withscores=True)
        pipe.hkeys(keys.queues)
        for queue in queues:
            key = keys.queue(queue)
            lists[queue] = [*keys.ready_lists(queue, store.layout), key.quarantined]
            for each in lists[queue]:
                pipe.llen(each)
            pipe.zcount(key.lanes, "-inf", now_ms * 1000)
        found: list[Any] = pipe.execute()
    due, following, entries, registered, *sizes = found
    moments = [int(at) for _, at in following]
    ticks = [int(at) for name, at in entries if to_text(name) not in failing_entries]
    moments += [at for at in ticks if at > now_ms][:1]
    ready, place = {}, 0
    for queue in queues:
        *lengths, lanes = sizes[place : place + len(lists[queue]) + 1]
        place += len(lists[queue]) + 1
        if any(lengths) or lanes:
            ready[queue] = sum(lengths) + lanes
        if lengths[-1]:
            moments.append(now_ms + QUARANTINE_LOOK_MS)
    return Outlook(
        _queues(due),
        ready,
        any(at <= now_ms for at in ticks),
        min(moments, default=None),
        _queues(registered),
    )


def _queues(names: Iterable[bytes]) -> list[str]:
    """Return the names that are those of queues: other programs may write to the keys."""
    return [name for each in names if (name := queue_name(each)) is not None]
