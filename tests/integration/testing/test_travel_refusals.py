"""Where the clock of a test cannot be moved, the error says why."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import freezegun
import pytest
import time_machine
from celery import Celery, current_app, group
from celery.exceptions import TimeoutError as CeleryTimeout
from kombu.exceptions import OperationalError
from pytest_celery import WORKER_CELERY_APP_NAME
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import InvalidETA, TravelError
from celery_delayq.store.scripting.clock import TEST_CLOCK, time_command
from celery_delayq.testing import drain, scheduled, time_travel
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.integration.testing.conftest import Runs
from tests.support import TIMEOUT


def test_tasks_that_start_each_other_without_end_are_named(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    delayq_time.most_runs = 200

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
    assert str(error.value).endswith("or allow more runs: delayq_time.most_runs = 2000")


def test_a_task_that_requeues_itself_without_end_is_named(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    delayq_time.most_runs = 200

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
    with pytest.raises(TravelError, match=r"more than 50 runs in one .*51 times\..*_runs = 500"):
        delayq_time.travel(days=365)
    assert len(scheduled("poll")) == 1


def test_a_periodic_entry_that_ticks_most_is_named_and_can_be_left_out(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    delayq = DelayQ.of(delayq_app)
    delayq_time.most_runs = 50
    delayq.periodic.add("often: 1", 15, "note", ("tick",))
    delayq.periodic.add("hourly", 3600, "note", ("hour",))

    with pytest.raises(TravelError, match=r"entry 'often: 1' \(\d+ ticks\) by delayq.periodic.pa"):
        delayq_time.travel(days=1)
    delayq.periodic.pause("often: 1")
    runs.clear()
    delayq_time.travel(days=1)
    assert {what for what, _ in runs} == {"hour"}


def test_a_long_chain_runs_to_its_end_if_more_runs_are_allowed(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    @delayq_app.task(shared=False, name="count_down")
    def count_down(number: int) -> None:
        if number > 1:
            count_down.delay(number - 1)

    delayq_time.most_runs = 100
    count_down.delay(50)
    with pytest.raises(TravelError, match=r"count_down ran 11 times.*most_runs = 1000"):
        delayq_time.drain()
    delayq_time.most_runs = 1000
    assert delayq_time.drain() == 39


def test_many_tasks_at_one_moment_are_no_circle(
    delayq_time: TimeTravel, delayq_app: Celery, runs: Runs
) -> None:
    delayq_time.most_runs = 200
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
    for given in ((), (3600,), ("1h",)):
        with pytest.raises(TypeError, match="either a timedelta or parts"):
            delayq_time.travel(*given)
    with pytest.raises(TravelError, match="the clocks end with the year 9999"):
        delayq_time.travel(days=10**7)
    with pytest.raises(TravelError, match="they only go forward"):
        delayq_time.travel(days=-(10**7))
    with pytest.raises(TypeError, match="expected the name of a queue, or nothing for all"):
        drain(delayq_app.tasks["note"])
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


def test_two_travels_in_one_test_are_refused(
    delayq_time: TimeTravel, delayq_app: Celery, delayq_redis: RedisUnderTest, runs: Runs
) -> None:
    delayq_app.tasks["note"].apply_async(("kept",), countdown=60)

    for server in (None, delayq_redis.server):
        with pytest.raises(TravelError, match="travels already"), time_travel(delayq_app, server):
            pass

    assert delayq_time.travel(hours=1) == 1


def test_a_travel_inside_another_one_loses_nothing(delayq_app: Celery, runs: Runs) -> None:
    with time_travel(delayq_app) as travel:
        delayq_app.tasks["note"].apply_async(("kept",), countdown=60)
        with pytest.raises(TravelError, match="travels already"), time_travel(delayq_app):
            pass
        assert travel.travel(minutes=1) == 1


def test_another_redis_is_refused_by_each_app(
    delayq_time: TimeTravel,
    delayq_app: Celery,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
) -> None:
    """An app beside the travelling one, or a connection of its own, may lead to a real Redis."""
    real = delayq_redis_factory()
    url = real.url_for("delayq+redis")
    beside = Celery("beside", broker=url, set_as_current=False)
    DelayQ(beside)
    note = delayq_app.tasks["note"]

    with pytest.raises(OperationalError, match="delayq_time moves the clock of another Redis"):
        beside.send_task("note", countdown=60)
    with delayq_app.connection_for_write(url) as connection, pytest.raises(OperationalError):
        note.apply_async(("later",), countdown=60, connection=connection)
    with pytest.raises(TravelError, match="NOTESTCLOCK"):
        DelayQ.of(beside).store.now_ms()

    with real.client() as client:
        assert client.keys("*:entries") == []
    assert delayq_time.travel(hours=1) == 0
    DelayQ.of(beside).close()


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


#: Celery's app where no app is made, and the one that pytest-celery imports.
@pytest.mark.parametrize("name", ["default", WORKER_CELERY_APP_NAME])
def test_an_app_of_a_library_is_refused(name: str) -> None:
    former: Any = current_app._get_current_object()
    Celery(name, set_as_current=False).set_current()
    with pytest.raises(TravelError, match="no Celery app is known yet"):
        TimeTravel(None, None)  # type: ignore[arg-type]
    former.set_current()


def test_what_is_no_app_is_refused() -> None:
    with pytest.raises(TravelError, match="is no Celery app"):
        TimeTravel("shop", None)  # type: ignore[arg-type]


def test_after_the_block_nothing_moves(delayq_app: Celery) -> None:
    with time_travel(delayq_app) as travel:
        travel.travel(days=1)
    with pytest.raises(TravelError, match="only inside the block"):
        travel.travel(hours=1)
    assert time_command().args == ("TIME",)
    with time_travel(delayq_app) as travel:
        assert travel.now - datetime.now(timezone.utc) == timedelta()


def test_a_test_may_empty_or_end_its_server(
    delayq_app: Celery, request: pytest.FixtureRequest, delayq_redis: RedisUnderTest, runs: Runs
) -> None:
    """Entries in code, limits and queues are there again."""
    delayq_app.conf.beat_schedule = {
        "hourly": {"task": "note", "schedule": 3600.0, "args": ["tick"]}
    }
    delayq_time: TimeTravel = request.getfixturevalue("delayq_time")
    note, limited = delayq_app.tasks["note"], delayq_app.tasks["limited"]
    for task in (note, limited):
        task.apply_async(("lost",), countdown=60)
    delayq_redis.client.flushall()
    with pytest.raises(OperationalError, match="or this one was emptied"):
        note.apply_async(("too early",), countdown=60)

    assert delayq_time.travel(hours=0) == 0
    start = delayq_time.now
    note.apply_async(("again",), countdown=60)
    for name in "ab":
        limited.apply_async((name,), countdown=60)
    assert delayq_redis.client.exists(TEST_CLOCK)
    delayq_time.travel(hours=1)

    again = 1 / 60
    assert [(name, round(hours - again, 6)) for name, hours in runs.after(start)] == [
        ("again", 0),
        ("limited a", 0),
        ("limited b", 0.5),
        ("tick", round(1 - again, 6)),
    ]
    delayq_redis.server.stop()
    with pytest.raises(TravelError, match="the private Redis has ended"):
        delayq_time.travel(hours=1)


def test_an_app_without_the_extension_travels_without_periodic_entries(
    delayq_redis: RedisUnderTest, runs: Runs
) -> None:
    app = Celery("plain", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.beat_schedule = {"hourly": {"task": "note", "schedule": 3600.0}}

    @app.task(shared=False, name="note")
    def note() -> None:
        runs.note("note")

    with TimeTravel(app, delayq_redis.server) as travel:
        note.apply_async(countdown=60)
        assert travel.travel(days=1) == 1
    assert not hasattr(app, "_delayq")
    assert isinstance(DelayQ(app), DelayQ)


@pytest.mark.parametrize("wait", ["a result", "a group", "a task that may wait"])
def test_a_wait_without_end_is_refused(
    wait: str, delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    note, errors = delayq_app.tasks["note"], list[str]()

    @delayq_app.task(shared=False, name="waiting")
    def waiting() -> None:
        try:
            note.delay("never").get(disable_sync_subtasks=False)
        except TravelError as exc:
            errors.append(str(exc))
        try:
            next(group(note.s("never")).delay().iter_native())
        except TravelError as exc:
            errors.append(str(exc))

    match wait:
        case "a result":
            result = note.apply_async(("ada",), countdown=60)
            with pytest.raises(TravelError, match=r"waits without end, since tasks run only in"):
                result.get()
            with pytest.raises(CeleryTimeout):
                result.get(timeout=0.01)
            delayq_time.travel(minutes=1)
            assert result.get() == "ada"
        case "a group":
            results = group(note.s("ada"), note.s("eve")).apply_async(countdown=60)
            waits = results.get, results.join, results.join_native, results.iter_native
            for method in waits:
                with pytest.raises(TravelError, match="or wait with a timeout"):
                    method()
            delayq_time.travel(minutes=1)
            assert results.get() == ["ada", "eve"]
        case _:
            waiting.delay()
            delayq_time.drain()
            assert len(errors) == 2


def test_another_thread_may_wait(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    result = delayq_app.tasks["note"].apply_async(("ada",), countdown=60)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(result.get)
        delayq_time.travel(minutes=1)
        assert found.result(TIMEOUT) == "ada"
