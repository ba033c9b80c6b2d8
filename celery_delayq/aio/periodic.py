"""Periodic entries for asyncio: the methods of the sync client, run in a thread."""

from __future__ import annotations

from typing import Any

from celery_delayq.aio.calls import in_thread, iterated
from celery_delayq.periodic.client import PeriodicTasks
from celery_delayq.utils.delegation import delegate


class AsyncPeriodicTasks:
    """The periodic entries, with the methods of ``delayq.periodic``."""

    def __init__(self, client: Any) -> None:
        self._bound = client._bound

    add = in_thread(delegate("periodic", PeriodicTasks.add))
    update = in_thread(delegate("periodic", PeriodicTasks.update))
    remove = in_thread(delegate("periodic", PeriodicTasks.remove))
    pause = in_thread(delegate("periodic", PeriodicTasks.pause))
    resume = in_thread(delegate("periodic", PeriodicTasks.resume))
    run_now = in_thread(delegate("periodic", PeriodicTasks.run_now))
    get = in_thread(delegate("periodic", PeriodicTasks.get))
    list = in_thread(delegate("periodic", PeriodicTasks.list))
    iterate = iterated(delegate("periodic", PeriodicTasks.iterate))
    unreadable = in_thread(delegate("periodic", PeriodicTasks.unreadable))
    next = in_thread(delegate("periodic", PeriodicTasks.next))
