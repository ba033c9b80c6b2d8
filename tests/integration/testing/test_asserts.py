"""Assertions about scheduled tasks, and what they say."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, current_app
from kombu import pools

from celery_delayq import DelayQ
from celery_delayq.errors import InvalidETA, InvalidFilter, TravelError
from celery_delayq.model.names import Renames
from celery_delayq.testing import (
    assert_not_scheduled,
    assert_scheduled,
    dead_letters,
    drain,
    scheduled,
    time_travel,
)
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.integration.testing.conftest import HOUR, Runs

app = Celery("unit", set_as_current=False)
ran: list[str] = []


@app.task(name="unit.note", shared=False)
def note(name: str, **_: object) -> None:
    ran.append(name)


def test_each_part_counts(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    task = delayq_app.tasks["note"]
    task.apply_async(("ada", [1, (2, 3)]), {"by": "mail"}, countdown=3600)
    task.apply_async(("eve",), countdown=7200.5)
    at = delayq_time.now + HOUR

    [entry] = assert_scheduled(task, args=("ada", (1, [2, 3])), kwargs={"by": "mail"}, at=at)
    assert entry.due == at
    assert [each.args for each in assert_scheduled("note", count=2)][1] == ["eve"]
    assert assert_scheduled(task, within=3600) == [entry]
    assert assert_scheduled(task, at=at.isoformat(), within=3600, count=1) == [entry]
    assert_not_scheduled(task, args=["bob"])
    assert_not_scheduled(task, at=at + timedelta(milliseconds=1))
    assert_not_scheduled(task, within=3599.999)
    assert_not_scheduled("remind")
    assert_scheduled("remind", count=0)
    assert [each.due - delayq_time.now for each in scheduled(task)] == [
        HOUR,
        timedelta(seconds=7200.5),
    ]
    assert [each.id for each in scheduled()] == [each.id for each in scheduled("note")]
    with pytest.raises(InvalidETA):
        assert_scheduled(task, at="soon")


def test_a_task_is_found_under_its_former_name(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    task = delayq_app.tasks["note"]
    delayq_app.send_task("remark", ("ada",), countdown=3600)
    assert_not_scheduled(task)

    Renames({"remark": "note"}).share(delayq_app)

    [entry] = assert_scheduled(task, args=["ada"])
    assert (entry.task, scheduled(task)) == ("remark", [entry])
    assert_not_scheduled("other")


#: Slips with which `assert_not_scheduled` would always hold, and what the error says.
SLIPS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "text as args": (lambda note: {"task": note, "args": "ada"}, "such as .'ada',."),
    "set as args": (lambda note: {"task": note, "args": {"ada"}}, "expected a list or tuple"),
    "list as kwargs": (lambda note: {"task": note, "kwargs": ["mail"]}, "expected a dict"),
    "timedelta": (lambda note: {"task": note, "within": HOUR}, "a number of seconds, such as"),
    "no number": (lambda note: {"task": note, "within": float("nan")}, "within=nan: expected"),
    "signature": (lambda note: {"task": note.s("ada")}, "given as args= and kwargs="),
    "function": (lambda note: {"task": note.run}, "is neither a task nor the name of a task"),
    "no task": (lambda _: {"task": None}, "task=None: expected a task or"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_what_no_task_can_match_is_refused(
    slip: str, delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    given, text = SLIPS[slip]
    arguments = given(delayq_app.tasks["note"])

    for check in (assert_scheduled, assert_not_scheduled):
        with pytest.raises(InvalidFilter, match=text):
            check(**arguments)
    if slip in ("signature", "function"):
        for listed in (scheduled, dead_letters):
            with pytest.raises(InvalidFilter, match=text):
                listed(arguments["task"])
    with pytest.raises(InvalidFilter, match=r"count=-1: expected 0 or more"):
        assert_scheduled("note", count=-1)


def test_the_error_says_what_there_is_instead(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    note, remind = delayq_app.tasks["note"], delayq_app.tasks["remind"]
    delayq_time.travel_to("2093-05-04T12:00:00+00:00")
    note.apply_async(("ada",), {"by": "mail"}, countdown=86400)
    remind.apply_async(("ada",), countdown=60)
    for _ in range(11):
        remind.apply_async(("bob",), countdown=7200)

    with pytest.raises(AssertionError) as error:
        assert_scheduled(note, args=("ada",), within=3600)

    lines = str(error.value).splitlines()
    assert lines[:4] == [
        "expected a scheduled note args=['ada'] within=3600: 0 found",
        "It is 2093-05-04T12:00:00+00:00. Scheduled tasks: 13",
        "  note('ada', by='mail') due in 86400 s, at 2093-05-05T12:00:00+00:00 (due later)",
        "  remind('ada') due in 60 s, at 2093-05-04T12:01:00+00:00 (another task)",
    ]
    assert lines[-1] == "  and 3 more"
    with pytest.raises(AssertionError, match=r"expected 2 scheduled note: 1 found\n"):
        assert_scheduled(note, count=2)
    with pytest.raises(AssertionError, match=r"expected no scheduled note kwargs=.*: 1 found\n"):
        assert_not_scheduled(note, kwargs={"by": "mail"})
    with pytest.raises(AssertionError, match="Scheduled tasks: 13"):
        assert_scheduled("absent")


def test_held_and_paused_tasks_and_dead_letters_are_in_the_error(
    delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    delayq_app._delayq.pause(task="note")
    delayq_app.tasks["note"].apply_async(("paused",), countdown=1)
    delayq_app.send_task("unknown")
    delayq_time.travel(hours=1)

    with pytest.raises(AssertionError) as error:
        assert_scheduled("remind")

    assert "note('paused') due in -3599 s" in str(error.value)
    assert ", paused (another task)" in str(error.value)
    assert str(error.value).endswith("Dead letters: 1, see dead_letters()")


def test_a_ready_task_is_in_the_error(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    """The most likely slip: a call without a countdown, or one whose time has come."""
    delayq_app.tasks["note"].delay("at once")
    delayq_app.tasks["note"].apply_async(("mail",), queue="mail")
    delayq_app.tasks["remind"].delay("at once")

    with pytest.raises(AssertionError) as error:
        assert_scheduled("note")

    ready = "Ready tasks, which are not scheduled: 2 of note, 1 of remind"
    assert str(error.value).splitlines()[2:] == [ready]


#: By serializer: whether others than the app can read the arguments.
SERIALIZERS = {"json": True, "yaml": True, "msgpack": True, "pickle": False}


def send_by(serializer: str, app: Celery) -> Any:
    app.conf.accept_content = ["json", serializer]
    task = app.tasks["note"]
    task.apply_async(("ada", {"by": "mail"}), countdown=3600, serializer=serializer)
    return task


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_arguments_of_each_serializer_are_compared(
    serializer: str, delayq_time: TimeTravel, delayq_app: Celery
) -> None:
    task = send_by(serializer, delayq_app)

    assert_scheduled(task, args=("ada", {"by": "mail"}), kwargs={}, count=1)
    assert_not_scheduled(task, args=("eve",))
    with pytest.raises(AssertionError, match=r"note\('ada', {'by': 'mail'}\) due in 3600 s"):
        assert_not_scheduled(task, args=("ada", {"by": "mail"}))


@pytest.fixture
def without_travel(delayq_app: Celery, delayq_broker_url: str) -> Iterator[Celery]:
    """The current app, on its own broker."""
    before = current_app._get_current_object()
    delayq_app.conf.update(broker_url=delayq_broker_url, result_backend=None)
    delayq_app.set_current()
    yield delayq_app
    before.set_current()
    DelayQ.of(delayq_app).close()
    pools.reset()


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_without_travel_arguments_that_cannot_be_read_match_nothing_and_everything(
    serializer: str, without_travel: Celery
) -> None:
    task = send_by(serializer, without_travel)

    assert_scheduled("note", within=3600, count=1)
    if SERIALIZERS[serializer]:
        assert_not_scheduled(task, args=("eve",))
        return
    for check in (assert_scheduled, assert_not_scheduled):
        with pytest.raises(AssertionError, match=r"0 found\n.*\n.*arguments cannot be read\)"):
            check(task, args=("ada", {"by": "mail"}))
    with pytest.raises(AssertionError, match="expected 0 scheduled note"):
        assert_scheduled(task, args=("eve",), count=0)
    assert_not_scheduled(task, args=("ada", {"by": "mail"}), within=60)
    assert_not_scheduled("remind", args=("ada",))


def test_without_travel_tasks_of_the_current_app_are_found(without_travel: Celery) -> None:
    without_travel.tasks["note"].apply_async(("ada",), countdown=3600)
    without_travel.send_task("elsewhere", countdown=7200)

    [entry] = assert_scheduled("note", args=["ada"], within=3600)
    assert [each.task for each in scheduled()] == ["note", "elsewhere"]
    assert_not_scheduled("elsewhere", within=3600)
    assert entry.args == ["ada"]
    assert dead_letters() == []
    with pytest.raises(TravelError, match="needs the fixture delayq_time"):
        drain()


def test_a_task_that_is_always_eager_runs_at_once_and_is_not_scheduled(
    without_travel: Celery, runs: Runs
) -> None:
    without_travel.conf.task_always_eager = True

    without_travel.tasks["note"].apply_async(("eager",), countdown=86400)

    assert [name for name, _ in runs] == ["eager"]
    assert_not_scheduled("note")


class UnitTest(unittest.TestCase):
    """What runs without pytest too."""

    def setUp(self) -> None:
        travel = time_travel(app)
        self.time = travel.__enter__()
        self.addCleanup(travel.__exit__, None, None, None)
        ran.clear()

    def test_a_day_later(self) -> None:
        note.apply_async(("ada",), countdown=86400)

        assert_scheduled(note, args=("ada",), at=self.time.now + 24 * HOUR)
        assert self.time.travel(hours=24) == 1

        assert ran == ["ada"]
        assert_not_scheduled(note)

    def test_each_test_begins_empty(self) -> None:
        assert_not_scheduled(note)
        assert (drain(), dead_letters(), scheduled()) == (0, [], [])
