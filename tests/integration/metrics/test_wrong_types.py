"""A key of a wrong type takes down its own numbers of a scrape, and no others."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.metrics.catalogue import COUNTERS, STATES
from celery_delayq.model.history import RunRecord
from celery_delayq.store.keys import Keys
from celery_delayq.utils.once import warn_once
from tests.integration.metrics.conftest import Export, Exported

QUEUE = "mail"
_OWN = Keys().queue(QUEUE)

#: Each kind of key by its name.
KEYS = asdict(_OWN) | {
    "leased": _OWN.leased("me").decode(),
    "ready": QUEUE,
    "ready 9": f"{QUEUE}\x06\x169",
}
del KEYS["own"]
KEYS |= {name: key for name, key in vars(Keys()).items() if str(key).startswith("delayq:")}

#: A family, its queue and its state.
Series = tuple[str, str, str]

_COUNTERS = {(name, QUEUE, "") for name in (*COUNTERS, "dead_lettered")}
#: What is read of a queue at one moment.
_SIZES = {
    ("overdue_entries", QUEUE, ""),
    *(("entries", QUEUE, state) for state in STATES),
    *((name, QUEUE, "") for name in ("queue_paused", "leasing_processes")),
    *((f"{name}_seconds", QUEUE, "") for name in ("oldest_due_age", "next_due_timestamp")),
}
_LIMITS = {(f"limit_{name}", "", "") for name in ("held", "used", "allowed")}
_HELD = {("held_entries", QUEUE, "")}
_READY = {("ready_entries", QUEUE, "")}

#: What is missing where a kind of key is wrong; nothing where it is not here.
MISSING: dict[str, set[Series]] = {
    **dict.fromkeys(("due", "paused_due", "dead", "leases", "quarantined"), _SIZES | _COUNTERS),
    "held": _SIZES | _COUNTERS | _HELD,
    **dict.fromkeys(("limits", "permits"), _LIMITS | _HELD | {("held_entries", "celery", "")}),
    "lanes": _HELD,
    **dict.fromkeys(("slots", "freed_lanes"), _HELD | {("held_entries", "celery", "")}),
    **dict.fromkeys(("ready", "ready 9"), _SIZES | _COUNTERS | _READY),
    "leased": {("entries", QUEUE, "leased")},
    "totals": _COUNTERS,
    "tasks": {("scheduled_entries", QUEUE, "")},
    "periodic": {("periodic_entries", "", "")},
    "periodic_at": {("periodic_entries", "", "")},
    "ticks": {("ticks", "", "")},
    "clock": {("last_dispatch_timestamp_seconds", "", "")},
}
#: What is not read while it is wrong: the numbers of before stay, or those of nothing.
SILENT = {"history", "queues", "control"}


def series(exported: Exported) -> set[Series]:
    """Return what there is after a refresh."""
    exported.refresh()
    return {
        (name, each.labels.get("queue", ""), each.labels.get("state", ""))
        for family in parse(exported.text().decode())
        for name in [family.name.removeprefix("delayq_")]
        for each in family.samples
    }


def dumped(redis: Redis) -> dict[bytes, bytes]:
    return {key: redis.dump(key) for key in redis.scan_iter()}


def test_each_kind_of_key(
    delayq: DelayQ, redis: Redis, export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    for queue in (QUEUE, "celery"):
        delayq.app.send_task("t", queue=queue, countdown=60)
        delayq.app.send_task("t", queue=queue)
        delayq.app.send_task("t", queue=queue)
        delayq.store.leases.acquire(queue, "me", 30.0, "1", 1)
        redis.zadd(f"{{{queue}}}:held", {f"api:\0000\0{1:015d}\0id": 0})
        redis.zadd(f"{{{queue}}}:lanes", {"api:": 1})
    delayq.store.task_limits.announce({"api": "1 1 1 0", "other": "1 1 1 0"})
    delayq.periodic.add("tick", 3600, "t", (1, 2))
    redis.hset("delayq:clock", "dispatched", 5)
    redis.hset("delayq:ticks", mapping={"epoch": 5, "scheduled": 1})
    exported = export(delayq)
    exported.refresh()
    run = RunRecord("id", "t", "celery", "w", 1000, 1010, 1500, 3500, "SUCCESS", 0, 1)
    redis.xadd("delayq:history", {"r": run.pack()})
    there, before = dumped(redis), series(exported)
    assert before >= set().union(*MISSING.values())

    found, logged = {}, {}
    for kind, key in KEYS.items():
        kept = redis.dump(key)
        redis.set(key, "of somebody else")
        missing = [before - series(exported) for _ in range(2)]
        assert missing[0] == missing[1]
        found[kind], logged[kind] = missing[0], [*caplog.messages]
        caplog.clear()
        redis.delete(key)
        if kept:
            redis.restore(key, 0, kept)

    assert {kind: lost for kind, lost in found.items() if lost} == MISSING
    assert {kind for kind, said in logged.items() if said} == {*MISSING, *SILENT}
    assert all(len(said) == len({*said}) for said in logged.values())
    assert series(exported) == before
    assert dumped(redis) == there
