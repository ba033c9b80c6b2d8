"""``delayq.limits``: what there is, what people set, and the lanes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import InvalidLimit
from celery_delayq.limits.changes import LimitChanges
from celery_delayq.limits.client import LimitStatus
from celery_delayq.model.limits import Definition
from celery_delayq.model.scheduled import Outcome, moment
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.integration.limits.conftest import STRIPE, Hold
from tests.support import TIMEOUT
from tests.support.proxy import Fault, Proxy
from tests.support.scene import StartWorker


def _nothing(*_: str) -> None:
    """Stand for any task."""


def test_a_limit_of_the_code_is_listed_with_its_use(delayq: DelayQ, hold: Hold) -> None:
    hold("ada", "ada", "bob")
    hold("ada", queue="bills")

    assert delayq.limits.list() == [
        LimitStatus("stripe", STRIPE.definition, None, False, held=4, lanes=2, used=0)
    ]
    assert delayq.limits.list()[0].definition == STRIPE.definition


def test_without_limits_there_are_none(delayq: DelayQ) -> None:
    assert delayq.limits.list() == []


def test_what_is_not_given_stays(delayq: DelayQ, hold: Hold) -> None:
    assert delayq.limits.set("stripe", rate="7/m").definition == Definition(
        60_000_000 / 7, 20, 8, True
    )
    assert delayq.limits.set("stripe", burst=3).definition == Definition(60_000_000 / 7, 3, 8, True)
    assert delayq.limits.set("stripe", rate=None).definition == Definition(0.0, 1, 8, True)
    found = delayq.limits.set("stripe", concurrency=None, fair=False, rate=2)

    assert found.definition == found.override == Definition(500_000, 1, 0, False)
    assert found.of_code == STRIPE.definition


def test_of_two_people_who_set_a_limit_at_once_both_count(
    delayq: DelayQ, hold: Hold, make_app: MakeApp
) -> None:
    """Each changes one value again and again; no change is lost."""

    def change(own: DelayQ, option: str, values: list[Any]) -> None:
        for value in values:
            own.limits.set("stripe", **{option: value})

    numbers = [*range(1, 31)]
    with ThreadPoolExecutor() as people:
        done = [
            people.submit(change, DelayQ.of(make_app()), option, values)
            for option, values in {
                "rate": [f"{number}/h" for number in numbers],
                "concurrency": numbers,
                "burst": numbers,
            }.items()
        ]
    assert [each.result() for each in done] == [None] * 3

    assert str(delayq.limits.get("stripe").override) == "30/h, burst 30, 30 at once, fair"


def test_a_change_between_reading_and_writing_of_another_counts(
    hold: Hold, make_app: MakeApp, delayq_redis: RedisUnderTest, redis: Redis
) -> None:
    with Proxy(delayq_redis.port) as proxy:
        own = DelayQ.of(make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0"))
        between = proxy.on(
            "limits/change",
            Fault.DROP_REQUEST,
            then=lambda: redis.hset("delayq:limits", "ostripe", "36000000 20 8 1"),
        )
        found = own.limits.set("stripe", concurrency=3)

    assert between.fired.is_set()
    assert str(found.override) == "100/h, burst 20, 3 at once, fair"


def test_a_limit_is_off_until_something_is_set(delayq: DelayQ, hold: Hold, redis: Redis) -> None:
    found = delayq.limits.set("stripe", off=True)

    assert (found.is_off, found.definition, found.of_code) == (True, None, STRIPE.definition)
    assert redis.hgetall("delayq:limits")[b"ostripe"] == b"none"
    assert delayq.limits.set("stripe", burst=2).definition == Definition(600_000, 2, 8, True)


def test_what_was_set_is_forgotten(delayq: DelayQ, hold: Hold) -> None:
    delayq.limits.set("stripe", concurrency=1)

    assert delayq.limits.unset("stripe")
    assert not delayq.limits.unset("stripe")
    assert delayq.limits.get("stripe").definition == STRIPE.definition


def test_a_limit_that_no_code_has_any_more_is_forgotten(delayq: DelayQ) -> None:
    delayq.store.task_limits.announce({"old": "0 1 1 0"})

    assert delayq.limits.unset("old", code=True)
    assert delayq.limits.list() == []


@pytest.mark.parametrize("code", [False, True], ids=["override", "code"])
def test_a_limit_is_forgotten_only_as_it_was_seen(delayq: DelayQ, redis: Redis, code: bool) -> None:
    changes = LimitChanges(delayq.session)
    delayq.store.task_limits.announce({"old": "0 1 1 0"})
    assert changes.forget("old") is Outcome.UNKNOWN
    seen = delayq.limits.set("old", concurrency=2).definitions
    now = delayq.limits.set("old", concurrency=3).definitions
    before = redis.hgetall("delayq:limits")

    assert changes.forget("old", code=code, seen=seen) is Outcome.CHANGED
    assert redis.hgetall("delayq:limits") == before

    assert changes.forget("old", code=code, seen=now) is Outcome.DONE
    assert {each.name: each.of_code for each in delayq.limits.list()} == (
        {} if code else {"old": Definition(0.0, 1, 1, False)}
    )


def test_a_limit_that_the_code_has_is_not_forgotten(
    delayq: DelayQ, hold: Hold, redis: Redis
) -> None:
    hold("ada")
    before = redis.hgetall("delayq:limits")

    with pytest.raises(InvalidLimit, match=r"limit 'stripe': the code of this app has it.*--off"):
        delayq.limits.unset("stripe", code=True)

    assert redis.hgetall("delayq:limits") == before


def test_a_forgotten_limit_of_the_code_can_be_set_at_once(
    delayq: DelayQ, hold: Hold, make_app: MakeApp
) -> None:
    """An app of newer code forgets the limit before workers of older code store it again."""
    hold("ada")
    assert DelayQ.of(make_app()).limits.unset("stripe", code=True)

    found = delayq.limits.set("stripe", concurrency=2)

    assert found.override == STRIPE.definition._replace(concurrency=2)


def test_a_limit_is_set_before_the_first_worker_starts(app: Celery, delayq: DelayQ) -> None:
    app.task(name="shop.pay", limit=Limit("early bird", rate=1), shared=False)(_nothing)

    assert delayq.limits.get("early bird").definition == Definition(1_000_000, 1, 0, False)
    assert delayq.limits.set("early bird", burst=5).override == Definition(1_000_000, 5, 0, False)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("strip", {"rate": 1}, "no limit 'strip' in Redis or in the app; there are: stripe"),
        ("x", {"rate": 1}, "there are: stripe"),
        (7, {"rate": 1}, "no limit 7"),
        ("stripe", {}, "give rate, burst, concurrency or fair, or off=True"),
        ("stripe", {"rate": 1, "off": True}, "and not both"),
        ("stripe", {"rate": "0/s"}, "above 0"),
        ("stripe", {"burst": 0}, "expected a whole number from 1"),
        ("stripe", {"concurrency": 0}, "expected a whole number from 1"),
        ("stripe", {"rate": None, "burst": 2}, "without rate="),
        ("stripe", {"rate": None, "concurrency": None, "fair": False}, "nothing would be limited"),
    ],
)
def test_what_is_wrong_is_said(
    delayq: DelayQ, hold: Hold, redis: Redis, name: Any, given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidLimit, match=expected.replace("(", r"\(")):
        delayq.limits.set(name, **given)
    assert redis.hkeys("delayq:limits") == [b"cstripe"]


def test_concurrency_needs_late_acknowledgement(app: Celery, delayq: DelayQ) -> None:
    app.task(name="shop.early", limit=Limit("early", rate=1), shared=False)(_nothing)

    with pytest.raises(InvalidLimit, match=r"shop\.early acknowledges when it starts"):
        delayq.limits.set("early", concurrency=3)


@pytest.mark.parametrize("name", ["unset", "lanes", "get"])
def test_every_call_refuses_an_unknown_limit(delayq: DelayQ, hold: Hold, name: str) -> None:
    with pytest.raises(InvalidLimit, match="there are: stripe"):
        getattr(delayq.limits, name)("stirpe")


def test_the_longest_lanes_come_first(delayq: DelayQ, hold: Hold) -> None:
    hold("ada", "ada", "bob", "c:1", "c:1", "c:1")
    hold("ada", "ada", queue="bills")

    found = delayq.limits.lanes("stripe", 2)

    assert [(each.key, each.held, each.used) for each in found] == [("ada", 4, 0), ("c:1", 3, 0)]
    assert found[0].next is not None
    with pytest.raises(InvalidLimit, match="from 1"):
        delayq.limits.lanes("stripe", 0)


def test_a_lane_that_waits_for_a_permit_has_no_next_time(
    delayq: DelayQ, hold: Hold, redis: Redis
) -> None:
    hold("ada")
    redis.zadd("{celery}:lanes", {"stripe:ada": "+inf"})
    redis.zadd("delayq:permits", {f"stripe:ada\0celery\0{n}\0m": 0 for n in range(8)})

    [found] = delayq.limits.lanes("stripe")

    assert (found.next, found.used) == (None, 8)
    assert delayq.limits.list()[0].used == 8
    delayq.limits.set("stripe", concurrency=9)
    [found] = delayq.limits.lanes("stripe")
    assert found.next is not None


def test_while_all_processes_are_busy_lanes_and_why_tell_that_a_permit_is_missing(
    app: Celery, delayq: DelayQ, redis: Redis, delayq_worker: StartWorker
) -> None:
    """Each of two processes runs the only task that its lane allows, and tries no lane."""
    limit = Limit("naps", concurrency=1, key="{0}")
    nap = app.task(name="stock.nap", limit=limit, acks_late=True, shared=False)(_nothing)
    delayq.store.task_limits.announce({"naps": limit.definition.text})
    worker = delayq_worker("tests.apps.stock_tasks:app", pool="prefork", concurrency=2)
    sent = [nap.apply_async((seconds,)).id for _ in range(3) for seconds in (600, 601)]
    wait_until(lambda: redis.zcard("delayq:permits") == 2, TIMEOUT, "both keys run")
    wait_until(lambda: redis.zcard("{celery}:held") == 4, TIMEOUT, "the others are held")
    redis.zadd("{celery}:lanes", {f"naps:{key}": 1 for key in (600, 601)}, xx=True)

    found = delayq.limits.lanes("naps")
    answers = [delayq.why(id, ask_workers=False) for id in sent]

    assert sorted((each.key, each.held, each.used, each.next) for each in found) == [
        ("600", 2, 1, None),
        ("601", 2, 1, None),
    ]
    held = [each.text for each in answers if each.state == "held"]
    assert len(held) == 4
    assert all("Workers have 1 of at most 1 at once." in text for text in held), held
    worker.kill()


@pytest.mark.parametrize("next_try", ["past", "inf"])
@pytest.mark.parametrize("used", [0, 7, 8])
@pytest.mark.parametrize("slots", [0, 19, 20])
def test_lanes_and_why_follow_permits_and_slots_as_metrics_do(
    delayq: DelayQ, hold: Hold, redis: Redis, next_try: str, used: int, slots: int
) -> None:
    """The limit has 8 permits and a burst of 20; busy workers have not tried the lane since."""
    [id] = hold("ada")
    now_us = delayq.store.now_us()
    redis.zadd("{celery}:lanes", {"stripe:ada": "+inf" if next_try == "inf" else now_us - 19e6})
    permits = {f"stripe:ada\0celery\0{n}\0m": 0 for n in range(used)}
    if permits:
        redis.zadd("delayq:permits", permits)
    elif next_try == "inf":
        redis.zadd("delayq:freed_lanes", {"celery\0stripe:ada": 0})
    used_until = now_us + slots * STRIPE.definition.interval_us + 1e6 * (slots == 20)
    redis.zadd("delayq:slots", {"stripe:ada": used_until})

    [lane] = delayq.limits.lanes("stripe")
    values = delayq.why(id, ask_workers=False).reasons[0].values
    definitions = {"stripe": STRIPE.definition}
    steps = delayq.store.task_limits.waiting_steps("celery", definitions, delayq.store.now_us())
    [numbers] = delayq.store.run_each([steps])
    assert not isinstance(numbers, Exception)
    now = moment(delayq.store.now_ms())

    if used == 8:
        expected = None
    else:
        expected = slots < 20
        assert lane.next is not None
        assert values["next"] is not None
        assert (lane.next <= now) is expected
    assert (lane.next is None) is (values["next"] is None) is (expected is None)
    assert values["may_go"] is bool(expected)
    if next_try == "past" or not used:
        assert numbers.may_go == int(bool(expected))


def test_the_lane_that_was_due_first_is_one_that_may_go(
    delayq: DelayQ, hold: Hold, redis: Redis
) -> None:
    """A busy worker tries no lane, so lanes without a permit may have been due earlier."""
    hold("ada", "bob", "cem")
    now_us = delayq.store.now_us()
    ages = {"stripe:ada": 9e9, "stripe:bob": 7e9, "stripe:cem": 8e9}
    redis.zadd("{celery}:lanes", {lane: now_us - age for lane, age in ages.items()})
    redis.zadd("delayq:permits", {f"stripe:ada\0other\0{n}\0m": 0 for n in range(8)})

    steps = delayq.store.task_limits.waiting_steps("celery", {"stripe": STRIPE.definition}, now_us)
    [found] = delayq.store.run_each([steps])

    assert not isinstance(found, Exception)
    assert (found.may_go, found.lane, found.since_us) == (2, "stripe:cem", now_us - 8e9)


def test_many_lanes_are_read_in_pages(delayq: DelayQ, hold: Hold, redis: Redis) -> None:
    [id] = hold("ada")
    keys = [f"key-{number}" for number in range(3000)]
    members = {f"stripe:{key}\0{0:03d}\0{1:015d}\0{id}": 0 for key in keys}
    redis.zadd("{celery}:held", members)
    redis.zadd("{celery}:lanes", {f"stripe:{key}": 1 for key in keys})
    redis.slowlog_reset()

    assert delayq.limits.list()[0].lanes == 3001
    assert len(delayq.limits.lanes("stripe", 3000)) == 3000
    assert redis.slowlog_get() == []


def test_a_change_lets_held_tasks_go(
    app: Celery, delayq: DelayQ, redis: Redis, delayq_worker: StartWorker
) -> None:
    worker = delayq_worker("tests.apps.limit_tasks:app", pool="solo")
    wait_until(lambda: b"cown" in redis.hkeys("delayq:limits"), what="the limits are announced")
    delayq.limits.set("own", rate="1/d", burst=1)
    limit = Limit("own", rate=1000, burst=9, key="{0}")
    task = app.task(name="limits.own", limit=limit, shared=False)(_nothing)
    sent = [task.apply_async(("ada",)) for _ in range(3)]
    wait_until(lambda: redis.zcard("{celery}:held") == 2, what="two are held")
    [lane] = delayq.limits.lanes("own")
    assert (lane.key, lane.held) == ("ada", 2)

    delayq.limits.set("own", off=True)

    assert [each.get(timeout=TIMEOUT) for each in sent] == ["own:ada 0"] * 3
    worker.stop()


def test_of_two_definitions_that_of_the_last_worker_counts_and_its_log_says_so(
    delayq: DelayQ, delayq_worker: StartWorker
) -> None:
    former = {"own": Limit("own", concurrency=3), "pattern": Limit("pattern", rate=1000)}
    delayq.store.task_limits.announce({name: each.definition.text for name, each in former.items()})

    worker = delayq_worker("tests.apps.limit_tasks:app", pool="solo")

    wait_until(lambda: delayq.limits.get("own").definition != former["own"].definition, TIMEOUT)
    wait_until(lambda: "another definition" in worker.log, TIMEOUT, "the warning")
    [line] = [line for line in worker.log.splitlines() if "another definition" in line]
    assert "limit 'own': this worker's code has another definition" in line
    assert line.endswith("Before: 3 at once; now: 1000/s, burst 9")


def test_tasks_of_a_removed_limit_go_although_another_queue_has_no_lanes(
    app: Celery, delayq: DelayQ, redis: Redis, delayq_worker: StartWorker
) -> None:
    delayq_worker("tests.apps.limit_tasks:app", pool="solo", queues=["celery", "other"])
    wait_until(lambda: b"cown" in redis.hkeys("delayq:limits"), what="the limits are announced")
    delayq.limits.set("own", rate="1/d", burst=1)
    limit = Limit("own", rate=1000, burst=9, key="{0}")
    task = app.task(name="limits.own", limit=limit, shared=False)(_nothing)
    sent = [task.apply_async(("ada",)) for _ in range(30)]
    wait_until(lambda: redis.zcard("{celery}:held") == 29, what="they are held")

    redis.delete("delayq:limits")
    delayq.store.task_limits.wake_lanes(["own"])

    assert [each.get(timeout=TIMEOUT) for each in sent] == ["own:ada 0"] * 30


def test_for_asyncio_it_is_the_same(delayq: DelayQ, hold: Hold) -> None:
    hold("ada")

    async def use() -> list[LimitStatus]:
        async with AsyncDelayQ(delayq) as client:
            return await client.limits.list()

    assert asyncio.run(use()) == delayq.limits.list()
