"""A run for people and for programs: terminal table, Markdown, JSON."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .bench import Bench
from .model import Better, Figure

BEGIN, END = "<!-- table begins -->", "<!-- table ends -->"
_ARROWS = {Better.HIGHER: "↑", Better.LOWER: "↓"}
_VERDICTS = {True: "yes", False: "NO", None: ""}


@dataclass
class Run:
    """All that a run has found out."""

    facts: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def missed(self) -> list[Figure]:
        """Figures whose target is not reached."""
        return [figure for figure in self.figures if figure.reached is False]

    @property
    def complete(self) -> bool:
        """Whether every measurement was made and every target reached."""
        return not self.missed and not self.failures


def machine_facts(bench: Bench, quick: bool) -> dict[str, Any]:
    """Versions, cores and the size of the run."""
    packages = ("celery", "kombu", "redis", "celery-delayq")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": quick,
        "ours": bench.ours.name,
        "at_least_once": bench.at_least_once,
        "pool": str(bench.pool),
        "cores": os.cpu_count(),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "redis_server": bench.server.client.info("server")["redis_version"],
        "packages": {name: metadata.version(name) for name in packages},
        "size": vars(bench.size),
    }


def facts_line(facts: dict[str, Any]) -> str:
    """The facts in one sentence."""
    packages = facts["packages"]
    return (
        f"{facts['date'][:10]}, {facts['cores']} cores, {facts['system']}, "
        f"Python {facts['python']}, Redis {facts['redis_server']}, Celery {packages['celery']}, "
        f"kombu {packages['kombu']}, redis-py {packages['redis']}"
        + f", due tasks in a {facts['pool']} worker"
        + (", quick run" if facts["quick"] else "")
        + (", acks late on both sides" if facts["at_least_once"] else "")
        + ("" if facts["ours"] == "ours" else ", CALIBRATION: stock on both sides")
    )


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return "< 0.01" if ratio < 0.01 else f"{ratio:.2f}"


def _cells(figure: Figure) -> tuple[str, str, str, str, str, str]:
    row = figure.row
    return (
        f"{row.title}, {row.unit} {_ARROWS[row.better]}",
        _number(figure.stock, row.digits),
        _number(figure.ours, row.digits),
        _ratio(figure.ratio),
        row.target.text if row.target else "",
        _VERDICTS[figure.reached],
    )


def show(run: Run, console: Console) -> None:
    """The table in the terminal, and in plain words what was missed."""
    table = Table(caption=facts_line(run.facts), caption_justify="left")
    table.add_column("what, unit (↑ more is better, ↓ less is)")
    for name in ("stock", "ours", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("target")
    table.add_column("reached")
    styles = {True: "green", False: "bold red", None: ""}
    for figure in run.figures:
        table.add_row(*_cells(figure), style=styles[figure.reached])
    console.print(table)
    for figure in run.missed:
        target = figure.row.target
        _, _, ours, ratio, *_ = _cells(figure)
        console.print(
            f"[bold red]Missed:[/] {figure.row.title}: {ours} {figure.row.unit}, "
            f"ratio {ratio}; the target is {target.text if target else ''}",
            highlight=False,
        )
    for name, reason in run.failures.items():
        console.print(f"[bold red]Not measured:[/] {name}: {escape(reason)}")
    if run.complete:
        console.print("[green]Every target of these rows is reached.[/]")


def write_json(run: Run, path: Path) -> None:
    """Facts, figures and all raw values, as JSON."""
    content = {
        "facts": run.facts,
        "figures": [figure.as_dict() for figure in run.figures],
        "not_measured": run.failures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def markdown(run: Run) -> str:
    """The table and its facts as Markdown."""
    head = ("", "stock", "ours", "ratio", "target", "reached")
    lines = [_line(head), "| --- | ---: | ---: | ---: | --- | --- |"]
    lines += [_line(_cells(figure)) for figure in run.figures]
    lines += [f"\nNot measured: {name}." for name in run.failures]
    return "\n".join([*lines, "", facts_line(run.facts) + "."])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write_markdown(run: Run, path: Path) -> None:
    """Put the table between the two marks of the page, and touch nothing else of it."""
    text = path.read_text() if path.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    marked = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not marked.search(text):
        raise ValueError(f"{path} has no place for the table: {BEGIN} … {END}")
    table = f"{BEGIN}\n{markdown(run)}\n{END}"
    path.write_text(marked.sub(lambda _: table, text, count=1))
