"""Prints a report on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.charts.scales import Quantiles, duration, stamp
from celery_delayq.spark.report.figures import Figures, LoadAhead, RunReport
from celery_delayq.spark.report.html_page import loads, percent, rate, runs_per_id
from celery_delayq.utils.text import spelled

#: Most rows of a table. JSON and Parquet have all rows.
_MAX_ROWS = 20

#: Width of a terminal from which each figure has a column of its own.
WIDE_TERMINAL_COLUMNS = 120

#: Longest name that is not wrapped.
_MAX_NAME_CHARACTERS = 24

_TITLES = ("runs", "/min", "peak", "failed", "rate", "retried", "p50", "p90", "p99", "max")


def show(run_report: RunReport) -> None:
    """Print a report as tables."""
    console = Console(highlight=False)
    for table in _tables(run_report, narrow=console.width < WIDE_TERMINAL_COLUMNS):
        console.print(table)
        console.print()
    for note in run_report.notes():
        console.print(Text(f"Note: {spelled(note)}"))


def _tables(run_report: RunReport, *, narrow: bool) -> Iterator[Table]:
    if run_report.total.runs and run_report.first is not None and run_report.last is not None:
        when = f"{stamp(run_report.first)} to {stamp(run_report.last)} UTC"
        yield _by("", {"all": run_report.total}, f"Runs and lateness, {when}", narrow=narrow)
        yield _by("task", run_report.tasks, narrow=narrow)
        yield _by("queue", run_report.queues, narrow=narrow)
        hours = {stamp(hour): each for hour, each in [*run_report.hours.items()][-_MAX_ROWS:]}
        yield _by("hour (UTC)", hours, narrow=narrow)
        stages = run_report.total.stages()
        rows = [(name, f"{each.runs:,}", *_durations(each)) for name, each in stages]
        yield _table("stage", ("runs", "p50", "p90", "p99", "max"), rows)
        pairs = runs_per_id(run_report)
        counts = [("tasks", *(f"{number:,}" for _, number in pairs))]
        yield _table("runs of a task", [name for name, _ in pairs], counts)
        if run_report.reasons:
            yield _reasons(run_report)
    if run_report.ahead is not None:
        yield _loads(run_report.ahead, narrow=narrow)


def _by(key: str, found: Mapping[str, Figures], title: str | None = None, *, narrow: bool) -> Table:
    more = f"and {len(found) - _MAX_ROWS:,} more" if len(found) > _MAX_ROWS else ""
    # On a narrow terminal, a column has two figures.
    layout = _pair_cells if narrow else list[str]
    shown = [*found.items()][:_MAX_ROWS]
    heads, rows = layout(_TITLES), [(spelled(n), *layout([*_cells(f)])) for n, f in shown]
    return _table(key, heads, rows, title, caption=more)


def _pair_cells(cells: Sequence[str]) -> list[str]:
    """Return texts of two lines, with two cells in each."""
    return [f"{first}\n{second}" for first, second in zip(cells[::2], cells[1::2], strict=True)]


def _cells(each: Figures) -> Iterator[str]:
    yield from (f"{each.runs:,}", rate(each.per_minute), f"{each.peak_minute:,}")
    yield from (f"{each.failed:,}", percent(each.failure_rate), f"{each.retried:,}")
    yield from _durations(each.lateness)


def _durations(each: Quantiles) -> Iterator[str]:
    return map(duration, (each.p50, each.p90, each.p99, each.max))


def _reasons(run_report: RunReport) -> Table:
    rows = [
        (spelled(each.task), spelled(each.state), spelled(each.reason), f"{each.runs:,}")
        for each in run_report.reasons[:10]
    ]
    return _table(
        "task", ("state", "reason", "runs"), rows, "Why runs did not succeed", text_columns=2
    )


def _loads(ahead: LoadAhead, *, narrow: bool) -> Table:
    states = ("overdue", "due", "later", "held")
    rows = [
        (
            spelled(queue),
            spelled(task or "unreadable"),
            *(f"{row.get(each, 0):,}" for each in states),
            f"{number:,}",
        )
        for queue, task, row, number in loads(ahead)[:_MAX_ROWS]
    ]
    until = f"until {stamp(ahead.ends)}"
    heads = ("task", "overdue", until, "later", "held", "all")
    title = f"Load to come, at {stamp(ahead.now)} UTC"
    if not narrow:
        return _table("queue", heads, rows, title, text_columns=1)
    figures = ("overdue", until.replace(" ", "\n"), *heads[3:])
    merged = [(f"{queue}\n{task}", *cells) for queue, task, *cells in rows]
    return _table("queue, task", figures, merged, title)


def _table(
    key: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    title: str | None = None,
    *,
    text_columns: int = 0,
    caption: str = "",
) -> Table:
    """Return a table. *text_columns* columns after the first have texts, the others numbers."""
    table = Table(
        title=title, caption=caption or None, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
        title_justify="left",
    )  # fmt: skip
    rows = [*rows]
    is_short = all(len(line) <= _MAX_NAME_CHARACTERS for row in rows for line in row[0].split("\n"))
    table.add_column(key, overflow="fold", no_wrap=is_short)
    for n, head in enumerate(heads):
        is_text = n < text_columns
        table.add_column(head, justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
