"""A schedule with an entry of each kind; comparisons of two."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from tests.support.keyspace import snapshot

HOSTILE = (
    "with space",
    "new\nline",
    "{brace}:%00",
    "ünï☃ '\"\\",
    "nul\0inside",
    "x" * 10_000,
    "-",
)

FAR = datetime(2100, 1, 1, tzinfo=timezone.utc)


def state(delayq: DelayQ) -> dict[str, Any]:
    """Return all keys without wake-ups and names of processes, which earlier tests may leave."""
    found = snapshot(delayq.store.client)
    return {
        key: value
        for key, value in found.items()
        if not key.startswith(("_kombu.", "delayq:worker_id:")) and not key.endswith(":wake")
    }


def fill(app: Celery, count: int = 1200) -> None:
    """Schedule entries of every kind on three queues."""
    DelayQ.of(app).schedule_many(
        Item((n, []), eta=FAR, task=f"shop.{n % 4}", queue="abc"[n % 3], priority=n % 10)
        for n in range(count)
    )
    for n, id in enumerate(HOSTILE):
        app.send_task("shop.ü b", task_id=id, countdown=90_000 + n)
    for n in range(3):
        app.send_task("shop.duplicate", (n,), task_id="duplicate", countdown=3600 + n)
    app.send_task("shop.unique", (1,), countdown=3600, unique_key="key", on_conflict="replace")
    app.send_task("shop.late", countdown=3600, skip_after=60)
    app.send_task("shop.big", ({"n": 2**70, "empty": []},), eta=FAR)
