"""Put keys out of step by hand, and look what ``fsck`` finds of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from celery_delayq.conf import Settings
from celery_delayq.fsck import Finding, Report, check
from celery_delayq.message import Due, Entry, Record
from celery_delayq.store import Store
from tests.support.keyspace import snapshot

FAR = 4_000_000_000_000
SETTINGS = Settings(lease=30.0)


def schedule(store: Store, *ids: str, queue: str = "q", task: str = "t") -> None:
    """Schedule one entry after the other, a millisecond apart."""
    for number, id in enumerate(ids):
        record = Record(0, f"n-{id}", task, b'{"id": "%s"}' % id.encode())
        store.schedule(queue, Entry(id, Due(FAR + number), 0, record.pack()))


def lease(store: Store, *ids: str, incarnation: str = "me", queue: str = "q") -> None:
    """Let a process hold messages."""
    call = store.ready_call(queue)
    for id in ids:
        call.add(0, id.encode())
    store.run(call)
    store.register(queue)
    store.leases.reserve(queue, incarnation, 30.0, "1", len(ids))


def look(store: Store, *, repair: bool = False, queue: str | None = None) -> Report:
    """Run ``fsck`` to its end."""
    return list(check(store, SETTINGS, queue=queue, repair=repair))[-1]


def by_kind(report: Report) -> dict[str, Finding]:
    """Return the findings of one queue by their kind."""
    return {finding.kind: finding for finding in report.findings}


def numbers(report: Report) -> dict[str, int]:
    """Return how much was found of each kind, in all queues."""
    found: Counter[str] = Counter()
    for finding in report.findings:
        found[finding.kind] += finding.found
    return dict(found)


def mended(store: Store, **found: int) -> dict[str, Any]:
    """Check that just this is found and repaired, and return the state after that.

    Looking changes nothing, and a repair leaves nothing to find and nothing to repair.
    """
    before = snapshot(store.client)
    assert numbers(look(store)) == found
    assert snapshot(store.client) == before

    report = look(store, repair=True)
    assert numbers(report) == found
    assert [finding.kind for finding in report.findings if finding.left] == []
    after = snapshot(store.client)

    assert numbers(look(store)) == {}
    assert numbers(look(store, repair=True)) == {}
    assert snapshot(store.client) == after
    return after
