"""Bad input is refused before anything is written, with the valid values."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_delayq import DelayQ
from celery_delayq.spark.jobs import _one_line as one_line
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark.conftest import Write

pytestmark = pytest.mark.nightly

GOOD = {"flight": "'UA1'", "remind_at": "timestamp'2031-01-01 00:00:00 UTC'", "gate": "'B7'"}


@pytest.fixture
def write_row(spark: Any, write: Write) -> Write:
    """Write one row; columns are given in SQL, and may take the place of good ones."""

    def write_row(columns: dict[str, str | None] | None = None, **options: Any) -> Any:
        there = {n: sql for n, sql in {**GOOD, **(columns or {})}.items() if sql is not None}
        rows = spark.range(1).selectExpr(*(f"{sql} AS `{name}`" for name, sql in there.items()))
        return write(rows, **options)

    return write_row


def refusal(write_row: Write, columns: dict[str, str | None] | None = None, **options: Any) -> str:
    """Return the line of the error that says why rows were not written."""
    with pytest.raises(Exception, match=r"\w") as raised:
        write_row(columns, **options)
    return one_line(str(raised.value))


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ("timestamp'1969-12-31 23:59:59.999999 UTC'", "lies outside the years 1970 to 9999"),
        ("timestamp_seconds(253402300800)", "lies outside the years 1970 to 9999"),
        ("timestamp_micros(9223372036854775807)", "lies outside the years 1970 to 9999"),
        ("timestamp_ntz'1969-12-31 23:59:59'", "lies outside the years 1970 to 9999"),
        ("cast(NULL AS timestamp)", "is null: nothing says when"),
    ],
)
def test_times_that_are_out_of_range_are_reported(
    write_row: Write, delayq: DelayQ, column: str, problem: str
) -> None:
    told = refusal(write_row, {"remind_at": column})

    assert f"1 row(s) cannot be scheduled: remind_at {problem}" in told
    assert "refused='<folder>'" in told
    assert delayq.count() == 0


@pytest.mark.parametrize(
    "column", ["timestamp'1970-01-01 00:00:00 UTC'", "timestamp'9999-12-31 23:59:59.999999 UTC'"]
)
def test_times_that_are_just_in_range_are_good(
    write_row: Write, delayq: DelayQ, delayq_redis: RedisUnderTest, column: str
) -> None:
    write_row({"remind_at": column})

    assert delayq.count() + delayq_redis.client.llen("celery") == 1


@pytest.mark.parametrize("column", ["cast('NaN' AS double)", "1e300D", "cast(NULL AS int)"])
def test_delays_that_are_none_are_reported(write_row: Write, delayq: DelayQ, column: str) -> None:
    told = refusal(
        write_row, {"remind_at": None, "wait": column}, etacolumn=None, delaycolumn="wait"
    )

    assert "1 row(s) cannot be scheduled: " in told
    assert delayq.count() == 0


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ({"flight": None}, {}, "idcolumn='flight': no such column; there are: remind_at, gate"),
        ({"remind_at": "date'2031-01-01'"}, {}, "is of type date32[day]: expected a timestamp"),
        ({}, {"etacolum": "at", "que": "mail"}, "unknown option(s) for writing: etacolum, que; "),
        ({}, {"task": None}, "the option task is missing"),
        ({}, {"url": "redis://:hunter2@localhost/0"}, "the option url has a password"),
        ({}, {"url": "env:NOWHERE"}, "there is no environment variable NOWHERE here; set it on"),
        ({}, {"app": "no.such.shop:app"}, "the option app='no.such.shop:app' cannot be imported"),
    ],
)
def test_options_that_are_wrong_are_reported_before_anything_is_written(
    write_row: Write,
    delayq: DelayQ,
    columns: dict[str, str | None],
    options: dict[str, Any],
    problem: str,
) -> None:
    told = refusal(write_row, columns, **options)

    assert problem in told
    assert "hunter2" not in told
    assert delayq.count() == 0


def test_a_task_that_the_app_does_not_know_is_reported_with_those_it_knows(
    write_row: Write, delayq: DelayQ
) -> None:
    app = "tests.apps.control_tasks:app"

    told = refusal(write_row, task="wrok", app=app)
    assert f"task='wrok' is no task of the app {app}; it knows: error.done, " in told
    assert told.endswith(", tick, total, work")
    assert delayq.count() == 0

    write_row(task="work", app=app)
    assert delayq.count() == 1
