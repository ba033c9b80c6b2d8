"""Draws SVG charts. A style sheet has the colours, as classes ``s1`` to ``s7``.

ElementTree escapes all texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from xml.etree import ElementTree as ET

from celery_delayq.charts.scales import (
    MAX_LAYER_CHARACTERS,
    Layer,
    Quantiles,
    duration,
    duration_scale,
    round_ticks,
    short_name,
    stamp,
    time_marks,
)
from celery_delayq.utils.text import spelled

#: Widths of charts: one that fills the page, and one of two charts side by side.
_WIDE, _NARROW = 1060, 500

_TOP_MARGIN, _BOTTOM_MARGIN, _LEFT_MARGIN, _RIGHT_MARGIN = 12, 30, 54, 12

#: Height of the title of a chart and of a line of its legend, space around the charts of a
#: document, and the width that a character of a legend needs at most.
_TITLE_HEIGHT, _LEGEND_HEIGHT, _SPACE, _CHARACTER_WIDTH = 28, 20, 20, 8

#: The style sheet of charts in a page or a document without another one. It is dark where the
#: reader prefers that.
STYLE = """\
:root {
  --card: #fff; --ink: #1d2a35; --muted: #5b6875; --rule: #dde3e9;
  --s1: #2f7fd6; --s2: #e0552f; --s3: #eaa521; --s4: #b3123f; --s5: #7a5cc9; --s6: #8795a3;
  --s7: #22a07c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --card: #1a2129; --ink: #e4eaf0; --muted: #a3b0bd; --rule: #2c3641;
    --s1: #5aa5f2; --s2: #ff8059; --s3: #f2bd4f; --s4: #f2557f; --s5: #a78df0; --s6: #7b8997;
    --s7: #4cc3a0;
  }
}
svg text { font-size: 12px; fill: var(--muted); }
svg text.name { font-size: 13px; fill: var(--ink); }
svg text.value { font-size: 12px; fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--rule); stroke-width: 1; }
.axis, .mark { stroke: var(--muted); stroke-width: 1; opacity: .7; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.range { stroke: var(--s6); stroke-width: 5; stroke-linecap: round; opacity: .4; }
.whisker { stroke: var(--s6); stroke-width: 1.4; stroke-dasharray: 3 3; }
.ring { fill: var(--card); stroke: var(--s6); stroke-width: 1.6; }
.hover { fill: var(--ink); opacity: 0; }
.hover:hover { opacity: .07; }
.line.ink { stroke: var(--ink); stroke-width: 1.3; }
""" + "".join(
    f".fill.s{n} {{ fill: var(--s{n}); }} .line.s{n} {{ stroke: var(--s{n}); }}\n"
    for n in range(1, 8)
)


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

        for at, text in time_marks(begins, ends, max(2, round((self.x1 - self.x0) / 95)), zone):
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
    *,
    zone: tzinfo = timezone.utc,
) -> str:
    """Draw durations in ms over time on a logarithmic scale; None is a gap.

    Times are shown in *zone*.
    """
    chart = Chart(label, _WIDE, 240)
    known = [each for _, _, values in curves for each in values if each is not None]
    marks, level = duration_scale(known, chart.y0, chart.y1)
    for mark in marks:
        chart.across(level(mark), duration(mark))
    wide = timedelta(seconds=step)
    place = chart.times(times[0], times[-1] + wide, zone)
    for name, style, values in curves:
        line, path, pen = chart.add("path", f"line {style}"), "", "M"
        for at, ms in zip(times, values, strict=True):
            if ms is None:
                pen = "M"
                continue
            x, y = place(at + wide / 2), level(ms)
            path, pen = f"{path}{pen}{x:.1f} {y:.1f}", "L"
            tip = f"{stamp(at, zone)}\n{name}: {duration(ms)}"
            chart.add("circle", f"fill {style}", tip, cx=x, cy=y, r=2.6)
        line.set("d", path)
    return chart.svg()


def ranges(label: str, rows: Sequence[tuple[str, Quantiles]]) -> str:
    """Draw a line for each row, from p50 to p99 with p90 on it, and a ring at the maximum."""
    margin = 24 + min(240, max((7 * len(short_name(name)) for name, _ in rows), default=0))
    chart = Chart(label, _NARROW, _TOP_MARGIN + _BOTTOM_MARGIN + 30 * len(rows), margin)
    known = [ms for _, each in rows for ms in (each.p50, each.max) if ms is not None]
    marks, place = duration_scale(known, chart.x0 + 6, chart.x1 - 12)
    for mark in marks:
        x = place(mark)
        chart.add("line", "grid", x1=x, x2=x, y1=chart.y1, y2=chart.y0)
        chart.text(x, chart.y0 + 19, duration(mark))
    for i, (name, each) in enumerate(rows):
        y = chart.y1 + 30.0 * i + 15
        chart.text(chart.x0 - 12, y + 4, short_name(name), "name", "end")
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
        shown = short_name(name, MAX_LAYER_CHARACTERS)
        tip = "\n".join([shown, *(f"{n}: {duration(ms)}" for n, ms in marks_of_row.items())])
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


class DocumentChart(NamedTuple):
    """A chart of a document, its title, and the names of its colours."""

    title: str
    svg: str
    legend: Sequence[tuple[str, str]] = ()


def document(charts: Sequence[DocumentChart]) -> str:
    """Return an SVG file with charts below each other, which needs no style sheet."""
    root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    ET.SubElement(root, "title").text = "; ".join(each.title for each in charts)
    ET.SubElement(root, "style").text = (
        f"{STYLE}text {{ font-family: system-ui, 'Liberation Sans', sans-serif; }}\n"
        ".page { fill: var(--card); } text.title { font-size: 16px; fill: var(--ink); }"
    )
    page = ET.SubElement(root, "rect", {"class": "page"})
    y = _SPACE
    for each in charts:
        title = {"class": "title", "x": str(_SPACE), "y": str(y + 16)}
        ET.SubElement(root, "text", title).text = spelled(each.title)
        y = _draw_legend(root, each.legend, y + _TITLE_HEIGHT)
        chart = ET.fromstring(each.svg)
        width, height = chart.attrib["viewBox"].split()[2:]
        chart.attrib |= {"x": str(_SPACE), "y": str(y), "width": width, "height": height}
        root.append(chart)
        y += int(height) + _SPACE
    size = {"width": str(_WIDE + 2 * _SPACE), "height": str(y)}
    page.attrib |= size
    root.attrib |= {"viewBox": f"0 0 {size['width']} {size['height']}", **size}
    return ET.tostring(root, "unicode")


def _draw_legend(root: ET.Element, legend: Sequence[tuple[str, str]], y: int) -> int:
    """Draw names with their colours, in as many lines as they need; return where they end."""
    x = _SPACE
    for name, style in legend:
        text = short_name(name)
        width = 30 + _CHARACTER_WIDTH * len(text)
        if x > _SPACE and x + width > _WIDE:
            x, y = _SPACE, y + _LEGEND_HEIGHT
        box = {"class": f"fill {style}", "x": str(x), "y": str(y), "width": "11", "height": "11"}
        ET.SubElement(root, "rect", box)
        ET.SubElement(root, "text", {"x": str(x + 17), "y": str(y + 10)}).text = text
        x += width
    return y + _LEGEND_HEIGHT if legend else y
