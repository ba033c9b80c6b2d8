"""Output of the demonstration on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from celery_delayq.spark.reconcile import Summary
from example_project.spark.agreement import CANCELLED, RUN, UNKNOWN, WAITS, Line, News

_KINDS = {
    RUN: "the day: ran once, none early",
    WAITS: "the rest of the year: waits",
    CANCELLED: "cancelled: nowhere",
    UNKNOWN: "not in the source",
}


def step(console: Console, number: int, what: str) -> None:
    """Print the next step."""
    console.print(f"\n[bold cyan]{number}[/bold cyan] [bold]{what}[/bold]")


def sums(console: Console, summary: Summary) -> None:
    """Print the result of a run of reconcile."""
    said = [f"{number:,} {name}" for name, number in summary.sums() if number]
    console.print(f"  reconcile says: {', '.join(said)}")


def result(console: Console, lines: Sequence[Line]) -> None:
    """Print the table that compares source, queue and history."""
    table = Table(title="Source, queue and history, compared by the id of each task")
    table.add_column("flights")
    for name in ("source", "queue", "history", "wrong"):
        table.add_column(name, justify="right")
    for line in lines:
        if line.kind != UNKNOWN or line.wrong:
            table.add_row(_KINDS[line.kind], *_cells([line]))
    table.add_section()
    table.add_row("total", *_cells(lines), style="bold")
    console.print()
    console.print(table)


def verdict(console: Console, news: News, lines: Sequence[Line]) -> None:
    """Print the checks that passed."""
    run, waits = lines[0].history, lines[1].queue
    console.print(
        f"[green]{news.flights:,} flights = {run:,} that ran + {waits:,} that wait + "
        f"{news.cancelled:,} cancelled. {news.late:,} were moved. "
        "Source, queue and history agree on each."
    )


def _cells(lines: Sequence[Line]) -> list[str]:
    numbers = [
        sum(getattr(line, name) for line in lines) for name in ("source", "queue", "history")
    ]
    wrong = sum(line.wrong for line in lines)
    return [*(f"{n:,}" for n in numbers), f"[red]{wrong:,}[/red]" if wrong else "0"]
