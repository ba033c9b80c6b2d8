"""Make keys contradict each other, and read the findings of ``fsck``."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import quote

from celery_delayq.admin.findings import Finding, Report
from celery_delayq.admin.repair import check
from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from tests.support.keyspace import snapshot

FAR = 4_000_000_000_000
SETTINGS = Settings(lease=30.0)


def schedule(store: Store, *ids: str, queue: str = "q", task: str = "t") -> None:
    """Schedule entries, each one millisecond after the earlier one."""
    for number, id in enumerate(ids):
        record = Record(0, f"n-{id}", task, b'{"id": "%s"}' % id.encode())
        store.schedule(queue, Entry(id, Due(FAR + number), 0, record.pack()))


def labelled(
    id: str, message_id: str = "", *, task: str = "t", unique: str = "", due: int = FAR
) -> Entry:
    """Return an entry as :class:`~celery_delayq.DelayQ` sends it.

    *unique* is a unique key behind the character of its scope. The entry replaces the owner of the
    key.
    """
    own: dict[str, Any] = {"message_id": message_id or f"n-{quote(id)}"}
    if unique:
        own["unique"] = {"key": unique, "policy": "replace"}
    message = {
        "body": "",
        "headers": {"id": id, "task": task, "eta": None},
        "properties": {"delivery_tag": "tag", "delayq": own},
    }
    return Entry.of(message, 0, Due(due))


def put(store: Store, *entries: Entry, queue: str = "q") -> None:
    """Publish entries in one call."""
    call = store.schedule_call(queue)
    for entry in entries:
        call.add(entry)
    store.run(call)


def pause_due(store: Store, *ids: str, task: str = "t") -> None:
    """Pause a task with entries that are due, from 5 ms on."""
    put(store, *(labelled(id, task=task) for id in ids))
    for number, id in enumerate(ids):
        store.client.zadd("{q}:due", {id: 5 + number})
        store.client.zrem("{q}:tasks", f"{task}\0{FAR:015}\0{id}")
        store.client.zadd("{q}:tasks", {f"{task}\0{5 + number:015}\0{id}": 0})
    store.control.pause(["q"], task=task)
    store.promote("q", Layout(), 1000)


def lease(store: Store, *ids: str, worker_id: str = "me", queue: str = "q") -> None:
    """Let a process lease messages."""
    call = store.ready_call(queue)
    for id in ids:
        call.add(0, id.encode())
    store.run(call)
    store.register(queue)
    store.leases.acquire(queue, worker_id, 30.0, "1", len(ids), has_limits=True)


def look(store: Store, *, repair: bool = False, queue: str | None = None) -> Report:
    """Run ``fsck`` to its end."""
    return list(check(Stores.single(store), SETTINGS, queue=queue, repair=repair))[-1]


def by_kind(report: Report) -> dict[str, Finding]:
    """Return the findings of one queue by their kind."""
    return {finding.kind: finding for finding in report.findings}


def numbers(report: Report) -> dict[str, int]:
    """Return the number of findings of each kind, in all queues."""
    found: Counter[str] = Counter()
    for finding in report.findings:
        found[finding.kind] += finding.found
    return dict(found)


def repaired(store: Store, **found: int) -> dict[str, Any]:
    """Check that exactly these drifts are found and repaired; return the state after the repair.

    Also checks that looking changes nothing, and that a repair leaves nothing to find or repair.
    """
    before = snapshot(store.client)
    assert numbers(look(store)) == found
    assert snapshot(store.client) == before

    report = look(store, repair=True)
    assert numbers(report) == found
    assert [finding.kind for finding in report.findings if finding.repaired < finding.found] == []
    after = snapshot(store.client)

    assert numbers(look(store)) == {}
    assert numbers(look(store, repair=True)) == {}
    assert snapshot(store.client) == after
    return after
