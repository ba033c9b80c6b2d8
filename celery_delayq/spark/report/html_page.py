"""Writes a report as one HTML page with tables and charts. The page needs no network."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from functools import partial
from importlib.resources import files

from celery_delayq import charts
from celery_delayq.charts import Layer
from celery_delayq.spark import check
from celery_delayq.spark.report.figures import LoadAhead, RunReport
from celery_delayq.utils.text import spelled

DEFAULT_TITLE = "How delayed tasks ran"

#: Most rows of a table, and tasks or queues of a chart. Parquet and JSON have all.
MAX_ROWS, MAX_CHART_LINES = 100, 12

#: Colours of queues in the chart of the load; the last one is for all others.
_QUEUE_COLOURS, _OTHERS_LABEL = ("s1", "s7", "s3", "s5", "s2", "s6"), "all others"


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
        duration=charts.duration,
        stamp=charts.stamp,
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
        queues=_queues(ahead) if ahead else [],
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
        over_time = partial(charts.bars, times=times, step=run_report.step)
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
        found["lateness"] = charts.curves(
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
        found["stages"] = charts.ranges("How long each stage took, for all runs", total.stages())
        for name, rows in (("tasks", run_report.tasks), ("queues", run_report.queues)):
            late = [(key, each.lateness) for key, each in rows.items() if each.lateness.runs]
            found[name] = charts.ranges(f"Lateness of the {name}", late[:MAX_CHART_LINES])
        found["attempts"] = charts.columns("Tasks by their number of runs", runs_per_id(run_report))
    if run_report.ahead is not None and run_report.ahead.loads:
        found["ahead"] = _load(run_report.ahead)
    return found


def _queues(ahead: LoadAhead) -> list[tuple[str, str]]:
    """Return queues with their colours in the chart of the load; the largest queue is first."""
    sums = ahead.sums(lambda load: load.queue)
    names = sorted(sums, key=lambda queue: (-sums[queue], queue))
    if len(names) > len(_QUEUE_COLOURS):
        names[len(_QUEUE_COLOURS) - 1 :] = [_OTHERS_LABEL]
    return [*zip(names, _QUEUE_COLOURS, strict=False)]


def _load(ahead: LoadAhead) -> str:
    queues = _queues(ahead)
    own = dict(queues)
    sums = ahead.sums(lambda load: (load.queue if load.queue in own else _OTHERS_LABEL, load.at))
    steps = round((ahead.ends - ahead.begins).total_seconds() / ahead.step)
    times = [ahead.begins + timedelta(seconds=ahead.step * n) for n in range(steps)]
    layers = [Layer(name, style, [sums[name, at] for at in times]) for name, style in queues]
    return charts.bars("Tasks that are scheduled, by when they are due", times, ahead.step, layers)
