"""Counts and numbers, against what is really there."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from io import StringIO

import pytest
from celery import Celery
from rich.console import Console

from celery_delayq import DelayQ
from celery_delayq.admin.stats import QueueStats
from celery_delayq.cli.commands.stats import queues_table
from celery_delayq.metrics.exporter import Exporter
from celery_delayq.store import gauges
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.web.pages import overview
from celery_delayq.web.site import Site
from tests.integration.conftest import MakeApp
from tests.integration.metrics.conftest import values_of
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.leases import ack

pytestmark = pytest.mark.each_server


@pytest.fixture
def filled(app: Celery, delayq: DelayQ) -> Celery:
    """Two queues: 30 scheduled and 12 ready of two tasks in one, 5 scheduled in the other."""
    for n in range(30):
        app.send_task("mail" if n % 3 else "bill", (n,), countdown=3600 + n)
    for n in range(12):
        app.send_task("mail" if n % 2 else "bill", (n,), priority=n % 10)
    for n in range(5):
        app.send_task("mail", (n,), countdown=60, queue="other")
    return app


@pytest.mark.usefixtures("filled")
def test_stats_are_what_was_sent(delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
    stats = delayq.stats()

    by_name = {queue.name: queue for queue in stats.queues}
    assert set(by_name) == {"celery", "other"}
    celery = by_name["celery"]
    assert (celery.scheduled, celery.ready, celery.overdue, celery.dead) == (30, 12, 0, 0)
    assert celery.scheduled_tasks == {"mail": 20, "bill": 10}
    assert celery.ready_tasks == {"mail": 6, "bill": 6}
    first = delayq_redis.client.zrange("{celery}:due", 0, 0, withscores=True)[0][1]
    assert celery.next_due == first / 1000
    assert celery.oldest_age == 0
    assert celery.memory is not None
    assert celery.memory > 30 * 500
    assert by_name["other"].scheduled_tasks == {"mail": 5}
    assert (stats.scheduled, stats.ready, stats.overdue) == (35, 12, 0)
    assert stats.used_memory is not None
    assert abs(stats.used_memory - delayq_redis.client.info("memory")["used_memory"]) < 1_000_000


@pytest.mark.usefixtures("filled")
def test_count_is_what_was_sent(delayq: DelayQ) -> None:
    assert delayq.count() == 35
    assert delayq.count(queue="celery") == 30
    assert delayq.count(task="mail") == 25
    assert delayq.count(queue="celery", task="bill") == 10
    assert delayq.count(queue="none") == 0


def test_what_nobody_promotes_is_overdue_and_ages(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    for n in range(3):
        app.send_task("mail", countdown=3600, task_id=f"id-{n}")
    now = delayq.store.now_ms()
    delayq_redis.client.zadd("{celery}:due", {"id-0": now - 90_000, "id-1": now - 10_000})

    [queue] = delayq.stats().queues

    assert (queue.scheduled, queue.overdue) == (3, 2)
    assert 90 <= queue.oldest_age < 90 + TIMEOUT


def test_what_waits_for_a_pause_is_not_overdue(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    """In `stats`, in the metrics and on the pages."""
    for n in range(3):
        app.send_task("mail", countdown=3600, task_id=f"id-{n}")
    app.send_task("mail", countdown=3600, task_id="bill-0", queue="bills")
    now = delayq.store.now_ms()
    delayq_redis.client.zadd("{celery}:due", {"id-0": now - 90_000, "id-1": now - 10_000})
    delayq_redis.client.zadd("{bills}:due", {"bill-0": now - 5_000})
    delayq.pause(queue="celery")

    bills, celery = delayq.stats().queues
    exporter = Exporter(delayq)
    exported = values_of(exporter.scrape(TIMEOUT))
    exporter.stop()
    with closing(Site(app)) as site:
        shown = {each.name: each for each in overview.read_queues(site, ())}

    assert (celery.scheduled, celery.overdue, celery.paused, celery.oldest_age) == (3, 0, 2, 0)
    assert (bills.scheduled, bills.overdue, bills.paused) == (1, 1, 0)
    for queue in (bills, celery):
        row = shown[queue.name]
        assert (row.overdue, row.held) == (queue.overdue, queue.paused + queue.held)
        assert exported["delayq_overdue_entries", queue.name] == queue.overdue


def test_a_task_that_waits_ready_since_it_was_due_ages_too(app: Celery, delayq: DelayQ) -> None:
    app.send_task("mail", countdown=0.05)
    store = delayq.store
    while store.scheduled("celery"):
        store.promote("celery", store.layout, 10)
    until = store.now_ms() + 300
    while store.now_ms() < until:
        pass

    [queue] = delayq.stats().queues

    assert queue.ready == 1
    assert 0.29 <= queue.oldest_age < TIMEOUT


def test_what_processes_hold_is_leased_and_what_is_quarantined_is_ready(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    for n in range(9):
        app.send_task("mail", priority=n)
    app.send_task("mail", queue="other")
    leases = delayq.store.leases
    leases.acquire("celery", "one", 30.0, "1", 3)
    leases.acquire("celery", "two", 30.0, "1", 2)
    leases.acquire("other", "two", 30.0, "2", 5)
    ack(delayq.store, "celery", "two", ["1:1"])
    delayq_redis.client.zadd("{celery}:leases", {"gone": 5})
    delayq_redis.client.lpush("{celery}:quarantined", "0\nx")
    delayq.store.register("celery")
    delayq.store.register("other")

    stats = delayq.stats()

    assert {queue.name: (queue.ready, queue.leased) for queue in stats.queues} == {
        "celery": (4 + 1, 3 + 1),
        "other": (0, 1),
    }
    assert (stats.ready, stats.leased) == (5, 5)
    assert stats.as_dict()["leased"] == 5


def test_a_worker_holds_what_it_runs_and_what_it_prefetched(
    app: Celery, delayq: DelayQ, delayq_worker: Callable[..., WorkerProcess]
) -> None:
    for _ in range(30):
        app.send_task("stock.nap", (60,))
    worker = delayq_worker(
        "tests.apps.stock_tasks:app",
        pool="threads",
        concurrency=2,
        extra_args=["--prefetch-multiplier=3"],
    )

    wait_until(lambda: worker.log.count("napping") == 2, what="two run")
    wait_until(lambda: (seen := delayq.stats()).ready + seen.leased == 30, what="all are counted")
    assert 2 <= delayq.stats().leased <= 2 * 3
    worker.kill()
    assert delayq.stats().leased >= 2


def test_of_many_ready_messages_the_tasks_are_estimated(
    app: Celery, delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "SAMPLE_MESSAGES", 20)
    monkeypatch.setattr(gauges, "MAX_STRETCH_DEPTH", 50)
    with app.producer_pool.acquire() as producer:
        for task in ("mail", "bill", "mail"):
            for _ in range(50):
                app.send_task(task, producer=producer)

    [queue] = delayq.stats().queues

    assert queue.ready == 150
    assert queue.ready_tasks == {"mail": 150}  # the 50 in the middle are too far from both ends


@pytest.mark.usefixtures("filled")
def test_the_command_line_shows_the_same(make_app: MakeApp, delayq: DelayQ) -> None:
    """Also where the app has the transport alone."""
    delayq.store.leases.acquire("celery", "me", 30.0, "1", 4)
    cli = CommandLine(make_app(extension=False))

    shown = cli("stats", "--json").json
    table = cli("stats").out

    expected = delayq.stats().as_dict()
    for volatile in ("used_memory", "max_memory"):
        shown.pop(volatile), expected.pop(volatile)
    assert shown == expected
    assert shown["leased"] == 4
    assert "bill" in table
    header, row = (
        next(line.split() for line in table.splitlines() if line.split()[:1] == [first])
        for first in ("queue", "celery")
    )
    assert header[:7] == ["queue", "scheduled", "overdue", "held", "ready", "leased", "dead"]
    assert row[:7] == ["celery", "30", "0", "0", "8", "4", "0"]


def test_the_table_of_queues_fits_80_columns() -> None:
    queue = QueueStats(
        "reports.daily", scheduled=1_234_567, ready=12_345, leased=1_234, dead=123, overdue=1_234,
        paused=12_345, held=9_876, is_paused=True, next_due=time.time() + 500_000,
        oldest_age=1234.5, scheduled_tasks={}, ready_tasks={}, memory=123_456_789,
    )  # fmt: skip
    shown = StringIO()
    Console(width=80, file=shown).print(queues_table([queue]))

    table = shown.getvalue()
    assert "…" not in table
    for number in (
        "1,234,567",
        "12,345",
        "9,876",
        "1,234 ",
        "20m 34s",
        "5d ",
        "123.5 MB",
        "\npaused ",
    ):
        assert number in table


def test_a_closed_object_connects_again(app: Celery, delayq: DelayQ) -> None:
    app.send_task("mail", countdown=60)
    delayq.close()
    delayq.close()

    assert delayq.count() == 1


def test_one_object_serves_one_app() -> None:
    delayq = DelayQ()
    app = Celery("one", set_as_current=False)
    delayq.init_app(app)
    delayq.init_app(app)

    with pytest.raises(ValueError, match="second app"):
        delayq.init_app(Celery("two", set_as_current=False))
    with pytest.raises(ValueError, match="expected a Celery app"):
        DelayQ("app")
    with pytest.raises(ValueError, match="no app yet"):
        DelayQ().count()


def test_at_least_once_sets_what_it_needs(app: Celery) -> None:
    strict = Celery("strict", set_as_current=False)
    DelayQ(strict, at_least_once=True)

    assert strict.conf.task_acks_late is True
    assert strict.conf.task_reject_on_worker_lost is True
    assert app.conf.task_acks_late is False


#: Each key of a queue, and those of all queues, by name.
KEYS = {
    **{name: key for name, key in asdict(Keys().queue("wrong")).items() if name != "own"},
    **{name: key for name, key in vars(Keys()).items() if str(key).startswith("delayq:")},
    **{f"ready {step}": Keys().ready("wrong", step, Layout()) for step in Layout().steps},
    "leased": Keys().queue("wrong").leased("me").decode(),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_a_wrong_type_hides_its_own_queue_at_most(
    app: Celery, delayq: DelayQ, name: str
) -> None:
    client = delayq.store.client
    for queue in ("fine", "wrong"):
        app.send_task("mail", (1,), countdown=3600, queue=queue)
        app.send_task("mail", (1,), queue=queue)
        delayq.store.register(queue)
        delayq.store.leases.acquire(queue, "me", 60.0, "1", 1)
        app.send_task("mail", (1,), queue=queue)
    client.delete(KEYS[name])
    client.set(KEYS[name], "garbage")

    found = delayq.stats()

    numbers = {each.name: (each.scheduled, each.ready, each.leased) for each in found.queues}
    fine = numbers.pop("fine", None)
    assert fine == (1, 1, 1) or "delayq:queues" in found.broken  # then no queue is known
    assert {*numbers} | {*found.broken} >= {"wrong"} or "delayq:queues" in found.broken
    ran = CommandLine(app)("stats", columns=200)
    assert ran.code == bool(found.broken)
    assert all(key in ran.out for key in found.broken)
