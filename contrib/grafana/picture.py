"""Draws the dashboard: ``python contrib/grafana/picture.py http://localhost:9090 board.png``.

For those who have no Grafana at hand. It asks Prometheus what the dashboard asks. Needs matplotlib
and ``grafana-foundation-sdk``.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import dashboard
import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

#: Points of a line, and graphs in a row.
POINTS, COLUMNS = 120, 3


def ask(url: str, path: str, **parameters: Any) -> Any:
    """Return the answer of Prometheus' HTTP API."""
    with urlopen(f"{url}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def plain(expression: str, interval: str) -> str:
    """Return an expression with values for Grafana's variables."""
    named = expression.replace("$job", ".*").replace("$queue", ".*")
    return named.replace("$__rate_interval", interval)


def draw(url: str, target: str, seconds: float = 3600, interval: str = "1m") -> None:
    """Draw the last *seconds* into a file; rates are those of *interval*."""
    graphs = [panel for row in dashboard.ROWS.values() for panel in row]
    rows = math.ceil(len(graphs) / COLUMNS)
    figure = plt.figure(figsize=(12, 1.1 + 2.1 * rows), dpi=80)
    edges = {
        "left": 0.04,
        "right": 0.99,
        "top": 0.97,
        "bottom": 0.03,
        "wspace": 2.4,
        "hspace": 0.35,
    }
    grid = figure.add_gridspec(rows + 1, 24, height_ratios=[0.45, *[1] * rows], **edges)
    for place, panel in enumerate(dashboard.STATS):
        _number(figure.add_subplot(grid[0, 3 * place : 3 * place + 3]), url, panel, interval)
    for place, panel in enumerate(graphs):
        row, column = divmod(place, COLUMNS)
        axes = figure.add_subplot(grid[row + 1, 8 * column : 8 * column + 8])
        _graph(axes, url, panel, seconds, interval)
    figure.savefig(target)
    plt.close(figure)


def _number(axes: Axes, url: str, panel: dashboard.Panel, interval: str) -> None:
    [expression] = panel.expressions.values()
    found = ask(url, "query", query=plain(expression, interval))
    value = float(found[0]["value"][1]) if found else None
    shown = "-" if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    bad = value is not None and panel.red is not None and value >= panel.red
    axes.text(0.5, 0.4, f"{shown}{' s' if panel.unit == 's' else ''}", ha="center", va="center",
              fontsize=17, color="tab:red" if bad else "tab:green")  # fmt: skip
    axes.set_title(panel.title, fontsize=8)
    axes.set(xticks=[], yticks=[])


def _graph(axes: Axes, url: str, panel: dashboard.Panel, seconds: float, interval: str) -> None:
    now = time.time()
    for legend, expression in panel.expressions.items():
        found = ask(url, "query_range", query=plain(expression, interval), start=now - seconds,
                    end=now, step=seconds / POINTS)  # fmt: skip
        for series in found:
            name = legend
            for key, value in series["metric"].items():
                name = name.replace(f"{{{{{key}}}}}", value)
            times, values = zip(
                *((at - now, float(value)) for at, value in series["values"]), strict=True
            )
            axes.plot(times, values, label=name, linewidth=1)
    axes.set_title(f"{panel.title} [{panel.unit}]", fontsize=8)
    axes.tick_params(labelsize=6)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(-seconds, 0)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if axes.lines:
        axes.legend(fontsize=6, loc="upper left", frameon=False, ncols=2)


if __name__ == "__main__":
    draw(*sys.argv[1:3])
