"""Each tick is scheduled once, whoever fires, in which queues, and whatever becomes of Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue
from redis import Redis
from redis.exceptions import ResponseError

from celery_delayq import DelayQ, Outcome
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import StoreFull
from celery_delayq.model.scheduled import moment
from celery_delayq.periodic import policy, runner
from celery_delayq.periodic.definition import TICK_AHEAD_MS
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.firing import TickScheduler
from celery_delayq.periodic.policy import GRACE_MS, Firing
from celery_delayq.periodic.runner import LOOK_ENTRIES
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import Diary, StartWorker, start, tasks_of
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.ticking import stored_ticks, ticking, write_entries

UTC = timezone.utc
KEEP: dict[str, Any] = {"catch_up": "all", "catch_up_max": 1000}

#: An exchange of topics with two queues, which both want what is sent to it.
NEWS = Exchange("news", "topic")
QUEUES = ("paper", "radio")
NOWHERE: dict[str, Any] = {queue: {} for queue in QUEUES}
BOTH: dict[str, Any] = {"queue": "paper", "routing_key": "news.today"}


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    app = make_app()
    queues = [Queue(name, NEWS, routing_key="news.#") for name in QUEUES]
    app.conf.task_queues = [Queue("celery"), *queues]
    with app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
    return tasks_of(app)


def counts(delayq: DelayQ) -> dict[str, int]:
    return {entry.name: entry.total_run_count for entry in delayq.periodic.list()}


def expect_each_once(stored: dict[str, list[int]], begun: dict[str, Periodic]) -> None:
    """Expect all ticks of each entry that there were so far, each of them once."""
    for name, entry in begun.items():
        ticks = stored.get(name, [])
        assert ticks == policy.upcoming(entry, len(ticks), UTC), name


# -- several that fire


@pytest.mark.parametrize(
    ("number", "options", "queues"),
    [(300, {}, ["celery"]), (20, BOTH, QUEUES)],
    ids=["one queue", "several queues"],
)
def test_two_tickers_schedule_each_tick_once(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    options: dict[str, Any],
    queues: Sequence[str],
) -> None:
    # Both aim at each tick, as they do while they take the one on duty for lost.
    monkeypatch.setattr(runner, "wait_off_duty", lambda _fleet: 0.0)
    for n in range(number):
        delayq.periodic.add(str(n), 0.5 + n % 7 / 10, "note", **options, **KEEP)
    begun = {entry.name: entry for entry in delayq.periodic.list()}

    with ticking(app, 2) as runners:
        wait_until(lambda: min(counts(delayq).values()) >= 6, TIMEOUT, "six ticks of each")

    for queue in queues:
        stored = stored_ticks(delayq_redis.client, queue)
        expect_each_once(stored, begun)
        assert {name: len(ticks) for name, ticks in stored.items()} == counts(delayq)
    assert sum(runner.fired for runner in runners) == sum(counts(delayq).values())
    assert all(runner.fired for runner in runners)


def test_of_several_tickers_one_fires_until_it_is_gone(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    entry = delayq.periodic.add("each", 0.5, "note", **KEEP)
    with ticking(app, 4) as runners:
        for wanted in (4, 8, 12):

            def has_ticked(wanted: int = wanted) -> bool:
                return counts(delayq)["each"] >= wanted

            wait_until(has_ticked, TIMEOUT, "ticks")
            first = max(runners, key=lambda runner: runner.fired)
            first.stop()
            runners.remove(first)
        wait_until(lambda: counts(delayq)["each"] >= 16, TIMEOUT, "the last one goes on")

    expect_each_once(stored_ticks(delayq_redis.client), {"each": entry})


def test_more_entries_than_are_looked_at_together_are_due_at_once(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    now = delayq.store.now_ms()
    names = [f"e{n}" for n in range(2 * LOOK_ENTRIES + LOOK_ENTRIES // 2)]
    for name in names:
        write_due(delayq, delayq.periodic.add(name, 3600, "note"), now)

    with ticking(app) as (runner,):
        wait_until(lambda: min(counts(delayq).values()) == 1, TIMEOUT, "all are fired")

    assert stored_ticks(delayq_redis.client) == {name: [now] for name in names}
    assert runner.fired == len(names)


def write_due(delayq: DelayQ, entry: Periodic, tick: int) -> Periodic:
    """Have an entry be due at *tick*."""
    due = replace(entry, state=replace(entry.state, next_tick=tick))
    write_entries(delayq, due, before=entry.state.line)
    return due


def test_ticks_that_come_each_ms_keep_no_other_from_being_fired(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look makes at most :data:`~celery_delayq.periodic.policy.MAX_TICKS_PER_LOOK` ticks of an
    entry, and fires the other one if it is due, however slow the machine is; in the end all ticks
    were fired.
    """
    looks: list[Sequence[tuple[Periodic, Firing]]] = []
    fire = TickScheduler.fire

    def seen(self: TickScheduler, store: Store, firings: Any, *args: Any, **options: Any) -> Any:
        looks.append(firings)
        return fire(self, store, firings, *args, **options)

    monkeypatch.setattr(TickScheduler, "fire", seen)
    floods = [f"flood{n}" for n in range(5)]
    begins = moment(delayq.store.now_ms() + 500)
    times: dict[str, Any] = {"start": begins, "end": begins + timedelta(seconds=1)}
    for name in floods:
        delayq.periodic.add(name, 0.001, "note", **times, **KEEP)
    delayq.periodic.add("other", 0.5, "note", **KEEP)
    begun = {entry.name: entry for entry in delayq.periodic.list()}
    # A slow machine adds one after its start, and such an entry makes only the ticks from then on.
    ticks = {name: len(policy.upcoming(begun[name], 2000, UTC)) for name in floods}
    assert {*ticks.values()} == {1000} or moment(delayq.store.now_ms()) > begins

    with ticking(app):
        wait_until(lambda: counts(delayq)["other"] >= 8, TIMEOUT, "the other one goes on")
        wait_until(lambda: counts(delayq).items() >= ticks.items(), TIMEOUT, "their end")

    stored = stored_ticks(delayq_redis.client)
    expect_each_once(stored, begun)
    assert {name: len(ticks) for name, ticks in stored.items()} == counts(delayq)
    due_at = begun["other"].next_look_ms or 0
    for firings in filter(None, looks):
        made = {entry.name: replace(entry, state=firing.then) for entry, firing in firings}
        assert max(len(firing.ticks) for _, firing in firings) <= policy.MAX_TICKS_PER_LOOK
        assert "other" in made or due_at > firings[0][1].now, "the other one was left out"
        due_at = made["other"].next_look_ms or 0 if "other" in made else due_at


# -- one that comes late


@pytest.fixture
def due(delayq: DelayQ) -> Periodic:
    """An entry of two queues whose tick is due."""
    entry = delayq.periodic.add("two", 3600, "note", **BOTH)
    return write_due(delayq, entry, delayq.store.now_ms())


def looked_at(entry: Periodic) -> tuple[Periodic, Firing]:
    """Return what a dispatcher knows that has just looked at an entry that is due."""
    assert entry.state.next_tick is not None
    firing = policy.fire(entry, entry.state.next_tick, UTC)
    assert firing is not None
    return entry, firing


def end_tasks(client: Redis) -> None:
    """Leave of the tasks in both queues what is left when they have run: nothing."""
    client.delete(*(key for queue in QUEUES for key in (queue, f"{{{queue}}}:ready_index")))


def in_both(client: Redis) -> dict[str, dict[str, list[int]]]:
    return {queue: stored_ticks(client, queue) for queue in QUEUES}


def in_each(name: str, tick: int | None) -> dict[str, Any]:
    return {queue: {name: [tick]} for queue in QUEUES}


def test_a_dispatcher_that_is_late_puts_nothing_into_any_of_several_queues(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, due: Periodic
) -> None:
    """Also when the tasks have ended meanwhile, of which no id is known any more."""
    known, client = looked_at(due), delayq_redis.client
    stores = delayq.session.stores
    with TickScheduler(app, stores) as first, TickScheduler(app, stores) as second:
        assert first.fire(delayq.store, [known]) == ["r"]
        assert in_both(client) == in_each("two", due.state.next_tick)
        end_tasks(client)

        assert second.fire(delayq.store, [known]) == ["-"]

    assert in_both(client) == NOWHERE
    [entry] = delayq.periodic.list()
    assert entry.state == known[1].then


def test_where_the_first_of_several_queues_is_broken_a_tick_is_in_none_and_comes_again(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, due: Periodic
) -> None:
    client = delayq_redis.client
    client.set("{paper}:tasks", "no sorted set")
    with TickScheduler(app, delayq.session.stores) as scheduler:
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            scheduler.fire(delayq.store, [looked_at(due)])
        assert in_both(client) == NOWHERE
        assert delayq.periodic.get("two") == due
        client.delete("{paper}:tasks")

        assert scheduler.fire(delayq.store, [looked_at(due)]) == ["r"]

    assert in_both(client) == in_each("two", due.state.next_tick)


def test_in_another_of_several_queues_that_is_broken_a_tick_is_a_dead_letter(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    due: Periodic,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """To fire it again would have it come twice in the first."""
    known, client = looked_at(due), delayq_redis.client
    client.set("{radio}:tasks", "no sorted set")
    with TickScheduler(app, delayq.session.stores) as scheduler:
        assert scheduler.fire(delayq.store, [known]) == ["r"]
        assert stored_ticks(client, "paper") == {"two": [due.state.next_tick]}
        assert "Queue 'radio' refused ticks of periodic entry 'two'" in caplog.text
        assert scheduler.fire(delayq.store, [known]) == ["-"]
        client.delete("{radio}:tasks")
        end_tasks(client)

        assert scheduler.fire(delayq.store, [known]) == ["-"]

    assert in_both(client) == NOWHERE
    [dead_letter] = delayq.dead_letters()
    assert (dead_letter.queue, dead_letter.task) == ("radio", "note")
    assert "tick of two refused: " in dead_letter.reason
    assert delayq.replay(dead_letter) is Outcome.DONE
    assert in_both(client) == {"paper": {}, "radio": {"two": [due.state.next_tick]}}


def test_a_full_server_leaves_a_tick_of_several_queues_to_be_fired(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, due: Periodic
) -> None:
    client = delayq_redis.client
    before = delayq.periodic.add("before", 3600, "note", **BOTH)
    with TickScheduler(app, delayq.session.stores) as scheduler:
        # Queues are declared with the first message, for which there has to be room.
        scheduler.fire(
            delayq.store, [looked_at(write_due(delayq, before, due.state.next_tick or 0))]
        )
        end_tasks(client)
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            scheduler.fire(delayq.store, [looked_at(due)])
        assert in_both(client) == NOWHERE
        client.config_set("maxmemory", 0)

        assert scheduler.fire(delayq.store, [looked_at(due)]) == ["r"]

    assert in_both(client) == in_each("two", due.state.next_tick)


def test_what_waits_for_its_first_queue_is_in_none_of_the_others_meanwhile(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    client = delayq_redis.client
    delayq.periodic.add("two", 3600, "note", overlap="queue_one", **BOTH)
    with TickScheduler(app, delayq.session.stores) as scheduler:
        for answer in ("r", "K"):
            [entry] = delayq.periodic.list()
            entry = write_due(delayq, entry, delayq.store.now_ms())
            assert scheduler.fire(delayq.store, [looked_at(entry)]) == [answer]

    assert all(len(ticks["two"]) == 1 for ticks in in_both(client).values())
    assert delayq.periodic.get("two") == entry  # it is tried again


# -- Redis goes away


@pytest.mark.full
def test_redis_is_killed_and_comes_back_while_ticks_are_fired(
    make_app: MakeApp, delayq_redis_factory: Callable[..., EmbeddedRedis]
) -> None:
    server = delayq_redis_factory()
    app = tasks_of(make_app(broker=server.url_for("delayq+redis")))
    delayq = DelayQ.of(app)
    entry = delayq.periodic.add("often", 0.25, "note", **KEEP)

    with ticking(app):
        wait_until(lambda: counts(delayq)["often"] >= 10, TIMEOUT, "it is fired")
        server.kill()
        # Until ticks were missed of which none was scheduled ahead.
        away = time.time() + (TICK_AHEAD_MS + 2 * GRACE_MS) / 1000
        wait_until(lambda: time.time() > away, TIMEOUT, "ticks are missed")
        server.start()
        back = delayq.store.now_ms()
        wait_until(
            lambda: (
                ((delayq.periodic.get("often") or entry).state.last_tick or 0)
                > back + 2 * TICK_AHEAD_MS
            ),
            TIMEOUT,
            "it goes on",
        )

    with server.client() as client:
        stored = stored_ticks(client)
    expect_each_once(stored, {"often": entry})
    assert len(stored["often"]) == counts(delayq)["often"]


# -- a prefix


def test_everything_is_under_the_prefix_of_the_app(
    make_app: MakeApp, delayq_redis: RedisUnderTest, diary: Diary, delayq_worker: StartWorker
) -> None:
    options = {"global_keyprefix": "shop:"}
    delayq = DelayQ.of(tasks_of(make_app(broker_transport_options=options)))
    delayq.periodic.add("far", 3600, "note")
    code = {"mine": {"task": "note", "schedule": 0.5}}
    conf = {"broker_transport_options": options, "beat_schedule": code}
    start(delayq_worker, conf=conf).wait_ready()
    before = diary.now()
    delayq.periodic.add("near", 0.5, "note", catch_up="skip")

    wait_until(lambda: diary.ticks("near") and diary.ticks("mine"), TIMEOUT, "both are fired")

    # It was told of, or nobody would have looked for half a minute.
    assert diary.ticks("near")[0] / 1000 < before + 20
    client = delayq_redis.client
    channels = [name for name in client.pubsub_channels() if b"periodic" in name]
    assert channels == [b"shop:delayq:periodic_wake:0"]
    keys = {*client.scan_iter(count=1000)}
    assert {key for key in keys if not key.startswith(b"shop:")} <= {b"log"}
    assert {b"shop:delayq:periodic", b"shop:delayq:periodic_at"} <= keys
