"""What the exporter tells of queues in Redis."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.metrics.catalogue import METRICS
from celery_delayq.model.history import RunRecord
from celery_delayq.store.store import Store
from tests.integration.conftest import MakeApp
from tests.integration.metrics.conftest import Export, values_of


def states(values: dict[Any, float]) -> dict[tuple[str, str], float]:
    return {key[1:]: value for key, value in values.items() if value}


def test_each_entry_is_in_one_state(add: Any, delayq: DelayQ, redis: Redis, export: Export) -> None:
    for _ in range(3):
        add.apply_async((1, 2), countdown=60)
        add.apply_async((1, 2), queue="mail", countdown=60)
    for _ in range(2):
        add.delay(1, 2)
    add.apply_async((1, 2), task_id="due", countdown=60)
    delayq.run_now("due")
    delayq.pause(queue="mail")
    redis.zadd("{mail}:due", dict.fromkeys(redis.zrange("{mail}:due", 0, -1), 5))
    delayq.store.dead_letters.add("celery", "dead", "why", b"{}")
    delayq.store.leases.acquire("celery", "me", 30.0, "1", 1)

    exported = export(delayq)

    assert states(exported.now("entries")) == {
        ("celery", "scheduled"): 3,
        ("celery", "ready"): 2,
        ("celery", "leased"): 1,
        ("celery", "dead"): 1,
        ("mail", "paused"): 3,
    }
    gauges = exported.now(
        *("queue_paused", "leasing_processes", "overdue_entries", "oldest_due_age_seconds")
    )
    assert {key for key, value in gauges.items() if value} == {
        ("delayq_queue_paused", "mail"),
        ("delayq_leasing_processes", "celery"),
    }


def test_what_is_due_and_waits_has_an_age(
    add: Any, delayq: DelayQ, store: Store, export: Export
) -> None:
    now = store.now_ms()
    add.apply_async((1, 2), countdown=0.001)
    add.apply_async((1, 2), countdown=60)
    add.apply_async((1, 2), queue="mail", countdown=0.001)
    store.client.zadd("{celery}:due", {store.client.zrange("{celery}:due", 0, 0)[0]: now - 5000})
    store.client.zadd("{mail}:due", {store.client.zrange("{mail}:due", 0, 0)[0]: now - 7000})
    exported = export(delayq)

    overdue = exported.now("overdue_entries")
    ages = exported.now("oldest_due_age_seconds", "next_due_timestamp_seconds")

    assert overdue == {
        ("delayq_overdue_entries", "celery"): 1,
        ("delayq_overdue_entries", "mail"): 1,
    }
    assert ages["delayq_oldest_due_age_seconds", "celery"] == pytest.approx(5, abs=2)
    assert ages["delayq_next_due_timestamp_seconds", "mail"] == (now - 7000) / 1000

    store.promote("mail", store.layout, 10)

    ages = exported.now("oldest_due_age_seconds", "next_due_timestamp_seconds")
    assert ages["delayq_oldest_due_age_seconds", "mail"] == pytest.approx(7, abs=2)
    assert ("delayq_next_due_timestamp_seconds", "mail") not in ages


def test_entries_by_task_of_the_largest_tasks(delayq: DelayQ, redis: Redis, export: Export) -> None:
    send = delayq.app.send_task
    for number in range(9):
        send(f"t{number % 3}", countdown=60)
    for _ in range(7):
        send("t1")
    send('hostile "\n\\}', queue="mail", countdown=60)
    send("rare", queue="mail")
    redis.lpush("mail", b"\xff not JSON")

    found = export(delayq, tasks=2).all("scheduled_entries", "ready_entries")

    assert found == {
        ("delayq_scheduled_entries", "celery", "t1"): 3,
        ("delayq_scheduled_entries", "celery", "t0"): 3,
        ("delayq_scheduled_entries", "celery", "other"): 3,
        ("delayq_scheduled_entries", "mail", "other"): 1,
        ("delayq_ready_entries", "celery", "t1"): 7,
        ("delayq_ready_entries", "mail", "other"): 2,
    }


def test_ten_thousand_tasks(delayq: DelayQ, redis: Redis, export: Export) -> None:
    members = {f"task{number}\0{5:015d}\0{number}": 0.0 for number in range(10_000)}
    redis.zadd("{celery}:tasks", {**members, f"task7\0{6:015d}\0more": 0.0})

    found = export(delayq).all("scheduled_entries")

    assert len(found) == 201
    assert found["delayq_scheduled_entries", "celery", "task7"] == 2
    assert sum(found.values()) == 10_001


def test_ready_by_task_is_an_estimate_of_many(delayq: DelayQ, redis: Redis, export: Export) -> None:
    def message(task: str) -> str:
        return json.dumps({"body": "", "headers": {"task": task}})

    redis.lpush("celery", *[message("a" if place % 4 else "b") for place in range(20_000)])

    found = export(delayq).all("ready_entries")

    assert sum(found.values()) == 20_000
    assert found["delayq_ready_entries", "celery", "b"] == pytest.approx(5000, rel=0.1)


def test_limits_and_what_waits_for_workers(delayq: DelayQ, redis: Redis, export: Export) -> None:
    """Of a lane with one permit of two, one may go; of one without, none; of others, all."""
    exported = export(delayq)
    assert exported.all("held_entries", "limit_held", "limit_used", "limit_allowed") == {}
    limit, free = Limit("a b", concurrency=2, key="{0}", fair=True), Limit("free", fair=True)
    add = delayq.app.tasks["tasks.add"]
    delayq.store.task_limits.announce({"a%20b": limit.definition.text, "free": "0 1 0 1"})
    for queue in ("celery", "mail"):
        delayq.store.register(queue)
    add.acks_late, add.limit = True, limit
    for customer in (1, 1, 1, 2, 2):
        add.apply_async((customer, 2))
    redis.zadd("delayq:permits", {f"a%20b:{n // 2 + 1}\0celery\0{n}\0m": 0 for n in (1, 2, 3)})
    add.limit = free
    add.apply_async((1, 2), queue="mail")

    assert exported.all("held_entries", "limit_held", "limit_used", "limit_allowed") == {
        ("delayq_held_entries", "celery", "worker"): 1,
        ("delayq_held_entries", "celery", "limit"): 4,
        ("delayq_held_entries", "mail", "worker"): 1,
        ("delayq_held_entries", "mail", "limit"): 0,
        ("delayq_limit_held", "a b"): 5,
        ("delayq_limit_held", "free"): 1,
        ("delayq_limit_used", "a b"): 3,
        ("delayq_limit_used", "free"): 0,
        ("delayq_limit_allowed", "a b"): 2,
    }
    assert states(exported.now("entries")) == {("celery", "held"): 5, ("mail", "held"): 1}
    assert set(exported.now("overdue_entries").values()) == {0}
    # A permit came back, and no worker has tried the lane since.
    redis.zadd("{celery}:lanes", {"a%20b:1": "+inf", "a%20b:2": "+inf"})
    redis.delete("delayq:permits")
    redis.zadd("delayq:freed_lanes", {"celery\0a%20b:1": 0})
    assert exported.all("held_entries")["delayq_held_entries", "celery", "worker"] == 2


def test_what_many_lanes_may_do_is_estimated(delayq: DelayQ, redis: Redis, export: Export) -> None:
    delayq.store.task_limits.announce({"many": "0 1 1 0"})
    delayq.store.register("celery")
    lanes = [f"many:{number}" for number in range(2000)]
    redis.zadd("{celery}:held", {f"{lane}\0000\0{1:015d}\0{n}": 0 for lane in lanes for n in "ab"})
    redis.zadd("{celery}:lanes", dict.fromkeys(lanes, 1))

    found = export(delayq).all("held_entries")

    assert found == {
        ("delayq_held_entries", "celery", "worker"): 2000,
        ("delayq_held_entries", "celery", "limit"): 2000,
    }


def test_periodic_entries_by_status(delayq: DelayQ, redis: Redis, export: Export) -> None:
    for name in ("on", "late", "paused"):
        delayq.periodic.add(name, 3600, "tasks.add", (1, 2))
    delayq.periodic.pause("paused")
    redis.zadd("delayq:periodic_at", {"late": 5})
    redis.hset("delayq:periodic", "odd", b"\xff")

    found = export(delayq).all("periodic_entries")

    assert {key[1]: value for key, value in found.items()} == {
        "on": 1,
        "late": 1,
        "paused": 1,
        "ended": 0,
        "unreadable": 1,
    }


def test_histograms_begin_with_the_exporter_and_stand_a_trimmed_history(
    delayq: DelayQ, redis: Redis, export: Export
) -> None:
    run = RunRecord("id", "t", "celery", "w", 1000, 1010, 1500, 3500, "SUCCESS", 0, 1).pack()

    def add(count: int) -> None:
        for _ in range(count):
            redis.xadd("delayq:history", {"r": run})

    add(3)
    exported = export(delayq)
    assert exported.all("run_seconds_count") == {}
    add(1200)
    assert exported.all("run_seconds_count") == {("delayq_run_seconds_count", "celery", "t"): 1200}
    add(10)
    redis.xtrim("delayq:history", 4, approximate=False)
    assert [*exported.all("lateness_seconds_count").values()] == [1204]
    redis.flushdb()
    assert [*exported.all("promotion_delay_seconds_count").values()] == [1204]
    add(2)
    assert [*exported.all("run_seconds_count").values()] == [1206]


def test_a_broken_queue_does_not_hide_the_others(
    delayq: DelayQ, add: Any, redis: Redis, export: Export, caplog: pytest.LogCaptureFixture
) -> None:
    add.apply_async((1, 2), countdown=60)
    add.apply_async((1, 2), queue="mail", countdown=60)
    redis.set("{mail}:dead", "broken")
    redis.set("{mail}:tasks", "broken")
    exported = export(delayq)

    found = [exported.all("entries", "scheduled_entries", "up") for _ in range(2)]

    assert found[0] == found[1]
    assert {key: value for key, value in found[0].items() if value} == {
        ("delayq_up",): 1,
        ("delayq_entries", "celery", "scheduled"): 1,
        ("delayq_scheduled_entries", "celery", "tasks.add"): 1,
    }
    assert sum("No numbers of queue 'mail'" in text for text in caplog.messages) == 1


def test_unreadable_times_hide_nothing(delayq: DelayQ, redis: Redis, export: Export) -> None:
    redis.zadd("{celery}:due", {"of somebody else": "-inf"})
    redis.hset("delayq:clock", "dispatched", "of somebody else")

    found = export(delayq).now("up", "overdue_entries", "last_dispatch_timestamp_seconds")

    assert found == {("delayq_up",): 1, ("delayq_overdue_entries", "celery"): 1}


def test_counters_never_get_smaller_under_one_epoch(
    delayq: DelayQ, redis: Redis, export: Export
) -> None:
    key = "{celery}:totals"
    redis.hset(key, mapping={"epoch": 5, "accepted": 10, "acked": 4, "dead:failed": 2})
    exported = export(delayq)

    def epochs() -> dict[str, float]:
        return {each[1]: value for each, value in exported.now("accepted_total").items()}

    [first] = epochs()
    redis.hincrby(key, "accepted", 1)
    assert epochs() == {first: 11}
    redis.hset(key, "dead:failed", 1)  # as after a failover to an old replica
    [second] = epochs()
    assert second != first
    redis.hincrby(key, "accepted", 1)
    assert epochs() == {second: 12}
    redis.flushdb()
    assert epochs() == {}
    redis.hset(key, mapping={"epoch": 6, "accepted": 3})
    [(third, value)] = epochs().items()
    assert (third.partition("-")[0], value) == ("6", 3)


def test_two_exporters_tell_the_same(
    delayq: DelayQ, make_app: MakeApp, add: Any, export: Export
) -> None:
    add.apply_async((1, 2), countdown=60)
    own = {"delayq_scrape_duration_seconds", "delayq_clock_skew_seconds"}
    own |= {"delayq_last_success_timestamp_seconds", "delayq_redis_memory_used_bytes"}

    found = [
        {key: value for key, value in each.all().items() if key[0] not in own}
        for each in (export(delayq), export(DelayQ.of(make_app())))
    ]

    assert found[0] == found[1]


def test_the_catalogue_has_all_that_is_exported(
    make_app: MakeApp, redis: Redis, export: Export
) -> None:
    delayq = DelayQ.of(make_app())
    delayq.app.send_task("t", countdown=60)
    delayq.app.send_task("t")
    redis.hset("delayq:clock", "dispatched", 5)
    redis.hset("delayq:ticks", mapping={"epoch": 5, "scheduled": 1})
    redis.hset("{celery}:totals", mapping={"epoch": 5})
    delayq.store.task_limits.announce({"api": "0 1 8 0"})
    exported = export(delayq)
    exported.refresh()
    run = RunRecord("id", "t", "celery", "w", 1000, 1010, 1500, 3500, "SUCCESS", 0, 1)
    redis.xadd("delayq:history", {"r": run.pack()})
    exported.refresh()

    names = {key[0] for key in values_of(exported.text())}

    histograms = {each.name for each in METRICS if each.kind == "histogram"}
    ends = {f"{name}_{end}" for name in histograms for end in ("bucket", "count", "sum")}
    assert names - ends == {each.name for each in METRICS} - histograms
