"""What is a definition of a periodic entry, and what is none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar
from dateutil import tz

from celery_delayq.errors import ConfigError, InvalidSchedule
from celery_delayq.model.retry_policy import LONGEST
from celery_delayq.periodic.definition import Definition, definition_hash_of, source_in, zone_of
from celery_delayq.periodic.schedules import clocked, rrule

UTC = timezone.utc
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOON_MS = 1_772_452_800_000


def defined(every: Any = 10, **given: Any) -> Definition:
    return Definition.checked(every, **{"name": "bell", "task": "tower.ring", **given})


# -- what is taken


def test_a_definition_is_as_it_was_given() -> None:
    assert Definition.checked(
        crontab(0),
        name="bell",
        task="tower.ring",
        args=[1, "two"],
        kwargs={"loud": True},
        options={"queue": "tower", "expires": 30},
        source="code shop",
        timezone="Europe/Berlin",
        start=NOON,
        end=NOON,
        max_runs=3,
        catch_up="all",
        catch_up_max=1000,
        overlap="queue_one",
    ) == Definition(
        name="bell",
        task="tower.ring",
        schedule=crontab(0),
        args=(1, "two"),
        kwargs={"loud": True},
        options={"queue": "tower", "expires": 30},
        source="code shop",
        timezone="Europe/Berlin",
        start=NOON,
        end=NOON,
        max_runs=3,
        catch_up="all",
        catch_up_max=1000,
        overlap="queue_one",
    )


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
        {"options": {"expires": LONGEST}},
        {"options": {"expires": 0.001}},
        {"options": {"expires": None}},
        *(
            {"options": {limit: value}}
            for limit in ("time_limit", "soft_time_limit")
            for value in (None, 1, 0.001, LONGEST)
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


BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


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


def test_what_is_not_said_is_not_in_a_record() -> None:
    assert defined().dumps() == '{"task":"tower.ring","schedule":{"every":10}}'


def test_a_record_has_what_is_said() -> None:
    assert defined(
        args=[0],
        kwargs={"a": None},
        timezone="UTC",
        end=NOON,
        max_runs=1,
        catch_up="skip",
        overlap="skip",
    ).dumps() == (
        '{"task":"tower.ring","schedule":{"every":10},"args":[0],"kwargs":{"a":null},'
        '"timezone":"UTC","end":"2026-03-02T12:00:00+00:00","max_runs":1,"catch_up":"skip",'
        '"overlap":"skip"}'
    )


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


# -- definition hashes, sources, zones


@pytest.mark.parametrize(
    "other",
    [
        defined(11),
        defined(schedule(10, relative=True)),
        defined(task="tower.chime"),
        defined(args=[1]),
        defined(kwargs={"a": 1}),
        defined(options={"queue": "q"}),
        defined(source="code shop"),
        defined(timezone="UTC"),
        defined(start=NOON),
        defined(end=NOON),
        defined(max_runs=1),
        defined(catch_up="all"),
        defined(catch_up="all", catch_up_max=99),
        defined(overlap="skip"),
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
        ("{", None),
        ("[]", None),
        ("5", None),
        ("", None),
    ],
)
def test_the_source_of_a_definition_is_read_without_the_rest(text: str, source: str | None) -> None:
    assert source_in(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"source":5}',
        pytest.param("[" * 100_000 + "]" * 100_000, id="deep"),  # RecursionError
    ],
)
def test_what_cannot_be_read_names_no_source(text: str) -> None:
    assert source_in(text) is None


def test_no_name_is_no_zone() -> None:
    assert zone_of(None) is None
    assert zone_of("Asia/Tokyo") == ZoneInfo("Asia/Tokyo")


def test_a_rule_is_that_of_its_anchor_and_of_its_zone() -> None:
    three, ten = defined(crontab(0, 15)), defined(10)

    assert [ten.rule(anchor).after(NOON_MS) for anchor in (NOON_MS - 1, NOON_MS, NOON_MS - 1)] == [
        NOON_MS + 9_999,
        NOON_MS + 10_000,
        NOON_MS + 9_999,
    ]
    zones = (ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo"), UTC, ZoneInfo("Europe/Berlin"))
    assert [three.rule(0, zone).after(NOON_MS) for zone in zones] == [
        NOON_MS + hours * 3_600_000 for hours in (2, 18, 3, 2)
    ]
    assert defined(crontab(0, 15), timezone="Asia/Tokyo").rule(0, UTC).after(NOON_MS) == (
        NOON_MS + 18 * 3_600_000
    )


def test_the_zone_of_an_app_may_be_one_of_dateutil() -> None:
    assert defined(crontab(0, 15)).rule(0, tz.gettz("Europe/Berlin") or UTC).after(NOON_MS) == (
        NOON_MS + 2 * 3_600_000
    )


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
