"""To pause, to let go on, and to have something that is due meanwhile."""

from __future__ import annotations

from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import QUEUE, become_due, labelled, put


def pause(store: Store, *, queue: str | None = None, task: str | None = "tasks.t") -> bool:
    return store.control.pause([], queue=queue, task=None if queue else task)


def resume(store: Store, *, queue: str | None = None, task: str | None = "tasks.t") -> bool:
    task = None if queue else task
    return store.control.pause([QUEUE], queue=queue, task=task, resume=True)


def promote(store: Store, limit: int = 100) -> int:
    return store.promote(QUEUE, Layout(), limit).moved


def overdue(store: Store, *ids: str, due_ms: int = 1, task: str = "tasks.t") -> None:
    for n, id in enumerate(ids):
        put(store, labelled(id, task=task))
        become_due(store, id, due_ms + n)
