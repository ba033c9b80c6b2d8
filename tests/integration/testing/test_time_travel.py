"""A day later, in a test: both clocks move, and tasks run in the thread of the test."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from celery import Celery, chain, chord, current_app, group
from celery.exceptions import Reject
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.schedules import crontab

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import TravelError
from celery_delayq.integration import worker
from celery_delayq.testing import assert_scheduled, dead_letters, drain, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.integration.testing.conftest import HOUR, Runs
from tests.support import TIMEOUT

pytestmark = pytest.mark.conformance


def test_a_reminder_goes_out_a_day_later_and_its_follow_up_after_it(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    start = delayq_time.now
    delayq_app.tasks["remind"].apply_async(("ada",), countdown=86400)

    assert delayq_time.travel(hours=23) == 0
    assert runs == []
    assert delayq_time.travel(hours=3) == 2

    assert runs.after(start) == [("remind ada", 24), ("follow_up ada", 26)]
    assert delayq_time.now == start + timedelta(hours=26)
    assert datetime.now(timezone.utc) == delayq_time.now


def test_a_cancelled_reminder_does_not_go_out(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    result = delayq_app.tasks["remind"].apply_async(("ada",), countdown=86400)

    assert DelayQ.of(delayq_app).cancel(result.id)
    delayq_time.travel(days=2)

    assert runs == []
    assert result.state == "REVOKED"


def test_retries_come_at_their_times_and_then_there_is_a_dead_letter(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    start = delayq_time.now
    delayq_app.tasks["flaky"].delay()

    delayq_time.travel(days=1)

    assert runs.after(start) == [("flaky 0", 0), ("flaky 1", 1), ("flaky 2", 2)]
    [dead] = dead_letters("flaky")
    assert "MaxRetriesExceededError" in dead.reason


def test_a_slot_of_a_limit_comes_in_its_time(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    start = delayq_time.now
    for name in "abcd":
        delayq_app.tasks["limited"].delay(name)

    delayq_time.travel(days=1)

    assert runs.after(start) == [
        ("limited a", 0),
        ("limited b", 0.5),
        ("limited c", 1),
        ("limited d", 1.5),
    ]


def test_tasks_run_in_the_thread_of_the_test(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    threads = []

    @delayq_app.task(shared=False, name="where")
    def where() -> None:
        threads.append(threading.get_ident())

    before = threading.active_count()
    where.apply_async(countdown=60)
    delayq_time.travel(minutes=1)

    assert threads == [threading.get_ident()]
    assert threading.active_count() == before


def test_periodic_ticks_and_what_they_send_come_in_their_order(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    delayq_time.travel_to("2096-03-01T08:30+00:00")
    DelayQ.of(delayq_app).periodic.add(
        "digest", crontab("0", "9"), task="remind", args=["digest"], catch_up="skip"
    )

    assert delayq_time.travel(days=3) == 6

    assert [(name, at.isoformat(" ", "minutes")) for name, at in runs] == [
        (f"{name} digest", f"2096-03-{day:02} {hour}:00+00:00")
        for day in (1, 2, 3)
        for name, hour in (("remind", "09"), ("follow_up", "11"))
    ]


def test_entries_in_the_code_of_the_app_fire_too(
    delayq_app: Celery, request: pytest.FixtureRequest, runs: Runs
) -> None:
    delayq_app.conf.beat_schedule = {
        "hourly": {"task": "note", "schedule": 3600.0, "args": ["tick"]},
    }
    delayq_time: TimeTravel = request.getfixturevalue("delayq_time")
    start = delayq_time.now

    delayq_time.travel(hours=3)

    assert runs.after(start) == [("tick", 1), ("tick", 2), ("tick", 3)]


@pytest.mark.parametrize("backend", ["redis://127.0.0.1:1/0", "cache+memory://"])
def test_a_canvas_with_results_runs_to_its_end(
    backend: str, delayq_app: Celery, request: pytest.FixtureRequest, runs: Runs
) -> None:
    delayq_app.conf.result_backend = backend
    delayq_time: TimeTravel = request.getfixturevalue("delayq_time")
    note, total = delayq_app.tasks["note"], []

    @delayq_app.task(shared=False, name="gather")
    def gather(found: list[str]) -> list[str]:
        total.append(found)
        return found

    header = group(note.s(name).set(countdown=hours * 3600) for name, hours in (("a", 1), ("b", 5)))
    result = chord(header)(gather.s())
    chain(note.si("first"), note.si("second").set(countdown=7200)).apply_async(countdown=60)

    delayq_time.travel(hours=4)
    assert not result.ready()
    delayq_time.travel(hours=2)

    assert [name for name, _ in runs] == ["first", "a", "second", "b"]
    assert total == [["a", "b"]]
    assert result.get(timeout=5) == ["a", "b"]


def test_a_chord_that_is_asked_for_again_and_again_may_wait_for_long(
    delayq_app: Celery, request: pytest.FixtureRequest, runs: Runs, tmp_path: Path
) -> None:
    """SQL counts no members of chords: Celery asks once a second."""
    delayq_app.conf.result_backend = f"db+sqlite:///{tmp_path}/results.db"
    delayq_time: TimeTravel = request.getfixturevalue("delayq_time")
    delayq_time.most_runs = 50
    note, total = delayq_app.tasks["note"], []

    @delayq_app.task(shared=False, name="gather")
    def gather(found: list[str]) -> None:
        total.append(found)

    chord([note.s("a"), note.s("b").set(countdown=150)])(gather.s())
    delayq_time.travel(minutes=3)

    assert (total, [*DelayQ.of(delayq_app).dead_letters()]) == ([["a", "b"]], [])


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_a_chord_that_never_ends_is_named(
    delayq_app: Celery, request: pytest.FixtureRequest, runs: Runs, tmp_path: Path, beside: bool
) -> None:
    delayq_app.conf.result_backend = f"db+sqlite:///{tmp_path}/results.db"
    delayq_time: TimeTravel = request.getfixturevalue("delayq_time")
    delayq_time.most_runs = 20
    note = delayq_app.tasks["note"]

    @delayq_app.task(shared=False, name="held")
    def held() -> None:
        """Stand for a task that does not run."""

    DelayQ.of(delayq_app).pause(task="held")
    result = chord([note.s("a"), held.si()])(note.s())
    if beside:  # every fifty seconds, until the call has ended
        for seconds in range(0, 500, 50):
            note.apply_async((str(seconds),), countdown=seconds)

    text = rf"the chord {result.parent.id} with the body note was polled more than 200 times"
    with pytest.raises(TravelError, match=rf"{text} .*most_runs = 200$"):
        delayq_time.travel(days=30)

    assert len(runs) < 20


def test_a_task_past_its_expiry_does_not_run(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    note, delayq = delayq_app.tasks["note"], DelayQ.of(delayq_app)
    delayq.pause(task="note")
    expired = note.apply_async(("expired",), countdown=60, expires=3600)
    note.apply_async(("kept",), countdown=60, expires=4 * 3600)

    delayq_time.travel(hours=2)
    assert runs == []
    delayq.resume(task="note")
    drain()

    assert [name for name, _ in runs] == ["kept"]
    assert expired.state == "REVOKED"


def test_drain_runs_what_is_due_now_of_one_queue_or_of_all(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    note, start = delayq_app.tasks["note"], delayq_time.now
    note.delay("now")
    note.apply_async(("mail",), queue="mail")
    note.apply_async(("mail later",), queue="mail", countdown=1)

    assert delayq_time.drain("mail") == 1
    assert drain() == 1
    assert drain() == 0

    assert [name for name, _ in runs] == ["mail", "now"]
    assert delayq_time.now == start


def test_a_task_runs_by_celerys_own_request(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    seen: dict[str, Any] = {}

    @delayq_app.task(shared=False, name="look", bind=True)
    def look(self: Any, when: datetime) -> None:
        request = self.request
        seen.update(
            eager=request.is_eager,
            eta=datetime.fromisoformat(request.eta),
            queue=request.delivery_info["routing_key"],
            current=current_app.main,
            when=when,
        )
        with pytest.raises(RuntimeError, match="Never call result"):
            delayq_app.AsyncResult("other").get()

    due = delayq_time.now + HOUR
    look.apply_async((due,), eta=due)
    delayq_time.travel(HOUR)

    assert seen == {"eager": False, "eta": due, "queue": "celery", "current": "shop", "when": due}


def test_a_test_may_replace_the_function_of_a_task(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    note = delayq_app.tasks["note"]
    note.delay("real")
    drain()

    with mock.patch.object(note, "run") as run:
        note.delay("mocked")
        drain()

    run.assert_called_once_with("mocked")
    assert [name for name, _ in runs] == ["real"]


def test_what_ends_the_test_ends_it_inside_a_task_too(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    @delayq_app.task(shared=False, name="end")
    def end(how: str) -> None:
        if how == "fail":
            pytest.fail("must not run")
        raise KeyboardInterrupt

    end.delay("fail")
    with pytest.raises(pytest.fail.Exception, match="must not run"):
        drain()
    end.delay("ctrl-c")
    with pytest.raises(KeyboardInterrupt):
        drain()
    assert drain() == 0


def test_a_task_that_ends_the_test_and_is_acknowledged_late_is_ready_again(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    @delayq_app.task(shared=False, name="end_late", acks_late=True)
    def end_late() -> None:
        runs.note("late")
        if len(runs) == 1:
            pytest.fail("must not run")

    end_late.delay()
    delayq_app.tasks["note"].delay("behind")
    with pytest.raises(pytest.fail.Exception, match="must not run"):
        drain()

    assert drain() == 2
    assert [name for name, _ in runs] == ["late", "late", "behind"]


def test_failed_rejected_and_unknown_tasks_are_dead_letters(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    @delayq_app.task(shared=False, name="fail", acks_late=True)
    def fail(how: str) -> None:
        if how == "crash":
            raise SystemExit
        raise Reject("no thanks") if how == "reject" else ValueError(how)

    for how in ("raise", "reject", "crash"):
        fail.apply_async((how,), countdown=60)
    delayq_app.send_task("unknown", countdown=60)

    delayq_time.travel(minutes=1)

    reasons = defaultdict[str | None, list[str]](list)
    for each in dead_letters():
        reasons[each.task].append(each.reason)
    assert sorted(reasons["fail"])[1:] == ["failed: ValueError: raise", "no thanks"]
    assert "SystemExit" in sorted(reasons["fail"])[0]
    assert reasons["unknown"] == ["unknown task 'unknown'"]
    assert [each.task for each in dead_letters("unknown")] == ["unknown"]


def test_a_task_that_sleeps_sleeps_and_the_clocks_stand_still(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    @delayq_app.task(shared=False, name="sleep")
    def sleep() -> None:
        began = time.monotonic()
        time.sleep(0.02)
        assert time.monotonic() - began >= 0.02
        runs.note("slept")

    start = delayq_time.now
    sleep.apply_async(countdown=60)
    delayq_time.travel(minutes=1)

    assert list(runs) == [("slept", start + timedelta(minutes=1))]


def test_the_app_is_as_before_after_the_test(
    delayq_app: Celery, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:2/0")
    delayq_app.conf.update(task_always_eager=True, broker_use_ssl={"ssl_cert_reqs": "none"})
    _ = delayq_app.conf["timezone"]  # loads the settings
    before = dict(delayq_app.conf.changes)
    current, backend = current_app._get_current_object(), delayq_app.backend

    delayq_redis = request.getfixturevalue("delayq_redis")
    with TimeTravel(delayq_app, delayq_redis.server) as travel:
        delayq_app.tasks["note"].apply_async(("later",), countdown=60)
        assert_scheduled("note", count=1)
        assert travel.travel(minutes=1) == 1
        assert delayq_app.backend is not backend
    changed = datetime.now(timezone.utc)

    assert dict(delayq_app.conf.changes) == before
    assert delayq_app.connection_for_write().port == 2
    assert delayq_app.backend is backend
    assert current_app._get_current_object() is current
    assert abs(changed.timestamp() - delayq_redis.client.time()[0]) < 60
    assert not worker.is_here()


def test_a_result_that_is_collected_after_the_travel_opens_no_connection(
    delayq_app: Celery, delayq_redis: RedisUnderTest
) -> None:
    with TimeTravel(delayq_app, delayq_redis.server):
        result = delayq_app.tasks["note"].apply_async(("later",), countdown=60)
        result.then(print)  # subscribes to the channel of the result
    number = connections_so_far(delayq_redis)

    del result
    gc.collect()

    assert connections_so_far(delayq_redis) == number


def test_a_month_of_a_daily_entry_runs_each_day_with_its_follow_up(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    tomorrow = delayq_time.now.date() + timedelta(days=1)
    delayq_time.travel_to(f"{tomorrow}T00:00+00:00")  # no 9 o'clock without its follow-up
    DelayQ.of(delayq_app).periodic.add("daily", crontab("0", "9"), task="remind", args=["all"])

    assert delayq_time.travel(days=30) == len(runs) == 2 * 30


def test_both_clocks_are_exact_to_a_microsecond(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    """Also in another century, where a float of seconds is not."""
    for moment in (delayq_time.now, "2096-02-29T23:59:59.999999+00:00"):
        delayq_time.travel_to(moment)
        for number in range(100):
            before, step = delayq_time.now, timedelta(microseconds=1 + 7919 * number**2)
            delayq_app.tasks["note"].apply_async(("in time",), eta=before + step / 2)
            delayq_time.travel(step + timedelta(milliseconds=1))
            now_us = delayq_time.now - datetime(1970, 1, 1, tzinfo=timezone.utc)
            assert time.time_ns() == now_us // timedelta(microseconds=1) * 1000
            assert runs[-1][1] >= before + step / 2

    assert len(runs) == 200


def test_waits_end_while_the_clocks_stand_still(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    """Their clock is ``time.monotonic``, which is not moved."""
    start, began = delayq_time.now, time.monotonic()
    result = delayq_app.tasks["note"].apply_async(("later",), countdown=60)

    asyncio.run(asyncio.wait_for(asyncio.sleep(0.01), TIMEOUT))
    with pytest.raises(CeleryTimeout):
        result.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        wait_until(result.ready, 0.01)

    assert time.monotonic() > began
    assert datetime.now(timezone.utc) == delayq_time.now == start


async def days_later(app: Celery, travel: TimeTravel) -> None:
    async with AsyncDelayQ(app) as delayq:
        await delayq.apply_async(app.tasks["note"], ("async",), countdown=86400)
        assert await delayq.count() == 1
        assert travel.travel(days=1) == 1
        await delayq.apply_async(app.tasks["loop"], countdown=86400)
        assert await asyncio.to_thread(travel.travel, days=1) == 1


def test_a_test_may_be_a_coroutine(delayq_time: TimeTravel, delayq_app: Celery, runs: Runs) -> None:
    @delayq_app.task(shared=False, name="loop")
    def loop() -> None:
        asyncio.run(asyncio.sleep(0))
        runs.note("loop")

    asyncio.run(days_later(delayq_app, delayq_time))

    assert [name for name, _ in runs] == ["async", "loop"]
    assert current_app.main == "shop"


def connections_so_far(redis: RedisUnderTest) -> int:
    number: int = redis.client.info("stats")["total_connections_received"]
    return number
