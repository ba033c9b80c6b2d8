"""Periodic entries are fired by workers, without beat."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError, InvalidSchedule, PeriodicExists, PeriodicUnknown
from celery_delayq.testing import FAST_START, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.apps.periodic_tasks import Diary, StartWorker, start
from tests.integration.conftest import Through
from tests.integration.periodic.conftest import MakeShop
from tests.support import TIMEOUT
from tests.support.proxy import Fault
from tests.support.ticking import ticking


def steps(ticks: list[int]) -> set[int]:
    return {after - before for before, after in pairwise(ticks)}


@pytest.mark.conformance
@pytest.mark.parametrize("pool", ["solo", "threads", "prefork", "gevent", "eventlet"])
def test_an_interval_ticks_in_each_pool(
    pool: str, delayq: DelayQ, diary: Diary, delayq_worker: StartWorker
) -> None:
    delayq.periodic.add("often", 0.25, "note", catch_up="all", catch_up_max=1000)
    expected = [round(tick.timestamp() * 1000) for tick in delayq.periodic.next("often", 6)]
    start(delayq_worker, pool)

    # Several run at once, so a later one may be the first to write it down.
    wait_until(lambda: {*expected} <= {*diary.ticks("often")}, TIMEOUT, f"{expected} run")

    assert steps(expected) == {250}
    assert diary.ticks("often")[:6] == expected
    assert min(diary.lateness("often")) >= 0


def test_entries_in_code_are_fired(
    make_shop: MakeShop,
    diary: Diary,
    delayq_redis: RedisUnderTest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = {"task": "note", "schedule": 0.5, "kwargs": {"do": "as told"}, "catch_up": "all"}
    app = make_shop(wrong={"task": "note", "schedule": "soon"}, mine=mine)

    with TimeTravel(app, delayq_redis.server) as travel:
        assert travel.travel(seconds=2) == 4

    assert steps(diary.ticks("mine")) == {500}
    assert set(diary.runs("do")) == {"as told"}
    assert "Periodic entry 'wrong' in code is left out" in caplog.text


def test_what_is_kept_of_an_entry(delayq: DelayQ) -> None:
    noon = crontab(hour=12, minute=0)
    added = delayq.periodic.add("noon", noon, "note", ("x",), queue="q", timezone="Europe/Berlin")

    assert delayq.periodic.list() == [added] == [delayq.periodic.get("noon")]
    assert added.definition.schedule == noon
    assert added.total_run_count == 0
    assert added.next is not None
    days = delayq.periodic.next("noon", 3)
    assert days[0] == added.next
    assert all(timedelta(hours=22) < b - a < timedelta(hours=26) for a, b in pairwise(days))


def test_a_name_is_taken_once(delayq: DelayQ) -> None:
    delayq.periodic.add("a", 10, "note")

    for every in (10, 20):
        with pytest.raises(
            PeriodicExists, match="there is a periodic entry 'a' already, made by api"
        ):
            delayq.periodic.add("a", every, "note")

    changed = delayq.periodic.add("a", 20, "note", replace=True)
    assert delayq.periodic.list() == [changed]


def test_a_paused_entry_is_not_fired(delayq: DelayQ, diary: Diary, travel: TimeTravel) -> None:
    delayq.periodic.add("a", 0.3, "note")
    delayq.periodic.add("b", 0.3, "note")
    travel.travel(seconds=1)
    before = diary.ticks("a")
    assert len(before) == 3

    paused = delayq.periodic.pause("a")
    travel.travel(seconds=3)

    assert paused.status == "paused"
    assert paused.next is None
    assert len(diary.ticks("b")) == 13
    assert diary.ticks("a") == before
    back = delayq.periodic.resume("a")
    assert back.status == "on"
    travel.travel(seconds=1)
    assert len(diary.ticks("a")) > 3


def test_what_is_not_there_cannot_be_changed(delayq: DelayQ) -> None:
    for call in (delayq.periodic.update, delayq.periodic.pause, delayq.periodic.run_now):
        with pytest.raises(PeriodicUnknown, match="no periodic entry 'x'"):
            call("x")
    assert delayq.periodic.remove("x") is False


def test_what_is_no_entry_is_left_alone_until_it_is_removed(
    delayq: DelayQ,
    diary: Diary,
    delayq_redis: RedisUnderTest,
    travel: TimeTravel,
    caplog: pytest.LogCaptureFixture,
) -> None:
    garbage = [b"", b"garbage", b"\xff\n{}", b"1 a 2 3 4 5 on\n{", b"2 a\n{}"]
    wrong = {f"wrong{n}".encode(): record for n, record in enumerate(garbage)}
    delayq_redis.client.hset("delayq:periodic", mapping={**wrong, b"wr\xffng": b"garbage"})
    delayq_redis.client.zadd("delayq:periodic_at", {**dict.fromkeys(wrong, 0), b"wr\xffng": 0})
    delayq.periodic.add("right", 0.2, "note", catch_up="all")

    assert travel.travel(seconds=0.5) == 2

    assert [entry.name for entry in delayq.periodic.list()] == ["right"]
    for name in map(bytes.decode, wrong):
        assert f"Periodic entry {name!r} cannot be fired here: unreadable" in caplog.text
        assert delayq.periodic.remove(name)
        assert not delayq.periodic.remove(name)
    assert {*delayq_redis.client.hkeys("delayq:periodic")} == {b"wr\xffng", b"right"}


def test_an_answer_that_is_lost_makes_no_second_one(
    delayq: DelayQ, diary: Diary, through: Through, delayq_redis: RedisUnderTest
) -> None:
    """A repeated call finds what the first one has done."""
    entry = delayq.periodic.add("hourly", 3600, "note")
    proxy, caller = through(delayq_redis.port)
    caller.periodic.get("hourly")
    lost = proxy.on("periodic/fire", Fault.DROP_REPLY)
    id = caller.periodic.run_now("hourly")

    assert lost.fired.is_set()
    assert id is not None
    assert diary.ready() == [id]
    [found] = delayq.periodic.list()
    assert found.state == replace(entry.state, manual_runs=1, manual_id=id.partition(":")[2])


def test_manual_runs_at_the_same_time_are_as_many_as_there_were_calls(
    delayq: DelayQ, diary: Diary
) -> None:
    delayq.periodic.add("hourly", 3600, "note")

    with ThreadPoolExecutor(8) as pool:
        ids = [str(id) for id in pool.map(delayq.periodic.run_now, ["hourly"] * 40)]

    assert sorted(diary.ready()) == sorted(ids)
    assert len({*ids}) == 40
    assert delayq.periodic.list()[0].total_run_count == 40


def test_an_answer_to_add_that_is_lost_after_a_tick_was_scheduled_is_no_refusal(
    delayq: DelayQ, app: Celery, through: Through, delayq_redis: RedisUnderTest
) -> None:
    proxy, caller = through(delayq_redis.port)
    with ticking(app):
        caller.periodic.get("soon")
        lost = proxy.on("periodic/compare_and_set", Fault.DROP_REPLY)
        added = caller.periodic.add("soon", 1, "note")

    assert lost.fired.is_set()
    [found] = delayq.periodic.list()
    assert found.state.anchor == added.state.anchor


def test_what_would_never_be_due_is_no_change(delayq: DelayQ) -> None:
    past = datetime(2001, 1, 1, tzinfo=timezone.utc)
    entry = delayq.periodic.add("hourly", 3600, "note")

    changes: list[Callable[[], object]] = [
        lambda: delayq.periodic.update("hourly", schedule=past),
        lambda: delayq.periodic.add("hourly", past, "note", replace=True),
        lambda: delayq.periodic.add("other", past, "note"),
    ]
    for change in changes:
        with pytest.raises(InvalidSchedule, match="never due from now on"):
            change()

    assert delayq.periodic.list() == [entry]


def test_a_signature_says_what_it_is_called_with(app: Celery, delayq: DelayQ) -> None:
    signature = app.tasks["note"].s("do").set(queue="slow", priority=3)

    entry = delayq.periodic.add("a", 60, signature, kwargs={"seconds": 2}, priority=6)

    definition = entry.definition
    assert (definition.task, definition.args) == ("note", ("do",))
    assert definition.kwargs == {"seconds": 2}
    assert definition.options == {"queue": "slow", "priority": 6}
    with pytest.raises(ConfigError, match="the signature has arguments"):
        delayq.periodic.add("b", 60, signature, ["other"])


def test_a_worker_with_the_url_alone_says_that_it_fires_nothing(
    delayq_worker: StartWorker, delayq_broker_url: str, tmp_path: Path
) -> None:
    (tmp_path / "plain_shop.py").write_text(
        f"from celery import Celery\napp = Celery('shop', broker={delayq_broker_url!r})\n"
        "import celery_delayq\n"
        "app.conf.beat_schedule = {'a': {'task': 't', 'schedule': 60}}\n"
    )
    path = {"PYTHONPATH": str(tmp_path)}
    worker = delayq_worker("plain_shop:app", pool="solo", env=path, extra_args=FAST_START)

    worker.wait_log("beat_schedule has entries .1.: workers fire them only where")
