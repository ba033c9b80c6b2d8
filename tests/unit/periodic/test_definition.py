"""What is a definition of a periodic entry, and what is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar
from dateutil import tz

from celery_delayq.model.retries.policy import MAX_WAIT_SECONDS
from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.entries import source_in
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import clocked
from tests.support.periodic import BERLIN, HOUR, NOON, NOON_MS, UTC, defined

# -- what is taken


def test_a_definition_is_as_it_was_given() -> None:
    given: dict[str, Any] = {
        "name": "bell",
        "task": "tower.ring",
        "kwargs": {"loud": True},
        "options": {"queue": "tower", "expires": 30},
        "source": "code shop",
        "timezone": "Europe/Berlin",
        "start": NOON,
        "end": NOON,
        "max_runs": 3,
        "catch_up": "all",
        "catch_up_max": 1000,
        "overlap": "queue_one",
    }

    found = Definition.from_fields(crontab(0), args=[1, "two"], **given)

    assert found == Definition(schedule=crontab(0), args=(1, "two"), **given)


@pytest.mark.parametrize(
    ("given_schedule", "expected"),
    [
        (10, schedule(10)),
        (0.5, schedule(0.5)),
        (timedelta(minutes=1), schedule(60)),
        (NOON, clocked(NOON)),
        (crontab(0), crontab(0)),
        (rrule("FREQ=DAILY"), rrule("FREQ=DAILY")),
        (solar("sunrise", 52.5, 13.4), solar("sunrise", 52.5, 13.4)),
        (schedule(60, relative=True), schedule(60, relative=True)),
    ],
)
def test_a_schedule_is_seconds_or_a_moment_or_a_schedule(
    given_schedule: Any, expected: BaseSchedule
) -> None:
    found = defined(given_schedule).schedule

    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a" * 1000, "task": "b" * 1000},
        {"name": "payday: Löhne\n💶 {x}", "task": " "},
        {"kwargs": {}, "options": {}, "args": ()},
        {"options": {"expires": MAX_WAIT_SECONDS}},
        {"options": {"expires": 0.001}},
        {"options": {"expires": None}},
        *(
            {"options": {limit: value}}
            for limit in ("time_limit", "soft_time_limit")
            for value in (None, 1, 0.001, MAX_WAIT_SECONDS)
        ),
        {"options": {"headers": {"Task": 1, "periodic_task_name": "bell", "": None}}},
        {"options": {"headers": {}}},
        {"options": {"headers": None}},
        {"start": datetime(1970, 1, 1, tzinfo=UTC)},
        {"catch_up": "all", "catch_up_max": 1, "max_runs": 1},
        {"start": datetime(2026, 3, 2, tzinfo=ZoneInfo("Asia/Tokyo"))},
        {"args": [NOON, date(2026, 3, 2), b"bytes", None, 1.5, [{"a": [1]}]]},
    ],
)
def test_what_is_at_the_border_is_taken(fields: dict[str, Any]) -> None:
    found = defined(**fields)

    assert Definition.loads(found.name, found.dumps()) == found


NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("zones", "wall", "moment"),
    [
        ({"timezone": "Europe/Berlin"}, datetime(2026, 7, 1, 9), "2026-07-01T09:00:00+02:00"),
        ({"timezone": "Europe/Berlin"}, datetime(2026, 1, 1, 9), "2026-01-01T09:00:00+01:00"),
        ({"zone": NEW_YORK}, datetime(2026, 7, 1, 9), "2026-07-01T09:00:00-04:00"),
        (
            {"timezone": "Europe/Berlin", "zone": NEW_YORK},
            datetime(2026, 7, 1, 9),
            "2026-07-01T09:00:00+02:00",
        ),
        # Clocks are set forward from 2 to 3, and back from 3 to 2.
        ({"zone": BERLIN}, datetime(2026, 3, 29, 2, 30), "2026-03-29T03:00:00+02:00"),
        ({"zone": BERLIN}, datetime(2026, 10, 25, 2, 30), "2026-10-25T02:30:00+02:00"),
        ({"zone": BERLIN}, datetime(2026, 10, 25, 2, 30, fold=1), "2026-10-25T02:30:00+01:00"),
        (
            {"zone": BERLIN, "timezone": "UTC"},
            datetime(2026, 7, 1, 9, tzinfo=NEW_YORK),
            "2026-07-01T09:00:00-04:00",
        ),
    ],
)
def test_a_moment_without_a_zone_is_by_the_clock_of_the_entry_or_of_the_app(
    zones: dict[str, Any], wall: datetime, moment: str
) -> None:
    found = defined(wall, start=wall, end=wall, **zones)
    schedule = found.schedule

    assert isinstance(schedule, clocked)
    told = [each.isoformat() for each in (schedule.at, found.start, found.end) if each]
    assert told == [moment] * 3
    assert Definition.loads(found.name, found.dumps()) == found


def test_a_record_of_before_may_say_how_many_are_caught_up_without_a_meaning() -> None:
    text = '{"task":"t","schedule":{"every":10},"catch_up_max":5}'

    assert Definition.loads("bell", text).catch_up_max == 5


def test_a_record_has_what_is_said_and_nothing_else() -> None:
    given: dict[str, Any] = {"args": [0], "kwargs": {"a": None}, "timezone": "UTC", "max_runs": 1}

    assert defined().dumps() == '{"task":"tower.ring","schedule":{"every":10}}'
    assert defined(**given, end=NOON, catch_up="skip", overlap="skip").dumps() == (
        '{"task":"tower.ring","schedule":{"every":10},"args":[0],"kwargs":{"a":null},'
        '"timezone":"UTC","end":"2026-03-02T12:00:00+00:00","max_runs":1,"catch_up":"skip",'
        '"overlap":"skip"}'
    )


# -- definition hashes, sources, zones


@pytest.mark.parametrize(
    "other",
    [
        *(defined(11), defined(schedule(10, relative=True)), defined(task="tower.chime")),
        *(defined(args=[1]), defined(kwargs={"a": 1}), defined(options={"queue": "q"})),
        *(defined(source="code shop"), defined(timezone="UTC"), defined(start=NOON)),
        *(defined(end=NOON), defined(max_runs=1), defined(catch_up="all")),
        *(defined(catch_up="all", catch_up_max=99), defined(overlap="skip")),
    ],
)
def test_each_difference_makes_another_definition_hash(other: Definition) -> None:
    assert definition_hash_of(other) != definition_hash_of(defined())


def test_the_same_definition_is_the_same_definition_hash() -> None:
    assert definition_hash_of(defined(args=(1,))) == definition_hash_of(defined(10.0, args=[1]))
    assert definition_hash_of(defined(name="another")) == definition_hash_of(defined())
    assert definition_hash_of(defined()).isalnum()


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (defined().dumps(), "api"),
        (defined(source="code shop").dumps(), "code shop"),
        *((text, None) for text in ("{", "[]", "5", "", '{"source":5}')),
        pytest.param("[" * 100_000 + "]" * 100_000, None, id="deep"),  # RecursionError
    ],
)
def test_the_source_of_a_definition_is_read_without_the_rest(text: str, source: str | None) -> None:
    assert source_in(f"line\n{text}") == source


def test_a_rule_is_that_of_its_anchor_and_of_its_zone() -> None:
    three, ten = defined(crontab(0, 15)), defined(10)

    assert [ten.rule(anchor).after(NOON_MS) for anchor in (NOON_MS - 1, NOON_MS, NOON_MS - 1)] == [
        NOON_MS + 9_999,
        NOON_MS + 10_000,
        NOON_MS + 9_999,
    ]
    zones = (BERLIN, ZoneInfo("Asia/Tokyo"), UTC, BERLIN, tz.gettz("Europe/Berlin"))
    assert [three.rule(0, zone or UTC).after(NOON_MS) for zone in zones] == [
        NOON_MS + hours * HOUR for hours in (2, 18, 3, 2, 2)
    ]
    in_tokyo = defined(crontab(0, 15), timezone="Asia/Tokyo")
    assert in_tokyo.rule(0, UTC).after(NOON_MS) == NOON_MS + 18 * HOUR


def test_what_is_done_to_a_definition_does_not_come_back_from_its_record() -> None:
    text = defined(kwargs={"bells": [1]}).dumps()
    Definition.loads("bell", text).kwargs["bells"].append(2)

    assert Definition.loads("bell", text).dumps() == text


class full_hours(BaseSchedule):  # noqa: N801 - as Celery's
    """At full hours; somebody else may ask meanwhile."""

    meanwhile: ClassVar[list[Callable[[], Any]]] = []

    def is_due(self, last_run_at: datetime) -> Any:
        while self.meanwhile:
            thread = threading.Thread(target=self.meanwhile.pop())
            thread.start()
            thread.join()
        left = 3600 - self.now().timestamp() % 3600
        return schedstate(left == 3600 and self.now() > last_run_at, left)

    def __reduce__(self) -> Any:
        return type(self), ()


def test_two_threads_may_ask_for_the_ticks_of_an_entry_at_once() -> None:
    text = defined(full_hours()).dumps()

    def ask(after: int) -> int | None:
        return Definition.loads("bell", text).rule(0).after(after)

    full_hours.meanwhile.append(lambda: ask(NOON_MS + 1_800_000))

    assert ask(NOON_MS) == NOON_MS + 3_600_000
