"""Rows that are put aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from celery_delayq.errors import ConfigError
from celery_delayq.spark.write.refused_rows import Refusals, RowsRefused, check, drop, keep

FAR = 300_000_000_000_000_000  # µs: in the year 11476


def rows(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (pa.array([FAR], pa.timestamp("us", "UTC")), "'at': '11476-08-15 05:20:00.000000Z'"),
        (pa.array([10**7], pa.date32()), "'at': '29349-01-26'"),
        (
            pa.array([{"a": FAR}], pa.struct([("a", pa.timestamp("us"))])),
            "'at': '<struct<a: timestamp[us]>>'",
        ),
        (pa.array([None], pa.null()), "'at': None"),
        (pa.array([b"\xff"]).view(pa.string()), "'at': '<string>'"),
    ],
)
def test_whatever_is_in_a_row_can_be_refused(tmp_path: Path, column: Any, shown: str) -> None:
    batch = rows(flight=["UA1"], at=column)

    with pytest.raises(RowsRefused, match=r"1 row\(s\) cannot be scheduled: too late") as raised:
        Refusals(None, "part").add(batch, {0: "too late"})
    assert f"{{'flight': 'UA1', {shown}}}" in str(raised.value)

    with Refusals(str(tmp_path), "part") as refused:
        refused.add(batch, {0: "too late"})
    assert pq.read_table(tmp_path / "part")["_error"].to_pylist() == ["too late"]


def test_rows_that_are_refused_once_more_have_one_reason(tmp_path: Path) -> None:
    with Refusals(str(tmp_path), "part") as refused:
        refused.add(rows(n=[1], _error=["before"]), {0: "now"})
    assert pq.read_table(tmp_path / "part").to_pydict() == {"n": [1], "_error": ["now"]}


def test_rows_may_be_counted_only() -> None:
    refused = Refusals(None, "part", only_count=True)
    refused.add(rows(n=[1, 2, 3]), {2: "why 2", 0: "why 0"})
    refused.add(rows(n=[4]), {0: "another why"})
    assert (refused.count, refused.why, refused.file) == (3, "why 2", None)


@pytest.mark.parametrize("folder", ["dbfs:/refused", "nowhere://bucket/refused"])
def test_a_folder_that_cannot_be_is_reported_before_it_is_needed(folder: str) -> None:
    with pytest.raises(ConfigError, match=f"refused='{folder}': expected a path, or a URL"):
        check(folder)


def test_only_the_first_ones_are_reported() -> None:
    batch = rows(n=[*range(20)])
    reasons = {n: f"why {n}" for n in range(1, 20, 2)}

    with pytest.raises(RowsRefused) as raised:
        Refusals(None, "part").add(batch, reasons)

    text = str(raised.value)
    assert text.startswith("10 row(s) cannot be scheduled: why 1 in {'n': 1}; why 3 in {'n': 3}; ")
    assert "why 9 in {'n': 9}. With" in text
    assert "why 11" not in text


def test_what_tasks_that_failed_have_put_aside_is_dropped(tmp_path: Path) -> None:
    pending = f"{tmp_path}/_pending-1"
    for name in ("good", "failed"):
        with Refusals(pending, name) as refused:
            refused.add(rows(n=[1]), {0: name})

    keep(str(tmp_path), pending, ["good"])
    keep(str(tmp_path), pending, ["good"])  # as a commit that comes twice
    drop(pending)

    assert [path.name for path in tmp_path.iterdir()] == ["good"]
