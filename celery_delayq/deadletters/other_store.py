"""Replays to a queue of another store: schedule first, then delete the dead letter.

A process that dies in between leaves both, so the task may run once more, and is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_delayq.model.lookup import StatusCode, to_bytes
from celery_delayq.store.dead_letters import Replay
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
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
        Calls a function with the stores, once more on new connections when a server is gone.
    queue, to : str
        Where the dead letters are, and where their tasks are to run.
    layout : Layout
        That of the queue *to*.
    replays : Mapping[int, Replay]
        The dead letters by their place.
    token : str
        Names this attempt: asked again with it, nothing is scheduled twice.

    Returns
    -------
    tuple
        The dead letters that are to be deleted now, and the status codes of all others.
    """
    if not replays:
        return {}, {}
    ids = [to_bytes(each.id) for each in replays.values()]
    there = ask(lambda stores: stores.of(queue).dead_letters.read(queue, ids))
    died = {each.id: each.died_ms for each in there}
    known: dict[int, StatusCode] = {}
    found: dict[int, Replay] = {}
    for place, each in replays.items():
        if each.id not in died:
            known[place] = "u"
        elif each.died_ms and died[each.id] != each.died_ms:
            known[place] = "c"
        else:
            found[place] = each
    if not found:
        return {}, known
    entries = [each.entry for each in found.values()]

    def schedule(stores: Stores) -> bytes:
        store = stores.of(to)
        # By the layout of that queue, which other apps may consume.
        call = Store(store.client, store.keys, layout).import_call(to, entries, token, retry=True)
        reply: bytes = store.run(call)
        return reply

    codes: str = ask(schedule).decode()
    for (place, _), code in zip([*found.items()], codes, strict=True):
        if code == "E":  # another task has its unique key
            known[place] = "k"
            del found[place]
    return found, known
