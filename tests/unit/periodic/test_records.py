"""Records of periodic entries: what is read is what was written, and what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_delayq.errors import ConfigError, InvalidSchedule, RecordError, ScheduleNotImportable
from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.entries import Periodic, PeriodicState
from celery_delayq.periodic.policy import begin, fire
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import clocked
from tests.support.periodic import NOON_MS, UTC, defined

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=offsets)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
schedules = (
    st.integers(1, 10**9).map(lambda ms: schedule(timedelta(milliseconds=ms)))
    | st.integers(1, 10**6).map(lambda every: schedule(every, relative=True))
    | st.builds(crontab, minute=st.integers(0, 59), hour=st.sampled_from(["*", "*/3", "1,2", {5}]))
    | st.builds(
        rrule,
        st.sampled_from(["FREQ=DAILY", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9"]),
        st.none() | st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)) | moments,
    )
    | moments.map(clocked)
    | st.builds(solar, st.just("sunset"), st.floats(-60, 60), st.floats(-180, 180))
)


def in_order(two: tuple[datetime | None, datetime | None]) -> bool:
    start, end = two
    return start is None or end is None or start <= end


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    start, end = draw(st.tuples(st.none() | moments, st.none() | moments).filter(in_order))
    catch_up = draw(st.sampled_from(["skip", "one", "all"]))
    most: dict[str, Any] = {"catch_up_max": draw(st.integers(1, 1000))} if catch_up == "all" else {}
    return Definition.from_fields(
        draw(schedules),
        name=draw(names),
        task=draw(names),
        args=draw(st.lists(json_values, max_size=3)),
        kwargs=draw(st.dictionaries(st.text(), json_values, max_size=3)),
        options=draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "queue": st.none() | st.text("mail-ö", min_size=1),
                    "priority": st.none() | st.integers(0, 255),
                    "exchange": json_values,
                    "headers": st.dictionaries(st.text(min_size=20, max_size=25), json_values),
                    "time_limit": st.none() | st.integers(1, 1000),
                },
            )
        ),
        source=draw(st.sampled_from(["api", "code shop"])),
        timezone=draw(st.none() | st.sampled_from(["UTC", "Europe/Berlin", "Asia/Tokyo"])),
        start=start,
        end=end,
        max_runs=draw(st.none() | st.integers(1, 10**20)),
        catch_up=catch_up,
        **most,
        overlap=draw(st.sampled_from(["allow", "skip", "queue_one"])),
    )


instants = st.integers(0, 253_402_300_799_999)
standings = st.builds(
    PeriodicState,
    definition_hash=st.text("0123456789abcdef", min_size=12, max_size=12),
    anchor=instants,
    next_tick=st.none() | instants,
    last_tick=st.none() | instants,
    count=st.integers(0, 10**20),
    status=st.sampled_from(["on", "paused", "ended"]),
)


@settings(max_examples=60)
@given(definition=definitions(), state=standings)
def test_an_entry_is_read_from_its_record_as_it_was(
    definition: Definition, state: PeriodicState
) -> None:
    entry = Periodic(definition, state)
    again = Periodic.unpack(definition.name, entry.pack())

    assert again == entry
    assert len(state.line.split(" ")) == 7
    assert again.pack() == entry.pack()
    assert definition_hash_of(again.definition) == definition_hash_of(definition)


def test_a_record_is_a_line_and_json() -> None:
    entry = begin(defined(), NOON_MS, UTC)

    assert entry.pack() == (
        f"1 {definition_hash_of(defined())} {NOON_MS} {NOON_MS + 10_000} - 0 on\n"
        '{"task":"tower.ring","schedule":{"every":10}}'
    )


def test_a_time_zone_by_name_is_kept_as_the_moment_it_means() -> None:
    start = datetime(2026, 7, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))
    found = Definition.loads("bell", defined(start=start).dumps()).start

    assert found == start
    assert found is not None
    assert found.isoformat() == "2026-07-01T09:00:00+02:00"


LINE = "1 abc 5 6 7 8 on"
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "line",
    [
        *("", "1", "1 abc 5 6 7 8", f"{LINE} more", f"{LINE} ", f" {LINE}", f"2{LINE[1:]}"),
        *("1  abc 5 6 7 8 on", f"0{LINE}", "1 abc 5 6 7 8 off", "1 abc 5 6 7 8 ON", "{}"),
        *("1 abc - 6 7 8 on", "1 abc 5 6 7 - on", "1 abc x 6 7 8 on", "1 abc 5 x 7 8 on"),
        *("1 abc 5 6 x 8 on", "1 abc 5 6 7 x on", "1 abc 5.5 6 7 8 on", "1 abc 5 6.5 7 8 on"),
        *("1 abc 5 6 7.0 8 on", "1 abc 5 6 7 8e3 on", "1 abc 5 6 7 nan on"),
        LINE.replace(" ", "\t"),
    ],
)
def test_a_line_of_another_kind_is_refused(line: str) -> None:
    with pytest.raises(RecordError) as refused:
        PeriodicState.read(line)

    assert str(refused.value).startswith(f"unreadable line {line!r} of a periodic entry: ")


def test_the_line_that_is_refused_otherwise_is_read() -> None:
    assert PeriodicState.read(LINE) == PeriodicState(
        definition_hash="abc", anchor=5, next_tick=6, last_tick=7, count=8, status="on"
    )


@pytest.mark.parametrize(
    "record",
    [
        *("", LINE),
        *(f"{LINE}\n{text}" for text in ("", "{", "5", "null", "[]", '"text"', "{}")),
        f'{LINE}\n{{"task":"t"}}',
        f'{LINE}\n{{"schedule":{{"every":10}}}}',
        *(
            f'{LINE}\n{{"task":"t","schedule":{{"every":10}},{more}}}'
            for more in (
                *('"colour":"red"', '"name":"another"', '"args":5', '"args":null'),
                *('"start":"soon"', '"end":""', '"args":[{"__type__":"x","__value__":1}]'),
                '"args":[{"__type__":"decimal","__value__":"?"}]',  # ArithmeticError
            )
        ),
        pytest.param(
            f'{LINE}\n{{"task":"t","schedule":{{"every":10}},"args":{DEEP}}}', id="deep"
        ),  # RecursionError
    ],
)
def test_a_definition_that_cannot_be_read_is_refused_by_name(record: str) -> None:
    with pytest.raises(RecordError, match=r"^unreadable periodic entry 'bell': ."):
        Periodic.unpack("bell", record)


def test_a_definition_after_a_line_of_another_kind_is_refused() -> None:
    with pytest.raises(RecordError, match="unreadable line '2 abc"):
        Periodic.unpack("bell", f"2 abc 5 6 7 8 on\n{defined().dumps()}")


@pytest.mark.parametrize(
    ("form", "error", "text"),
    [
        ("null", InvalidSchedule, "None: expected the form of a schedule"),
        ("{}", InvalidSchedule, "expected every, crontab, solar, clocked, rrule or class"),
        ('{"every":NaN}', InvalidSchedule, "nan"),
        ('{"class":"gone.away:tides","args":[]}', ScheduleNotImportable, "gone.away:tides is not"),
    ],
)
def test_a_definition_with_a_schedule_that_is_not_known_here_says_so(
    form: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Definition.loads("bell", f'{{"task":"t","schedule":{form}}}')


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 5},
        {"end": 5},
        {"start": "2026-03-02T12:00:00"},
        {"end": "2026-03-02T12:00:00"},
        {"max_runs": "5"},
        {"catch_up": "all", "catch_up_max": "5"},
    ],
    ids=str,
)
def test_a_definition_with_a_value_of_another_kind_is_refused(wrong: Mapping[str, Any]) -> None:
    text = json.dumps({"task": "t", "schedule": {"every": 10}, **wrong})
    with pytest.raises((RecordError, ConfigError)):
        fire(Periodic.unpack("bell", f"1 abc 0 {NOON_MS} - 0 on\n{text}"), NOON_MS, UTC)
