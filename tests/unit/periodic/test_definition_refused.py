"""Definitions that are refused, and what the error says."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule

from celery_delayq.errors import ConfigError, InvalidSchedule
from celery_delayq.model.retry_policy import LONGEST
from tests.unit.periodic.test_definition import NOON, UTC, defined

# -- what is refused

TEXT = "expected a text of at most 1,000 characters, without NUL"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, f"name='': {TEXT}"),
        ({"name": None}, f"name=None: {TEXT}"),
        ({"name": b"bell"}, f"name=b'bell': {TEXT}"),
        ({"name": "a\0b"}, rf"name='a\x00b': {TEXT}"),
        ({"name": "a" * 1001}, f"name='{'a' * 1001}': {TEXT}"),
        ({"name": "\ud800"}, r"name='\ud800': expected a text that UTF-8 can hold"),
        ({"task": ""}, f"task='': {TEXT}"),
        ({"task": print}, f"task={print!r}: {TEXT}"),
        ({"task": "a\0b"}, rf"task='a\x00b': {TEXT}"),
        ({"task": "a" * 1001}, f"task='{'a' * 1001}': {TEXT}"),
        ({"task": "\udfff"}, r"task='\udfff': expected a text that UTF-8 can hold"),
        ({"args": "abc"}, "args='abc': expected a list of arguments"),
        ({"args": b"abc"}, "args=b'abc': expected a list of arguments"),
        ({"args": 5}, "args=5: expected a list of arguments"),
        ({"args": {"a": 1}}, "args={'a': 1}: expected a list of arguments"),
        ({"args": None}, "args=None: expected a list of arguments"),
        ({"kwargs": [1]}, "kwargs=[1]: expected a mapping by names"),
        ({"kwargs": {1: 2}}, "kwargs={1: 2}: expected a mapping by names"),
        ({"kwargs": None}, "kwargs=None: expected a mapping by names"),
        ({"options": "queue"}, "options='queue': expected a mapping by names"),
        ({"options": {None: 2}}, "options={None: 2}: expected a mapping by names"),
        ({"options": {"eta": NOON}}, "eta: no option of a periodic entry"),
        (
            {"options": {"task_id": "a", "queue": "q", "countdown": 5}},
            "countdown, task_id: no option of a periodic entry",
        ),
        *(
            ({"options": {name: 1}}, f"{name}: no option of a periodic entry")
            for name in ("producer", "connection", "publisher", "args", "kwargs")
        ),
        *(
            ({what: value}, f"{what}={value!r}: expected a datetime with a time zone, or None")
            for what in ("start", "end")
            for value in (5, "2026-03-02T12:00:00Z", date(2026, 3, 2))
        ),
        *(
            (
                {what: datetime(2026, 3, 2)},
                f"{what}=2026-03-02T00:00:00: expected a datetime with a time zone, or None",
            )
            for what in ("start", "end")
        ),
        (
            {"start": NOON, "end": NOON - timedelta(microseconds=1)},
            "end=2026-03-02T11:59:59.999999+00:00: expected a time after "
            "start=2026-03-02T12:00:00+00:00",
        ),
        (
            {"start": datetime(9999, 1, 1, tzinfo=UTC)},
            "start=9999-01-01T00:00:00+00:00: expected a time before the year 9999",
        ),
        *(
            (
                {"start": start},
                f"start={start.isoformat()}: expected a time from 1970-01-01T00:00:00+00:00 on",
            )
            for start in (
                datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
                datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
                datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            )
        ),
        *(
            (
                {"options": {limit: value}},
                f"{limit}={value!r}: expected seconds above 0, up to ten years",
            )
            for limit in ("time_limit", "soft_time_limit")
            for value in ("30", 0, -1, True, float("nan"), float("inf"), LONGEST + 1, [30])
        ),
        *(
            ({"options": {"queue": value}}, f"queue={value!r}: expected the name of a queue")
            for value in (3, "", ["a"])
        ),
        *(
            (
                {"options": {"priority": value}},
                f"priority={value!r}: expected a number from 0 to 255",
            )
            for value in ("high", -1, 256, True, 1.5)
        ),
        *(
            ({"options": {"headers": value}}, f"headers={value!r}: expected a mapping by names")
            for value in ("a", ["a"], 5, {1: 2}, {None: 1})
        ),
        *(
            (
                {"options": {"headers": {"mine": 1, name: None}}},
                f"headers={{'mine': 1, '{name}': None}}: expected other names than {name}, of",
            )
            for name in ("id", "task", "timelimit", "eta", "retries", "stamps", "group_index")
        ),
        (
            {"end": datetime.max, "timezone": "America/New_York"},
            "end=9999-12-31T23:59:59.999999: expected a time that there is",
        ),
        *(
            (
                {"catch_up": catch_up, "catch_up_max": most},
                f"catch_up_max={most}: it is for catch_up='all', and has no meaning with "
                f"'{catch_up}'",
            )
            for catch_up in ("skip", "one")
            for most in (1, 100)
        ),
        ({"catch_up_max": 5}, "catch_up_max=5: it is for catch_up='all'"),
        *(
            ({"catch_up": value}, f"catch_up={value!r}: expected one of skip, one, all")
            for value in ("none", "", None, True, 1, ["one"], "SKIP", "queue_one")
        ),
        *(
            ({"overlap": value}, f"overlap={value!r}: expected one of allow, skip, queue_one")
            for value in ("all", "", None, False, ["skip"], "one")
        ),
        *(
            ({"catch_up_max": value}, f"catch_up_max={value!r}: expected a number from 1 to 1,000")
            for value in (0, -1, 1001, True, 1.0, "5", None)
        ),
        *(
            ({"max_runs": value}, f"max_runs={value!r}: expected a number from 1, or None")
            for value in (0, -1, True, False, 1.0, "5")
        ),
        *(
            (
                {"options": {"expires": value}},
                f"expires={value!r}: expected seconds after the tick, up to ten years",
            )
            for value in (0, -1, LONGEST + 1, float("nan"), float("inf"), "5", NOON)
        ),
        *(
            (
                {"timezone": value},
                f"timezone={value!r}: expected the name of a time zone, such as 'Europe/Berlin'",
            )
            for value in ("", "Nowhere/Town", "../UTC", "/etc/hosts", "Europe", "a\0b", 5, b"UTC")
        ),
        (
            {"args": [{1, 2}]},
            "bell: args, kwargs and options are kept as JSON, Object of type set is not",
        ),
        (
            {"kwargs": {"a": object}},
            "bell: args, kwargs and options are kept as JSON, Object of type type is not",
        ),
        (
            {"options": {"headers": {"a": print}}},
            "bell: args, kwargs and options are kept as JSON, Object of type",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_what_would_be_right(
    fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        defined(**fields)

    assert str(refused.value).startswith(text)


def test_arguments_that_contain_themselves_are_refused() -> None:
    circular: list[Any] = []
    circular.append(circular)

    with pytest.raises(ConfigError, match="args, kwargs and options are kept as JSON, Circular"):
        defined(args=circular)


EXPECTED_SCHEDULE = (
    "expected seconds, a timedelta, a datetime for once, or a schedule such as "
    "celery.schedules.crontab(minute=0)"
)


@pytest.mark.parametrize(
    ("given_schedule", "text"),
    [
        *(
            (each, f"schedule={each!r}: {EXPECTED_SCHEDULE}")
            for each in (None, True, "10", "0 0 * * *", date(2026, 3, 2), [10], crontab, b"")
        ),
        (float("nan"), "schedule=nan: expected a finite number of seconds"),
        (float("inf"), "schedule=inf: expected a finite number of seconds"),
        (-float("inf"), "schedule=-inf: expected a finite number of seconds"),
        (1e300, "schedule=1e+300: "),
        (10**30, f"schedule={10**30}: "),
        (0, "every 0 s: expected whole milliseconds, at least one, and at most 40 years"),
        (-1, "every -1 s: expected whole milliseconds"),
        (0.0005, "every 0.0005 s: expected whole milliseconds"),
        (41 * 366 * 86400, "every 1.29652e+09 s: expected whole milliseconds"),
        (datetime(2026, 3, 2), "at=datetime.datetime(2026, 3, 2, 0, 0): expected a datetime with"),
        (schedule(0.5, relative=True), "every 0.5 s: relative is for seconds and more"),
    ],
)
def test_what_has_no_ticks_is_no_schedule(given_schedule: Any, text: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        defined(given_schedule)

    assert str(refused.value).startswith(text)


def test_no_header_that_celery_gives_a_message_may_be_said() -> None:
    message = Celery(set_as_current=False).amqp.as_task_v2("id", "task")

    for name in message.headers:
        with pytest.raises(ConfigError, match=f"expected other names than {name}, of which"):
            defined(options={"headers": {name: 1}})


def test_a_crontab_that_never_matches_is_no_schedule() -> None:
    # By newer versions of Celery, where they see it, and by us.
    with pytest.raises(ValueError, match="never"):
        defined(crontab(0, 0, day_of_month=30, month_of_year=2))


def local_schedule() -> BaseSchedule:
    class local(schedule):  # noqa: N801
        pass

    return local(10)


def test_a_schedule_that_cannot_be_kept_is_an_invalid_schedule() -> None:
    try:
        defined(local_schedule())
    except InvalidSchedule as exc:
        assert "args" not in str(exc)  # noqa: PT017
    else:
        pytest.fail("it was taken")


@pytest.mark.parametrize("seconds", ["10", None])
def test_a_schedule_of_something_else_than_seconds_is_invalid(seconds: Any) -> None:
    with pytest.raises(InvalidSchedule, match="every"):
        defined(schedule(seconds))


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def test_arguments_that_are_too_deep_for_json_are_refused() -> None:
    with pytest.raises(ConfigError, match="kept as JSON"):
        defined(args=nested(100_000))


@pytest.mark.parametrize("kind", ["ours", "decimal", "uuid"])
def test_arguments_that_could_not_be_read_again_are_refused(kind: str) -> None:
    # kombu takes such a mapping for something of that type that it has written itself.
    with pytest.raises(ConfigError, match="kept as JSON"):
        defined(args=[{"__type__": kind, "__value__": "?"}])


def test_expires_is_a_number_and_no_yes_or_no() -> None:
    with pytest.raises(ConfigError, match="expires=True"):
        defined(options={"expires": True})
