"""Where the clock of a test cannot be moved, the error says why."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import freezegun
import pytest
import time_machine
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.errors import InvalidETA, TravelError
from celery_delayq.store.scripting.clock import TEST_CLOCK, time_command
from celery_delayq.testing import WorkerProcess, drain, scheduled, time_travel
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel import progress
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.integration.testing.conftest import Runs


def test_tasks_that_start_each_other_without_end_are_named(
    delayq_time: TimeTravel, delayq_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_RUNS_IN_A_ROW", 20)

    @delayq_app.task(shared=False, name="ping")
    def ping() -> None:
        delayq_app.tasks["pong"].delay()

    @delayq_app.task(shared=False, name="pong")
    def pong() -> None:
        ping.delay()

    ping.delay()
    with pytest.raises(TravelError, match=r"no rest at .*: tasks start each other") as error:
        delayq_time.drain()
    assert "ping ran 11 times, pong ran 10 times" in str(error.value)


def test_a_task_that_requeues_itself_without_end_is_named(
    delayq_time: TimeTravel, delayq_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_RUNS_IN_A_ROW", 20)

    @delayq_app.task(shared=False, name="retry_at_once", bind=True, max_retries=None)
    def retry_at_once(self: Any) -> None:
        raise self.retry(countdown=0)

    retry_at_once.delay()
    with pytest.raises(TravelError, match="retry_at_once ran 21 times"):
        delayq_time.travel(hours=1)


def test_a_task_that_comes_each_second_without_end_is_named(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    delayq_time.most_runs = 50

    @delayq_app.task(shared=False, name="poll")
    def poll() -> None:
        poll.apply_async(countdown=1)

    poll.delay()
    with pytest.raises(TravelError, match=r"poll ran 51 times\..*most_runs = 500"):
        delayq_time.travel(days=365)
    assert len(scheduled("poll")) == 1


def test_many_tasks_at_one_moment_are_no_circle(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_RUNS_IN_A_ROW", 20)
    for number in range(60):
        delayq_app.tasks["note"].apply_async((f"{number}",), countdown=60)

    assert delayq_time.travel(minutes=1) == 60
    assert [name for name, _ in runs] == [f"{number}" for number in range(60)]


def test_clocks_never_go_back_and_may_stand_still(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    delayq_app.tasks["note"].delay("now")

    with pytest.raises(TravelError, match="they only go forward"):
        delayq_time.travel(hours=-1)
    with pytest.raises(TravelError, match="has passed"):
        delayq_time.travel_to("2001-01-01")
    with pytest.raises(InvalidETA, match="expected a datetime"):
        delayq_time.travel_to("tomorrow")
    with pytest.raises(TypeError, match="either a timedelta or parts"):
        delayq_time.travel()
    assert runs == []
    assert delayq_time.travel(hours=0) == 1


def test_no_other_broker_travels(
    delayq_time: TimeTravel, delayq_app: Celery, delayq_redis: RedisUnderTest
) -> None:
    delayq_app.conf.broker_url = "delayq+redis://not.used.example.org:6379/0"
    assert delayq_time.drain() == 0
    delayq_app.conf.broker_write_url = "delayq+redis://real.example.org:6379/0"

    for hours in (0, 1):
        with pytest.raises(TravelError, match=r"the broker of shop is .*real\.example\.org"):
            delayq_time.travel(hours=hours)


@pytest.mark.parametrize(
    ("server", "text"),
    [
        ("redis://localhost", "is not a private server"),
        (Redis(), "never that of a Redis which others use"),
    ],
)
def test_a_real_redis_is_refused(server: Any, text: str, delayq_app: Celery) -> None:
    with pytest.raises(TravelError, match=text), time_travel(delayq_app, server):
        pass


class TestAnotherScheme:
    @pytest.fixture(params=["delayq+amqp", "delayq+rediscluster"])
    def delayq_broker_scheme(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_it_is_refused(
        self, delayq_app: Celery, delayq_redis: RedisUnderTest, delayq_broker_scheme: str
    ) -> None:
        with pytest.raises(TravelError, match="start real workers"):
            TimeTravel(delayq_app, delayq_redis.server, delayq_broker_scheme)


def test_two_travels_in_one_test_are_refused(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    with pytest.raises(TravelError, match="travels already"), time_travel(delayq_app):
        pass
    assert delayq_time.travel(hours=1) == 0


@pytest.mark.parametrize(
    "moved",
    [freezegun.freeze_time("2031-01-01"), time_machine.travel("2031-01-01", tick=False)],
    ids=["freezegun", "time-machine"],
)
def test_other_ways_to_move_pythons_clock_are_refused(
    moved: Any, delayq_app: Celery, delayq_redis: RedisUnderTest
) -> None:
    with (
        moved,
        pytest.raises(TravelError, match=r"moved by (freezegun|time-machine): end its block"),
        TimeTravel(delayq_app, delayq_redis.server),
    ):
        pass
    with TimeTravel(delayq_app, delayq_redis.server) as travel:
        with moved, pytest.raises(TravelError, match="moved by freezegun or time-machine"):
            travel.travel(hours=1)
        assert travel.travel(hours=1) == 0
    assert abs(datetime.now(timezone.utc).timestamp() - delayq_redis.client.time()[0]) < 60


def test_a_worker_beside_it_is_refused(
    delayq_worker: Callable[..., WorkerProcess], delayq_time: TimeTravel
) -> None:
    with pytest.raises(TravelError, match="either delayq_time or delayq_worker"):
        delayq_worker("tests.apps.delayq_tasks:app")


def test_drain_needs_a_travelling_test(delayq_redis: RedisUnderTest) -> None:
    with pytest.raises(TravelError, match="needs the fixture delayq_time"):
        drain()


def test_a_task_does_not_move_its_own_clock(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    errors: list[str] = []

    @delayq_app.task(shared=False, name="mover")
    def mover() -> None:
        with pytest.raises(TravelError) as error:
            delayq_time.travel(hours=1)
        errors.append(str(error.value))

    mover.delay()
    delayq_time.drain()

    assert len(errors) == 1
    assert "call it in the test" in errors[0]


def test_no_app_is_refused(delayq_app: Celery) -> None:
    Celery("default", set_as_current=False).set_current()  # as Celery does where no app is made
    with pytest.raises(TravelError, match="no Celery app is known yet"):
        TimeTravel(None, None)  # type: ignore[arg-type]
    with pytest.raises(TravelError, match="is no Celery app"):
        TimeTravel("shop", None)  # type: ignore[arg-type]
    delayq_app.set_current()


def test_after_the_block_nothing_moves(delayq_app: Celery) -> None:
    with time_travel(delayq_app) as travel:
        travel.travel(days=1)
    with pytest.raises(TravelError, match="only inside the block"):
        travel.travel(hours=1)
    assert time_command().args == ("TIME",)
    with time_travel(delayq_app) as travel:
        assert travel.now - datetime.now(timezone.utc) == timedelta()


def test_a_test_may_empty_or_end_its_server(
    delayq_time: TimeTravel, delayq_app: Celery, delayq_redis: RedisUnderTest, runs: Runs
) -> None:
    delayq_redis.client.flushall()
    delayq_time.travel(hours=1)
    delayq_app.tasks["note"].apply_async(("again",), countdown=60)
    assert delayq_redis.client.exists(TEST_CLOCK)
    assert delayq_time.travel(minutes=1) == 1

    delayq_redis.server.stop()
    with pytest.raises(TravelError, match="the private Redis has ended"):
        delayq_time.travel(hours=1)


def test_an_app_without_the_extension_travels_without_periodic_entries(
    delayq_redis: RedisUnderTest, runs: Runs
) -> None:
    app = Celery("plain", broker="redis://127.0.0.1:1/0")
    app.conf.beat_schedule = {"hourly": {"task": "note", "schedule": 3600.0}}

    @app.task(shared=False, name="note")
    def note() -> None:
        runs.note("note")

    with TimeTravel(app, delayq_redis.server) as travel:
        note.apply_async(countdown=60)
        assert travel.travel(days=1) == 1
    assert not hasattr(app, "_delayq")
    assert isinstance(DelayQ(app), DelayQ)
