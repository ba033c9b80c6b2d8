"""What a handler of ``before_task_publish`` leaves is published, as on stock.

Each thing that a handler gets is a site of the table. A site that Celery adds fails here first.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, signals
from kombu import Exchange, Queue
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.schedule.items import Item
from tests.integration.conftest import MakeApp

#: The ETA of calls, and those to which a handler moves it.
ETA, MOVED, PAST = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (2040, 2050, 2001))
PAST_MS = due_of_eta(PAST).ms
COUNTDOWN = 1800

Handler = Callable[[dict[str, Any]], None]


def setting(part: str, name: Any, value: Any) -> Handler:
    """Return a handler that sets one item of what it gets."""

    def handle(given: dict[str, Any]) -> None:
        given[part][name] = value

    return handle


def headers(name: str, *values: Any) -> dict[str, Handler]:
    """Return a handler for each value of a header."""
    return {f"headers {name}={value!r}": setting("headers", name, value) for value in values}


HEADERS: dict[str, dict[str, Handler]] = {
    name: headers(name, *values)
    for name, values in {
        "lang": ("other",),
        "task": ("tasks.other",),
        "id": ("another",),
        "shadow": ("shadow",),
        "eta": (
            MOVED.isoformat(),
            MOVED.astimezone(timezone(timedelta(hours=9))).isoformat(),
            MOVED.replace(tzinfo=None).isoformat(),
            MOVED,
            PAST.isoformat(),
            None,
        ),
        "expires": (MOVED.isoformat(), None),
        "group": ("group",),
        "group_index": (7,),
        "retries": (2, 0),
        "timelimit": ([60, 30],),
        "root_id": ("root",),
        "parent_id": ("parent",),
        "argsrepr": ("(…)",),
        "kwargsrepr": ("{…}",),
        "origin": ("gen1@elsewhere",),
        "ignore_result": (True,),
        "replaced_task_nesting": (1,),
        "stamped_headers": (["stamp"],),
        "stamps": ({"stamp": "x"},),
    }.items()
}
PROPERTIES: dict[str, dict[str, Handler]] = {
    name: {f"properties {name}={value!r}": setting("properties", name, value)}
    for name, value in {
        "correlation_id": "another",
        "reply_to": "somebody",
        "priority": 9,
        "expiration": 7200,
    }.items()
}


def change_arguments(given: dict[str, Any]) -> None:
    """Change arguments in place, as a handler that hides or adds some does."""
    args, kwargs, _ = given["body"]
    args[0] = "changed"
    kwargs["y"] = "changed"


def link(given: dict[str, Any]) -> None:
    """Add a callback."""
    given["body"][2]["callbacks"] = [{"task": "tasks.other", "args": [], "kwargs": {}}]


def declare(given: dict[str, Any]) -> None:
    """Have another queue declared."""
    given["declare"].append(Queue("declared", Exchange("shop"), routing_key="new"))


def limit_tries(given: dict[str, Any]) -> None:
    """Change how often publishing is tried."""
    given["retry_policy"]["max_retries"] = 1


#: By argument of the signal and, where it has parts, by part: how a handler may change it.
SITES: dict[tuple[str, ...], dict[str, Handler]] = {
    ("nothing",): {"nothing": lambda _: None},
    **{("headers", name): handlers for name, handlers in HEADERS.items()},
    ("headers", "added"): headers("added", "new", {"a": [1]}),
    **{("properties", name): handlers for name, handlers in PROPERTIES.items()},
    ("properties", "added"): {"properties added": setting("properties", "app_id", "shop")},
    ("body",): {"arguments": change_arguments, "callbacks": link},
    ("declare",): {"declare": declare},
    ("retry_policy",): {"retry_policy": limit_tries},
    # They are texts, and so cannot be changed.
    ("exchange",): {},
    ("routing_key",): {},
}
HANDLERS = {name: handler for handlers in SITES.values() for name, handler in handlers.items()}

WAYS: dict[str, dict[str, Any]] = {
    "at once": {},
    "countdown": {"countdown": COUNTDOWN},
    "eta": {"eta": ETA},
    "unique": {"eta": ETA, "unique_key": "{x}-{y}"},
    "unique countdown": {"countdown": COUNTDOWN, "unique_key": "{x}-{y}"},
}


@contextmanager
def handling(handler: Callable[..., None]) -> Iterator[None]:
    """Connect a handler of ``before_task_publish``."""
    signals.before_task_publish.connect(handler, weak=False)
    try:
        yield
    finally:
        signals.before_task_publish.disconnect(handler)


@pytest.fixture
def stock(make_app: MakeApp, delayq_redis: Any) -> Celery:
    return make_app(extension=False, broker=delayq_redis.url, task_default_queue="stock")


@pytest.fixture
def ours(make_app: MakeApp) -> Celery:
    return make_app(task_default_queue="ours")


def send(app: Celery, way: dict[str, Any], handler: Handler, *, many: bool = False) -> Any:
    """Send a task to which a handler is applied; stock takes none of our options."""
    options = dict(way)
    task = app.tasks["tasks.add"]
    if not hasattr(app, "_delayq"):
        options.pop("unique_key", None)
    if many:
        more = {"reply_to": "me"}
        item = Item([1], {"y": 2}, id="sent", priority=3, options=more, **options)
        with handling(lambda **given: handler(given)):
            return DelayQ.of(app).schedule_many([item], task=task)
    options = {"expires": ETA, "task_id": "sent", "priority": 3, "reply_to": "me", **options}
    with handling(lambda **given: handler(given)):
        return task.apply_async([1], {"y": 2}, **options)


def published(redis: Redis, queue: str) -> dict[str, Any]:
    """Return the one message in a queue's ready lists and schedule, as workers know it."""
    lists = [key for key in redis.keys(f"{queue}*") if redis.type(key) == b"list"]
    found = [item for key in lists for item in redis.lrange(key, 0, -1)]
    records = redis.hvals(f"{{{queue}}}:entries")
    message: dict[str, Any]
    [message] = map(json.loads, [*found, *(each.partition(b"\n")[2] for each in records)])
    own = message["properties"].pop("delayq", {})
    if message["headers"]["eta"] is None:
        message["headers"]["eta"] = own.get("eta")
    message["body"] = json.loads(b64decode(message["body"]))
    del message["properties"]["delivery_tag"]
    info = message["properties"]["delivery_info"]
    assert info.pop("routing_key") == queue
    return message


def take_times(message: dict[str, Any]) -> list[int]:
    """Take the times out of a message, in ms: what counts from now differs from call to call."""
    eta = message["headers"].pop("eta")
    if isinstance(eta, dict):  # as kombu encodes a datetime
        eta = eta["__value__"]
    expiration = int(message["properties"].pop("expiration"))
    return [0 if eta is None else due_of_eta(eta).ms, expiration]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_leaves_is_published(
    handler: str, way: str, stock: Celery, ours: Celery, redis: Redis
) -> None:
    for app in (stock, ours):
        send(app, WAYS[way], HANDLERS[handler])

    expected, found = published(redis, "stock"), published(redis, "ours")
    times = take_times(found)
    assert times == pytest.approx(take_times(expected), abs=60_000)
    assert found == expected
    check_entry(redis, found, times[0], unique="unique_key" in WAYS[way])


def check_entry(redis: Redis, message: dict[str, Any], due_ms: int, *, unique: bool) -> None:
    """Check what the schedule knows of a message: it is what the message says."""
    scheduled = redis.zrange("{ours}:due", 0, -1, withscores=True)
    keys = [key.decode().partition(":")[2] for key in redis.hkeys("{ours}:unique")]
    if not scheduled:  # sent to run at once, so that its key is free
        assert due_ms in (0, PAST_MS)
        assert keys == []
        return
    sent, (args, kwargs, _) = message["headers"], message["body"]
    [(name, score)] = scheduled
    assert score == pytest.approx(due_ms, abs=60_000)
    assert name.decode() == sent["id"]
    [tracked] = redis.zrange("{ours}:tasks", 0, -1)
    assert tracked.split(b"\0")[0].decode() == sent["task"]
    assert keys == ([f"{args[0]}-{kwargs['y']}"] if unique else [])


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_leaves_of_many_is_published(
    handler: str, ours: Celery, redis: Redis
) -> None:
    send(ours, {"eta": ETA, "expires": MOVED}, HANDLERS[handler])
    expected = published(redis, "ours")
    times = take_times(expected)
    redis.flushall()

    report = send(ours, {"eta": ETA, "expires": MOVED}, HANDLERS[handler], many=True)

    found = published(redis, "ours")
    assert take_times(found) == pytest.approx(times, abs=60_000)
    assert found == expected
    assert report.stored == 1


def test_each_thing_that_a_handler_gets_is_a_site_of_the_table(stock: Celery, ours: Celery) -> None:
    for app in (stock, ours):
        seen: dict[str, Any] = {}
        with handling(lambda **given: seen.update(given)):  # noqa: B023 - called in this turn
            app.tasks["tasks.add"].apply_async((1, 2), priority=3, expires=60, countdown=60)
        del seen["signal"], seen["sender"]
        sites: set[tuple[str, ...]] = set()
        for name, value in seen.items():
            parts = [part for part in value if part != "delayq"] if name in PARTS else None
            sites |= {(name,)} if parts is None else {(name, part) for part in parts}

        assert sites == SITES.keys() - NOT_OF_STOCK
        assert seen.keys() == signals.before_task_publish.providing_args


#: Arguments that have parts, and sites that no message has.
PARTS = {"headers", "properties"}
NOT_OF_STOCK = {("nothing",), ("headers", "added"), ("properties", "added")}


def test_a_queue_that_a_handler_declares_is_there(ours: Celery, redis: Redis) -> None:
    add = ours.tasks["tasks.add"]
    add.apply_async((1, 2))
    with handling(lambda **given: declare(given)):
        add.apply_async((1, 2))

    [binding] = redis.smembers("_kombu.binding.shop")
    assert binding.endswith(b"declared")


def test_a_handler_finds_the_queue_in_each_message(stock: Celery, ours: Celery) -> None:
    for app in (stock, ours):
        name = app.conf.task_default_queue
        seen: list[list[str]] = []
        with handling(lambda declare, **_: seen.append([each.name for each in declare])):  # noqa: B023
            for way in ({}, {}, {"countdown": 60}, {"queue": name}):
                app.tasks["tasks.add"].apply_async((1, 2), **way)

        assert seen == [[name]] * 4


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (setting("headers", "id", "\ud800"), "id="),
        (setting("headers", "task", "\ud800"), "task="),
        (setting("headers", "eta", "tomorrow"), "eta='tomorrow'"),
        (setting("headers", "timelimit", [True and -1, None]), "time_limit=-1"),
        (setting("headers", "retries", -1), "retries=-1"),
        (setting("properties", "priority", "high"), "priority='high'"),
    ],
    ids=["id", "task", "eta", "time limit", "retries", "priority"],
)
def test_bad_input_of_a_handler_is_refused_at_the_call(
    handler: Handler, words: str, ours: Celery, redis: Redis
) -> None:
    with pytest.raises(ValueError, match=words):
        send(ours, {"countdown": 60}, handler)

    assert not redis.exists("{ours}:entries", "ours")
