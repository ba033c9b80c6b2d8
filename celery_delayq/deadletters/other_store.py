"""Replays to a queue of another store: the task is scheduled first, the dead letter deleted second.

If the process dies in between, both exist: the task may run once more, and is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_delayq.model.script_values import StatusCode, to_bytes
from celery_delayq.store.dead_letters import Replay, digest_of
from celery_delayq.store.keys import Layout
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores


def schedule_in_other_store(
    ask: Callable[[Callable[[Stores], Any]], Any],
    queue: str,
    to: str,
    layout: Layout,
    replays: Mapping[int, Replay],
    token: str,
) -> tuple[dict[int, Replay], dict[int, StatusCode]]:
    """Schedule the entries of dead letters in the store of another queue.

    Parameters
    ----------
    ask : Callable
        Calls a function with the stores; after a lost connection once more on new connections.
    queue, to : str
        The queue of the dead letters, and the queue in which their tasks will run.
    layout : Layout
        The layout of the queue *to*.
    replays : Mapping[int, Replay]
        The replays by the index of their dead letter.
    token : str
        Names this attempt: a repeated call with the same token schedules nothing twice.

    Returns
    -------
    tuple
        The replays whose dead letters are to be deleted now, and the status codes of the others.
    """
    ids = [to_bytes(each.id) for each in replays.values()]
    records = ask(lambda stores: stores.of(queue).dead_letters.read(queue, ids))
    there = {each.id: each for each in records}
    known: dict[int, StatusCode] = {}
    found: dict[int, Replay] = {}
    for place, each in replays.items():
        record = there.get(each.id)
        if record is None:
            known[place] = "u"
        elif each.died_ms not in (0, record.died_ms) or digest_of(record.data) != each.digest:
            known[place] = "c"
        else:
            found[place] = each
    if not found:
        return {}, known
    entries = [each.entry for each in found.values()]

    def schedule(stores: Stores) -> bytes:
        store = stores.of(to)
        # With the layout of that queue: another app may consume it with other priority steps.
        call = Store(store.client, store.keys, layout).import_call(to, entries, token, retry=True)
        reply: bytes = store.run(call)
        return reply

    codes: str = ask(schedule).decode()
    for (place, _), code in zip([*found.items()], codes, strict=True):
        if code == "E":  # another task has its unique key
            known[place] = "k"
            del found[place]
    return found, known
