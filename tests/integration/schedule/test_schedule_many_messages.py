"""``schedule_many`` makes the same messages as ``apply_async``, only faster."""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from celery import Celery, Task, group
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from celery_delayq.schedule.message_factory import MessageFactory
from tests.integration.conftest import MakeApp, ready, stored
from tests.support.many_items import FAR, UTC, entries, one
from tests.support.scene import Control


def calls_of_celery(delayq: DelayQ, items: list[Any], **options: Any) -> int:
    """Schedule items, and return how many of the messages Celery itself has made."""
    make = MessageFactory._make_once
    with patch.object(MessageFactory, "_make_once", autospec=True, side_effect=make) as made:
        report = delayq.schedule_many(items, **options)
    assert report.stored == len(items), report.refusals
    return made.call_count


# -- the same messages ----------------------------------------------------------------------------

ARGUMENTS: list[tuple[Any, dict[str, Any]]] = [
    ((), {}),
    ((1, 2.5, "x", True, None), {}),
    (["a list", -1], {"word": "%s %(id)s 100%"}),
    (("quo\"te's and back\\slash\n",), {"ünïcode": "日本 \U0001f600 \x00"}),
    ((12345678901234567890, 1e300), {"nested": {"empty": [], "none": {}, "n": [1, [2, (3,)]]}}),
    ((dt.datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC), dt.date(2030, 1, 2), dt.time(3, 4)), {}),
    ((Decimal("1.10"), uuid.UUID(int=7), b"bytes", b"\xff\xfe"), {"amount": Decimal("-0")}),
    (("x" * 2000,), {"long": ["y" * 500] * 10}),
]


def decoded(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what differs each time: the id, the tag, moments that were now."""
    headers, properties = dict(message["headers"]), dict(message["properties"])
    own = dict(properties["delayq"])
    id = headers.pop("id")
    tag = properties.pop("delivery_tag")
    label = own.pop("label").split(" ")
    assert label[:2] == [id, tag[:16]]
    assert properties.pop("correlation_id") == id
    assert len(tag) == 32
    if headers["root_id"] == id:
        headers["root_id"] = "its own"
    own["eta"] = Roughly(own["eta"])
    if headers["expires"] is not None:
        headers["expires"] = Roughly(headers["expires"])
        del properties["expiration"]  # of no meaning on Redis; tested below
    return {
        **message,
        "headers": headers,
        "properties": {**properties, "delayq": own},
        "body": base64.b64decode(message["body"]),
        "label": label[2:],
    }


class Roughly:
    """A moment in ISO 8601 that equals those with its time zone half a minute around it."""

    def __init__(self, text: str) -> None:
        self.moment = dt.datetime.fromisoformat(text)

    def __repr__(self) -> str:
        return f"roughly {self.moment.isoformat()}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Roughly) or self.moment.utcoffset() != other.moment.utcoffset():
            return False
        return abs(self.moment - other.moment) < dt.timedelta(seconds=30)

    __hash__ = None  # type: ignore[assignment]


def assert_same(
    app: Celery, redis: Redis, send: Callable[..., Any], items: list[Any], **options: Any
) -> int:
    """Send by Celery and then by us; return how many of ours Celery itself has made."""
    send()
    expected = entries(redis), ready(redis)
    redis.delete("{celery}:due", "{celery}:entries", "{celery}:tasks", "celery")

    made = calls_of_celery(DelayQ.of(app), items, **options)

    found = entries(redis), ready(redis)
    # Scheduled messages have a label, ready messages of apply_async need none.
    made_by_us, by_celery = (
        [decoded(message) for _, message in each[0]] for each in (found, expected)
    )
    assert made_by_us == by_celery
    assert len(found[1]) == len(expected[1])
    for (due, _), (wanted, _) in zip(found[0], expected[0], strict=True):
        assert abs(due - wanted) < (30_000 if wanted < 4e12 else 1)
    return made


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS)
def test_arguments_are_encoded_as_celery_does(
    app: Celery, redis: Redis, args: Any, kwargs: dict[str, Any]
) -> None:
    def send() -> None:
        for n in range(4):
            app.send_task("any", args, kwargs, countdown=60 + n)

    items = [Item(args, kwargs, countdown=60 + n) for n in range(4)]
    made = assert_same(app, redis, send, items, task="any")

    # One was made by Celery, the others are like it.
    assert made == 1


def test_arguments_of_one_kind_of_message_may_differ(app: Celery, redis: Redis) -> None:
    def send() -> None:
        for n, (args, kwargs) in enumerate(ARGUMENTS):
            app.send_task("any", args, kwargs, countdown=60 + n)

    items = [Item(*arguments, countdown=60 + n) for n, arguments in enumerate(ARGUMENTS)]
    made = assert_same(app, redis, send, items, task="any")

    assert made == 1


NAIVE = FAR.replace(tzinfo=None)
TOKYO = dt.timezone(dt.timedelta(hours=9))
ETAS = FAR, FAR.astimezone(TOKYO), NAIVE, FAR + dt.timedelta(microseconds=1)


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 90.5},
        {"countdown": 60, "eta": FAR},
        *({"eta": eta} for eta in (*ETAS, dt.date(2100, 1, 1), "2100-01-01T12:00:00+05:00")),
        *({"countdown": 60, "priority": priority} for priority in (0, 9)),
        *({"countdown": 60, "expires": expires} for expires in (600, 600.5, FAR, NAIVE)),
        {"countdown": 60, "headers": {"tenant": "x", "n": 1, "deep": {"a": []}}},
        {"countdown": 60, "link": "add.s(1)"},
        {"countdown": 60, "link": "group(add.s(1), add.s(2))"},
        {"countdown": 60, "link_error": "add.si(1, 2)"},
        {"countdown": 60, "group_id": "g", "group_index": 3},
        {"countdown": 60, "root_id": "r", "parent_id": "p"},
        {"countdown": 60, "time_limit": 30, "soft_time_limit": 20},
        {"countdown": 60, "ignore_result": True, "shadow": "shown 100%", "reply_to": "me"},
        {"countdown": 60, "argsrepr": "hidden", "kwargsrepr": "hidden"},
        {"countdown": 60, "delivery_mode": 1, "routing_key": "celery"},
        {"countdown": 60, "my_property": "kept"},
        {"countdown": 60, "skip_after": 10},
    ],
    ids=repr,
)
@pytest.mark.parametrize("for_all", [False, True], ids=["of each", "for all"])
def test_options_come_to_the_same_message(
    make_app: MakeApp, redis: Redis, options: dict[str, Any], for_all: bool
) -> None:
    app = make_app(timezone="Asia/Tokyo")
    add = app.tasks["tasks.add"]
    known = {"add": add, "group": group}
    options = {k: eval(v, known) if k.startswith("link") else v for k, v in options.items()}
    fields = {k: v for k, v in options.items() if k in Item._fields}
    others = {k: v for k, v in options.items() if k not in Item._fields}

    def send() -> None:
        for _ in range(4):
            add.apply_async((1, 2), **options)

    if for_all:
        made = assert_same(app, redis, send, [Item((1, 2))] * 4, task=add, **options)
    else:
        items = [Item((1, 2), task=add, options=others, **fields)] * 4
        made = assert_same(app, redis, send, items)

    # Where a template gives something else than Celery, it is not used.
    assert made == (4 if "argsrepr" in options else 1)


@pytest.mark.parametrize(
    "options", [{}, {"countdown": 0}, {"countdown": -5}, {"eta": "2001-01-01"}]
)
def test_what_is_due_is_ready_at_once(
    delayq: DelayQ, redis: Redis, options: dict[str, Any]
) -> None:
    report = delayq.schedule_many([Item((1, 2), **options)] * 3, task="tasks.add")

    assert report.counts == {"ready": 3}
    assert [message["headers"]["eta"] for message in ready(redis)] == [None] * 3
    assert stored(redis) == []


def by_arguments(_name: str, args: Any, *_: Any, **__: Any) -> dict[str, Any]:
    """Route a task, as apps do that know their arguments."""
    return {"priority": args[0]}


@pytest.mark.parametrize(
    "conf",
    [
        {"task_serializer": "yaml"},
        {"task_compression": "zlib"},
        {"task_routes": [by_arguments]},
        {"task_routes": {"tasks.*": {"priority": 6}}},
        {"task_inherit_parent_priority": True, "task_default_priority": 3},
        {"task_track_started": True, "task_ignore_result": True},
        {"task_send_sent_event": True},
        {"task_repr_maxlevels": 1},
    ],
    ids=lambda conf: next(iter(conf)),
)
def test_settings_of_the_app_count(make_app: MakeApp, redis: Redis, conf: dict[str, Any]) -> None:
    if not all(hasattr(Celery(set_as_current=False).conf, name) for name in conf):
        pytest.skip("this Celery has no such setting")
    app = make_app(accept_content=["json", "yaml"], **conf)
    add = app.tasks["tasks.add"]

    def send() -> None:
        for n in range(3):
            add.apply_async((n, [[n]]), countdown=60 + n)

    made = assert_same(app, redis, send, [add.s(n, [[n]]).set(countdown=60 + n) for n in range(3)])

    slow = {"task_serializer", "task_compression"} & conf.keys() or isinstance(
        conf.get("task_routes"), list
    )
    assert made == (3 if slow else 1)


def shadow_name(task: Task, args: Any, kwargs: Any, options: Any) -> str:
    return f"no {args[0]}"


class OfItsOwn(Task):
    """A base class as apps have them."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        headers = {"first": args[0]}
        return super().apply_async(args, kwargs, headers=headers, **options)


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")  # priority
def test_tasks_with_a_way_of_their_own_are_left_to_celery(
    app: Celery, delayq: DelayQ, redis: Redis
) -> None:
    headers = app.task(name="headers", base=OfItsOwn, shared=False)(one)
    shadow = app.task(name="shadow", shadow_name=shadow_name, shared=False)(one)
    defaults = app.task(name="defaults", priority=5, expires=600, shared=False)(one)

    for task in (headers, shadow, defaults):
        delayq.schedule_many([Item((n,), countdown=60 + n) for n in range(3)], task=task)

    messages = stored(redis)
    assert [m["headers"]["first"] for m in messages if "first" in m["headers"]] == [0, 1, 2]
    shadows = [m["headers"]["shadow"] for m in messages if m["headers"]["task"] == "shadow"]
    assert shadows == ["no 0", "no 1", "no 2"]
    others = [m for m in messages if m["headers"]["task"] == "defaults"]
    assert [m["properties"]["priority"] for m in others] == [5] * 3
    assert all(m["headers"]["expires"] for m in others)


def test_inside_a_task_the_others_know_where_they_come_from(
    app: Celery, delayq: DelayQ, redis: Redis
) -> None:
    from celery._state import _task_stack

    add = app.tasks["tasks.add"]
    _task_stack.push(add)
    add.push_request(id="parent", root_id="root", called_directly=False, children=[])
    try:
        delayq.schedule_many([Item((n, n), countdown=60) for n in range(3)], task=add)
        children = add.request.children
    finally:
        add.pop_request()
        _task_stack.pop()

    headers = [message["headers"] for message in stored(redis)]
    assert {(each["root_id"], each["parent_id"]) for each in headers} == {("root", "parent")}
    assert len({each["id"] for each in headers}) == 3
    assert children == []


def test_what_was_scheduled_runs(delayq: DelayQ, control: Control) -> None:
    control.start()
    ids = [f"run-{n}" for n in range(100)]
    items = (Item((id,), countdown=0.01 * n, id=id) for n, id in enumerate(ids))

    report = delayq.schedule_many(items, task="work")

    assert report.stored == 100
    control.wait_runs(100)
    assert sorted(control.runs("id")) == sorted(ids)


def test_messages_with_a_unique_key_are_those_of_apply_async(app: Celery, redis: Redis) -> None:
    task = app.task(
        name="order", unique_key="{0}", unique_scope="done", skip_after=60, shared=False
    )(one)

    def send() -> None:
        for n in range(4):
            task.apply_async((n,), countdown=60 + n)
        redis.delete("{celery}:unique")

    items = [Item((n,), countdown=60 + n) for n in range(4)]

    assert assert_same(app, redis, send, items, task=task) == 1
