"""``schedule_many`` when the iterable, the callback, the connection or Redis fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.errors import BrokerUnavailable, CommandRefused, NotReplicated, StoreFull
from celery_delayq.schedule.items import Item, ItemOutcome, ManyFailed, ManyReport
from celery_delayq.store.scripting.pipelining import EntryPipeline
from celery_delayq.testing import wait_until
from celery_delayq.testing.servers import new_server
from tests.integration.conftest import MakeApp, Through, stored
from tests.lua.bench import labelled
from tests.support.many_items import meanwhile, numbered
from tests.support.proxy import Fault


def _nothing(_number: int) -> None:
    """Do nothing."""


# -- what goes wrong ------------------------------------------------------------------------------


def test_an_iterable_that_fails_is_reported_with_where_to_go_on(
    delayq: DelayQ, redis: Redis
) -> None:
    def failing() -> Iterator[Item]:
        yield from islice(numbered(1000), 640)
        raise OSError("the file is gone")

    with pytest.raises(
        ManyFailed, match="go on with item 640: OSError: the file is gone"
    ) as caught:
        delayq.schedule_many(failing(), task="tasks.add")

    report = caught.value.report
    assert isinstance(caught.value.__cause__, OSError)
    assert (report.taken, report.stored, report.uncertain, report.position) == (640, 640, 0, 640)
    rest = delayq.schedule_many(islice(numbered(1000), report.position, None), task="tasks.add")
    assert rest.counts == {"scheduled": 360}
    assert len(stored(redis)) == 1000


def test_a_callback_that_fails_ends_the_run(delayq: DelayQ, redis: Redis) -> None:
    told: list[ItemOutcome] = []

    def tell(outcome: ItemOutcome) -> None:
        if outcome.index == 130:
            raise LookupError("no such row")
        told.append(outcome)

    with pytest.raises(ManyFailed, match="LookupError: no such row") as caught:
        delayq.schedule_many(numbered(1000), task="tasks.add", batch=100, on_outcome=tell)

    report = caught.value.report
    assert report.position <= 130
    assert {outcome.index for outcome in told} >= set(range(report.position))
    again = delayq.schedule_many(numbered(1000), task="tasks.add")
    assert again.stored + again.counts["duplicate"] == 1000
    assert len(stored(redis)) == 1000


@pytest.mark.parametrize("fault", [Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.RESET, Fault.STALL])
@pytest.mark.parametrize("nth", [1, 7, 20])
def test_a_lost_connection_stores_nothing_twice_and_loses_nothing(
    redis: Redis, fault: Fault, nth: int, through: Through
) -> None:
    proxy, delayq = through()
    rule = proxy.on("schedule/add", fault, nth=nth)

    report = delayq.schedule_many(
        [Item((n, n), countdown=60) for n in range(1000)], task="tasks.add", batch=200
    )

    assert rule.fired.is_set()
    assert report.taken == sum(report.counts.values()) == 1000
    assert set(report.counts) <= {"scheduled", "duplicate"}
    assert len({m["headers"]["id"] for m in stored(redis)}) == 1000


def test_a_short_outage_is_waited_for(redis: Redis, through: Through) -> None:
    proxy, delayq = through()
    back = threading.Timer(0.3, proxy.accept)

    def refuse_for_a_while() -> None:
        proxy.refuse()
        back.start()

    items = meanwhile(1000, 450, refuse_for_a_while)
    report = delayq.schedule_many(items, task="tasks.add", batch=100)
    back.join()

    assert report.stored + report.counts.get("duplicate", 0) == 1000
    assert len(stored(redis)) == 1000


@pytest.mark.parametrize("forget", [lambda _: None, Redis.script_flush], ids=["new", "forgets"])
def test_no_entry_counts_as_a_duplicate_if_the_server_lacks_some_scripts(
    app: Celery, delayq: DelayQ, redis: Redis, forget: Callable[[Redis], object]
) -> None:
    """Tasks with and without limits, in several queues: their calls have different scripts."""
    tasks = [
        app.task(name=f"shop.{n}", limit=limit, shared=False)(_nothing)
        for n, limit in enumerate([None, Limit("stripe", rate="1/m"), None])
    ]

    def items() -> Iterator[Item]:
        for n in range(900):
            if n in (150, 151, 600):
                forget(redis)
            yield Item((n,), countdown=60, task=tasks[n % 3], queue=f"queue-{n % 3}")

    report = delayq.schedule_many(items(), batch=100)

    assert report.counts == {"scheduled": 900}
    assert sum(len(stored(redis, f"queue-{n}")) for n in range(3)) == 900


def test_a_server_that_never_has_a_script_ends_the_run(through: Through, redis: Redis) -> None:
    """Such as a proxy before two servers, which sends a call to one and its source to the other."""
    policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0.01, "interval_max": 0.01}
    proxy, delayq = through(task_publish_retry_policy=policy)
    rules = [
        proxy.on("schedule/add", Fault.REFUSE, nth=nth, answer="NOSCRIPT No matching script.")
        for nth in range(1, 101)
    ]

    with pytest.raises(ManyFailed, match="no script that was sent just before") as caught:
        delayq.schedule_many(numbered(10), task="tasks.add")

    assert isinstance(caught.value.__cause__, BrokerUnavailable)
    report = caught.value.report
    assert (report.taken, report.position, report.uncertain) == (10, 0, 10)
    assert not rules[-1].fired.is_set()
    assert stored(redis) == []


@pytest.mark.parametrize(
    "answers",
    [
        ["ERR refused", "NOSCRIPT No matching script."],
        ["NOSCRIPT No matching script.", "ERR refused"],
        ["ERR refused", "ERR refused"],
        ["NOSCRIPT No matching script."] * 4,
    ],
    ids=lambda answers: ", ".join(answer.split(" ")[0] for answer in answers),
)
def test_after_an_error_the_next_call_sends_all_entries_without_an_answer(
    through: Through, redis: Redis, answers: list[str]
) -> None:
    proxy, delayq = through()
    queues: list[str] = []
    pipeline = EntryPipeline(delayq.session.ask, lambda call, *_: queues.append(call.queue), None)
    for index, queue in enumerate(["one", "two"]):
        pipeline.add(queue, labelled(queue), index)
    for nth, answer in enumerate(answers, start=1):
        proxy.on("schedule/add", Fault.REFUSE, nth=nth, answer=answer)

    with pytest.raises((CommandRefused, BrokerUnavailable)):
        pipeline.flush()
    assert ([*pipeline.unanswered()], pipeline.buffered, queues) == ([0, 1], 2, [])

    pipeline.flush()
    pipeline.close()

    assert ([*pipeline.unanswered()], pipeline.buffered) == ([], 0)
    assert queues == ["one", "two"]
    assert redis.zcard("{one}:due") == redis.zcard("{two}:due") == 1


@pytest.mark.usefixtures("patient")
def test_when_redis_stays_away_the_report_has_what_is_certain(
    redis: Redis, through: Through
) -> None:
    policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0.01, "interval_max": 0.01}
    proxy, delayq = through(
        broker_transport_options={"connect_retries_timeout": 0.1},
        task_publish_retry_policy=policy,
    )
    told: list[ItemOutcome] = []

    items = meanwhile(1000, 450, proxy.refuse)
    with pytest.raises(ManyFailed) as caught:
        delayq.schedule_many(items, task="tasks.add", batch=100, on_outcome=told.append)
    proxy.accept()

    report = caught.value.report
    assert sorted(outcome.index for outcome in told) == list(range(report.position))
    assert 200 <= report.position <= 400
    assert report.uncertain == report.taken - report.position
    rest = delayq.schedule_many(islice(numbered(1000), report.position, None), task="tasks.add")

    assert rest.taken == 1000 - report.position
    assert len(stored(redis)) == 1000


def test_when_redis_is_away_from_the_start_nothing_is_taken(make_app: MakeApp) -> None:
    app = make_app(
        broker="delayq+redis://127.0.0.1:1/0",
        broker_transport_options={"connect_retries_timeout": 0.1},
    )

    with pytest.raises(ManyFailed) as caught:
        DelayQ.of(app).schedule_many(numbered(10), task="tasks.add")

    assert caught.value.report == ManyReport()


def test_a_server_without_memory_ends_the_run(delayq: DelayQ, redis: Redis) -> None:
    items = meanwhile(600, 301, lambda: redis.config_set("maxmemory", 1))
    with pytest.raises(ManyFailed, match="no memory left") as caught:
        delayq.schedule_many(items, task="tasks.add", batch=50)
    redis.config_set("maxmemory", 0)

    assert isinstance(caught.value.__cause__, StoreFull)
    report = caught.value.report
    assert report.stored == report.position == len(stored(redis))
    delayq.schedule_many(islice(numbered(600), report.position, None), task="tasks.add")
    assert len(stored(redis)) == 600


def test_replicas_are_waited_for(make_app: MakeApp, redis: Redis) -> None:
    options = {"delayq": {"wait_replicas": 1, "wait_timeout": 0.05}}
    app = make_app(broker_transport_options=options)

    with pytest.raises(ManyFailed, match="0 of 1 replicas have it") as caught:
        DelayQ.of(app).schedule_many(numbered(60), task="tasks.add")

    assert isinstance(caught.value.__cause__, NotReplicated)
    report = caught.value.report
    assert (report.stored, report.position, report.uncertain) == (60, 60, 0)
    assert len(stored(redis)) == 60


def test_connections_are_given_back(make_app: MakeApp) -> None:
    with new_server() as server, server.client() as client:  # where nobody else comes and goes
        delayq = DelayQ.of(make_app(broker=server.url_for("delayq+redis")))
        delayq.schedule_many(numbered(10), task="tasks.add")
        before = len(client.client_list())

        for _ in range(5):
            delayq.schedule_many(numbered(10), task="tasks.add")

        # Redis sees a bit later what was closed.
        wait_until(lambda: len(client.client_list()) <= before, what="no more than before")
        delayq.close()
