"""Draws SVG charts. The style sheet of the page has the colours, as classes ``s1`` to ``s7``.

ElementTree escapes all texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from xml.etree import ElementTree as ET

from celery_delayq.utils.text import spelled

#: Possible lengths of a step in seconds.
STEP_SECONDS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))

#: Widths of charts: one that fills the page, and one of two charts side by side.
_WIDE, _NARROW = 1060, 500

_TOP_MARGIN, _BOTTOM_MARGIN, _LEFT_MARGIN, _RIGHT_MARGIN = 12, 30, 54, 12

#: Marks of an axis of durations, in ms.
_DURATION_MARKS = (
    *(1, 10, 100, 1000, 10_000),
    *(60_000, 600_000, 3_600_000, 36_000_000),
    *(86_400_000 * n for n in (4, 40, 400, 4000)),
)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of durations in ms.

    Attributes
    ----------
    runs : int
        Number of runs with a known duration.
    early : int
        Number of negative durations: the clocks of workers and Redis differ.
    p50, p90, p99, max : int | None
        The durations that 50, 90, 99 and 100 per cent of the runs did not exceed; None without
        runs.
    """

    runs: int = 0
    early: int = 0
    p50: int | None = None
    p90: int | None = None
    p99: int | None = None
    max: int | None = None


class Layer(NamedTuple):
    """One value for each step, and the colour of the values."""

    name: str
    style: str
    values: Sequence[float]


class Chart:
    """A picture with an alternative text.

    Parameters
    ----------
    label : str
        The alternative text.
    width, height : int
        Size in units of the picture. The page scales the picture.
    """

    def __init__(self, label: str, width: int, height: int, margin: int = _LEFT_MARGIN) -> None:
        self.width, self.height = width, height
        self.x0, self.x1 = margin, width - _RIGHT_MARGIN
        self.y0, self.y1 = height - _BOTTOM_MARGIN, _TOP_MARGIN
        self.root = ET.Element(
            "svg", {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": label}
        )

    def svg(self) -> str:
        """Return the SVG element for a page."""
        return ET.tostring(self.root, "unicode")

    def add(self, tag: str, style: str, tip: str = "", **attributes: object) -> ET.Element:
        """Add an element; *tip* is its tooltip."""
        given = {
            name.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else str(value)
            for name, value in attributes.items()
        }
        made = ET.SubElement(self.root, tag, {"class": style, **given})
        if tip:
            ET.SubElement(made, "title").text = tip
        return made

    def text(
        self, x: float, y: float, text: str, style: str = "tick", anchor: str = "middle"
    ) -> None:
        """Write a text."""
        self.add("text", style, x=x, y=y, text_anchor=anchor).text = spelled(text)

    def across(self, y: float, text: str) -> None:
        """Draw a horizontal line of the grid with its label."""
        self.add("line", "grid", x1=self.x0, x2=self.x1, y1=y, y2=y)
        self.text(self.x0 - 7, y + 4, text, anchor="end")

    def heights(self, top: float) -> Callable[[float], float]:
        """Draw a linear scale for counts; return the function from value to position."""
        ticks = round_ticks(top)
        most = ticks[-1]
        scale = (self.y0 - self.y1) / most
        for each in ticks:
            self.across(self.y0 - each * scale, f"{each:,g}")
        return lambda value: self.y0 - value * scale

    def times(
        self, begins: datetime, ends: datetime, zone: tzinfo = timezone.utc
    ) -> Callable[[datetime], float]:
        """Draw a time axis; return the function from time to position."""
        length = max((ends - begins).total_seconds(), 1e-3)
        scale = (self.x1 - self.x0) / length

        def place(at: datetime) -> float:
            return self.x0 + (at - begins).total_seconds() * scale

        for at, text in _marks(begins, ends, max(2, round((self.x1 - self.x0) / 95)), zone):
            x = place(at)
            self.add("line", "mark", x1=x, x2=x, y1=self.y0, y2=self.y0 + 4)
            self.text(min(x, self.x1 - 14), self.y0 + 19, text)
        self.add("line", "axis", x1=self.x0, x2=self.x1, y1=self.y0, y2=self.y0)
        return place


def bars(
    label: str,
    times: Sequence[datetime],
    step: int,
    layers: Sequence[Layer],
    outline: Layer | None = None,
    *,
    height: int = 260,
    zone: tzinfo = timezone.utc,
) -> str:
    """Draw stacked layers as a bar for each step of time, and another value as an outline.

    Times are shown in *zone*.
    """
    chart = Chart(label, _WIDE, height)
    sums = [sum(values) for values in zip(*(layer.values for layer in layers), strict=True)]
    high = chart.heights(max([*sums, *(outline.values if outline else ()), 1]))
    wide = timedelta(seconds=step)
    place = chart.times(times[0], times[-1] + wide, zone)
    names = [*layers, *([outline] if outline else [])]
    for i, at in enumerate(times):
        x, end = place(at), place(at + wide)
        gap = min(1.5, (end - x) * 0.12)
        base = 0.0
        for layer in layers:
            value = layer.values[i]
            if value:
                top = high(base + value)
                chart.add("rect", f"fill {layer.style}", x=x + gap, y=top,
                          width=max(end - x - 2 * gap, 0.5), height=high(base) - top)  # fmt: skip
                base += value
        if any(each.values[i] for each in names):
            tip = "\n".join(f"{spelled(each.name)}: {each.values[i]:,g}" for each in names)
            chart.add("rect", "hover", f"{stamp(at, zone)}\n{tip}", x=x, y=chart.y1,
                      width=end - x, height=chart.y0 - chart.y1)  # fmt: skip
    if outline is not None:
        path = [f"M{place(times[0]):.1f} {chart.y0}"]
        for at, value in zip(times, outline.values, strict=True):
            path.append(f"V{high(value):.1f}H{place(at + wide):.1f}")
        chart.add("path", f"line {outline.style}", d="".join([*path, f"V{chart.y0}"]))
    return chart.svg()


def curves(
    label: str,
    times: Sequence[datetime],
    step: int,
    curves: Sequence[tuple[str, str, Sequence[int | None]]],
) -> str:
    """Draw durations in ms over time on a logarithmic scale; None is a gap."""
    chart = Chart(label, _WIDE, 240)
    known = [each for _, _, values in curves for each in values if each is not None]
    marks, level = _durations(known, chart.y0, chart.y1)
    for mark in marks:
        chart.across(level(mark), duration(mark))
    wide = timedelta(seconds=step)
    place = chart.times(times[0], times[-1] + wide)
    for name, style, values in curves:
        line, path, pen = chart.add("path", f"line {style}"), "", "M"
        for at, ms in zip(times, values, strict=True):
            if ms is None:
                pen = "M"
                continue
            x, y = place(at + wide / 2), level(ms)
            path, pen = f"{path}{pen}{x:.1f} {y:.1f}", "L"
            tip = f"{stamp(at)}\n{name}: {duration(ms)}"
            chart.add("circle", f"fill {style}", tip, cx=x, cy=y, r=2.6)
        line.set("d", path)
    return chart.svg()


def ranges(label: str, rows: Sequence[tuple[str, Quantiles]]) -> str:
    """Draw a line for each row, from p50 to p99 with p90 on it, and a ring at the maximum."""
    margin = 24 + min(240, max((7 * len(_shorten_name(name)) for name, _ in rows), default=0))
    chart = Chart(label, _NARROW, _TOP_MARGIN + _BOTTOM_MARGIN + 30 * len(rows), margin)
    known = [ms for _, each in rows for ms in (each.p50, each.max) if ms is not None]
    marks, place = _durations(known, chart.x0 + 6, chart.x1 - 12)
    for mark in marks:
        x = place(mark)
        chart.add("line", "grid", x1=x, x2=x, y1=chart.y1, y2=chart.y0)
        chart.text(x, chart.y0 + 19, duration(mark))
    for i, (name, each) in enumerate(rows):
        y = chart.y1 + 30.0 * i + 15
        chart.text(chart.x0 - 12, y + 4, _shorten_name(name), "name", "end")
        marks_of_row = {n: getattr(each, n) for n in ("p50", "p90", "p99", "max")}
        if None in marks_of_row.values():
            chart.text(chart.x0 + 6, y + 4, "-", anchor="start")
            continue
        p50, p90, p99, most = map(place, marks_of_row.values())
        chart.add("line", "whisker", x1=p99, x2=most, y1=y, y2=y)
        chart.add("line", "range", x1=p50, x2=p99, y1=y, y2=y)
        chart.add("circle", "ring", cx=most, cy=y, r=3.5)
        for style, x in (("s2", p99), ("s3", p90), ("s1", p50)):
            chart.add("circle", f"fill {style}", cx=x, cy=y, r=5.5)
        tip = "\n".join(
            [spelled(name), *(f"{n}: {duration(ms)}" for n, ms in marks_of_row.items())]
        )
        chart.add("rect", "hover", tip, x=0, y=y - 15, width=_NARROW, height=30)
    return chart.svg()


def columns(label: str, pairs: Sequence[tuple[str, int]]) -> str:
    """Draw a bar for each name, with the number above the bar."""
    chart = Chart(label, _NARROW, 220)
    high = chart.heights(max([number for _, number in pairs] + [1]) * 1.12)
    each = (chart.x1 - chart.x0) / max(len(pairs), 1)
    for i, (name, number) in enumerate(pairs):
        x, wide = chart.x0 + i * each, min(each * 0.7, 70)
        top = high(number)
        chart.add("rect", "fill s1", f"{name}: {number:,}", x=x + (each - wide) / 2, y=top,
                  width=wide, height=chart.y0 - top)  # fmt: skip
        chart.text(x + each / 2, top - 5, f"{number:,}", "value")
        chart.text(x + each / 2, chart.y0 + 19, name)
    chart.add("line", "axis", x1=chart.x0, x2=chart.x1, y1=chart.y0, y2=chart.y0)
    return chart.svg()


def round_ticks(top: float) -> list[float]:
    """Return about five round whole numbers, from 0 to *top* or a little more."""
    rough = max(top / 5, 0.2)
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999), 1.0)
    return [step * n for n in range(math.ceil(top / step * 0.999) + 1)]


def duration(ms: float | None) -> str:
    """Return a duration with a unit: ``7 ms``, ``1.9 s``, ``31 min``, ``2.5 h``, ``3 d``."""
    if ms is None:
        return "-"
    size, unit = next(each for each in _UNITS if abs(ms) >= each[0] or each[0] == 1)
    value = ms / size
    return f"{value:,.0f} {unit}" if size == 1 or abs(value) >= 10 else f"{value:.2g} {unit}"


def stamp(at: datetime, zone: tzinfo = timezone.utc) -> str:
    """Return a point in time, without its offset."""
    there = at.astimezone(zone)
    return f"{there:%Y-%m-%d %H:%M}" if there.second == 0 else f"{there:%Y-%m-%d %H:%M:%S}"


def _marks(
    begins: datetime, ends: datetime, most: int, zone: tzinfo
) -> Iterator[tuple[datetime, str]]:
    """Yield marks of a time axis, at round times of a zone."""
    length = (ends - begins).total_seconds()
    step = next((each for each in STEP_SECONDS if each * most >= length), STEP_SECONDS[-1])
    offset = begins.astimezone(zone).utcoffset() or timedelta()
    ahead = round(offset.total_seconds())
    first = math.ceil((begins.timestamp() + ahead) / step) * step - ahead
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86_400 else "%b %d"
    day = None
    for seconds in range(first, math.floor(ends.timestamp()) + 1, step):
        at = datetime.fromtimestamp(seconds, zone)
        # The first mark of a day shows the date.
        is_new = step < 86_400 and length > 86_400 * 0.75 and day not in (None, at.date())
        yield at, f"{at:%b %d}" if is_new else f"{at:{form}}"
        day = at.date()


def _durations(
    known: Sequence[int], begins: float, ends: float
) -> tuple[Sequence[int], Callable[[float], float]]:
    """Return the marks of a logarithmic scale for durations in ms, and the function from duration
    to position.
    """
    least, most = min(known, default=1), max(known, default=1000)
    low = max((n for n, ms in enumerate(_DURATION_MARKS) if ms <= least), default=0)
    high = next((n for n, ms in enumerate(_DURATION_MARKS) if ms >= most), len(_DURATION_MARKS) - 1)
    marks = _DURATION_MARKS[low : max(high, low + 2) + 1]
    first = math.log10(marks[0])
    scale = (ends - begins) / (math.log10(marks[-1]) - first)

    def place(ms: float) -> float:
        # 0 has no logarithm: durations below the first mark are drawn at the first mark.
        return begins + (math.log10(min(max(ms, marks[0]), marks[-1])) - first) * scale

    return marks, place


def _shorten_name(name: str) -> str:
    return name if len(name) <= 32 else f"…{name[-31:]}"
