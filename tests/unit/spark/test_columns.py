"""From Arrow batches to items."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from celery_delayq.errors import ConfigError
from celery_delayq.items import Item
from celery_delayq.spark.access import Access
from celery_delayq.spark.columns import RowItem, Rows
from celery_delayq.spark.options import WriteOptions
from celery_delayq.templates import nonce_of_id
from celery_delayq.unique import Key

NOON = datetime(2031, 5, 17, 12, tzinfo=timezone.utc)


def options(**given: Any) -> WriteOptions:
    return WriteOptions(
        **{"access": Access(), "task": "mail.remind", "idcolumn": "flight", **given}
    )


def read(how: WriteOptions, /, **columns: Any) -> list[RowItem]:
    batch = pa.RecordBatch.from_pydict(columns)
    return [*Rows(how, batch.schema).items(batch)]


def item(**columns: Any) -> Item:
    """Return the item of the only row, which is due at NOON."""
    [only] = read(options(etacolumn="at"), flight=["UA1"], at=pa.array([NOON]), **columns)
    assert only.item is not None
    return only.item


def test_a_row_is_a_call_with_its_other_columns_as_keyword_arguments() -> None:
    [row] = read(options(etacolumn="at"), flight=["UA1"], at=pa.array([NOON]), gate=["B7"], pax=[3])

    assert row.item is not None
    version = row.item.version
    assert row == RowItem(
        0,
        Item(
            kwargs={"gate": "B7", "pax": 3},
            eta=NOON,
            id="mail.remind:UA1",
            unique_key=Key("UA1"),
            version=version,
        ),
        nonce_of_id("mail.remind:UA1", version),
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
    assert item(given=column).kwargs == {"given": value}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", None])
def test_an_eta_is_a_moment_whatever_its_unit_and_zone(unit: str, zone: str | None) -> None:
    column = pa.array([NOON.replace(tzinfo=None) if zone is None else NOON]).cast(
        pa.timestamp(unit, zone)
    )
    [row] = read(options(etacolumn="at"), flight=["UA1"], at=column)

    assert row.item is not None
    assert row.item.eta == NOON


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
    [row] = read(options(delaycolumn="wait"), flight=["UA1"], wait=column)

    assert row.item is not None
    assert (row.item.countdown, row.item.eta, row.item.kwargs) == (seconds, None, {})


def test_without_either_it_is_to_run_at_once() -> None:
    [row] = read(options(), flight=[7])

    assert row.item is not None
    assert (row.item.id, row.item.eta, row.item.countdown) == ("mail.remind:7", None, None)


def test_what_a_row_says_is_its_version() -> None:
    def version(**changed: Any) -> str:
        columns = {"flight": ["UA1"], "at": pa.array([NOON]), "gate": ["B7"], "pax": [3], **changed}
        [row] = read(options(etacolumn="at"), **columns)
        assert row.item is not None
        return row.item.version

    assert version() == version()
    others = {version(at=pa.array([NOON + timedelta(microseconds=1)])), version(gate=["B8"])}
    assert len(others | {version(pax=[None]), version()}) == 4


def test_the_order_of_columns_is_no_other_version() -> None:
    [one] = read(options(), flight=["UA1"], gate=["B7"], pax=[3])
    [other] = read(options(), pax=[3], gate=["B7"], flight=["UA1"])

    assert one.nonce == other.nonce


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

    assert bad == RowItem(0, None, error=reason)
    assert good.item is not None
    assert good.item.id == "mail.remind:UA2"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"idcolumn": "nr"},
            r"idcolumn='nr': no such column; there are: flight, at, gate, wait, list",
        ),
        ({"etacolumn": "when"}, r"etacolumn='when': no such column"),
        ({"delaycolumn": "when"}, r"delaycolumn='when': no such column"),
        ({"etacolumn": "gate"}, r"etacolumn='gate' is of type string: expected a timestamp"),
        ({"delaycolumn": "gate"}, r"delaycolumn='gate' is of type string: expected seconds"),
        ({"idcolumn": "list"}, r"idcolumn='list' is of type list<.*>: expected text"),
    ],
)
def test_columns_that_are_missing_or_of_another_type_are_told_of_before_anything_is_written(
    given: dict[str, Any], reason: str
) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "flight": ["UA1"],
            "at": pa.array([NOON]),
            "gate": ["B7"],
            "wait": [1],
            "list": pa.array([[1]]),
        }
    )
    with pytest.raises(ConfigError, match=reason):
        Rows(options(**given), batch.schema)
