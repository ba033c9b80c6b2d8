"""Tables on a terminal of 80 columns: ids are whole, names do not run into values."""

from __future__ import annotations

from datetime import datetime

from rich.cells import cell_len
from rich.console import Console

from celery_delayq.admin.findings import KINDS, Finding, Report
from celery_delayq.cli.commands.checks.fsck import _table
from celery_delayq.cli.screen import print_fields

ID = "0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5"


def test_ids_of_findings_are_in_one_line_beside_a_long_queue() -> None:
    found = [Finding("invoices.europe.monthly.statements", kind, 1_204, 17, [ID]) for kind in KINDS]
    console = Console(width=80)

    with console.capture() as capture:
        console.print(_table(Report(findings=found)))

    shown = capture.get()
    assert shown.count(ID) == len(KINDS)
    assert max(map(cell_len, shown.splitlines())) <= 80
    assert "…\n" not in shown


def test_names_of_any_length_stand_apart_from_values() -> None:
    console = Console(width=80)

    with console.capture() as capture:
        print_fields(
            console, [("manual runs", 0), ("id", "x" * 100), ("eta", None)], datetime.now()
        )

    assert capture.get() == f"manual runs  0\nid           {'x' * 100}\n"
