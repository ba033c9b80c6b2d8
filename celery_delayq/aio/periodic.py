"""Periodic entries for asyncio: the methods of the sync client, run in a thread."""

from __future__ import annotations

from typing import Any

from celery_delayq.aio.calls import in_thread, iterated
from celery_delayq.periodic.client import PeriodicTasks
from celery_delayq.utils.delegation import method_of


class AsyncPeriodicTasks:
    """The periodic entries, with the methods of ``delayq.periodic``."""

    def __init__(self, client: Any) -> None:
        self._bound = client._bound

    add = in_thread(method_of("periodic", PeriodicTasks.add))
    update = in_thread(method_of("periodic", PeriodicTasks.update))
    remove = in_thread(method_of("periodic", PeriodicTasks.remove))
    pause = in_thread(method_of("periodic", PeriodicTasks.pause))
    resume = in_thread(method_of("periodic", PeriodicTasks.resume))
    run_now = in_thread(method_of("periodic", PeriodicTasks.run_now))
    get = in_thread(method_of("periodic", PeriodicTasks.get))
    list = in_thread(method_of("periodic", PeriodicTasks.list))
    iterate = iterated(method_of("periodic", PeriodicTasks.iterate))
    unreadable = in_thread(method_of("periodic", PeriodicTasks.unreadable))
    next = in_thread(method_of("periodic", PeriodicTasks.next))
