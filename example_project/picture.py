"""The picture: planned against actual runs over the flight day, and how late the starts were."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from example_project.ledger import Books, Sums, lateness
from example_project.plan import CompressedClock, Kind

Values = NDArray[np.float64]

BIN = timedelta(minutes=10)
LABELS = {Kind.CHECK_IN.value: "check-in reminders", Kind.BOARDING.value: "boarding calls"}
COLOURS = {Kind.CHECK_IN.value: "#4c9be8", Kind.BOARDING.value: "#f2a541"}

_INK = "#22303c"
_MUTED = "#66727f"
_TEAL = "#2a9d8f"
_HOUR = timedelta(hours=1)
_ROUNDING = timedelta(milliseconds=1)
_LEAST_MS = 0.5
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e7eb",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True, slots=True)
class Story:
    """What the picture shows; `title` and `subtitle` stand above it, `ends` is flight time."""

    title: str
    subtitle: str
    clock: CompressedClock
    ends: datetime
    books: Books
    sums: Sums

    def hours(self, real_ms: float) -> float:
        """Give a real time as hours of flight time since the day began."""
        return (self.clock.flight_time(real_ms) - self.clock.begins) / _HOUR

    @property
    def length(self) -> float:
        """The hours of flight time from begin to end."""
        return (self.ends - self.clock.begins) / _HOUR


def draw(story: Story, path: Path) -> None:
    """Write the picture to `path` as a PNG of 1800 pixels width, making its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(_STYLE):
        figure = Figure(figsize=(9, 6.3), dpi=200, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(0.065, 0.96, story.title, fontsize=14, fontweight="bold")
        figure.text(0.065, 0.947, story.subtitle, color=_MUTED, va="top")
        grid = GridSpec(
            2, 2, figure, left=0.065, right=0.975, top=0.845, bottom=0.08,
            hspace=0.42, wspace=0.19, height_ratios=(1.25, 1), width_ratios=(1, 1.25),
        )  # fmt: skip
        _runs(figure.add_subplot(grid[0, :]), story)
        _distribution(figure.add_subplot(grid[1, 0]), story)
        _over_the_day(figure.add_subplot(grid[1, 1]), story)
        figure.savefig(path)


def _runs(axes: Axes, story: Story) -> None:
    width = BIN / _HOUR
    bins = math.ceil(story.length / width)
    edges = np.arange(bins + 1) * width
    kinds = {task.task_id: task.kind for task in story.books.published}
    below = np.zeros(bins)
    for kind, label in LABELS.items():
        started = (run.started_ms for run in story.books.runs if kinds.get(run.task_id) == kind)
        counts = _count(story, started, bins)
        axes.bar(
            edges[:-1] + width / 2, counts, width * 0.86, below,
            color=COLOURS[kind], label=f"{label} that ran",
        )  # fmt: skip
        below = below + counts
    planned = _count(story, (task.eta_ms for task in story.books.published), bins)
    axes.stairs(planned, edges, color=_INK, linewidth=1.1, label="planned beforehand, both")
    minutes = BIN // timedelta(minutes=1)
    axes.set_title(
        f"Planned, and run after the news: tasks per {minutes} minutes of the day in New York"
    )
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_ylim(0, max(planned.max(initial=1), below.max(initial=1)) * 1.22)
    axes.legend(loc="upper center", ncols=3)
    _time_axis(axes, story, step=2)


def _distribution(axes: Axes, story: Story) -> None:
    values = np.maximum(list(lateness(story.books).values()), _LEAST_MS)
    top = _top_ms(values)
    bins = np.geomspace(_LEAST_MS, top, 41)
    counts, _ = np.histogram(values, bins)
    axes.stairs(counts, bins, fill=True, color=_TEAL)
    height = max(float(counts.max(initial=1)), 1.0) * 1.35
    total = story.sums.total
    for name, value, at in (("p50", total.p50_ms, 0.99), ("p99", total.p99_ms, 0.89),
                            ("max", total.max_ms, 0.79)):  # fmt: skip
        if value is not None:
            place = max(value, _LEAST_MS)
            inside = place < _LEAST_MS * (top / _LEAST_MS) ** 0.75
            axes.vlines(place, 0, height * at, color=_INK, linewidth=1, linestyle=(0, (4, 2)))
            axes.annotate(
                f"{name} {value:.1f} ms", (place, height * at), fontsize=9,
                xytext=(4 if inside else -4, 0), textcoords="offset points",
                va="top", ha="left" if inside else "right",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1},
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(_LEAST_MS, top * 1.3)
    axes.set_ylim(0, height)
    axes.xaxis.set_major_locator(FixedLocator(_decades(top)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_milliseconds))
    axes.set_title("Lateness of the starts: tasks")


def _over_the_day(axes: Axes, story: Story) -> None:
    late, due = lateness(story.books), story.books.due_ms()
    for kind in LABELS:
        ids = [t.task_id for t in story.books.published if t.kind == kind and t.task_id in late]
        axes.scatter(
            [story.hours(due[task_id]) for task_id in ids],
            [max(late[task_id], _LEAST_MS) for task_id in ids],
            s=5, color=COLOURS[kind], alpha=0.6, linewidths=0,
        )  # fmt: skip
    top = _top_ms(np.array([*late.values()]))
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_MS, top)
    axes.yaxis.set_major_locator(FixedLocator(_decades(top)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_milliseconds))
    axes.set_title("Lateness over the day: one dot a task")
    _time_axis(axes, story, step=4)


def _count(story: Story, real: Iterable[float], bins: int) -> Values:
    """Count real times by bins of flight time; what came after the end is in the last one."""
    counts = np.zeros(bins)
    for moment in real:
        # Many reminders are planned on the edge of a bin, where a rounded microsecond decides.
        elapsed = story.clock.flight_time(moment) - story.clock.begins + _ROUNDING
        counts[min(max(elapsed // BIN, 0), bins - 1)] += 1
    return counts


def _time_axis(axes: Axes, story: Story, step: int) -> None:
    # More than a day: fewer marks, so that they do not run into each other.
    step *= max(1, round(story.length / 24))
    axes.set_xlim(0, story.length)
    axes.xaxis.set_major_locator(FixedLocator(list(range(0, round(story.length) + 1, step))))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda hours, _: f"{(story.clock.begins + hours * _HOUR):%H:%M}")
    )


def _top_ms(values: Values) -> float:
    return max(float(values.max(initial=0.0)) * 1.15, 20.0)


def _decades(top: float) -> list[float]:
    return [mark for decade in range(7) for mark in (10.0**decade,) if mark <= top]


def _milliseconds(value: float, _: object) -> str:
    return f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"
