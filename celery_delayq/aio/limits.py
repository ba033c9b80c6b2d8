"""Limits for asyncio: the methods of the sync client, run in a thread."""

from __future__ import annotations

from typing import Any

from celery_delayq.aio.calls import in_thread
from celery_delayq.limits.client import TaskLimits
from celery_delayq.utils.delegation import method_of


class AsyncTaskLimits:
    """The limits of tasks, with the methods of ``delayq.limits``."""

    def __init__(self, client: Any) -> None:
        self._bound = client._bound

    list = in_thread(method_of("limits", TaskLimits.list))
    get = in_thread(method_of("limits", TaskLimits.get))
    set = in_thread(method_of("limits", TaskLimits.set))
    unset = in_thread(method_of("limits", TaskLimits.unset))
    ahead = in_thread(method_of("limits", TaskLimits.ahead))
    lanes = in_thread(method_of("limits", TaskLimits.lanes))
