"""``schedule_many``: forms of items, outcomes, unique keys, signals, batches."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain, group, signals
from kombu import Exchange, Queue
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError, InvalidETA, QueueFull, UniqueConflict
from celery_delayq.schedule import schedule_many
from celery_delayq.schedule.items import InvalidItem, Item, ItemOutcome
from tests.integration.conftest import MakeApp, Through, stored
from tests.support.many_items import FAR, numbered, one

# -- forms of items -------------------------------------------------------------------------------


def test_items_have_three_forms(app: Celery, delayq: DelayQ, redis: Redis) -> None:
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
    messages = stored(redis, "mail")
    assert [m["headers"]["id"] for m in messages] == ["item", "mapping", "signature", "other"]
    assert [m["properties"]["priority"] for m in messages] == [9] * 4
    assert [m["headers"]["task"] for m in messages] == ["tasks.add"] * 3 + ["elsewhere"]


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
    app: Celery, delayq: DelayQ, redis: Redis, number: int
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
    assert len(stored(redis)) == 3


def test_an_item_without_a_task_says_where_to_give_one(delayq: DelayQ) -> None:
    report = delayq.schedule_many([Item((1, 2))])

    assert "schedule_many(items, task=" in str(report.refusals[0].error)


@pytest.mark.parametrize(
    ("items", "options", "named"),
    [
        *((each, {}, "expected several") for each in (Item((1, 2)), {"args": (1, 2)}, "tasks.add")),
        *(([Item()], {name: 0}, name) for name in ("task_id", "id", "args", "batch")),
    ],
)
def test_a_call_for_one_item_or_with_a_wrong_option_is_refused(
    delayq: DelayQ, items: Any, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidItem, match=named):
        delayq.schedule_many(items, task="tasks.add", **options)


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"task_always_eager": True}, "task_always_eager"),
        ({"task_protocol": 1}, "task_protocol=1"),
        ({"broker": "redis://localhost"}, r"delayq\+"),
    ],
)
def test_an_app_that_schedules_nothing_is_refused(
    make_app: MakeApp, conf: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        DelayQ.of(make_app(**conf)).schedule_many([Item((1, 2))], task="tasks.add")


# -- where they go --------------------------------------------------------------------------------


def test_a_topic_to_two_queues_is_two_entries_and_one_outcome(
    make_app: MakeApp, redis: Redis
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
    assert (len(stored(redis, "a")), len(stored(redis, "b"))) == (3, 2)


def test_a_queue_that_does_not_last_is_refused(make_app: MakeApp) -> None:
    app = make_app(task_queues=[Queue("temporary", auto_delete=True), Queue("lasting")])
    items = [Item((1, 2), countdown=60, queue=queue) for queue in ("temporary", "lasting")]

    report = DelayQ.of(app).schedule_many(items, task="tasks.add")

    assert report.counts == {"refused": 1, "scheduled": 1}
    assert "'temporary': expected a queue that lasts" in str(report.refusals[0].error)


def test_a_key_prefix_stands_before_every_key(make_app: MakeApp, redis: Redis) -> None:
    app = make_app(broker_transport_options={"global_keyprefix": "shop."})
    items = [Item((1, 2), countdown=n) for n in range(100)]

    DelayQ.of(app).schedule_many(items, task="tasks.add")

    assert {key[:5] for key in redis.scan_iter()} == {b"shop."}


def test_a_full_queue_says_so_of_each_item(make_app: MakeApp, redis: Redis) -> None:
    app = make_app(broker_transport_options={"delayq": {"max_scheduled": 70}})

    report = DelayQ.of(app).schedule_many(
        [Item((n, n), countdown=60, id=f"n{n}") for n in range(200)], task="tasks.add"
    )

    assert report.counts == {"scheduled": 70, "full": 130}
    assert (report.refused, report.uncertain, report.position) == (130, 0, 200)
    assert len(report.refusals) == schedule_many.MAX_REFUSED_ITEMS
    assert report.refusals[0].id == "n70"
    assert isinstance(report.refusals[0].error, QueueFull)
    assert len(stored(redis)) == 70


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
    app: Celery, delayq: DelayQ, redis: Redis, policy: str, counts: Any
) -> None:
    task = app.task(name="order", unique_key="order:{number}", on_conflict=policy, shared=False)(
        one
    )
    outcomes: list[ItemOutcome] = []
    items = [Item((n % 10, n), countdown=60, id=f"n{n}") for n in range(30)]

    report = delayq.schedule_many(items, task=task, on_outcome=outcomes.append)

    assert report.counts == counts
    assert len(stored(redis)) == 10
    for outcome in outcomes:
        if outcome.state != "scheduled":
            its = int(outcome.other[1:])
            assert its % 10 == outcome.index % 10
        if outcome.state == "conflict":
            assert isinstance(outcome.error, UniqueConflict)
    notes = {json.loads(base64.b64decode(m["body"]))[0][1] for m in stored(redis)}
    last_counts = policy in ("replace", "later")
    assert notes == set(range(20, 30) if last_counts else range(10))
    revoked = {n for n in range(30) if app.AsyncResult(f"n{n}").state == "REVOKED"}
    assert revoked == set(range(20) if last_counts else ())


# -- signals --------------------------------------------------------------------------------------


def test_who_listens_to_signals_hears_of_each(delayq: DelayQ, redis: Redis) -> None:
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
    for message in stored(redis):
        assert message["headers"]["trace"] == f"trace of {message['headers']['id']}"


# -- again and again ------------------------------------------------------------------------------


def test_the_same_ids_again_add_nothing(delayq: DelayQ, redis: Redis) -> None:
    first = delayq.schedule_many([*numbered(120), *numbered(5)], task="tasks.add")
    again = delayq.schedule_many(numbered(130), task="tasks.add")

    assert first.counts == {"scheduled": 120, "duplicate": 5}
    assert again.counts == {"duplicate": 120, "scheduled": 10}
    assert len(stored(redis)) == 130

    for n in range(10):
        delayq.run_now(f"n{n}")
    assert redis.llen("celery") == 10
    while_ready = delayq.schedule_many(numbered(10), task="tasks.add")

    assert while_ready.counts == {"duplicate": 10}
    assert (len(stored(redis)), redis.llen("celery")) == (120, 10)


def test_items_without_an_id_are_all_stored(delayq: DelayQ, redis: Redis) -> None:
    for _ in range(2):
        delayq.schedule_many([Item((1, 2), countdown=60)] * 60, task="tasks.add")

    assert len({message["headers"]["id"] for message in stored(redis)}) == 120


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
    delayq: DelayQ, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_many, "FLUSH_SECONDS", -1.0)
    seen: list[int] = []

    def items() -> Iterator[Item]:
        for n in range(4):
            seen.append(len(stored(redis)))
            yield Item((n, n), countdown=60)

    delayq.schedule_many(items(), task="tasks.add")

    # The one before last was answered before the last one was sent.
    assert seen[3] >= 2


def test_many_kinds_of_messages_are_no_problem(
    delayq: DelayQ, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_delayq.schedule.message_factory.MAX_TEMPLATES", 3)
    items = [
        Item((n, n), countdown=60 + n, options={"headers": {"kind": n % 7}}) for n in range(50)
    ]

    delayq.schedule_many(items, task="tasks.add")

    assert [m["headers"]["kind"] for m in stored(redis)] == [n % 7 for n in range(50)]


@pytest.mark.usefixtures("patient")
def test_the_number_of_commands_is_that_of_script_calls(through: Through) -> None:
    proxy, delayq = through()
    delayq.schedule_many(numbered(1000), task="tasks.add")

    assert proxy.traffic["schedule/add"] == 20
