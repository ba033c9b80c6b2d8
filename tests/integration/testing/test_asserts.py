"""Assertions about scheduled tasks, and what they say."""

from __future__ import annotations

import unittest
from datetime import timedelta

import pytest
from celery import Celery

from celery_delayq.errors import InvalidETA
from celery_delayq.testing import (
    assert_not_scheduled,
    assert_scheduled,
    dead_letters,
    drain,
    scheduled,
    time_travel,
)
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.integration.testing.conftest import HOUR

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


def test_the_error_says_what_there_is_instead(delayq_time: TimeTravel, delayq_app: Celery) -> None:
    note, remind = delayq_app.tasks["note"], delayq_app.tasks["remind"]
    delayq_time.travel_to("2033-05-04T12:00:00+00:00")
    note.apply_async(("ada",), {"by": "mail"}, countdown=86400)
    remind.apply_async(("ada",), countdown=60)
    for _ in range(11):
        remind.apply_async(("bob",), countdown=7200)

    with pytest.raises(AssertionError) as error:
        assert_scheduled(note, args=("ada",), within=3600)

    lines = str(error.value).splitlines()
    assert lines[:4] == [
        "expected a scheduled note args=['ada'] within=3600: 0 found",
        "It is 2033-05-04T12:00:00+00:00. Scheduled tasks: 13",
        "  note('ada', by='mail') due in 86400 s, at 2033-05-05T12:00:00+00:00 (due later)",
        "  remind('ada') due in 60 s, at 2033-05-04T12:01:00+00:00 (another task)",
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
