"""Definitions that are refused, and what the error says."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from celery_delayq.errors import ConfigError, InvalidSchedule
from celery_delayq.model.retries.policy import MAX_WAIT_SECONDS
from tests.support.periodic import NOON, UTC, defined

# -- what is refused

TEXT = "expected a text of at most 1,000 characters, without NUL"
AS_JSON = "bell: args, kwargs and options are kept as JSON,"
CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        *(
            ({what: value}, f"{what}={value!r}: {TEXT}")
            for what in ("name", "task")
            for value in ("", None, b"bell", print, "a\0b", "a" * 1001)
        ),
        ({"name": "\ud800"}, r"name='\ud800': expected a text that UTF-8 can hold"),
        ({"task": "\udfff"}, r"task='\udfff': expected a text that UTF-8 can hold"),
        *(
            ({"args": value}, f"args={value!r}: expected a list of arguments")
            for value in ("abc", b"abc", 5, {"a": 1}, None)
        ),
        *(
            ({what: value}, f"{what}={value!r}: expected a mapping by names")
            for what in ("kwargs", "options")
            for value in ([1], {1: 2}, None, "queue", {None: 2})
        ),
        ({"options": {"eta": NOON}}, "eta: no option of a periodic entry"),
        (
            {"options": {"options": {"queue": "x"}}},
            "options: no option of a periodic entry; give each by its name, such as queue='mail'",
        ),
        (
            {"options": {"task_id": "a", "queue": "q", "countdown": 5}},
            "countdown, task_id: no option of a periodic entry",
        ),
        *(
            ({"options": {name: 1}}, f"{name}: no option of a periodic entry")
            for name in ("producer", "connection", "publisher", "args", "kwargs")
        ),
        *(
            (
                {"options": {slip: 1}},
                f"{slip}: no option of a periodic entry; did you mean {meant}?",
            )
            for slip, meant in (
                *(("catchup", "catch_up"), ("time_zone", "timezone"), ("qeue", "queue")),
                ("uniqe_key", "unique_key"),
            )
        ),
        *(
            ({what: value}, f"{what}={shown}: expected a datetime with a time zone, or None")
            for what in ("start", "end")
            for value, shown in (
                (5, "5"),
                ("2026-03-02T12:00:00Z", "'2026-03-02T12:00:00Z'"),
                (date(2026, 3, 2), "datetime.date(2026, 3, 2)"),
                (datetime(2026, 3, 2), "2026-03-02T00:00:00"),
            )
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
            for value in ("30", 0, -1, True, float("nan"), float("inf"), MAX_WAIT_SECONDS + 1, [30])
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
            for value in (0, -1, MAX_WAIT_SECONDS + 1, float("nan"), float("inf"), "5", True, NOON)
        ),
        *(
            (
                {"timezone": value},
                f"timezone={value!r}: expected the name of a time zone, such as 'Europe/Berlin'",
            )
            for value in ("", "Nowhere/Town", "../UTC", "/etc/hosts", "Europe", "a\0b", 5, b"UTC")
        ),
        ({"args": [{1, 2}]}, f"{AS_JSON} Object of type set is not"),
        ({"kwargs": {"a": object}}, f"{AS_JSON} Object of type type is not"),
        ({"options": {"headers": {"a": print}}}, f"{AS_JSON} Object of type"),
        pytest.param({"args": CIRCULAR}, f"{AS_JSON} Circular", id="circular"),
        pytest.param({"args": nested(100_000)}, AS_JSON, id="deep"),
        # kombu reads such a mapping as a value of that type.
        *(
            ({"args": [{"__type__": kind, "__value__": "?"}]}, AS_JSON)
            for kind in ("ours", "decimal", "uuid")
        ),
    ],
)
def test_what_is_wrong_is_refused_with_what_would_be_right(
    fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        defined(**fields)

    assert str(refused.value).startswith(text)


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


class outer:  # noqa: N801
    class inner(schedule):  # noqa: N801
        pass


def test_a_schedule_that_cannot_be_kept_is_an_invalid_schedule() -> None:
    with pytest.raises(InvalidSchedule) as refused:
        defined(outer.inner(10))

    assert "args" not in str(refused.value)
