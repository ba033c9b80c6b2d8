"""What is sent late goes to the schedule, whatever it looks like and however it is sent."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from kombu import Exchange, Queue, exceptions
from kombu.transport import redis as stock
from redis import Redis

from celery_delayq import DelayQ, Outcome
from celery_delayq.errors import InvalidETA
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, batch, ready, stored
from tests.support.keyspace import now_of, snapshot
from tests.support.proxy import Fault, Proxy

pytestmark = pytest.mark.each_server

UTC = dt.timezone.utc
FAR = dt.datetime(2100, 1, 1, 12, tzinfo=UTC)


def due_ms(redis: Redis, queue: str = "celery") -> list[int]:
    return [int(score) for _, score in redis.zrange(f"{{{queue}}}:due", 0, -1, withscores=True)]


@pytest.mark.parametrize("extension", [True, False], ids=["DelayQ(app)", "transport alone"])
def test_a_countdown_waits_in_the_schedule(
    make_app: MakeApp, redis: Redis, extension: bool
) -> None:
    app = make_app(extension=extension)
    before, began = int(now_of(redis) * 1000), dt.datetime.now(UTC)

    result = app.tasks["tasks.add"].apply_async((1, 2), countdown=60)

    ended = dt.datetime.now(UTC)
    [due] = due_ms(redis)
    # Rounded up to the millisecond, so that nothing is early.
    assert before + 60_000 <= due <= now_of(redis) * 1000 + 60_001
    [message] = stored(redis)
    assert message["headers"]["id"] == result.id
    assert message["headers"]["eta"] is None
    eta = dt.datetime.fromisoformat(message["properties"]["delayq"]["eta"])
    assert began <= eta - dt.timedelta(seconds=60) <= ended
    assert ready(redis) == []


@pytest.mark.parametrize(
    ("eta", "expected"),
    [
        (FAR, FAR),
        (
            dt.datetime(2100, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=5))),
            dt.datetime(2100, 1, 1, 7, tzinfo=UTC),
        ),
        (dt.datetime(2100, 1, 1, 12), FAR),  # Celery reads it as UTC
        ("2100-01-01T12:00:00+00:00", FAR),
        ("2100-01-01T12:00:00", FAR),
        (FAR + dt.timedelta(microseconds=1), FAR + dt.timedelta(milliseconds=1)),
    ],
)
@pytest.mark.parametrize("timezone", ["UTC", "Asia/Tokyo"])
def test_an_eta_is_kept_to_the_millisecond(
    make_app: MakeApp, redis: Redis, eta: Any, expected: dt.datetime, timezone: str
) -> None:
    make_app(timezone=timezone).tasks["tasks.add"].apply_async((1, 2), eta=eta)

    assert due_ms(redis) == [int(expected.timestamp() * 1000)]


@pytest.mark.parametrize(
    "options",
    [{}, {"countdown": 0}, {"countdown": -5}, {"eta": dt.datetime(2001, 1, 1, tzinfo=UTC)}],
)
def test_what_is_due_is_ready_at_once_without_an_eta_to_pause_due_it(
    add: Any, redis: Redis, options: dict[str, Any]
) -> None:
    add.apply_async((1, 2), **options)

    [message] = ready(redis)
    assert message["headers"]["eta"] is None
    assert stored(redis) == []


@pytest.mark.parametrize(
    ("args", "options", "key"),
    [
        ((1, 2), {}, "celery"),
        ((1, 2), {"priority": 2}, "celery"),
        ((1, 2), {"priority": 9}, "celery\x06\x169"),
        ((1, 2), {"headers": {"big": 12345678901234567, "no": None, "deep": [{}, []]}}, "celery"),
        (("x" * 1_000_000, "y"), {}, "celery"),
    ],
    ids=["plain", "priority 2", "priority 9", "headers", "a megabyte"],
)
def test_a_message_is_promoted_as_it_was_sent(
    add: Any, delayq: DelayQ, redis: Redis, args: Any, options: dict[str, Any], key: str
) -> None:
    add.apply_async(args, countdown=0.01, **options)
    sent, store = stored(redis), delayq.store
    while store.scheduled("celery"):
        store.promote("celery", store.layout, 100)

    [message] = ready(redis, key)
    assert [message] == sent
    assert message["properties"]["priority"] == options.get("priority", 0)
    assert message["headers"].items() >= options.get("headers", {}).items()
    assert json.loads(base64.b64decode(message["body"]))[0] == [*args]


def test_queues_are_apart(add: Any, delayq: DelayQ, redis: Redis) -> None:
    add.apply_async((1, 2), countdown=60, queue="mail")
    add.apply_async((1, 2), countdown=60, queue="other")
    add.apply_async((1, 2), countdown=60, queue="other")

    assert (len(stored(redis, "mail")), len(stored(redis, "other"))) == (1, 2)
    assert delayq.count() == 3
    assert delayq.count(queue="other") == 2
    assert delayq.count(queue="other", task="tasks.add") == 2
    assert delayq.count(task="tasks.none") == 0


def test_a_topic_to_two_queues_is_two_entries(make_app: MakeApp, redis: Redis) -> None:
    topic = Exchange("events", type="topic")
    queues = [Queue("a", topic, routing_key="user.#"), Queue("b", topic, routing_key="#.new")]
    app = make_app(task_queues=queues)
    with app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()

    app.tasks["tasks.add"].apply_async((1, 2), eta=FAR, queue="a", routing_key="user.new")

    [in_a], [in_b] = stored(redis, "a"), stored(redis, "b")
    assert in_a["headers"]["id"] == in_b["headers"]["id"]
    assert due_ms(redis, "a") == due_ms(redis, "b") == [int(FAR.timestamp() * 1000)]
    assert DelayQ.of(app).count() == 2


def test_a_key_prefix_stands_before_every_key(make_app: MakeApp, redis: Redis) -> None:
    app = make_app(broker_transport_options={"global_keyprefix": "shop."})
    app.tasks["tasks.add"].apply_async((1, 2), countdown=0.01)
    app.tasks["tasks.add"].apply_async((1, 2), countdown=60)
    app.tasks["tasks.add"].delay(1, 2)
    while len(redis.lrange("shop.celery", 0, -1)) < 2:
        delayq = DelayQ.of(app)
        look = delayq.store.next_queue()
        assert look.queue == "celery"
        delayq.store.promote("celery", delayq.store.layout, 10)

    assert all(key.startswith("shop.") for key in snapshot(redis))
    assert DelayQ.of(app).count() == 1


@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack"])
def test_serializers_and_compression_pass_unchanged(
    make_app: MakeApp, redis: Redis, serializer: str, compression: str | None
) -> None:
    app = make_app(accept_content=[serializer])
    args = [{"list": [], "nested": {"big": 12345678901234567}}, "x" * 1000]
    options = {"serializer": serializer, "compression": compression}

    app.tasks["tasks.add"].apply_async(args, **options)
    app.tasks["tasks.add"].apply_async(args, countdown=60, **options)

    [at_once], [later] = ready(redis), stored(redis)
    for name in ("body", "content-type", "content-encoding"):
        assert later[name] == at_once[name]
    assert later["headers"].get("compression") == at_once["headers"].get("compression")


def test_a_delay_shorter_than_min_delay_is_left_to_the_worker(
    make_app: MakeApp, redis: Redis
) -> None:
    app = make_app(broker_transport_options={"delayq": {"min_delay": 1.0}})
    app.tasks["tasks.add"].apply_async((1, 2), countdown=0.5)
    app.tasks["tasks.add"].apply_async((1, 2), countdown=5)

    [short] = ready(redis)
    assert short["headers"]["eta"] is not None
    assert len(stored(redis)) == 1


@pytest.mark.parametrize(
    "send",
    [
        lambda add: group(add.s(1, 1), add.s(2, 2)).apply_async(countdown=60),
        lambda add: chain(add.s(1, 1), add.s(2)).apply_async(countdown=60),
        lambda add: chord([add.s(1, 1), add.s(2, 2)], add.si(3, 3)).apply_async(countdown=60),
        lambda add: add.apply_async((1, 1), countdown=60, link=add.s(2)),
        lambda add: add.signature((1, 1), countdown=60).apply_async(),
    ],
    ids=["group", "chain", "chord", "link", "signature"],
)
def test_the_canvas_schedules_what_stock_sends_with_an_eta(
    make_app: MakeApp, add: Any, delayq_redis: RedisUnderTest, send: Any
) -> None:
    plain = make_app(extension=False, broker=delayq_redis.server.url_for("redis", 5))
    send(plain.tasks["tasks.add"])
    with delayq_redis.server.client(db=5) as client:
        sent = [json.loads(item)["headers"]["eta"] for item in client.lrange("celery", 0, -1)]

    send(add)

    assert len(stored(delayq_redis.client)) == sum(eta is not None for eta in sent)
    assert len(ready(delayq_redis.client)) == sum(eta is None for eta in sent)
    assert all(
        math.isclose(ms, now_of(delayq_redis.client) * 1000 + 60_000, abs_tol=5000)
        for ms in due_ms(delayq_redis.client)
    )


@pytest.mark.parametrize("prefix", ["", "shop."])
def test_a_batch_of_producers_is_one_pipeline(make_app: MakeApp, redis: Redis, prefix: str) -> None:
    app = make_app(broker_transport_options={"global_keyprefix": prefix})
    add = app.tasks["tasks.add"]
    redis.script_flush()
    add.delay(0, 0)
    with batch(app, max_size=10) as producer:
        for n in range(25):
            add.apply_async((n, n), eta=FAR, producer=producer)
            add.apply_async((n, n), producer=producer)
        redis.script_flush()

    assert DelayQ.of(app).count() == 25
    assert len(redis.lrange(f"{prefix}celery", 0, -1)) == 26


@pytest.mark.parametrize("fault", [Fault.DROP_REPLY, Fault.DROP_REQUEST])
def test_a_batch_whose_connection_is_lost_is_an_error_and_the_next_one_is_whole(
    make_app: MakeApp, delayq_redis: RedisUnderTest, fault: Fault
) -> None:
    with Proxy(delayq_redis.port) as proxy:
        app = make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0")
        add = app.tasks["tasks.add"]

        def send(name: str) -> None:
            with batch(app, max_size=4) as producer:
                for n in range(10):
                    add.apply_async((n, n), eta=FAR, task_id=f"{name} {n}", producer=producer)

        send("first")
        rule = proxy.on(b"second 5", fault)
        with pytest.raises(exceptions.BatchPublishError, match="uncertain"):
            send("second")
        send("third")

        assert rule.fired.is_set()
    ids = sorted(message["headers"]["id"] for message in stored(delayq_redis.client))
    uncertain = range(8 if fault is Fault.DROP_REPLY else 4)
    numbers = {"first": range(10), "second": uncertain, "third": range(10)}
    assert ids == [f"{name} {n}" for name, sent in numbers.items() for n in sent]


@pytest.mark.parametrize("fault", [Fault.DROP_REPLY, Fault.DROP_REQUEST])
@pytest.mark.parametrize("extension", [True, False], ids=["DelayQ(app)", "transport alone"])
def test_a_publish_repeated_after_a_lost_connection_keeps_its_eta_and_is_one_entry(
    make_app: MakeApp, delayq_redis: RedisUnderTest, fault: Fault, extension: bool
) -> None:
    with Proxy(delayq_redis.port) as proxy:
        app = make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0", extension=extension)
        add = app.tasks["tasks.add"]
        add.apply_async((0, 0), countdown=100, task_id="first")
        rule = proxy.on(b"second", fault)

        add.apply_async((1, 2), eta=FAR, task_id="second", retry=True)

        assert rule.fired.is_set()
    ids = [message["headers"]["id"] for message in stored(delayq_redis.client)]
    assert ids == ["first", "second"]
    assert due_ms(delayq_redis.client)[1] == int(FAR.timestamp() * 1000)
    assert ready(delayq_redis.client) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"countdown": float("nan")}, "nan"),
        ({"countdown": float("inf")}, "inf"),
        ({"countdown": "10"}, "'10'"),
        ({"countdown": 10**15}, "1000000000000000"),
        ({"eta": "20000-01-01T00:00:00"}, "20000"),
        ({"eta": 5}, "5"),
        ({"eta": "tomorrow"}, "tomorrow"),
    ],
)
def test_an_absurd_eta_is_refused_at_the_call(
    add: Any, redis: Redis, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidETA, match=named):
        add.apply_async((1, 2), **options)

    assert stored(redis) == ready(redis) == []


def test_the_transport_alone_refuses_an_eta_that_it_cannot_read(
    make_app: MakeApp, redis: Redis
) -> None:
    with pytest.raises(InvalidETA, match="20000"):
        make_app(extension=False).send_task("t", eta="20000-01-01T00:00:00")

    assert ready(redis) == []


def test_purging_a_queue_empties_ready_and_scheduled(
    app: Celery, add: Any, delayq: DelayQ, redis: Redis
) -> None:
    for _ in range(3):
        add.apply_async((1, 2), countdown=60)
    add.delay(1, 2)

    assert app.control.purge() == 4
    assert stored(redis) == ready(redis) == []
    assert delayq.store.next_queue().queue is None


def test_a_queue_that_does_not_last_is_never_scheduled(make_app: MakeApp, redis: Redis) -> None:
    names = ("temporary", "expiring", "lasting")
    options: list[dict[str, Any]] = [{"auto_delete": True}, {"expires": 60}, {}]
    queues = [Queue(name, **each) for name, each in zip(names, options, strict=True)]
    app = make_app(task_queues=queues)
    for queue in names:
        app.tasks["tasks.add"].apply_async((1, 2), countdown=60, queue=queue)

    # Before 5.6 kombu did not let queues in Redis expire.
    expiring = 0 if hasattr(stock.Channel, "_get_queue_expire") else 1
    assert [len(stored(redis, name)) for name in names] == [0, expiring, 1]
    assert ready(redis, "temporary")[0]["headers"]["eta"] is not None


def test_a_task_that_no_queue_would_get_is_a_dead_letter(make_app: MakeApp, redis: Redis) -> None:
    """The bindings are in Redis, too, and kombu drops what they do not name."""
    ships = Exchange("ships", type="topic")
    app = make_app(task_queues=[Queue("harbour", ships, routing_key="harbour.#")])
    delayq, add = DelayQ.of(app), app.tasks["tasks.add"]
    where = {"exchange": "ships", "routing_key": "harbour.7"}
    add.apply_async((1, 1), **where)
    redis.flushall()

    for countdown in (None, 60):
        add.apply_async((2, 2), countdown=countdown, task_id=f"in {countdown}", **where)

    dead_letters = {
        dead_letter.task_id: dead_letter for dead_letter in delayq.dead_letters(queue="ships")
    }
    assert set(dead_letters) == {"in None", "in 60"}
    assert "no queue is bound to exchange 'ships'" in dead_letters["in 60"].reason
    assert delayq.replay(dead_letters["in 60"]) is Outcome.UNREADABLE
    assert delayq.replay(dead_letters["in None"], queue="harbour") is Outcome.DONE
    assert [m["headers"]["id"] for m in ready(redis, "harbour")] == ["in None"]
    assert delayq.count_dead() == 1
