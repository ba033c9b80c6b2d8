"""Draws charts in a terminal: lines of text of a given width, in blocks or in ASCII. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import accumulate
from typing import TypeVar

from rich.text import Text

from celery_delayq.charts.scales import (
    Layer,
    Quantiles,
    duration,
    duration_scale,
    round_ticks,
    time_marks,
)

T = TypeVar("T")

#: The colours of a terminal that stand for those of a style sheet.
TERMINAL_COLOURS: Mapping[str, str] = {
    **{"s1": "blue", "s2": "red", "s3": "yellow", "s4": "bright_red"},
    **{"s5": "magenta", "s6": "bright_black", "s7": "green"},
}

#: Parts of a cell, from empty to full.
_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", "  ..:::##"

#: Columns between two marks of the time axis, and columns from which a bar has a gap beside it.
_MARK_COLUMNS, _GAP_COLUMNS = 12, 3


@dataclass(frozen=True, slots=True)
class Area:
    """Where a chart is drawn.

    Attributes
    ----------
    width : int
        Columns of the whole chart.
    height : int
        Lines of the bars, without the axis.
    ascii_only : bool
        Whether the terminal shows nothing but ASCII.
    zone : tzinfo
        The zone of the time axis.
    """

    width: int
    height: int = 8
    ascii_only: bool = False
    zone: tzinfo = timezone.utc

    @property
    def solid(self) -> str:
        """A full cell."""
        return "#" if self.ascii_only else "█"

    @property
    def shade(self) -> str:
        """A cell that is less than full."""
        return ":" if self.ascii_only else "░"


def group(values: Sequence[T], most: int, add: Callable[[Sequence[T]], T]) -> tuple[list[T], int]:
    """Join neighbouring steps, so that there are at most *most*.

    Returns
    -------
    (values, number)
        The joined values, and how many steps each of them has.
    """
    number = max(1, math.ceil(len(values) / max(most, 1)))
    return [add(values[n : n + number]) for n in range(0, len(values), number)], number


def sparklines(layers: Sequence[Layer], area: Area) -> list[Text]:
    """Return a line for each layer, with a cell for each value or for some neighbouring values
    together. All lines have one scale, so that they can be compared.
    """
    joined = [group(layer.values, area.width, sum)[0] for layer in layers]
    most = max((value for values in joined for value in values), default=1)
    cells = _ASCII if area.ascii_only else _BLOCKS
    lines = ["".join(cells[_eighths(value, most, 1)] for value in values) for values in joined]
    return [
        Text(line, TERMINAL_COLOURS.get(layer.style, ""))
        for line, layer in zip(lines, layers, strict=True)
    ]


def bars(times: Sequence[datetime], step: int, layers: Sequence[Layer], area: Area) -> list[Text]:
    """Return the lines of stacked layers, a bar for each step or for some steps together."""
    empty = [0.0] * len(times)
    sums = [sum(each) for each in zip(empty, *(layer.values for layer in layers), strict=True)]
    room = area.width
    while True:  # joined steps are higher, and their numbers may need more room
        totals, number = group(sums, room, sum)
        ticks = round_ticks(max(*totals, 1))
        plot = _Plot({tick / ticks[-1] * area.height: f"{tick:,g}" for tick in ticks}, area)
        if len(totals) <= plot.room:
            break
        room = plot.room
    joined = [group(layer.values, room, sum)[0] for layer in layers]
    cells = _ASCII if area.ascii_only else _BLOCKS
    most = ticks[-1]

    def cell(column: int, row: int) -> tuple[str, str]:
        filled = min(8, max(0, _eighths(totals[column], most, area.height) - 8 * row))
        if not filled:
            return " ", ""
        middle = (row + filled / 16) / area.height * most
        tops = accumulate(values[column] for values in joined)
        style = next((n for n, top in enumerate(tops) if top >= middle), len(joined) - 1)
        return cells[filled], TERMINAL_COLOURS.get(layers[style].style, "")

    return [*plot.lines(len(totals), cell), *plot.times(times, step, len(totals), number)]


def spans(
    times: Sequence[datetime], step: int, durations: Sequence[Sequence[int]], area: Area
) -> list[Text]:
    """Return the lines of durations (ms) over time on a logarithmic scale.

    The cells of a step are full from its median to its 90th percentile, and less than full up to
    its 99th percentile.
    """
    scale = duration_scale((ms for each in durations for ms in each), 0, area.height - 1)
    marks, level = scale
    plot = _Plot({level(mark) + 1: duration(mark) for mark in marks}, area)
    joined, number = group(durations, plot.room, lambda some: [ms for each in some for ms in each])
    quantiles = [*map(Quantiles.of, joined)]

    def cell(column: int, row: int) -> tuple[str, str]:
        each = quantiles[column]
        if each.p50 is None or each.p90 is None or each.p99 is None:
            return " ", ""
        p50, p90, p99 = (round(level(ms)) for ms in (each.p50, each.p90, each.p99))
        if p50 <= row <= p90:
            return area.solid, TERMINAL_COLOURS["s1"]
        return (area.shade, TERMINAL_COLOURS["s2"]) if p90 < row <= p99 else (" ", "")

    return [*plot.lines(len(joined), cell), *plot.times(times, step, len(joined), number)]


class _Plot:
    """The axes of a chart, and how many columns are left for its bars.

    Parameters
    ----------
    labels : Mapping[float, str]
        The texts beside the vertical axis by their heights in lines: 0 is the horizontal axis.
    """

    def __init__(self, labels: Mapping[float, str], area: Area) -> None:
        self._area = area
        self._labels = {round(height): label for height, label in labels.items()}
        self._margin = max(map(len, self._labels.values()))
        #: Columns for bars.
        self.room = max(1, area.width - self._margin - 2)

    def lines(self, columns: int, cell: Callable[[int, int], tuple[str, str]]) -> Iterator[Text]:
        """Yield the lines above the axis, and the axis; *cell* returns a character and its style
        for a column and a row, which count from 0.
        """
        wide = self._wide(columns)
        gap = 1 if wide >= _GAP_COLUMNS else 0
        side, corner, axis = "|+-" if self._area.ascii_only else "│└─"
        for row in reversed(range(self._area.height)):
            line = Text(f"{self._labels.get(row + 1, ''):>{self._margin}} {side}", no_wrap=True)
            for column in range(columns):
                character, style = cell(column, row)
                line.append(character * (wide - gap) + " " * gap, style)
            yield line
        yield Text(f"{self._labels.get(0, ''):>{self._margin}} {corner}{axis * wide * columns}")

    def times(
        self, times: Sequence[datetime], step: int, columns: int, number: int
    ) -> Iterator[Text]:
        """Yield the line below the axis: times, where each column has *number* steps."""
        wide = self._wide(columns)
        begins, length = times[0], step * number * columns
        marks = time_marks(
            begins, begins + timedelta(seconds=length), max(2, wide * columns // _MARK_COLUMNS),
            self._area.zone,
        )  # fmt: skip
        line = ""
        for at, text in marks:
            place = int((at - begins).total_seconds() / length * wide * columns)
            is_free = place > len(line) or not line
            if is_free and place + len(text) <= self.room:
                line = f"{line:<{place}}{text}"
        yield Text(" " * (self._margin + 2) + line, "dim")

    def _wide(self, columns: int) -> int:
        return max(1, self.room // max(columns, 1))


def _eighths(value: float, top: float, height: int) -> int:
    """Return the height of a value in eighths of a line; a value above 0 can be seen."""
    return max(round(value / top * height * 8), 1) if value > 0 else 0
