"""Names that others chose come out of Prometheus' text format as they went in, or shortened."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from celery_delayq.metrics.sheet import MAX_LABEL_CHARACTERS, Sheet, label


def test_values_of_all_kinds_are_written() -> None:
    sheet = Sheet()
    sheet.put("up", 1)
    sheet.put("entries", 3, "mail", "ready")
    sheet.put("next_due_timestamp_seconds", 1.7955654473693035e9, "mail")
    sheet.put("acked_total", 7, "mail", "1-a")

    found = {each.name: (each.type, each.samples[0][1:3]) for each in parse(sheet.text().decode())}

    assert found == {
        "delayq_up": ("gauge", ({}, 1)),
        "delayq_entries": ("gauge", ({"queue": "mail", "state": "ready"}, 3)),
        "delayq_next_due_timestamp_seconds": ("gauge", ({"queue": "mail"}, 1795565447.3693035)),
        "delayq_acked": ("counter", ({"queue": "mail", "epoch": "1-a"}, 7)),
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ('a"b', 'a"b'),
        ("a\\", "a\\"),
        ("a\nb", r"a\nb"),
        ("a\0\x1b[31m\r\u2028", r"a\x00\x1b[31m\r\u2028"),
        ("\ud800\udc80", r"\ud800\x80"),
        ("}", "}"),
        ('",x="', '",x="'),
        ("ä 中 🐇", "ä 中 🐇"),
        ("x" * 1000, "x" * (MAX_LABEL_CHARACTERS - 1) + "…"),
        ("", ""),
    ],
)
def test_hostile_names_do_no_harm(name: str, shown: str) -> None:
    sheet = Sheet()
    sheet.put("queue_paused", 1, name)

    [family] = parse(sheet.text().decode())
    assert [sample.labels for sample in family.samples] == [{"queue": shown}]
    assert label(name) == shown


def test_names_that_look_the_same_are_one_series() -> None:
    sheet = Sheet()
    sheet.put("overdue_entries", 1, "a\n")
    sheet.put("overdue_entries", 2, r"a\n")

    [family] = parse(sheet.text().decode())
    assert [sample.value for sample in family.samples] == [3]
