"""Writes a report as one HTML page with tables and charts. The page needs no network."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from functools import partial
from importlib.resources import files

from celery_delayq.charts import svg
from celery_delayq.charts.scales import COLOURS, Layer, duration, layers_of, stamp
from celery_delayq.spark import check
from celery_delayq.spark.report.figures import LoadAhead, RunReport
from celery_delayq.utils.text import spelled

DEFAULT_TITLE = "How delayed tasks ran"

#: Most rows of a table, and tasks or queues of a chart. Parquet and JSON have all.
MAX_ROWS, MAX_CHART_LINES = 100, 12


def page(run_report: RunReport, title: str = DEFAULT_TITLE) -> str:
    """Return a report as an HTML page.

    Raises
    ------
    ConfigError
        Jinja is missing.
    """
    check("jinja2")
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: spelled(value) if type(value) is str else value,
    )
    environment.filters.update(
        duration=duration,
        stamp=stamp,
        percent=percent,
        rate=rate,
        number="{:,}".format,
    )
    ahead = run_report.ahead
    template = environment.from_string(files(__package__).joinpath("page.html").read_text("utf-8"))
    pictures = {name: Markup(svg) for name, svg in _pictures(run_report).items()}
    return template.render(
        title=title,
        run_report=run_report,
        total=run_report.total,
        notes=[*run_report.notes()],
        pictures=pictures,
        attempts=runs_per_id(run_report),
        loads=ahead and loads(ahead),
        due_within=ahead and ahead.sums(lambda load: load.when),
        rows=MAX_ROWS,
        shown=MAX_CHART_LINES,
        layers=_layers(ahead) if ahead else [],
        chart_style=Markup(svg.STYLE),
    )


def runs_per_id(run_report: RunReport) -> list[tuple[str, int]]:
    """Return the number of ids with one run, two runs, and so on, up to ten or more runs."""
    sums: Counter[int] = Counter()
    for each in run_report.attempts:
        sums[min(each.attempts, 10)] += each.ids
    numbers = range(1, max(sums, default=0) + 1)
    return [(f"{number}" if number < 10 else "10+", sums[number]) for number in numbers]


def loads(ahead: LoadAhead) -> list[tuple[str, str, Counter[str], int]]:
    """Return counts by queue and task: held, overdue, due, later; and their sum."""
    found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for load in ahead.loads:
        found[load.queue, load.task][load.when] += load.entries
    rows = [(*names, row, row.total()) for names, row in found.items()]
    return sorted(rows, key=lambda row: (-row[3], row[:2]))


def percent(part: float) -> str:
    """Return a part from 0 to 1 in per cent."""
    if 0 < part < 1e-4:
        return "< 0.01 %"
    return f"{part * 100:.2g} %" if part < 0.1 else f"{part * 100:.1f} %"


def rate(value: float) -> str:
    """Return runs per minute."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _pictures(run_report: RunReport) -> dict[str, str]:
    """Return the charts by name."""
    found: dict[str, str] = {}
    steps = run_report.timeline
    if steps:
        times = [each.at for each in steps]
        over_time = partial(svg.bars, times=times, step=run_report.step)
        planned = Layer("planned", "ink", [each.planned for each in steps])
        started = Layer("started", "s1", [each.started for each in steps])
        found["plan"] = over_time(
            "Runs that were planned and runs that started, over time",
            layers=[started], outline=planned,
        )  # fmt: skip
        behind = Layer("behind", "s2", [max(each.behind, 0) for each in steps])
        found["behind"] = over_time(
            "Runs that were due and had not started, over time", layers=[behind], height=150
        )
        found["lateness"] = svg.curves(
            "Lateness over time: median and 99th percentile", times, run_report.step,
            [("p99", "s2", [each.lateness.p99 for each in steps]),
             ("p50", "s1", [each.lateness.p50 for each in steps])],
        )  # fmt: skip
        failed, retried = [e.failed for e in steps], [e.retried for e in steps]
        others = [e.ended - e.failed - e.retried for e in steps]
        found["ended"] = over_time(
            "Runs that ended over time, by how they ended",
            layers=[Layer("other", "s1", others), Layer("retried", "s3", retried),
                    Layer("failed", "s4", failed)],
            height=220,
        )  # fmt: skip
    total = run_report.total
    if total.runs:
        found["stages"] = svg.ranges("How long each stage took, for all runs", total.stages())
        for name, rows in (("tasks", run_report.tasks), ("queues", run_report.queues)):
            late = [(key, each.lateness) for key, each in rows.items() if each.lateness.runs]
            found[name] = svg.ranges(f"Lateness of the {name}", late[:MAX_CHART_LINES])
        found["attempts"] = svg.columns("Tasks by their number of runs", runs_per_id(run_report))
    ahead = run_report.ahead
    if ahead is not None and ahead.loads:
        found["ahead"] = svg.bars(
            "Tasks that are scheduled, by when they are due",
            _times(ahead), ahead.step, _layers(ahead),
        )  # fmt: skip
    return found


def _times(ahead: LoadAhead) -> list[datetime]:
    """Return the begin of each step."""
    steps = round((ahead.ends - ahead.begins).total_seconds() / ahead.step)
    return [ahead.begins + timedelta(seconds=ahead.step * n) for n in range(steps)]


def _layers(ahead: LoadAhead) -> list[Layer]:
    """Return the load of each step by queue, the largest queue first."""
    sums = ahead.sums(lambda load: load.queue)
    largest = sorted(sums, key=lambda queue: (-sums[queue], queue))[: len(COLOURS)]
    in_step = ahead.sums(lambda load: (load.queue if load.queue in largest else None, load.at))

    def counts(queue: str | None) -> list[int]:
        return [in_step[queue, at] for at in _times(ahead)]

    return layers_of({queue: counts(queue) for queue in largest}, counts(None))
