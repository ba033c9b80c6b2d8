"""``fsck`` while workers run, where things are not as usual, and on the command line."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.admin.findings import KINDS
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import ManagedProcess, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.drift import FAR, by_kind, lease, look, numbers, schedule
from tests.support.faults.scale import scaled
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.full


# -- where things are not as usual


def test_only_the_queue_that_is_asked_for_is_looked_at(store: Store, redis: Redis) -> None:
    for queue in ("q", "q*", "other"):
        schedule(store, "a", queue=queue)
        redis.delete(f"{{{queue}}}:tasks")

    report = look(store, repair=True, queue="q*")

    assert report.queues == ["q*"]
    assert numbers(report) == {"unindexed": 1}
    assert numbers(look(store, queue="q")) == {"unindexed": 1}
    assert numbers(look(store)) == {"unindexed": 2}


def test_only_keys_with_the_prefix_are_looked_at(redis: Redis) -> None:
    ours = Store(redis, Keys("shop[1]*:"), Layout())
    other = Store(redis, Keys(), Layout())
    for store in (ours, other):
        schedule(store, "a", "b")
    healthy = snapshot(redis)
    redis.delete("{q}:tasks", "delayq:queues", "shop[1]*:{q}:tasks", "shop[1]*:delayq:queues")

    assert numbers(look(ours, repair=True)) == {"unindexed": 2, "unregistered": 1}

    state = snapshot(redis)
    del healthy["{q}:tasks"], healthy["delayq:queues"]
    assert state == healthy


def test_a_key_of_another_type_is_reported_and_the_rest_goes_on(store: Store, redis: Redis) -> None:
    schedule(store, "a")
    redis.set("{q}:tasks", "mine")
    redis.set("{q}:dead", "mine")
    schedule(store, "b", queue="other")
    redis.delete("{other}:tasks")

    report = look(store, repair=True)

    assert numbers(report) == {"wrong_type": 2, "unindexed": 1}
    assert report.unrepaired == 2
    wrong = by_kind(report)["wrong_type"].examples
    assert wrong == [
        "{q}:tasks is a string, expected a zset",
        "{q}:dead is a string, expected a hash",
    ]
    assert redis.get("{q}:tasks") == b"mine"


def test_a_full_server_lets_all_be_repaired_but_the_index(store: Store, redis: Redis) -> None:
    schedule(store, "a", "b", "c", "d", "e")
    lease(store, "x")
    store.dead_letters.add("q", "dead_letter", "why", b"{}")
    healthy = snapshot(redis)
    redis.zadd("{q}:tasks", {f"t\0{FAR:015}\0gone": 0})
    redis.zrem("{q}:due", "a", "b")
    redis.zrem("{q}:dead_at", "dead_letter")
    redis.delete("{q}:leases", "delayq:lease_ends", "delayq:next_due", "delayq:queues")
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)

    report = look(store, repair=True)

    assert report.unrepaired == 0
    # A new lease has a new end.
    times = dict.fromkeys(("{q}:leases", "delayq:lease_ends", "delayq:clock"), 0)
    assert snapshot(redis) | times == healthy | times

    redis.delete("{q}:tasks")
    report = look(store, repair=True)

    assert numbers(report) == {"unindexed": 5}
    assert (report.repaired, report.unrepaired) == (0, 5)
    assert not redis.exists("{q}:tasks")

    redis.config_set("maxmemory", 0)
    assert look(store, repair=True).repaired == 5
    assert numbers(look(store)) == {}


def test_every_finding_says_what_is_wrong_and_what_repairing_does() -> None:
    assert all(kind.what and kind.repairing for kind in KINDS.values())


# -- while workers run

#: How many messages are sent meanwhile.
COUNT = scaled(600, 1500)


def look_until(done: threading.Event, store: Store) -> None:
    """Look again and again, at every second time with repairs; nothing is found."""
    for number in count():
        if done.is_set() and number >= 4:
            return
        assert look(store, repair=number % 2 == 1).findings == []


def test_nothing_is_wrong_while_a_worker_runs_under_load(
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    store: Store,
    delayq_worker: Callable[..., WorkerProcess],
    shop: list[str],
) -> None:
    """Looked at again and again, with repairs: nothing is found, and each task runs."""
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="prefork", concurrency=2)
    app = make_app()
    dice = random.Random(7)
    done = threading.Event()

    def publish() -> None:
        for n in range(COUNT):
            task = "flaky" if n % 10 == 0 else "add"
            args = (0.1,) if task == "flaky" else (n, n)
            countdown = dice.choice([None, 0.01, 0.3, 1.0])
            app.send_task(task, args, countdown=countdown, priority=n % 10, task_id=f"id-{n}")
        done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    look_until(done, store)
    with ManagedProcess([*shop, "fsck"]) as process:
        assert process.wait() == 0
        assert "nothing wrong" in process.log
    publisher.join()

    expected = COUNT + 2 * COUNT // 10
    wait_until(
        lambda: delayq_redis.client.llen("log") >= expected,
        timeout=TIMEOUT,
        what=lambda: f"all run: {delayq_redis.client.llen('log')} of {expected} have",
    )
    assert delayq_redis.client.llen("log") == expected
    assert numbers(look(store)) == {}
    worker.stop()
    assert look(store).unrepaired == 0


def test_nothing_is_wrong_while_entries_are_looked_after(
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    store: Store,
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    """Unique tasks, second messages with one id, cancels, moves and pauses, and looks meanwhile."""
    redis = delayq_redis.client
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="prefork", concurrency=2)
    app = make_app()
    delayq = DelayQ.of(app)
    dice = random.Random(7)
    done = threading.Event()

    def send(n: int) -> None:
        task = dice.choice(["add", "flaky", "size"])
        args = {"add": (n, n), "flaky": (0.05,), "size": ("x",)}[task]
        options: dict[str, Any] = {}
        if dice.random() < 0.6:
            key = dice.randrange(8)
            options["unique_key"] = f"key-{key}"
            options["on_conflict"] = dice.choice(["replace", "keep", "later"])
            options["unique_scope"] = ("scheduled", "done")[key % 2]
        countdown = dice.choice([None, 0.01, 0.1, 0.5])
        app.send_task(task, args, countdown=countdown, task_id=f"id-{n % 400}", **options)

    def change_something() -> None:
        id = f"id-{dice.randrange(400)}"
        task = dice.choice(["add", "flaky"])
        change = dice.choice(["cancel", "run_now", "move", "pause", "resume", "pause", "resume"])
        if change == "cancel":
            delayq.cancel(id)
        elif change == "run_now":
            delayq.run_now(id)
        elif change == "move":
            delayq.reschedule(id, countdown=dice.choice([0.05, 0.3]))
        elif change == "pause":
            delayq.pause(**dice.choice([{"task": task}, {"queue": "celery"}]))
        else:
            for each in delayq.paused().tasks:
                delayq.resume(task=each)
            delayq.resume(queue="celery")

    def work() -> None:
        try:
            for n in range(COUNT):
                send(n)
                if n % 5 == 0:
                    change_something()
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        look_until(done, store)
    finally:
        thread.join()
    for task in ("add", "flaky"):
        delayq.resume(task=task)
    delayq.resume(queue="celery")

    own = store.keys.queue("celery")
    waiting = {*own.state} - {own.totals}
    wait_until(
        lambda: not redis.exists(*waiting, "celery", *redis.keys("*:leased:*")),
        timeout=TIMEOUT,
        what=lambda: f"all is done, left are {redis.keys()}",
    )
    assert numbers(look(store, repair=True)) == {}
    worker.stop()
    assert look(store).unrepaired == 0


def test_repairing_while_messages_move_loses_none(
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    store: Store,
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    """Someone drops dues and index members at random while tasks run."""
    redis = delayq_redis.client
    delayq_worker("tests.apps.delayq_tasks:app", pool="prefork", concurrency=2)
    app = make_app()
    dice = random.Random(7)
    for n in range(300):
        app.send_task("add", (n, n), countdown=dice.random() * 3, task_id=f"id-{n}")

    while redis.hlen("{celery}:entries"):
        redis.zpopmin("{celery}:due", 3)
        redis.zpopmax("{celery}:tasks", 3)
        look(store, repair=True)

    wait_until(lambda: redis.llen("log") >= 300, what="all have run")
    assert Counter(json.loads(run)["id"] for run in redis.lrange("log", 0, -1)) == {
        f"id-{n}": 1 for n in range(300)
    }
    assert look(store, repair=True).unrepaired == 0
    assert numbers(look(store)) == {}


# -- the command line


def test_the_command_line_finds_and_repairs(app: Celery, redis: Redis) -> None:
    for n in range(30):
        app.send_task("t", countdown=3600, task_id=f"[bold]-{n}", queue="mail")
    redis.delete("{mail}:tasks")

    cli = CommandLine(app)

    found = cli("fsck")
    assert found.code == 1
    assert "mail" in found.out
    assert "[bold]-" in found.out
    assert "30 findings; see --repair" in found.out
    assert not redis.exists("{mail}:tasks")
    told = cli("fsck", "--json", "--queue", "mail").json
    repaired = cli("fsck", "--repair")
    assert repaired.code == 0
    assert "30 findings, 30 repaired" in repaired.out
    assert "nothing wrong" in cli("fsck").out

    [finding] = told["findings"]
    examples = finding.pop("examples")
    assert len(examples) == 3
    assert all(id.startswith("[bold]-") for id in examples)
    assert finding == {
        "queue": "mail",
        "kind": "unindexed",
        "what": KINDS["unindexed"].what,
        "found": 30,
        "repaired": 0,
    }
    assert (told["found"], told["repaired"], told["unrepaired"]) == (30, 0, 30)
    assert redis.zcard("{mail}:tasks") == 30


def test_a_queue_that_does_not_exist_is_refused(app: Celery, store: Store) -> None:
    schedule(store, "a", queue="mail")

    refused = CommandLine(app)("fsck", "--queue", "mial")

    assert refused.code == 1
    assert "no queue mial" in refused.err
    assert "mail" in refused.err
    assert CommandLine(app)("fsck", "--queue", "celery").code == 0
