"""The example's plan of failures: the same each time, with something of everything."""

from __future__ import annotations

from collections import Counter
from datetime import date
from functools import cache

import pytest

from example_project.faults import (
    ACCEPTED,
    ATTEMPTS,
    PER_THOUSAND,
    RETRY_AFTER,
    Course,
    Trouble,
    course_of,
)
from example_project.flights import load_flights, midnight
from example_project.plan import RETRY_INTERVALS, plan, webhook_id

IDS = [f"webhook-{number}" for number in range(20_000)]


@cache
def courses() -> list[Course]:
    return [course_of(id) for id in IDS]


def courses_with(trouble: Trouble) -> list[Course]:
    return [course for course in courses() if course.trouble is trouble]


def statuses(course: Course) -> list[int | None]:
    return [course.answer(number).status for number in range(1, course.attempts + 1)]


def test_what_a_webhook_meets_with_follows_from_its_id() -> None:
    assert [course_of(id) for id in IDS[:200]] == [course_of(id) for id in IDS[:200]]
    # The same on each machine and each Python, too.
    day = date(2013, 3, 8)
    webhooks = [webhook_id(each.task_id) for each in plan(load_flights(day), midnight(day))]
    troubles = Counter(course_of(id).trouble for id in webhooks)
    assert len(set(webhooks)) == len(webhooks) == 1958
    assert [troubles[trouble] for trouble in Trouble] == [1643, 163, 43, 43, 52, 14]


def test_each_trouble_is_about_as_frequent_as_it_says() -> None:
    troubles = Counter(course.trouble for course in courses())

    assert sum(PER_THOUSAND.values()) == 1000
    for trouble, per_thousand in PER_THOUSAND.items():
        assert troubles[trouble] * 1000 / len(IDS) == pytest.approx(per_thousand, rel=0.25)


@pytest.mark.parametrize(
    ("trouble", "expected", "dies"),
    [
        (Trouble.NONE, [204], False),
        (Trouble.BUSY, [429, 204], False),
        (Trouble.SILENT, [None, 204], False),
        (Trouble.DOWN, [503] * ATTEMPTS, True),
    ],
)
def test_the_answers_to_a_webhook_with_one_trouble(
    trouble: Trouble, expected: list[int | None], dies: bool
) -> None:
    for course in courses_with(trouble):
        assert (statuses(course), course.dies) == (expected, dies)


def test_some_fail_up_to_the_last_attempt_but_one() -> None:
    found = courses_with(Trouble.FAILING)

    assert {course.attempts for course in found} == {*range(2, ATTEMPTS + 1)}
    for course in found:
        *failures, last = statuses(course)
        assert {*failures} <= {500, 503}
        assert (last, course.dies) == (204, False)


def test_some_ask_to_wait_for_longer_than_the_sender_would() -> None:
    for course in courses_with(Trouble.BUSY):
        assert course.answer(1).retry_after == RETRY_AFTER == course.wait_s(1)
        assert course.wait_s(1) > RETRY_INTERVALS[0]


def test_of_some_the_answer_is_lost() -> None:
    for course in courses_with(Trouble.SILENT):
        assert course.answer(1).accepted


def test_a_few_fail_until_the_receiver_is_repaired() -> None:
    for course in courses_with(Trouble.DOWN):
        assert course.passes
        assert course.answer(ATTEMPTS + 1).status == 503, "for ever, as long as nobody repairs it"
        assert course.answer(ATTEMPTS + 1, repaired=True) == ACCEPTED


def test_very_few_are_refused_for_good() -> None:
    found = courses_with(Trouble.GONE)

    assert {course.answer(1).status for course in found} == {404, 410}
    for course in found:
        assert (course.attempts, course.dies, course.passes) == (1, True, False)
        assert course.answer(2, repaired=True) == course.answer(1)


def test_a_repaired_receiver_accepts_all_else() -> None:
    for course in courses():
        assert course.answer(1, repaired=True).accepted == course.passes


def test_without_retry_after_the_wait_is_that_of_the_sender() -> None:
    course = courses_with(Trouble.DOWN)[0]

    assert tuple(course.wait_s(number) for number in range(1, ATTEMPTS)) == RETRY_INTERVALS


def test_the_id_of_a_webhook_follows_from_its_reminder_and_fits_into_a_header() -> None:
    assert webhook_id("check-in:2013-03-08-UA-1-EWR") == "webhook-check-in-2013-03-08-UA-1-EWR"
