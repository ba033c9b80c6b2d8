"""``plot``: the load to come and the lateness, as charts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import click
from dateutil.tz import tzlocal
from rich.text import Text

from celery_delayq.admin.exit_codes import Refused
from celery_delayq.admin.lateness import MAX_RUNS, Lateness, lateness
from celery_delayq.admin.load_ahead import By, LoadAhead, load_ahead
from celery_delayq.app import DelayQ
from celery_delayq.charts import svg, terminal
from celery_delayq.charts.scales import Layer, Quantiles, duration, layers_of
from celery_delayq.charts.terminal import Area
from celery_delayq.cli import screen
from celery_delayq.cli.command import command
from celery_delayq.cli.lines import Column, Paper
from celery_delayq.cli.options import option
from celery_delayq.web.pages.overview import STEPS

#: Most columns of a chart, and of a sparkline beside a name.
MAX_COLUMNS, MAX_SPARK_COLUMNS = 130, 60


#: What a chart says if there are no runs.
_NO_RUNS = "No run of a task with an ETA is known."
_NO_HISTORY = f"{_NO_RUNS} Runs are kept if the setting history is more than 0."


def _check_folder(_: click.Context, param: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a file in a folder that does not exist (click.BadParameter)."""
    if file is not None and not file.parent.is_dir():
        folder = str(file.parent)
        raise click.BadParameter(f"{str(file)!r}: there is no folder {folder!r}", None, param)
    return file


@command()
@option(
    "--step",
    type=click.Choice([*STEPS]),
    default="minute",
    show_default=True,
    help="The next 60 minutes and the last ones, 48 hours, or 30 days.",
)
@option(
    "--by",
    type=click.Choice(["queue", "task"]),
    default="queue",
    show_default=True,
    help="Split by queue or by task.",
)
@option(
    "--svg",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_check_folder,
    help="Write an SVG picture to this file.",
)
def plot(delayq: DelayQ, step: str, by: str, file: Path | None) -> None:
    """Draw the load to come, and how late tasks have started.

    The lateness is that of finished runs, which are kept if the setting `history` is more than 0.
    Its bars reach from the median over the 90th percentile to the 99th.

    \b
    Examples:
      celery -A shop delayq plot
      celery -A shop delayq plot --step day --by task
      celery -A shop delayq plot --step hour --svg load.svg
    """
    session, split = delayq.session, cast(By, by)
    load = load_ahead(session, *STEPS[step], split)
    late = lateness(session, *STEPS[step], split)
    if file is not None:
        _write(file, _charts(load, late, step, by))
        screen.console().print(Text(f"written: {file}"), soft_wrap=True)
        return
    console = screen.console()
    width = min(console.width, MAX_COLUMNS)
    paper = Paper(width, console.options.ascii_only)
    no_runs = _NO_RUNS if session.keeps_history else _NO_HISTORY
    for line in lines_of(load, late, step, by, paper, no_runs):
        console.print(line, soft_wrap=True)


def lines_of(
    load: LoadAhead, late: Lateness, step: str, by: str, paper: Paper, no_runs: str = _NO_RUNS
) -> Iterator[Text]:
    """Yield the lines of both charts; *no_runs* in place of the second one if it is empty."""
    yield from _load_lines(load, step, by, paper)
    yield Text()
    if late.all:
        yield from _late_lines(late, step, by, paper)
    else:
        yield from _bold(paper, _late_title(late, step))
        yield from paper.folded(no_runs)


def _load_title(load: LoadAhead, step: str) -> str:
    return (
        f"Load to come: {load.total:,} due in the next {len(load.times)} {step}s, "
        f"{load.later:,} later"
    )


def _late_title(late: Lateness, step: str) -> str:
    number = len(late.all)
    cut = f", of the newest {MAX_RUNS:,} runs alone" if late.is_cut else ""
    return f"Lateness: {number:,} runs started in the last {len(late.steps)} {step}s{cut}"


def _load_lines(load: LoadAhead, step: str, by: str, paper: Paper) -> Iterator[Text]:
    yield from _bold(paper, _load_title(load, step))
    layers = layers_of(load.counts, load.others)
    area = Area(paper.width, ascii_only=paper.ascii_only, zone=tzlocal())
    yield from terminal.bars(load.times, load.step, layers, area)
    if not layers:
        return
    room = Area(min(MAX_SPARK_COLUMNS, max(8, paper.width // 2)), ascii_only=paper.ascii_only)
    number = partial(Column[tuple[Layer, Text]], is_number=True)
    yield from paper.table(
        [
            Column(by, lambda each: each[0].name, 0, 8),
            number("tasks", lambda each: f"{sum(each[0].values):,}", 0),
            Column("", lambda each: each[1], 1),
        ],
        [*zip(layers, terminal.sparklines(layers, room), strict=True)],
    )
    if load.uncounted:
        yield from paper.folded(f"{load.uncounted:,} in small queues are not in the chart.")


def _late_lines(late: Lateness, step: str, by: str, paper: Paper) -> Iterator[Text]:
    yield from _bold(paper, _late_title(late, step))
    area = Area(paper.width, ascii_only=paper.ascii_only, zone=tzlocal())
    yield from terminal.spans(late.times, late.step, late.steps, area)
    rows = [("all", Quantiles.of(late.all)), *_by_name(late)]

    def column(name: str, rank: int) -> Column[tuple[str, Quantiles]]:
        return Column(name, lambda row: duration(getattr(row[1], name)), rank, is_number=True)

    yield from paper.table(
        [
            Column(by, lambda row: row[0], 0, 8),
            Column("runs", lambda row: f"{row[1].runs:,}", 3, is_number=True),
            *(
                column(name, rank)
                for name, rank in (("p50", 0), ("p90", 2), ("p99", 0), ("max", 1))
            ),
        ],
        rows,
    )
    if early := rows[0][1].early:
        yield from paper.folded(
            f"{early:,} began before they were due: a worker's clock is behind that of Redis."
        )


def _by_name(late: Lateness) -> list[tuple[str, Quantiles]]:
    return [(name, Quantiles.of(durations)) for name, durations in late.by_name.items()]


def _bold(paper: Paper, text: str) -> Iterator[Text]:
    for line in paper.folded(text):
        line.stylize("bold")
        yield line


def _charts(load: LoadAhead, late: Lateness, step: str, by: str) -> Iterator[svg.DocumentChart]:
    zone, layers = tzlocal(), layers_of(load.counts, load.others)
    title = _load_title(load, step)
    legend = [(each.name, each.style) for each in layers]
    yield svg.DocumentChart(
        title, svg.bars(title, load.times, load.step, layers, zone=zone), legend
    )
    title = _late_title(late, step)
    quantiles = [Quantiles.of(each) for each in late.steps]
    lines = [
        ("p99", "s2", [each.p99 for each in quantiles]),
        ("p50", "s1", [each.p50 for each in quantiles]),
    ]
    drawn = svg.curves(title, late.times, late.step, lines, zone=zone)
    yield svg.DocumentChart(title, drawn, [(name, style) for name, style, _ in lines])
    if late.by_name:
        ranges = svg.ranges(f"Lateness by {by}", _by_name(late))
        names = [("p50", "s1"), ("p90", "s3"), ("p99", "s2")]
        yield svg.DocumentChart(f"Lateness by {by}", ranges, names)


def _write(file: Path, charts: Iterator[svg.DocumentChart]) -> None:
    text = svg.document([*charts])
    try:
        file.write_text(text, "utf-8")
    except OSError as exc:
        raise Refused(f"cannot write {str(file)!r}: {exc.strerror or exc}") from exc
