"""What holds with workers holds in a travelling test too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from operator import itemgetter
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab
from kombu import Exchange, Queue

from celery_delayq import DelayQ, Limit
from celery_delayq.testing import assert_scheduled, dead_letters, drain
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.integration.testing.conftest import Runs

pytestmark = pytest.mark.conformance

VIENNA = ZoneInfo("Europe/Vienna")
Travelling = Callable[..., Any]


@pytest.fixture
def travelling(runs: Runs, delayq_redis: RedisUnderTest) -> Travelling:
    """Travel with a new app that has a task ``note`` with these options, and these settings."""

    @contextmanager
    def travelling(
        delayq: dict[str, Any] | None = None, task: dict[str, Any] | None = None, **conf: Any
    ) -> Iterator[tuple[Any, TimeTravel, DelayQ]]:
        app = Celery("promises", broker="amqp://nobody:1//", set_as_current=False)
        app.conf.update(conf)
        extension = DelayQ(app, **(delayq or {}))

        @app.task(shared=False, name="note", **(task or {}))
        def note(name: str) -> str:
            runs.note(name)
            return name

        delayq_redis.client.flushall()
        with TimeTravel(app, delayq_redis.server) as travel:
            yield note, travel, extension

    return travelling


def names(runs: Runs) -> list[str]:
    return [name for name, _ in runs]


def settings(**own: Any) -> dict[str, Any]:
    return {"broker_transport_options": {"delayq": own}}


def test_a_former_name_runs_the_task(travelling: Travelling, runs: Runs) -> None:
    with travelling(delayq={"renamed": {"old": "note"}}) as (note, travel, _):
        note.app.send_task("old", ("by its former name",), countdown=60)
        travel.travel(minutes=1)

    assert names(runs) == ["by its former name"]


def test_a_revoked_task_does_not_run(travelling: Travelling, runs: Runs) -> None:
    with travelling(result_backend="redis://nobody:1/0") as (note, travel, _):
        revoked = note.apply_async(("revoked",), countdown=60)
        ready = note.delay("ready")
        revoked.revoke()
        ready.revoke()
        assert travel.travel(minutes=1) == 0
        assert (revoked.state, ready.state) == ("REVOKED", "REVOKED")
    with travelling() as (note, _, _):
        note.apply_async(("of the next test",), task_id=revoked.id)
        drain()

    assert names(runs) == ["of the next test"]


def test_a_revoke_holds_without_the_extension_too(delayq_redis: RedisUnderTest, runs: Runs) -> None:
    app = Celery("plain", broker="redis://nobody:1/0", set_as_current=False)
    app.conf.result_backend = "redis://nobody:1/0"

    @app.task(shared=False, name="note")
    def note(name: str) -> None:
        runs.note(name)

    with TimeTravel(app, delayq_redis.server) as travel:
        revoked = note.apply_async(("revoked",), countdown=86400)
        revoked.revoke()
        note.s("stamped").stamp(mail="1").apply_async(countdown=86400)
        app.control.revoke_by_stamped_headers({"mail": ["1"]})
        app.control.revoke(note.apply_async(("kept",), countdown=86400).id, destination=["other@x"])
        travel.travel(hours=25)
        assert revoked.state == "REVOKED"

    assert names(runs) == ["kept"]


def test_a_paused_queue_waits(travelling: Travelling, runs: Runs) -> None:
    with travelling() as (note, travel, delayq):
        delayq.pause(queue="mail")
        note.apply_async(("mail",), queue="mail")
        note.apply_async(("later mail",), queue="mail", countdown=60)
        note.apply_async(("other",), countdown=3600)
        assert travel.travel(days=1) == 1
        delayq.resume(queue="mail")
        assert travel.drain() == 2

    assert names(runs) == ["other", "mail", "later mail"]


def test_a_promotion_rate_and_a_full_queue_hold_entries_back(
    travelling: Travelling, runs: Runs
) -> None:
    with travelling(**settings(promote_rate=2, max_ready=3)) as (note, travel, _):
        start = travel.now
        for number in range(8):
            note.apply_async((f"{number}",), countdown=60)
        travel.travel(minutes=2)

    assert names(runs) == [f"{number}" for number in range(8)]
    seconds = [round((at - start).total_seconds(), 1) for _, at in runs]
    assert seconds[0] == 60
    assert 3 <= seconds[-1] - seconds[0] <= 4.5


def test_a_limit_holds_tasks_of_one_key_and_not_of_others(
    travelling: Travelling, runs: Runs
) -> None:
    limit = Limit("api", key="{name}", rate="1/h", concurrency=1, fair=True)
    with travelling(task={"limit": limit, "acks_late": True}) as (note, travel, delayq):
        start = travel.now
        for name in ("a", "a", "b", "a"):
            note.apply_async((name,), countdown=60)
        travel.travel(minutes=1)
        assert names(runs) == ["a", "b"]
        assert {each.state for each in assert_scheduled(note, count=2)} == {"held"}
        delayq.limits.set("api", rate="2/h")
        travel.travel(hours=3)

    assert names(runs) == ["a", "b", "a", "a"]
    assert (runs[3][1] - start).total_seconds() <= 2 * 3600 + 60


def test_a_limit_of_a_task_that_the_test_defines_holds(travelling: Travelling, runs: Runs) -> None:
    with travelling() as (note, travel, _):

        @note.app.task(shared=False, name="limited", limit=Limit("own", rate="1/h"))
        def limited(name: str) -> None:
            runs.note(name)

        start = travel.now
        for name in "abc":
            limited.apply_async((name,), countdown=3600)
        assert travel.travel(hours=3) == 3

    assert runs.after(start) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_task_that_is_too_late_is_skipped(travelling: Travelling, runs: Runs) -> None:
    with travelling(task={"skip_after": 60}) as (note, travel, delayq):
        delayq.pause(task="note")
        note.apply_async(("late",), countdown=60)
        travel.travel(minutes=5)
        delayq.resume(task="note")
        travel.drain()
        [dead] = dead_letters(note)

    assert names(runs) == []
    assert dead.reason.startswith("skipped: 240000 ms after it was due")


def test_the_history_has_the_moved_times(travelling: Travelling, runs: Runs) -> None:
    for acks_late in (False, True):
        task = {"acks_late": acks_late}
        with travelling(task=task, **settings(history=100)) as (note, travel, delayq):
            for _ in range(2):
                note.apply_async(("past",), countdown=3600)
                travel.travel(hours=1)
            found = [*delayq.history()]
        assert [travel.now - each.ended for each in found] == [timedelta(hours=1), timedelta()]
        assert [each.due for each in found] == [each.ended for each in found]


def test_priorities_and_routes_hold(travelling: Travelling, runs: Runs) -> None:
    topic = Exchange("events", type="topic")
    queues = [Queue("all", topic, routing_key="#"), Queue("mail", topic, routing_key="mail.*")]
    with travelling(task_queues=queues) as (note, travel, _):
        note.apply_async(("low",), queue="all", priority=9)
        note.apply_async(("high",), queue="all", priority=0)
        note.apply_async(("both",), exchange="events", routing_key="mail.new", countdown=60)
        assert travel.travel(minutes=1) == 4

    assert names(runs) == ["high", "low", "both", "both"]


#: What has no schedule: a worker keeps such tasks in memory until their ETA.
WITHOUT_SCHEDULE: dict[str, dict[str, Any]] = {
    "protocol 1": {"task_protocol": 1},
    "auto-delete": {"task_queues": [Queue("celery", auto_delete=True), Queue("other")]},
    "exclusive": {"task_queues": [Queue("celery", exclusive=True), Queue("other")]},
    "expiring": {"task_queues": [Queue("celery", expires=60.0), Queue("other")]},
}


@pytest.mark.parametrize("acks_late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("kind", WITHOUT_SCHEDULE)
def test_tasks_without_a_schedule_run_at_their_eta_too(
    kind: str, acks_late: bool, travelling: Travelling, runs: Runs
) -> None:
    conf = {"result_backend": "cache+memory://", **WITHOUT_SCHEDULE[kind]}
    with travelling(task={"acks_late": acks_late}, **conf) as (note, travel, _):

        @note.app.task(shared=False, name="flaky", bind=True, max_retries=2, acks_late=acks_late)
        def flaky(self: Any) -> None:
            runs.note(f"flaky {self.request.retries}")
            if names(runs) == ["flaky 0", "flaky 1"]:
                pytest.fail("the test ends here")
            raise self.retry(countdown=1800)

        start = travel.now
        flaky.delay()
        due = start + timedelta(days=3, milliseconds=1)
        last = note.apply_async(("last",), eta=due)
        note.apply_async(("an hour later",), countdown=3600)
        note.apply_async(("expired",), countdown=5400, expires=60)
        note.apply_async(("other",), queue="other", countdown=5400)
        with pytest.raises(pytest.fail.Exception, match="ends here"):
            travel.travel(hours=1)
        travel.travel(minutes=30)
        assert travel.drain("other") == 0
        travel.travel(days=3)
        assert last.get(timeout=5) == "last"

    assert runs[-1] == ("last", due)
    assert sorted(runs.after(start)[:-1], key=itemgetter(1, 0)) == [
        ("flaky 0", 0),
        ("flaky 1", 0.5),
        *([("flaky 1", 0.5)] if acks_late else []),  # the others are acknowledged before they run
        ("an hour later", 1),
        *([("flaky 2", 1)] if acks_late else []),
        ("other", 1.5),
    ]


def test_a_unique_key_holds(travelling: Travelling, runs: Runs) -> None:
    with travelling(task={"unique_key": "{name}"}) as (note, travel, _):
        first = note.apply_async(("once",), countdown=60)
        second = note.apply_async(("once",), countdown=90, on_conflict="keep")
        assert second.id == first.id
        assert travel.travel(minutes=2) == 1

    assert names(runs) == ["once"]


def test_a_key_prefix_holds(travelling: Travelling, runs: Runs) -> None:
    with travelling(broker_transport_options={"global_keyprefix": "test:"}) as (note, travel, _):
        note.apply_async(("prefixed",), countdown=60)
        assert travel.travel(minutes=1) == 1


#: Moments at which calendars and clocks do something special, in a zone with daylight saving time.
MOMENTS = (
    "2095-12-31T23:59:59+01:00",  # a year ends
    "2096-02-28T23:30:00+01:00",  # before a leap day
    "2096-03-24T12:00:00+01:00",  # clocks go forward in the night, at 2 o'clock
    "2096-10-27T12:00:00+02:00",  # clocks go back in the night, at 3 o'clock
    "2096-10-28T02:30:00+01:00",  # the second half past two of that night
    "2096-11-30T09:00:00+01:00",  # a tick is due; a month ends
)


@pytest.mark.parametrize("enable_utc", [True, False], ids=["UTC", "local"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_days_later_are_the_same_at_any_moment(
    moment: str, enable_utc: bool, travelling: Travelling, runs: Runs
) -> None:
    entry = {"task": "note", "schedule": crontab("0", "9"), "args": ["tick"]}
    conf = {"timezone": "Europe/Vienna", "enable_utc": enable_utc}
    with travelling(**conf) as (note, travel, delayq):
        travel.travel_to(moment)
        delayq.periodic.add("daily", timezone="Europe/Vienna", **entry)
        start = travel.now
        for days in (1, 2):
            note.apply_async((f"{days} later",), countdown=days * 86400)
        travel.travel(days=2)

    begin = start.astimezone(VIENNA)
    mornings = [(begin + timedelta(days=n)).replace(hour=9, minute=0, second=0) for n in range(3)]
    ticks = [each for each in mornings if start < each <= start + timedelta(days=2)]
    expected = [(f"{n} later", start + timedelta(days=n)) for n in (1, 2)]
    assert sorted(runs) == sorted([*expected, *(("tick", each) for each in ticks)])


def test_what_a_killed_worker_left_in_quarantine_runs_alone(
    travelling: Travelling, runs: Runs
) -> None:
    with travelling() as (note, travel, delayq):
        note.delay("quarantined")
        client = delayq.store.client
        message = client.rpop("celery")
        client.lpush("{celery}:quarantined", b"0\n" + message)
        note.delay("beside")
        assert travel.drain() == 2

    assert sorted(names(runs)) == ["beside", "quarantined"]


def test_a_quarantined_message_that_waits_for_its_limit_runs_in_time(
    travelling: Travelling, runs: Runs
) -> None:
    with travelling(task={"limit": Limit("api", rate="1/m")}) as (note, travel, delayq):
        start, client = travel.now, delayq.store.client
        for name in ("first", "second"):
            id = note.delay(name).id
            record = client.hget("{celery}:entries", id)
            assert delayq.cancel(id)
            client.lpush("{celery}:quarantined", b"0\n" + record.partition(b"\n")[2])
        assert travel.travel(minutes=3) == 2

    assert {*names(runs)} == {"first", "second"}
    first, second = [(at - start).total_seconds() for _, at in runs]
    assert first == 0
    assert 60 <= second <= 61


def test_tasks_of_one_moment_run_queue_by_queue_in_the_order_of_their_calls(
    travelling: Travelling, runs: Runs
) -> None:
    with travelling(task_queues=[Queue("a"), Queue("b")]) as (note, travel, _):
        for number in range(3):
            for queue in "ba":
                note.apply_async((f"{queue}{number}",), queue=queue, countdown=60)
        note.apply_async(("earlier",), queue="b", countdown=59.999)
        travel.travel(minutes=1)

    assert names(runs) == ["earlier", "a0", "a1", "a2", "b0", "b1", "b2"]


def test_a_task_of_another_service_is_a_dead_letter_once_it_is_due(
    travelling: Travelling, runs: Runs
) -> None:
    with travelling() as (note, travel, _):
        note.app.send_task("billing.invoice", (7,), queue="billing", countdown=3600)
        travel.travel(minutes=59)
        assert_scheduled("billing.invoice", args=[7], within=60)
        travel.travel(minutes=1)
        [dead] = dead_letters("billing.invoice")
        assert (dead.queue, dead.reason) == ("billing", "unknown task 'billing.invoice'")


def test_a_periodic_entry_that_cannot_be_fired_is_tried_again(
    travelling: Travelling,
    runs: Runs,
    delayq_redis: RedisUnderTest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = {"task": "note", "schedule": 3600.0, "args": ["tick"], "options": {"queue": "mail"}}
    with travelling(beat_schedule={"hourly": entry}) as (_, travel, _):
        start = travel.now
        delayq_redis.client.set("{mail}:due", "no sorted set")
        assert travel.travel(hours=1) == 0
        assert "Periodic entry 'hourly' cannot be fired here" in caplog.text
        delayq_redis.client.delete("{mail}:due")
        assert travel.travel(hours=2) == 3

    assert runs.after(start) == [("tick", 1), ("tick", 2), ("tick", 3)]


#: A periodic entry in code.
HOURLY = {"hourly": {"task": "note", "schedule": 3600.0, "args": ["beat"]}}


class OldNames:
    """Settings by the names before Celery 4."""

    BROKER_URL = "redis://nobody:1/0"
    CELERY_RESULT_BACKEND = "redis://nobody:1/0"
    CELERY_ALWAYS_EAGER = True
    CELERY_TASK_SERIALIZER = "json"
    CELERYBEAT_SCHEDULE = HOURLY


class NewNames:
    """The same by the names of today."""

    broker_url = "sqs://"
    broker_read_url = "redis://nobody:1/0"
    broker_write_url = "redis://nobody:2/0"
    result_backend = "redis://nobody:1/0"
    task_always_eager = True
    beat_schedule = HOURLY


@pytest.mark.parametrize("source", [OldNames, NewNames])
@pytest.mark.parametrize("is_late", [False, True], ids=["early", "late"])
def test_an_app_may_be_configured_and_finalized_in_any_way(
    source: type, is_late: bool, delayq_redis: RedisUnderTest, runs: Runs
) -> None:
    app = Celery("any", autofinalize=not is_late, set_as_current=False)
    app.config_from_object(source)
    extension = DelayQ()
    extension.init_app(app)

    @app.task(shared=False, name="note")
    def note(name: str) -> str:
        runs.note(name)
        return name

    with TimeTravel(app, delayq_redis.server) as travel:
        result = note.apply_async(("ada",), countdown=5400)
        assert not result.ready()
        assert travel.travel(hours=2) == 3
        assert result.get(timeout=5) == "ada"

    assert names(runs) == ["beat", "ada", "beat"]
    assert app.conf.task_always_eager


def test_a_tick_of_an_unknown_task_is_a_dead_letter_and_others_run(
    travelling: Travelling, runs: Runs
) -> None:
    entries = {
        "unknown": {"task": "nobody.knows", "schedule": 60.0},
        "mine": {"task": "note", "schedule": 60.0, "args": ["tick"]},
    }
    with travelling(beat_schedule=entries) as (_, travel, _):
        travel.travel(minutes=2)
        reasons = {each.reason for each in dead_letters()}

    assert names(runs) == ["tick"] * 2
    assert reasons == {"unknown task 'nobody.knows'"}
