"""From Arrow batches to items."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from celery_delayq.errors import ConfigError
from celery_delayq.model.unique import Key
from celery_delayq.schedule.items import Item
from celery_delayq.schedule.message_template import message_id_of_id
from celery_delayq.spark.access import Access
from celery_delayq.spark.options import WriteOptions
from celery_delayq.spark.write.rows import TaskRow, TaskRows

NOON = datetime(2031, 5, 17, 12, tzinfo=timezone.utc)


def options(**given: Any) -> WriteOptions:
    return WriteOptions(
        **{"access": Access(), "task": "mail.remind", "idcolumn": "flight", **given}
    )


def read(how: WriteOptions, /, **columns: Any) -> list[TaskRow]:
    batch = pa.RecordBatch.from_pydict(columns)
    return [*TaskRows(how, batch.schema).read(batch)]


def item(how: WriteOptions, /, **columns: Any) -> Item:
    """Return the item of the only row."""
    batch = pa.RecordBatch.from_pydict(columns)
    rows = TaskRows(how, batch.schema)
    [row] = rows.read(batch)
    return rows.item(row)


def test_the_reason_of_a_refusal_is_no_argument() -> None:
    [row] = read(options(), flight=["UA1"], gate=["B7"], _error=["too late"])
    assert row.kwargs == '{"gate": "B7"}'


def test_two_columns_of_one_name_are_reported() -> None:
    schema = pa.schema([("flight", pa.string()), ("gate", pa.string()), ("gate", pa.int64())])
    with pytest.raises(ConfigError, match="gate: several columns have this name; rename them"):
        TaskRows(options(), schema)


def test_the_time_zone_of_a_session_makes_no_other_row() -> None:
    def rows(zone: str) -> list[TaskRow]:
        time = pa.timestamp("us", zone)
        kinds = {
            "flight": time,
            "at": time,
            "crew": pa.struct([("since", pa.list_(time)), ("by", pa.map_(pa.string(), time))]),
            "seen": pa.large_list(time),
        }
        crew = {"since": [NOON, None], "by": [("x", NOON)]}
        row = {"flight": NOON, "at": NOON, "crew": crew, "seen": [NOON]}
        batch = pa.RecordBatch.from_pylist([row], pa.schema(kinds))
        return [*TaskRows(options(etacolumn="at"), batch.schema).read(batch)]

    [row] = rows("UTC")
    assert row.id == "mail.remind:2031-05-17 12:00:00+00:00"
    assert row.kwargs.count('"__value__": "2031-05-17T12:00:00+00:00"') == 3
    assert [row] == rows("America/New_York") == rows("+05:30")


def test_a_row_is_a_call_with_its_other_columns_as_keyword_arguments() -> None:
    columns = {"flight": ["UA1"], "at": pa.array([NOON]), "gate": ["B7"], "pax": [3]}
    [row] = read(options(etacolumn="at"), **columns)
    made = item(options(etacolumn="at"), **columns)

    assert made == Item(
        kwargs={"gate": "B7", "pax": 3},
        eta=NOON,
        id="mail.remind:UA1",
        unique_key=Key("UA1"),
        version=made.version,
    )
    when = int(NOON.timestamp() * 1_000_000)
    assert row == TaskRow(
        0,
        "UA1",
        "mail.remind:UA1",
        message_id_of_id("mail.remind:UA1", made.version),
        when,
        '{"gate": "B7", "pax": 3}',
        "{'gate': 'B7', 'pax': 3}",
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.array([{"a": 1, "b": [1, None]}]), {"a": 1, "b": [1, None]}),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), {"k": 1}),
        (
            pa.array([{"m": [("k", 1)]}], pa.struct([("m", pa.map_(pa.string(), pa.int64()))])),
            {"m": {"k": 1}},
        ),
        (pa.array([Decimal("1.50")]), Decimal("1.50")),
        (pa.array([date(2031, 1, 2)]), date(2031, 1, 2)),
        (pa.array([None], pa.string()), None),
        (pa.array([b"\x00\xff"]), b"\x00\xff"),
        (pa.array([True]), True),
    ],
    ids=lambda value: str(getattr(value, "type", "")) or None,
)
def test_values_of_all_types_are_what_python_has_for_them(column: Any, value: Any) -> None:
    assert item(options(), flight=["UA1"], given=column).kwargs == {"given": value}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", None])
def test_an_eta_is_a_moment_whatever_its_unit_and_zone(unit: str, zone: str | None) -> None:
    column = pa.array([NOON.replace(tzinfo=None) if zone is None else NOON]).cast(
        pa.timestamp(unit, zone)
    )
    assert item(options(etacolumn="at"), flight=["UA1"], at=column).eta == NOON


@pytest.mark.parametrize(
    ("column", "seconds"),
    [
        (pa.array([90]), 90.0),
        (pa.array([0.25]), 0.25),
        (pa.array([Decimal("1.5")]), 1.5),
        (pa.array([timedelta(hours=1)]), 3600.0),
    ],
    ids=["integer", "float", "decimal", "interval"],
)
def test_a_delay_is_a_countdown(column: Any, seconds: float) -> None:
    made = item(options(delaycolumn="wait"), flight=["UA1"], wait=column)

    assert (made.countdown, made.eta, made.kwargs) == (seconds, None, {})


def test_without_either_it_is_to_run_at_once() -> None:
    made = item(options(), flight=[7])

    assert (made.id, made.eta, made.countdown) == ("mail.remind:7", None, None)


def test_the_content_of_a_row_whatever_the_order_of_columns_is_its_version() -> None:
    def version(**changed: Any) -> str:
        columns = {"flight": ["UA1"], "at": pa.array([NOON]), "gate": ["B7"], "pax": [3]}
        [row] = read(options(etacolumn="at"), **{**changed, **columns, **changed})
        return row.message_id

    assert version() == version(pax=[3], gate=["B7"], flight=["UA1"])
    others = {version(at=pa.array([NOON + timedelta(microseconds=1)])), version(gate=["B8"])}
    assert len(others | {version(pax=[None]), version()}) == 4


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"flight": [None]}, "flight is None: nothing identifies the row"),
        ({"flight": [""]}, "flight is '': nothing identifies the row"),
        ({"at": [None]}, "at is null: nothing says when"),
        ({"at": [-1]}, "at lies outside the years 1970 to 9999"),
        ({"at": [253_402_300_800_000_000]}, "at lies outside the years 1970 to 9999"),
    ],
    ids=["no key", "empty key", "no ETA", "before 1970", "after 9999"],
)
def test_a_row_that_cannot_be_scheduled_says_why_and_the_others_go_on(
    columns: dict[str, Any], reason: str
) -> None:
    given = {"flight": ["UA1"], "at": [0], **columns}
    names = [*given["flight"], "UA2"]
    at = pa.array([*given["at"], 5], pa.int64()).cast(pa.timestamp("us", "UTC"))
    bad, good = read(options(etacolumn="at"), flight=pa.array(names, pa.string()), at=at)

    assert bad == TaskRow(0, error=reason)
    assert good.id == "mail.remind:UA2"


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (
            pa.array([253_402_300_800_000_000, 5]).cast(pa.timestamp("us", "UTC")),
            "given: date value out of range",
        ),
        (
            pa.array([[("k", 1), ("k", 2)], []], pa.map_(pa.string(), pa.int64())),
            'given: "Converting to Python dictionary is not supported',
        ),
        (
            pa.array([[({"a": 1}, 1)], []], pa.map_(pa.struct([("a", pa.int64())]), pa.int64())),
            "given: unhashable type",
        ),
        (pa.array([timedelta(1), None]), "Object of type timedelta is not JSON serializable"),
    ],
    ids=["after 9999", "a key twice", "an unhashable key", "no JSON"],
)
def test_an_argument_that_cannot_be_sent_is_refused_and_the_others_go_on(
    column: Any, reason: str
) -> None:
    bad, good = read(options(), flight=["UA1", "UA2"], given=column)

    assert bad == TaskRow(0, error=bad.error)
    assert bad.error.startswith(reason)
    assert (good.id, good.error) == ("mail.remind:UA2", "")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"idcolumn": "nr"}, "idcolumn='nr': no such column; there are: flight, at, day, wait,"),
        ({"etacolumn": "when"}, "etacolumn='when': no such column"),
        ({"delaycolumn": "when"}, "delaycolumn='when': no such column"),
        ({"etacolumn": "flight"}, "etacolumn='flight' is of type string: expected a timestamp"),
        ({"etacolumn": "day"}, "etacolumn='day' is of type date32[day]: expected a timestamp"),
        ({"etacolumn": "wait"}, "etacolumn='wait' is of type int64: expected a timestamp"),
        ({"delaycolumn": "flight"}, "delaycolumn='flight' is of type string: expected seconds"),
        ({"idcolumn": "list"}, "idcolumn='list' is of type list<item: int64>: expected text, a nu"),
        ({"idcolumn": "share"}, "idcolumn='share' is of type double: expected text, a number or"),
        ({"idcolumn": "late"}, "idcolumn='late' is of type bool: expected text, a number or a tim"),
    ],
)
def test_columns_that_are_missing_or_of_another_type_are_reported_before_anything_is_written(
    given: dict[str, Any], reason: str
) -> None:
    row = {
        "flight": "UA1", "at": NOON, "day": NOON.date(), "wait": 1,
        "list": [1], "share": 0.5, "late": True,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=re.escape(reason)):
        TaskRows(options(**given), pa.RecordBatch.from_pylist([row]).schema)
