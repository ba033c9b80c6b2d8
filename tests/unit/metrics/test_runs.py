"""Histograms of runs."""

from __future__ import annotations

import os
import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families as parse

from celery_delayq.metrics.runs import RunHistograms
from celery_delayq.model.history import RunRecord

RUN = RunRecord("id", "t", "q", "w", 1000, 1010, 1500, 3500, "SUCCESS", 0, 1)


def counts(histograms: RunHistograms) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return number and sum of each histogram, by metric, queue and task."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for family in parse(histograms.text().decode()):
        for name, labels, value, *_ in family.samples:
            kind = name.rpartition("_")[2]
            key = (family.name, labels.get("queue", ""), labels.get("task", ""))
            if kind in ("count", "sum"):
                found.setdefault(key, {})[kind] = value
    return {key: (each["count"], each["sum"]) for key, each in found.items()}


def test_a_run_counts_in_each_histogram_whose_times_it_has() -> None:
    histograms = RunHistograms(10)
    at_once = RUN._replace(due=None, promoted=None)
    revoked = RUN._replace(started=None)
    early = RUN._replace(started=990)  # by another clock

    histograms.observe(each.pack() for each in (RUN, at_once, revoked, early))
    histograms.observe([b"unreadable", b""])

    assert counts(histograms) == {
        ("delayq_promotion_delay_seconds", "q", "t"): (3, 0.03),
        ("delayq_lateness_seconds", "q", "t"): (2, 0.5),
        ("delayq_run_seconds", "q", "t"): (3, 6.51),
    }


def test_later_tasks_are_other() -> None:
    histograms = RunHistograms(1)

    histograms.observe(RUN._replace(task=f"t{i}").pack() for i in range(10_000))

    assert counts(histograms)["delayq_run_seconds", "q", "other"] == (9999, 19998)
    assert {task for _, _, task in counts(histograms)} == {"t0", "other"}


def test_histograms_need_no_folder_for_the_processes_of_a_web_server() -> None:
    """PROMETHEUS_MULTIPROC_DIR may be set for the web app of the same image."""
    code = (
        "from tests.unit.metrics.test_runs import RUN, RunHistograms, counts\n"
        "histograms = RunHistograms(10)\n"
        "histograms.observe([RUN.pack()])\n"
        "print(counts(histograms))"
    )
    plain, multiprocess = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for variables in ({}, {"PROMETHEUS_MULTIPROC_DIR": "/nowhere"})
    )

    assert multiprocess == plain
    assert "delayq_run_seconds" in plain
