"""Attempts of Spark's tasks fail in the midst of their rows, and others run twice side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from tests.integration.spark import jobs
from tests.integration.spark.cluster import Cluster
from tests.integration.spark.flights import calls, calls_of, good, why_refused
from tests.integration.spark.jobs import FAILING, PART_ROWS, PARTS, SLOW

NUMBER = PARTS * PART_ROWS


def test_two_failures_and_a_speculative_attempt_leave_exactly_the_right_entries(
    cluster: Cluster, tmp_path: Path
) -> None:
    report, refused = tmp_path / "report.json", tmp_path / "refused"
    options = {"report": str(report), "refused": str(refused), "batchsize": "100"}

    # When two attempts fail after some of their rows went to Redis, and one is overtaken.
    cluster.do(jobs.write_with_faults, cluster.port, str(tmp_path), {**cluster.options, **options})

    attempts = cluster.attempts()
    failed = [each for each in attempts if each.reason == "ExceptionFailure"]
    assert sorted(each.part for each in failed if "fails, as told" in each.error) == [*FAILING]
    # Of two attempts side by side one is killed, or comes too late to commit.
    others = [each for each in failed if "fails, as told" not in each.error]
    assert all(each.part == SLOW and "Commit denied" in each.error for each in others)
    assert {each.part for each in attempts if each.speculative} >= {SLOW}
    assert {each.part for each in attempts if each.reason == "Success"} == {*range(PARTS)}
    executors = {each.executor for each in attempts}
    assert len(executors) == 2

    # Then there is one entry for each row that is good,
    assert calls(cluster.delayq) == calls_of(good(NUMBER))
    # the sums are those of attempts that count,
    told = json.loads(report.read_text())
    wrong = {n: why for n in range(NUMBER) if (why := why_refused(n))}
    assert (told["state"], told["replaced"], told["refused"]) == ("committed", 0, len(wrong))
    assert told["new"] + told["kept"] == NUMBER - len(wrong)
    # what the attempts had written that failed was there already,
    assert told["kept"] > 0
    # and each row that was refused is reported once.
    rows = pq.read_table(refused).select(["pax", "_error"]).to_pylist()
    assert len(rows) == len(wrong)
    assert {row["pax"]: row["_error"] for row in rows} == wrong
    assert [path.name for path in refused.iterdir() if path.name.startswith("_")] == []
    cluster.wait_no_connections()
