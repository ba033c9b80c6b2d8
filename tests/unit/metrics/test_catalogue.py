"""The names of metrics, and the page about them."""

from __future__ import annotations

import re

from celery_delayq.metrics.catalogue import COUNTERS, METRICS
from celery_delayq.model.totals import COUNTERS as COUNTED
from tests.support.metrics_page import PAGE, with_table


def test_the_page_has_all_metrics() -> None:
    """``python -m tests.support.metrics_page`` writes them."""
    text = PAGE.read_text("utf-8")

    assert text == with_table(text)


def test_names_follow_prometheus_customs() -> None:
    for each in METRICS:
        assert re.fullmatch(r"delayq(_[a-z]+)+", each.name)
        assert each.name.endswith("_total") == (each.kind == "counter")
        assert each.help.endswith(".")


def test_no_label_has_values_without_end() -> None:
    labels = {name for each in METRICS for name in each.labels}

    known = {"queue", "task", "state", "status", "reason", "outcome", "epoch", "version", "broker"}
    known |= {"limit", "waits_for"}
    assert labels == known


def test_all_counters_of_queues_are_exported() -> None:
    assert {*COUNTERS} == {*COUNTED}
