"""Messages of tasks with a limit: each has its lane, whoever sends it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.errors import ConfigError, InvalidLimit
from celery_delayq.model.envelope import LimitMark, Record, due_of_eta, limit_of
from celery_delayq.model.limits.of_app import AppLimits
from celery_delayq.schedule.items import Item
from celery_delayq.schedule.message_factory import MessageFactory
from celery_delayq.schedule.message_template import EncodedCall, Job, TargetTask
from celery_delayq.testing import wait_until
from tests.integration.schedule.test_schedule_many_messages import calls_of_celery
from tests.support import TIMEOUT
from tests.support.many_items import FAR
from tests.support.scene import StartWorker

STRIPE = Limit("stripe", rate="100/m", burst=20, key="{customer}")


def pay(customer: str, amount: int = 5) -> None:
    """Stand for any task."""


@pytest.fixture
def limited(app: Celery) -> Any:
    app.task(name="shop.pay", limit=STRIPE, shared=False)(pay)
    return app.tasks["shop.pay"]


def messages(redis: Redis) -> list[bytes]:
    records = redis.hvals("{celery}:entries")
    return [Record.unpack(record).message for record in records]


def marks(redis: Redis) -> set[LimitMark | None]:
    return {limit_of(message) for message in messages(redis)}


@pytest.mark.parametrize(
    ("args", "kwargs"), [(("c:1",), {}), ((), {"customer": "c:1", "amount": 7}), (["c:1", 7], {})]
)
def test_a_call_has_the_lane_of_its_arguments(
    limited: Any, redis: Redis, args: Any, kwargs: dict[str, Any]
) -> None:
    limited.apply_async(args, kwargs, countdown=60)

    assert marks(redis) == {LimitMark("stripe:c%3A1", 0)}


def test_the_mark_has_the_expiry_of_the_message(limited: Any, redis: Redis) -> None:
    limited.apply_async(("c1",), countdown=60, expires=FAR)
    assert marks(redis) == {LimitMark("stripe:c1", due_of_eta(FAR).ms)}
    redis.flushdb()

    limited.apply_async(("c1",), countdown=60, expires=600)

    [message] = messages(redis)
    expires = json.loads(message)["headers"]["expires"]
    assert marks(redis) == {LimitMark("stripe:c1", due_of_eta(expires).ms)}


def test_a_handler_of_the_signal_decides_about_the_arguments(limited: Any, redis: Redis) -> None:
    from celery.signals import before_task_publish

    def change(body: Any, **_: Any) -> None:
        body[1]["customer"] = "other"

    before_task_publish.connect(change)
    try:
        limited.apply_async(kwargs={"customer": "c1"}, countdown=60)
    finally:
        before_task_publish.disconnect(change)

    assert marks(redis) == {LimitMark("stripe:other", 0)}


def test_a_large_message_has_its_mark_behind_its_task(limited: Any, redis: Redis) -> None:
    limited.apply_async(("c1", "x" * 70_000), countdown=60)

    [message] = messages(redis)
    assert b'", "task": "shop.pay", "limit": "stripe:c1 0"' in message[:300]
    assert marks(redis) == {LimitMark("stripe:c1", 0)}


@pytest.mark.parametrize(
    ("options", "args", "error", "match"),
    [
        ({"limit": STRIPE}, (), InvalidLimit, "no argument has the name 'customer'"),
        ({"limit": STRIPE}, (" \t",), InvalidLimit, "is an empty text"),
        ({"limit": STRIPE}, ("",), InvalidLimit, "is an empty text"),
        (
            {"limit": Limit("one", concurrency=1), "acks_late": False},
            ("c1",),
            InvalidLimit,
            "acknowledges when it starts.*at_least_once=True",
        ),
        ({"limit": 5}, ("c1",), InvalidLimit, "limit=5: expected a Limit"),
        ({"limit": Limit("stripe", rate=1)}, ("c1",), InvalidLimit, "two limits have the name"),
    ],
)
def test_a_call_whose_limit_cannot_hold_is_refused(
    limited: Any,
    app: Celery,
    redis: Redis,
    options: dict[str, Any],
    args: Any,
    error: Any,
    match: str,
) -> None:
    limited.apply_async(("c1",), countdown=60)
    redis.flushdb()
    app.task(name="shop.wrong", typing=False, shared=False, **options)(pay)

    for countdown in (None, 60):
        with pytest.raises(error, match=match):
            app.tasks["shop.wrong"].apply_async(args, countdown=countdown)
    assert redis.keys("*celery*") == []


def test_a_key_of_10_kb_is_stored_as_its_hash(limited: Any, redis: Redis) -> None:
    key = "é" * 5_000
    limited.apply_async((key,), countdown=60)

    [mark] = marks(redis)
    assert mark is not None
    assert mark.lane == f"stripe:{sha256(key.encode()).hexdigest()}"


def test_a_limit_is_no_option_of_a_call(limited: Any) -> None:
    with pytest.raises(InvalidLimit, match="limit can be given to a task only"):
        limited.apply_async(("c1",), limit=STRIPE)


def test_the_old_protocol_has_no_limits(limited: Any, app: Celery) -> None:
    app.conf.task_protocol = 1
    with pytest.raises(ConfigError, match="only with task_protocol 2: limit"):
        limited.apply_async(("c1",))


def test_a_pattern_holds_for_tasks_that_the_app_does_not_know(app: Celery, redis: Redis) -> None:
    AppLimits({"shop.*": STRIPE}).share(app)

    app.send_task("shop.elsewhere", kwargs={"customer": "c1"}, countdown=60)
    app.send_task("another.task", countdown=60)

    assert marks(redis) == {LimitMark("stripe:c1", 0), None}
    with pytest.raises(InvalidLimit, match=r"shop\.elsewhere: .* cannot be computed"):
        app.send_task("shop.elsewhere", ("c1",), countdown=60)


# -- many at once


@pytest.mark.parametrize("expires", [None, 600, FAR])
@pytest.mark.parametrize("delay", [{"countdown": 60}, {"eta": FAR}, {}], ids=str)
def test_a_template_writes_the_mark_as_celerys_message_has_it(
    limited: Any, app: Celery, redis: Redis, expires: Any, delay: Mapping[str, Any]
) -> None:
    items = [Item((f"c{n}",), expires=expires, **delay) for n in range(4)]
    made = calls_of_celery(DelayQ.of(app), items, task=limited)

    assert made == 1
    found = messages(redis) or redis.lrange("celery", 0, -1)
    for message in found:
        sent = json.loads(message)
        mark = limit_of(message)
        assert mark is not None
        when = sent["headers"]["expires"]
        assert mark.expires_ms == (0 if when is None else due_of_eta(when).ms)
        assert sent["properties"]["delayq"]["limit"] == f"{mark.lane} {mark.expires_ms}"
    lanes = {mark.lane for message in found if (mark := limit_of(message))}
    assert lanes == {f"stripe:c{n}" for n in range(4)}


def test_an_item_without_a_lane_is_refused(limited: Any, app: Celery, redis: Redis) -> None:
    items = [Item((customer,), countdown=60) for customer in ("c1", "c2", " ", "c3")]
    report = DelayQ.of(app).schedule_many(items, task=limited)

    assert (report.stored, report.refused) == (3, 1)
    assert isinstance(report.refusals[0].error, InvalidLimit)
    assert {mark.lane for mark in marks(redis) if mark} == {f"stripe:c{n}" for n in (1, 2, 3)}


@pytest.mark.parametrize(("key", "lane"), [("{customer}", "stripe:c2"), (None, "stripe:")])
def test_an_encoded_call_has_its_lane(app: Celery, key: str | None, lane: str) -> None:
    app.task(name="shop.pay", limit=Limit("stripe", rate=1, key=key), shared=False)(pay)
    task = app.tasks["shop.pay"]

    def job(n: int) -> Job:
        given = {"customer": f"c{n}"}
        target = TargetTask.of(task)
        return Job(target, f"i{n}", f"m{n}", (), given, FAR, None, None, None, None, {})

    with MessageFactory(app, {}) as maker:
        maker.make(job(1))
        template = maker.template(job(1))
        assert template is not None
        eta = FAR.isoformat()
        call = EncodedCall("i2", "m2", due_of_eta(eta), eta, "", '{"customer": "c2"}', None)
        filled = template.fill_encoded(call).entry
        [again] = [maker.make(job(2)).entry]

    assert limit_of(Record.unpack(filled.data).message) == LimitMark(lane, 0)
    assert limit_of(Record.unpack(again.data).message) == LimitMark(lane, 0)


# -- periodic entries


def test_a_tick_has_its_lane(limited: Any, app: Celery, redis: Redis) -> None:
    delayq = DelayQ.of(app)
    delayq.periodic.add("nightly", dt.timedelta(days=1), "shop.pay", args=["c1"])

    delayq.periodic.run_now("nightly")

    found = messages(redis) or redis.lrange("celery", 0, -1)
    assert [limit_of(message) for message in found] == [LimitMark("stripe:c1", 0)]


# -- workers


def send_stock(app: Celery, name: str, *args: Any, **options: Any) -> Any:
    return app.send_task(name, args, **options)


def test_a_worker_marks_the_messages_of_stock_producers(
    stock: Celery, delayq: DelayQ, delayq_worker: StartWorker, redis: Redis
) -> None:
    at = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)
    delayed = send_stock(stock, "limits.own", "later", eta=at)
    sent = {
        "own:c1 0": send_stock(stock, "limits.own", "c1"),
        "own:c2 0": stock.send_task("limits.own", kwargs={"customer": "c2"}),
        "pattern: 0": send_stock(stock, "limits.by_pattern"),
        None: send_stock(stock, "limits.none"),
        f"own:c1 {due_of_eta(FAR).ms}": send_stock(stock, "limits.own", "c1", expires=FAR),
    }
    wrong = {
        "limits.own: key='{customer}' of Limit('own') is an empty text": send_stock(
            stock, "limits.own", " "
        ),
        "limits.early acknowledges when it starts, so concurrency=1": send_stock(
            stock, "limits.early"
        ),
    }
    delayq_worker("tests.apps.limit_tasks:app", pool="threads")

    for mark, result in sent.items():
        assert result.get(timeout=TIMEOUT) == mark
    wait_until(lambda: marks(redis) == {LimitMark("own:later", 0)}, TIMEOUT, "it is put off")
    for reason, result in wrong.items():
        dead = wait_until(partial(delayq.dead_letter, result.id), TIMEOUT, "the dead letter")
        assert dead is not None
        assert reason in dead.reason
    assert delayed.state == "PENDING"


def test_a_retry_stays_in_its_lane(delayq_worker: StartWorker, stock: Celery, redis: Redis) -> None:
    delayq_worker("tests.apps.limit_tasks:app", pool="threads")
    stock.send_task("limits.own", ("c1", True))

    def retried() -> list[bytes]:
        return [each for each in messages(redis) if json.loads(each)["headers"]["retries"]]

    [message] = wait_until(retried, TIMEOUT, "the retry")
    mark = limit_of(message)
    assert mark is not None
    assert mark.lane == "own:c1"
    assert mark.expires_ms == due_of_eta(json.loads(message)["headers"]["expires"]).ms


def test_a_worker_says_which_limit_does_not_hold(delayq_worker: StartWorker) -> None:
    worker = delayq_worker("tests.apps.limit_tasks:app", pool="solo")

    wait_until(lambda: "A limit does not hold" in worker.log, TIMEOUT, "the warning")
    [line] = [line for line in worker.log.splitlines() if "A limit does not hold" in line]
    assert "task limits.early acknowledges when it starts, so concurrency=1" in line
