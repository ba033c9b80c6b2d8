"""What cannot be is refused before anything is written, with what would be right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_delayq import DelayQ
from celery_delayq.spark.jobs import _one_line as one_line
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark import flights

# Celery's result backend, with the newest redis-py.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

Write = Callable[..., None]

GOOD = {"flight": "'UA1'", "remind_at": "timestamp'2031-01-01 00:00:00 UTC'", "gate": "'B7'"}


@pytest.fixture
def write(spark: Any, delayq_broker_url: str) -> Write:
    """Write one row; columns are given in SQL, and may take the place of good ones."""

    def write(columns: dict[str, str | None] | None = None, **options: Any) -> None:
        there = {n: sql for n, sql in {**GOOD, **(columns or {})}.items() if sql is not None}
        rows = spark.range(1).selectExpr(*(f"{sql} AS `{name}`" for name, sql in there.items()))
        given = {"task": "mail.remind", "idcolumn": "flight", "etacolumn": "remind_at", **options}
        given = {name: value for name, value in given.items() if value is not None}
        writer = rows.write.format("celery_delayq").mode("append")
        writer.options(url=given.pop("url", delayq_broker_url), **given).save()

    return write


def refusal(write: Write, columns: dict[str, str | None] | None = None, **options: Any) -> str:
    """Return the line that says why rows were not written."""
    with pytest.raises(Exception, match=r"\w") as raised:
        write(columns, **options)
    return one_line(str(raised.value))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"flight": None}, "idcolumn='flight': no such column; there are: remind_at, gate"),
        ({"remind_at": None}, "etacolumn='remind_at': no such column; there are: flight, gate"),
        ({"remind_at": "'2031-01-01'"}, "is of type string: expected a timestamp"),
        ({"remind_at": "date'2031-01-01'"}, "is of type date32[day]: expected a timestamp"),
        ({"remind_at": "1924992000"}, "is of type int32: expected a timestamp"),
        ({"flight": "array('UA1')"}, "expected text, a number or a time; several columns make one"),
        ({"flight": "1.5D"}, "is of type double: expected text, a number or a time"),
        ({"flight": "true"}, "is of type bool: expected text, a number or a time"),
    ],
)
def test_columns_that_are_missing_or_of_another_type_are_told(
    write: Write, delayq: DelayQ, columns: dict[str, str | None], problem: str
) -> None:
    assert problem in refusal(write, columns)
    assert delayq.count() == 0


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
def test_times_that_are_out_of_range_are_told(
    write: Write, delayq: DelayQ, column: str, problem: str
) -> None:
    told = refusal(write, {"remind_at": column})

    assert f"1 row(s) cannot be scheduled: remind_at {problem}" in told
    assert "refused='<folder>'" in told
    assert delayq.count() == 0


@pytest.mark.parametrize(
    "column", ["timestamp'1970-01-01 00:00:00 UTC'", "timestamp'9999-12-31 23:59:59.999999 UTC'"]
)
def test_times_that_are_just_in_range_are_good(
    write: Write, delayq: DelayQ, delayq_redis: RedisUnderTest, column: str
) -> None:
    write({"remind_at": column})

    assert delayq.count() + delayq_redis.client.llen("celery") == 1


@pytest.mark.parametrize("column", ["cast('NaN' AS double)", "1e300D", "cast(NULL AS int)"])
def test_delays_that_are_none_are_told(write: Write, delayq: DelayQ, column: str) -> None:
    told = refusal(write, {"remind_at": None, "wait": column}, etacolumn=None, delaycolumn="wait")

    assert "1 row(s) cannot be scheduled: " in told
    assert delayq.count() == 0


def test_options_that_are_not_known_are_listed_with_those_that_are(
    write: Write, delayq: DelayQ
) -> None:
    told = refusal(write, etacolum="remind_at", que="mail")

    assert "unknown option(s) for writing: etacolum, que; valid are: app, batchsize, " in told
    assert delayq.count() == 0


def test_a_task_that_the_app_does_not_know_is_told_with_those_it_knows(
    write: Write, delayq: DelayQ
) -> None:
    app = "tests.apps.control_tasks:app"

    told = refusal(write, task="wrok", app=app)
    assert f"task='wrok' is no task of the app {app}; it knows: error.done, " in told
    assert told.endswith(", tick, total, work")
    assert delayq.count() == 0

    write(task="work", app=app)
    assert delayq.count() == 1


def test_an_app_that_cannot_be_imported_is_told(write: Write, delayq: DelayQ) -> None:
    told = refusal(write, app="no.such.shop:app")

    assert "the option app='no.such.shop:app' cannot be imported here" in told
    assert "spark-submit --py-files" in told


def test_where_nothing_says_where_the_queue_is_that_is_told(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = refusal(write, url="env:NOWHERE_TO_BE_FOUND")

    assert "there is no environment variable NOWHERE_TO_BE_FOUND here" in told
    assert "spark.executorEnv.NOWHERE_TO_BE_FOUND" in told


def test_a_row_with_all_that_is_wrong_is_not_mixed_up_with_good_ones(
    spark: Any, delayq: DelayQ, delayq_broker_url: str, tmp_path: Path
) -> None:
    from tests.integration.spark.jobs import write_range

    folder = tmp_path / "refused"
    write_range(spark, {"url": delayq_broker_url, "refused": str(folder)}, 1000)

    assert flights.calls(delayq) == flights.calls_of(flights.good(1000))
    found = spark.read.parquet(str(folder)).select("pax", "_error").collect()
    assert {row.pax: row._error for row in found} == {
        number: why for number in range(1000) if (why := flights.why_refused(number))
    }
