"""Very many tasks are scheduled as one by one, only faster: same messages, an outcome for each."""

from __future__ import annotations

import base64
import datetime as dt
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest
from celery import Celery, Task, chain, group, signals
from kombu import Exchange, Queue

from celery_delayq import DelayQ
from celery_delayq.errors import (
    ConfigError,
    InvalidETA,
    NotReplicated,
    QueueFull,
    StoreFull,
    UniqueConflict,
)
from celery_delayq.schedule import schedule_many
from celery_delayq.schedule.message_factory import MessageFactory
from celery_delayq.schedule.schedule_many import (
    InvalidItem,
    Item,
    ItemOutcome,
    ManyFailed,
    ManyReport,
)
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest, new_server
from tests.integration.conftest import MakeApp, ready, stored
from tests.support.proxy import Fault, Proxy

UTC = dt.timezone.utc
FAR = dt.datetime(2100, 1, 1, 12, tzinfo=UTC)
TOKYO = dt.timezone(dt.timedelta(hours=9))


def entries(redis: RedisUnderTest, queue: str = "celery") -> list[tuple[int, dict[str, Any]]]:
    """Return due (ms) and message of what is scheduled, by due."""
    found = redis.client.zrange(f"{{{queue}}}:due", 0, -1, withscores=True)
    return list(zip((int(score) for _, score in found), stored(redis, queue), strict=True))


def calls_of_celery(delayq: DelayQ, items: list[Any], **options: Any) -> int:
    """Schedule items, and return how many of the messages Celery itself has made."""
    make = MessageFactory._by_celery
    with patch.object(MessageFactory, "_by_celery", autospec=True, side_effect=make) as made:
        report = delayq.schedule_many(items, **options)
    assert report.stored == len(items), report.refusals
    return made.call_count


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches fill, however slow this machine is."""
    monkeypatch.setattr(schedule_many, "PATIENCE", 60.0)


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
    app: Celery,
    redis: RedisUnderTest,
    send: Callable[..., Any],
    items: list[Any],
    **options: Any,
) -> int:
    """Send by Celery and then by us; return how many of ours Celery itself has made."""
    send()
    expected = entries(redis), ready(redis)
    redis.client.delete("{celery}:due", "{celery}:entries", "{celery}:tasks", "celery")

    made = calls_of_celery(DelayQ.of(app), items, **options)

    found = entries(redis), ready(redis)
    # What is scheduled has a label, ready messages of apply_async need none.
    assert [decoded(message) for _, message in found[0]] == [
        decoded(message) for _, message in expected[0]
    ]
    assert len(found[1]) == len(expected[1])
    for (due, _), (wanted, _) in zip(found[0], expected[0], strict=True):
        assert abs(due - wanted) < (30_000 if wanted < 4e12 else 1)
    return made


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS)
def test_arguments_are_encoded_as_celery_does(
    app: Celery, delayq_redis: RedisUnderTest, args: Any, kwargs: dict[str, Any]
) -> None:
    def send() -> None:
        for n in range(4):
            app.send_task("any", args, kwargs, countdown=60 + n)

    items = [Item(args, kwargs, countdown=60 + n) for n in range(4)]
    made = assert_same(app, delayq_redis, send, items, task="any")

    # One was made by Celery, the others are like it.
    assert made == 1


def test_arguments_of_one_kind_of_message_may_differ(
    app: Celery, delayq_redis: RedisUnderTest
) -> None:
    def send() -> None:
        for n, (args, kwargs) in enumerate(ARGUMENTS):
            app.send_task("any", args, kwargs, countdown=60 + n)

    items = [Item(*arguments, countdown=60 + n) for n, arguments in enumerate(ARGUMENTS)]
    made = assert_same(app, delayq_redis, send, items, task="any")

    assert made == 1


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 90.5},
        {"countdown": 60, "eta": FAR},
        {"eta": FAR},
        {"eta": FAR.astimezone(TOKYO)},
        {"eta": FAR.replace(tzinfo=None)},
        {"eta": FAR + dt.timedelta(microseconds=1)},
        {"eta": dt.date(2100, 1, 1)},
        {"eta": "2100-01-01T12:00:00+05:00"},
        {"countdown": 60, "priority": 9},
        {"countdown": 60, "priority": 0},
        {"countdown": 60, "expires": 600},
        {"countdown": 60, "expires": 600.5},
        {"countdown": 60, "expires": FAR},
        {"countdown": 60, "expires": FAR.replace(tzinfo=None)},
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
    make_app: MakeApp, delayq_redis: RedisUnderTest, options: dict[str, Any], for_all: bool
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
        made = assert_same(app, delayq_redis, send, [Item((1, 2))] * 4, task=add, **options)
    else:
        items = [Item((1, 2), task=add, options=others, **fields)] * 4
        made = assert_same(app, delayq_redis, send, items)

    # Where a template gives something else than Celery, it is not used.
    assert made == (4 if "argsrepr" in options else 1)


@pytest.mark.parametrize(
    "options", [{}, {"countdown": 0}, {"countdown": -5}, {"eta": "2001-01-01"}]
)
def test_what_is_due_is_ready_at_once(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, options: dict[str, Any]
) -> None:
    report = delayq.schedule_many([Item((1, 2), **options)] * 3, task="tasks.add")

    assert report.counts == {"ready": 3}
    assert [message["headers"]["eta"] for message in ready(delayq_redis)] == [None] * 3
    assert stored(delayq_redis) == []


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
def test_settings_of_the_app_count(
    make_app: MakeApp, delayq_redis: RedisUnderTest, conf: dict[str, Any]
) -> None:
    if not all(hasattr(Celery(set_as_current=False).conf, name) for name in conf):
        pytest.skip("this Celery has no such setting")
    app = make_app(accept_content=["json", "yaml"], **conf)
    add = app.tasks["tasks.add"]

    def send() -> None:
        for n in range(3):
            add.apply_async((n, [[n]]), countdown=60 + n)

    made = assert_same(
        app, delayq_redis, send, [add.s(n, [[n]]).set(countdown=60 + n) for n in range(3)]
    )

    slow = {"task_serializer", "task_compression"} & conf.keys() or isinstance(
        conf.get("task_routes"), list
    )
    assert made == (3 if slow else 1)


def one(number: Any, note: Any = None) -> None:
    """Stand for a task with other arguments."""


def shadow_name(task: Task, args: Any, kwargs: Any, options: Any) -> str:
    return f"no {args[0]}"


class OfItsOwn(Task):
    """A base class as apps have them."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        headers = {"first": args[0]}
        return super().apply_async(args, kwargs, headers=headers, **options)


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")  # priority
def test_tasks_with_a_way_of_their_own_are_left_to_celery(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    headers = app.task(name="headers", base=OfItsOwn, shared=False)(one)
    shadow = app.task(name="shadow", shadow_name=shadow_name, shared=False)(one)
    defaults = app.task(name="defaults", priority=5, expires=600, shared=False)(one)

    for task in (headers, shadow, defaults):
        delayq.schedule_many([Item((n,), countdown=60 + n) for n in range(3)], task=task)

    messages = stored(delayq_redis)
    assert [m["headers"]["first"] for m in messages if "first" in m["headers"]] == [0, 1, 2]
    assert [m["headers"]["shadow"] for m in messages if m["headers"]["task"] == "shadow"] == [
        "no 0",
        "no 1",
        "no 2",
    ]
    others = [m for m in messages if m["headers"]["task"] == "defaults"]
    assert [m["properties"]["priority"] for m in others] == [5] * 3
    assert all(m["headers"]["expires"] for m in others)


def test_inside_a_task_the_others_know_where_they_come_from(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
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

    headers = [message["headers"] for message in stored(delayq_redis)]
    assert {(each["root_id"], each["parent_id"]) for each in headers} == {("root", "parent")}
    assert len({each["id"] for each in headers}) == 3
    assert children == []


def test_what_was_scheduled_runs(
    delayq_worker: Callable[..., WorkerProcess],
    delayq_broker_url: str,
    delayq_redis: RedisUnderTest,
) -> None:
    delayq_worker("tests.apps.delayq_tasks:app")
    with Celery("sender", broker=delayq_broker_url, set_as_current=False) as app:
        delayq = DelayQ(app)
        report = delayq.schedule_many(
            (Item((n, n), countdown=0.01 * n, id=f"run-{n}") for n in range(100)),
            task="add",
        )
        delayq.close()

    assert report.stored == 100
    wait_until(lambda: delayq_redis.client.llen("log") == 100, what="all have run")
    runs = [json.loads(run) for run in delayq_redis.client.lrange("log", 0, -1)]
    assert {run["id"] for run in runs} == {f"run-{n}" for n in range(100)}


# -- forms of items -------------------------------------------------------------------------------


def test_items_have_three_forms(app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
    add = app.tasks["tasks.add"]

    report = delayq.schedule_many(
        [
            Item((1, 2), countdown=10, id="item", queue="mail", priority=9),
            {"args": (1, 2), "countdown": 20, "id": "mapping", "queue": "mail", "priority": 9},
            add.s(1, 2).set(countdown=30, task_id="signature", queue="mail", priority=9),
            Item((1, 2), countdown=40, id="other", task="elsewhere", queue="mail", priority=9),
        ],
        task=add,
    )

    assert report.counts == {"scheduled": 4}
    messages = stored(delayq_redis, "mail")
    assert [m["headers"]["id"] for m in messages] == ["item", "mapping", "signature", "other"]
    assert [m["properties"]["priority"] for m in messages] == [9] * 4
    assert [m["headers"]["task"] for m in messages] == ["tasks.add"] * 3 + ["elsewhere"]


def test_what_an_item_says_goes_before_what_is_said_for_all(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    delayq.schedule_many(
        [Item((1, 2)), Item((3, 4), eta=FAR, queue="own")],
        task="tasks.add",
        countdown=60,
        queue="all",
    )

    assert len(stored(delayq_redis, "all")) == 1
    assert [due for due, _ in entries(delayq_redis, "own")] == [int(FAR.timestamp() * 1000)]


def bad_items(app: Celery) -> list[tuple[Any, type[Exception], str]]:
    """Return items that are wrong, what is raised, and what the message names."""
    add = app.tasks["tasks.add"]
    other = Celery("other", set_as_current=False)
    other.task(name="elsewhere", shared=False)(one)
    return [
        ((1, 2), InvalidItem, r"\(1, 2\): expected an Item, a mapping"),
        (None, InvalidItem, "None: expected an Item"),
        ({"arg": (1, 2)}, InvalidItem, "arg; valid are: args, kwargs"),
        (Item((1, 2), id=17), InvalidItem, "id=17: expected a text"),  # type: ignore[arg-type]
        (Item((1, 2), id=""), InvalidItem, "id='': expected a text"),
        (Item((1, 2), task=5), InvalidItem, "task=5: expected a task or its name"),
        (Item((1, 2), task=other.tasks["elsewhere"]), InvalidItem, "belongs to another app"),
        (Item((1, 2), options={"countdown": 5}), InvalidItem, "countdown: not among the options"),
        (Item((1, 2), countdown="10"), InvalidETA, "'10'"),
        (Item((1, 2), countdown=float("nan")), InvalidETA, "nan"),
        (Item((1, 2), countdown=10**15), InvalidETA, "1000000000000000"),
        (Item((1, 2), eta="tomorrow"), InvalidETA, "tomorrow"),
        (Item((1, 2), eta=5), InvalidETA, "5"),
        (Item((1, 2, 3)), TypeError, "takes 2 positional arguments"),
        (Item("ab"), TypeError, "args must be a list or tuple"),
        (Item((1, object())), Exception, "not JSON serializable"),
        (Item((1, 2), id="\ud800"), InvalidItem, "surrogates"),
        (chain(add.s(1, 2), add.s(3)), InvalidItem, "a chain is not one task"),
        (group(add.s(1, 2), add.s(3, 4)), InvalidItem, "a group is not one task"),
    ]


@pytest.mark.parametrize("number", range(19))
def test_a_bad_item_is_refused_and_the_others_are_not(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, number: int
) -> None:
    bad, error, named = bad_items(app)[number]
    outcomes: list[ItemOutcome] = []
    good = Item((1, 2), countdown=60)

    report = delayq.schedule_many(
        [good, good, bad, good], task=app.tasks["tasks.add"], on_outcome=outcomes.append
    )

    assert report.counts == {"scheduled": 3, "refused": 1}
    [refused] = [outcome for outcome in outcomes if outcome.state == "refused"]
    assert report.refusals == [refused]
    assert refused.index == 2
    with pytest.raises(error, match=named):
        raise refused.error or AssertionError
    assert sorted(outcome.index for outcome in outcomes) == [0, 1, 2, 3]
    assert len(stored(delayq_redis)) == 3


def test_an_item_without_a_task_says_where_to_give_one(delayq: DelayQ) -> None:
    report = delayq.schedule_many([Item((1, 2))])

    assert "schedule_many(items, task=" in str(report.refusals[0].error)


@pytest.mark.parametrize(
    "items", [Item((1, 2)), {"args": (1, 2)}, "tasks.add"], ids=["item", "mapping", "text"]
)
def test_a_single_item_is_no_iterable_of_items(delayq: DelayQ, items: Any) -> None:
    with pytest.raises(InvalidItem, match="expected several"):
        delayq.schedule_many(items, task="tasks.add")


@pytest.mark.parametrize("options", [{"task_id": "x"}, {"id": "x"}, {"args": (1,)}, {"batch": 0}])
def test_what_cannot_be_the_same_for_all_is_refused(delayq: DelayQ, options: Any) -> None:
    with pytest.raises(InvalidItem, match=next(iter(options))):
        delayq.schedule_many([Item()], task="tasks.add", **options)


@pytest.mark.parametrize(
    ("conf", "named"),
    [({"task_always_eager": True}, "task_always_eager"), ({"task_protocol": 1}, "task_protocol=1")],
)
def test_an_app_that_schedules_nothing_is_refused(
    make_app: MakeApp, conf: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        DelayQ.of(make_app(**conf)).schedule_many([Item((1, 2))], task="tasks.add")


def test_another_broker_is_refused(make_app: MakeApp, delayq_redis: RedisUnderTest) -> None:
    app = make_app(broker=delayq_redis.url)

    with pytest.raises(ConfigError, match=r"delayq\+"):
        DelayQ.of(app).schedule_many([Item((1, 2))], task="tasks.add")


# -- where they go --------------------------------------------------------------------------------


def test_a_topic_to_two_queues_is_two_entries_and_one_outcome(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    topic = Exchange("events", type="topic")
    queues = [Queue("a", topic, routing_key="user.#"), Queue("b", topic, routing_key="#.new")]
    limits = {"delayq": {"queues": {"b": {"max_scheduled": 2}}}}
    app = make_app(task_queues=queues, broker_transport_options=limits)
    with app.connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()

    report = DelayQ.of(app).schedule_many(
        [Item((n, n), eta=FAR) for n in range(3)],
        task="tasks.add",
        queue="a",
        routing_key="user.new",
    )

    assert report.counts == {"scheduled": 2, "full": 1}
    assert (len(stored(delayq_redis, "a")), len(stored(delayq_redis, "b"))) == (3, 2)


def test_a_queue_that_does_not_last_is_refused(make_app: MakeApp) -> None:
    app = make_app(task_queues=[Queue("fleeting", auto_delete=True), Queue("lasting")])
    items = [Item((1, 2), countdown=60, queue=queue) for queue in ("fleeting", "lasting")]

    report = DelayQ.of(app).schedule_many(items, task="tasks.add")

    assert report.counts == {"refused": 1, "scheduled": 1}
    assert "'fleeting': expected a queue that lasts" in str(report.refusals[0].error)


def test_a_key_prefix_stands_before_every_key(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    app = make_app(broker_transport_options={"global_keyprefix": "shop."})
    items = [Item((1, 2), countdown=n) for n in range(100)]

    DelayQ.of(app).schedule_many(items, task="tasks.add")

    assert {key[:5] for key in delayq_redis.client.scan_iter()} == {b"shop."}


def test_a_full_queue_says_so_of_each_item(make_app: MakeApp, delayq_redis: RedisUnderTest) -> None:
    app = make_app(broker_transport_options={"delayq": {"max_scheduled": 70}})

    report = DelayQ.of(app).schedule_many(
        [Item((n, n), countdown=60, id=f"n{n}") for n in range(200)], task="tasks.add"
    )

    assert report.counts == {"scheduled": 70, "full": 130}
    assert (report.refused, report.uncertain, report.position) == (130, 0, 200)
    assert len(report.refusals) == schedule_many.SHOWN
    assert report.refusals[0].id == "n70"
    assert isinstance(report.refusals[0].error, QueueFull)
    assert len(stored(delayq_redis)) == 70


# -- unique keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        ("replace", {"scheduled": 10, "replaced": 20}),
        ("later", {"scheduled": 10, "replaced": 20}),
        ("keep", {"scheduled": 10, "kept": 20}),
        ("error", {"scheduled": 10, "conflict": 20}),
    ],
)
def test_unique_keys_are_worked_out_for_each(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, policy: str, counts: Any
) -> None:
    task = app.task(name="order", unique_key="order:{number}", on_conflict=policy, shared=False)(
        one
    )
    outcomes: list[ItemOutcome] = []
    items = [Item((n % 10, n), countdown=60, id=f"n{n}") for n in range(30)]

    report = delayq.schedule_many(items, task=task, on_outcome=outcomes.append)

    assert report.counts == counts
    assert len(stored(delayq_redis)) == 10
    for outcome in outcomes:
        if outcome.state != "scheduled":
            its = int(outcome.other[1:])
            assert its % 10 == outcome.index % 10
        if outcome.state == "conflict":
            assert isinstance(outcome.error, UniqueConflict)
    notes = {json.loads(base64.b64decode(m["body"]))[0][1] for m in stored(delayq_redis)}
    assert notes == set(range(20, 30) if policy in ("replace", "later") else range(10))


def test_messages_with_a_unique_key_are_those_of_apply_async(
    app: Celery, delayq_redis: RedisUnderTest
) -> None:
    task = app.task(
        name="order", unique_key="{0}", unique_scope="done", skip_after=60, shared=False
    )(one)

    def send() -> None:
        for n in range(4):
            task.apply_async((n,), countdown=60 + n)
        delayq_redis.client.delete("{celery}:unique")

    items = [Item((n,), countdown=60 + n) for n in range(4)]

    assert assert_same(app, delayq_redis, send, items, task=task) == 1


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # in Celery's backend
def test_what_was_replaced_is_revoked(app: Celery, delayq: DelayQ) -> None:
    items = [Item((1, n), countdown=60, id=f"n{n}") for n in range(2)]

    delayq.schedule_many(items, task="tasks.add", unique_key="same")

    assert app.AsyncResult("n0").state == "REVOKED"
    assert app.AsyncResult("n1").state == "PENDING"


# -- signals --------------------------------------------------------------------------------------


def test_who_listens_to_signals_hears_of_each(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    heard: Counter[str] = Counter()

    def before(headers: dict[str, Any], **_: Any) -> None:
        heard["before"] += 1
        headers["trace"] = f"trace of {headers['id']}"

    def after(**_: Any) -> None:
        heard["after"] += 1

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        delayq.schedule_many([Item((n, n), countdown=60) for n in range(10)], task="tasks.add")
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)

    assert heard == {"before": 10, "after": 10}
    for message in stored(delayq_redis):
        assert message["headers"]["trace"] == f"trace of {message['headers']['id']}"


# -- again and again ------------------------------------------------------------------------------


def numbered(count: int, **more: Any) -> Iterator[Item]:
    """Yield items with ids of their own."""
    return (Item((n, n), countdown=60, id=f"n{n}", **more) for n in range(count))


def test_the_same_ids_again_add_nothing(delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
    first = delayq.schedule_many(numbered(120), task="tasks.add")
    again = delayq.schedule_many(numbered(130), task="tasks.add")

    assert first.counts == {"scheduled": 120}
    assert again.counts == {"duplicate": 120, "scheduled": 10}
    assert len(stored(delayq_redis)) == 130


def test_the_same_ids_again_add_nothing_while_they_are_ready_or_held(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    store = delayq.store
    delayq.schedule_many(numbered(10), task="tasks.add")
    for n in range(10):
        delayq.run_now(f"n{n}")
    assert delayq_redis.client.llen("celery") == 10

    again = delayq.schedule_many(numbered(10), task="tasks.add")

    assert again.counts == {"duplicate": 10}
    assert store.scheduled("celery") == 0
    assert delayq_redis.client.llen("celery") == 10


def test_ids_that_come_twice_in_one_run_are_stored_once(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    report = delayq.schedule_many(
        [Item((1, 2), countdown=60, id="same"), Item((1, 2), countdown=60, id="same")],
        task="tasks.add",
    )

    assert report.counts == {"scheduled": 1, "duplicate": 1}
    assert len(stored(delayq_redis)) == 1


def test_items_without_an_id_are_all_stored(delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
    for _ in range(2):
        delayq.schedule_many([Item((1, 2), countdown=60)] * 60, task="tasks.add")

    assert len({message["headers"]["id"] for message in stored(delayq_redis)}) == 120


# -- in batches -----------------------------------------------------------------------------------


def test_items_are_taken_as_they_are_sent(delayq: DelayQ) -> None:
    told = 0
    most = 0

    def items() -> Iterator[Item]:
        nonlocal most
        for n in range(3000):
            most = max(most, n - told)
            yield Item((n, n), countdown=60)

    def tell(_: ItemOutcome) -> None:
        nonlocal told
        told += 1

    delayq.schedule_many(items(), task="tasks.add", batch=100, on_outcome=tell)

    assert told == 3000
    # One batch that fills, and one that Redis works on.
    assert most <= 200


def test_a_batch_does_not_wait_for_ever_for_items_that_come_slowly(
    delayq: DelayQ, delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_many, "PATIENCE", -1.0)
    seen: list[int] = []

    def items() -> Iterator[Item]:
        for n in range(4):
            seen.append(len(stored(delayq_redis)))
            yield Item((n, n), countdown=60)

    delayq.schedule_many(items(), task="tasks.add")

    # The one before last was answered before the last one was sent.
    assert seen[3] >= 2


def test_many_kinds_of_messages_are_no_problem(
    delayq: DelayQ, delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_delayq.schedule.message_factory.KINDS", 3)
    items = [
        Item((n, n), countdown=60 + n, options={"headers": {"kind": n % 7}}) for n in range(50)
    ]

    delayq.schedule_many(items, task="tasks.add")

    assert [m["headers"]["kind"] for m in stored(delayq_redis)] == [n % 7 for n in range(50)]


@pytest.mark.usefixtures("patient")
def test_the_number_of_commands_is_that_of_script_calls(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    with Proxy(delayq_redis.port) as proxy:
        delayq = DelayQ.of(make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0"))
        delayq.schedule_many(numbered(1000), task="tasks.add")

        assert proxy.traffic["schedule/add"] == 20


# -- what goes wrong ------------------------------------------------------------------------------


def test_an_iterable_that_fails_is_reported_with_where_to_go_on(
    delayq: DelayQ, delayq_redis: RedisUnderTest
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
    assert len(stored(delayq_redis)) == 1000


def test_a_callback_that_fails_ends_the_run(delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
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
    assert len(stored(delayq_redis)) == 1000


@pytest.mark.parametrize("fault", [Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.RESET, Fault.STALL])
@pytest.mark.parametrize("nth", [1, 7, 20])
def test_a_lost_connection_stores_nothing_twice_and_loses_nothing(
    make_app: MakeApp, delayq_redis: RedisUnderTest, fault: Fault, nth: int
) -> None:
    with Proxy(delayq_redis.port) as proxy:
        delayq = DelayQ.of(make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0"))
        rule = proxy.on("schedule/add", fault, nth=nth)

        report = delayq.schedule_many(
            [Item((n, n), countdown=60) for n in range(1000)], task="tasks.add", batch=200
        )

        assert rule.fired.is_set()
    assert report.taken == sum(report.counts.values()) == 1000
    assert set(report.counts) <= {"scheduled", "duplicate"}
    assert len({m["headers"]["id"] for m in stored(delayq_redis)}) == 1000


def test_a_short_outage_is_waited_for(make_app: MakeApp, delayq_redis: RedisUnderTest) -> None:
    with Proxy(delayq_redis.port) as proxy:
        delayq = DelayQ.of(make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0"))
        back = threading.Timer(0.3, proxy.accept)

        def items() -> Iterator[Item]:
            for item in numbered(1000):
                if item.id == "n450":
                    proxy.refuse()
                    back.start()
                yield item

        report = delayq.schedule_many(items(), task="tasks.add", batch=100)
        back.join()

    assert report.stored + report.counts.get("duplicate", 0) == 1000
    assert len(stored(delayq_redis)) == 1000


def test_scripts_that_the_server_forgets_are_sent_again(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    def items() -> Iterator[Item]:
        for item in numbered(300):
            if item.id == "n150":
                delayq_redis.client.script_flush()
            yield item

    report = delayq.schedule_many(items(), task="tasks.add", batch=50)

    assert report.stored + report.counts.get("duplicate", 0) == 300
    assert len(stored(delayq_redis)) == 300


@pytest.mark.usefixtures("patient")
def test_when_redis_stays_away_what_is_certain_is_told(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0.01, "interval_max": 0.01}
    with Proxy(delayq_redis.port) as proxy:
        app = make_app(
            broker=f"delayq+redis://127.0.0.1:{proxy.port}/0",
            broker_transport_options={"connect_retries_timeout": 0.1},
            task_publish_retry_policy=policy,
        )
        delayq = DelayQ.of(app)
        told: list[ItemOutcome] = []

        def items() -> Iterator[Item]:
            for item in numbered(1000):
                if item.id == "n450":
                    proxy.refuse()
                yield item

        with pytest.raises(ManyFailed) as caught:
            delayq.schedule_many(items(), task="tasks.add", batch=100, on_outcome=told.append)
        proxy.accept()

        report = caught.value.report
        assert sorted(outcome.index for outcome in told) == list(range(report.position))
        assert 200 <= report.position <= 400
        assert report.uncertain == report.taken - report.position
        rest = delayq.schedule_many(islice(numbered(1000), report.position, None), task="tasks.add")

    assert rest.taken == 1000 - report.position
    assert len(stored(delayq_redis)) == 1000


def test_when_redis_is_away_from_the_start_nothing_is_taken(make_app: MakeApp) -> None:
    app = make_app(
        broker="delayq+redis://127.0.0.1:1/0",
        broker_transport_options={"connect_retries_timeout": 0.1},
    )

    with pytest.raises(ManyFailed) as caught:
        DelayQ.of(app).schedule_many(numbered(10), task="tasks.add")

    assert caught.value.report == ManyReport()


def test_a_server_without_memory_ends_the_run(delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
    def items() -> Iterator[Item]:
        for item in numbered(600):
            if item.id == "n301":
                delayq_redis.client.config_set("maxmemory", 1)
            yield item

    with pytest.raises(ManyFailed, match="no memory left") as caught:
        delayq.schedule_many(items(), task="tasks.add", batch=50)
    delayq_redis.client.config_set("maxmemory", 0)

    assert isinstance(caught.value.__cause__, StoreFull)
    report = caught.value.report
    assert report.stored == report.position == len(stored(delayq_redis))
    delayq.schedule_many(islice(numbered(600), report.position, None), task="tasks.add")
    assert len(stored(delayq_redis)) == 600


def test_replicas_are_waited_for(make_app: MakeApp, delayq_redis: RedisUnderTest) -> None:
    options = {"delayq": {"wait_replicas": 1, "wait_timeout": 0.05}}
    app = make_app(broker_transport_options=options)

    with pytest.raises(ManyFailed, match="0 of 1 replicas have it") as caught:
        DelayQ.of(app).schedule_many(numbered(60), task="tasks.add")

    assert isinstance(caught.value.__cause__, NotReplicated)
    report = caught.value.report
    assert (report.stored, report.position, report.uncertain) == (60, 60, 0)
    assert len(stored(delayq_redis)) == 60


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
