"""The results of a run: terminal table, lines of Markdown, JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from celery_delayq.store.server.checks import name_and_version
from tests.support.commit import commit_name

from .bench import Bench
from .model import Better, Figure

_ARROWS = {Better.HIGHER.value: "↑", Better.LOWER.value: "↓"}
_VERDICTS = {True: "yes", False: "NO", None: ""}


@dataclass
class Run:
    """All results of a run."""

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
    """Return versions, cores and the size of the run."""
    packages = ("celery", "kombu", "redis", "celery-delayq")
    with bench.server.client() as client:
        server, version = name_and_version(client.info("server"))
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit_name(),
        "quick": quick,
        "ours": bench.ours.name,
        "at_least_once": bench.at_least_once,
        "pool": str(bench.pool),
        "cores": os.cpu_count(),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "server": server,
        "redis_server": version,
        "packages": {name: metadata.version(name) for name in packages},
        "size": vars(bench.size),
    }


def facts_line(facts: Mapping[str, Any]) -> str:
    """Return the facts in one sentence; older runs lack some."""
    return ", ".join(part for part in (when_line(facts), machine_line(facts)) if part)


def when_line(facts: Mapping[str, Any]) -> str:
    """Return the date and the commit of a run; older runs lack the commit."""
    return str(facts["date"])[:10] + (f", commit {facts['commit']}" if facts.get("commit") else "")


def machine_line(facts: Mapping[str, Any]) -> str:
    """Return the machine, the versions and the way of a run; older runs lack some."""
    names = {"celery": "Celery", "kombu": "kombu", "redis": "redis-py"}
    packages = facts.get("packages", {})
    parts = [
        f"{facts['cores']} cores",
        facts.get("system"),
        "python" in facts and f"Python {facts['python']}",
        "redis_server" in facts and f"{facts.get('server', 'Redis')} {facts['redis_server']}",
        *(f"{title} {packages[name]}" for name, title in names.items() if name in packages),
        "pool" in facts and f"due tasks in a {facts['pool']} worker",
        facts.get("quick") and "quick run",
        facts.get("at_least_once") and "acks late on both sides",
        facts.get("ours", "ours") != "ours" and "CALIBRATION: stock on both sides",
    ]
    return ", ".join(part for part in parts if part)


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return "< 0.01" if ratio < 0.01 else f"{ratio:.2f}"


def cells_of(figure: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    """Return the cells of a line for a figure as a dictionary."""
    unit = f", {figure['unit']}" if figure["unit"] else ""
    return (
        f"{figure['title']}{unit} {_ARROWS[figure['better']]}",
        _number(figure["stock"], figure["digits"]),
        _number(figure["ours"], figure["digits"]),
        _ratio(figure["ratio"]),
        figure["target"] or "",
        _VERDICTS[figure["reached"]],
    )


def show(run: Run, console: Console) -> None:
    """Print the table in the terminal, and the missed targets in words."""
    table = Table(caption=facts_line(run.facts), caption_justify="left")
    table.add_column("what, unit (↑ more is better, ↓ less is)")
    for name in ("stock", "ours", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("target")
    table.add_column("reached")
    styles = {True: "green", False: "bold red", None: ""}
    for figure in run.figures:
        table.add_row(*cells_of(figure.as_dict()), style=styles[figure.reached])
    console.print(table)
    for figure in run.missed:
        target = figure.row.target
        _, _, ours, ratio, *_ = cells_of(figure.as_dict())
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
    """Write facts, figures and all raw values as JSON."""
    content = {
        "facts": run.facts,
        "figures": [figure.as_dict() for figure in run.figures],
        "not_measured": run.failures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def markdown_line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
