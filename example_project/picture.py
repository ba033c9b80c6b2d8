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

from example_project.ledger import Books, Part, Spread, Sums, lateness
from example_project.plan import CompressedClock, Kind

Values = NDArray[np.float64]

BIN = timedelta(minutes=10)
LABELS = {Kind.CHECK_IN.value: "check-in reminders", Kind.BOARDING.value: "boarding calls"}
PART_COLOURS = {Part.DISPATCH: "#2a9d8f", Part.WAIT: "#b58bd6", Part.ALL: "#22303c"}
COLOURS = {Kind.CHECK_IN.value: "#4c9be8", Kind.BOARDING.value: "#f2a541"}

_INK = "#22303c"
_GREY = "#66727f"
_HOUR = timedelta(hours=1)
_ROUNDING = timedelta(milliseconds=1)
_LEAST_MS = 0.5
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": _GREY,
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
    """The contents of the picture; `title` and `subtitle` are above it, `ends` is flight time."""

    title: str
    subtitle: str
    clock: CompressedClock
    ends: datetime
    books: Books
    sums: Sums

    def hours(self, real_ms: float) -> float:
        """Return a real time as hours of flight time since the day began."""
        return (self.clock.flight_time(real_ms) - self.clock.begins) / _HOUR

    @property
    def length(self) -> float:
        """The hours of flight time from begin to end."""
        return (self.ends - self.clock.begins) / _HOUR


def draw(story: Story, path: Path) -> None:
    """Write the picture to `path` as a PNG of 1800 pixels width; make its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(_STYLE):
        figure = Figure(figsize=(9, 6.3), dpi=200, facecolor="white")
        FigureCanvasAgg(figure)
        figure.text(0.065, 0.96, story.title, fontsize=14, fontweight="bold")
        figure.text(0.065, 0.947, story.subtitle, color=_GREY, va="top")
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
    late = {part: _shown(values.values()) for part, values in lateness(story.books).items()}
    top = _top_ms(late[Part.ALL])
    # Each bin is twice the one before: the history has whole milliseconds.
    bins = _LEAST_MS * 2.0 ** np.arange(math.ceil(math.log2(top / _LEAST_MS)) + 1)
    highest = 1.0
    for part, colour in PART_COLOURS.items():
        if not late[part].size:
            continue
        counts, _ = np.histogram(late[part], bins)
        highest = max(highest, float(counts.max()))
        filled = part is not Part.ALL
        axes.stairs(
            counts, bins, fill=filled, color=colour, alpha=0.7 if filled else 1,
            linewidth=1.1, label=_figures(part, story.sums.lateness[part]),
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(bins[0], bins[-1])
    axes.set_ylim(0, highest * 1.6)
    axes.xaxis.set_major_locator(FixedLocator(_decades(bins[-1])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_milliseconds))
    axes.set_title("Lateness by part: tasks")
    axes.legend(loc="upper left", fontsize=8, borderaxespad=0.2)


def _figures(part: Part, spread: Spread) -> str:
    figures = ("-" if ms is None else f"{ms:.1f}" for ms in (spread.p50, spread.p99))
    return f"{part.value}, p50 {' / p99 '.join(figures)} ms"


def _over_the_day(axes: Axes, story: Story) -> None:
    due, late = story.books.due_ms(), lateness(story.books)
    # Without a history the parts are unknown.
    parts = [part for part in (Part.WAIT, Part.DISPATCH) if late[part]] or [Part.ALL]
    for part in parts:
        axes.scatter(
            [story.hours(due[task_id]) for task_id in late[part]], _shown(late[part].values()),
            s=5, color=PART_COLOURS[part], alpha=0.6, linewidths=0,
        )  # fmt: skip
    top = _top_ms(_shown(late[Part.ALL].values()))
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_MS * 0.8, top)
    axes.yaxis.set_major_locator(FixedLocator(_decades(top)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_milliseconds))
    by_part = "Lateness by part over the day: two dots a task"
    axes.set_title(by_part if len(parts) > 1 else "Lateness over the day: a dot a task")
    _time_axis(axes, story, step=4)


def _shown(values: Iterable[float]) -> Values:
    return np.array([max(value, _LEAST_MS) for value in values])


def _count(story: Story, real: Iterable[float], bins: int) -> Values:
    """Count real times by bins of flight time; times after the end are in the last bin."""
    counts = np.zeros(bins)
    for moment in real:
        # Many reminders are planned on the edge of a bin, where a rounded microsecond decides.
        elapsed = story.clock.flight_time(moment) - story.clock.begins + _ROUNDING
        counts[min(max(elapsed // BIN, 0), bins - 1)] += 1
    return counts


def _time_axis(axes: Axes, story: Story, step: int) -> None:
    # For more than a day there are fewer marks, so that they do not overlap.
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
