"""The figures in ``docs/figures.json``, and the pages that show them.

``python -m tests.benchmarks --figures`` writes measured figures to the file and fills the pages.
``python -m tests.benchmarks.figures`` only fills the pages. A page has places for tables, from
``<!-- figures: NAME -->`` to ``<!-- end of figures -->``, and for words, from ``<!-- figure: NAME
-->`` to ``<!-- / -->``. Other parts of a page stay unchanged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .report import Run, cells_of, machine_line, markdown_line, when_line

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures.json"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

_TABLE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_WORDS = re.compile(r"(<!-- figure: ([\w-]+) -->).*?(<!-- / -->)", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """A table in the pages: the heads of its two columns, and the beginnings of its row names."""

    stock: str
    ours: str
    names: tuple[str, ...]

    def without_sizes(self, figure: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a figure whose title has no sizes that are the heads of the columns."""
        sizes = rf" \({self.stock} (and|\|) {self.ours}( entries)?\)$"
        return {**figure, "title": re.sub(sizes, "", figure["title"])}


TABLES = {
    "control": Table("1,000", "1,000,000", ("control-",)),
    "many": Table("stock, one by one", "ours", ("schedule-many",)),
    "asyncio": Table("threads; as it is", "asyncio; frozen", ("aio-",)),
    "retries": Table("stock or 1,000", "ours or 100,000", ("retry-", "dead-letters-")),
    "periodic": Table("stock", "ours", ("periodic-",)),
    "spark": Table("stock", "ours", ("spark-",)),
    "limits": Table("without, one lane or stock", "with", ("limits-",)),
    "history": Table("without", "with", ("history-",)),
    "fleet": Table("one or few", "a fleet", ("fleet-",)),
    "large-1000000": Table("10,000", "1,000,000", ("large-1000000-",)),
    "large-dead": Table("10,000", "200,000", ("large-dead-",)),
    "large": Table("10,000", "3,000,000", ("large-",)),
    "scans": Table("10,000", "10,000,000", ("scans-",)),
    "cluster": Table("a single Redis", "a cluster", ("cluster-",)),
    "bulk": Table("10,000", "100,000", ("bulk-",)),
    "fast": Table("without", "with", ("fast-",)),
    "shard": Table("all shards there", "one away", ("shard-",)),
}
#: Fields of a measured figure that the file does not have.
_OF_ROUNDS = ("name", "stock_rounds", "ours_rounds", "raw")

#: Rows that only the file has: how long a script took, where no target says how long it may take.
ONLY_IN_FILE = "longest script call"
#: The table of all rows that belong to no other table.
MAIN = "main"
NONE = "\N{EN DASH}"


class Figures:
    """The contents of the file: figures by name, and their runs."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.runs: Mapping[str, Mapping[str, Any]] = content["runs"]
        self._figures = {name: SimpleNamespace(**one) for name, one in content["figures"].items()}
        #: Values of one side only.
        self.values = {name: float(one["value"]) for name, one in content["values"].items()}

    def __getitem__(self, name: str) -> Any:
        return self._figures[name]

    def table(self, name: str) -> str:
        """Return a table, and when and how it was measured."""
        columns = TABLES.get(name) or Table("stock", "ours", ())
        chosen = [
            one
            for key, one in self._figures.items()
            if _table_of(key) == name and not one.title.startswith(ONLY_IN_FILE)
        ]
        head = ("", columns.stock, columns.ours, "ratio", "target", "reached")
        lines = [markdown_line(head), "| --- | ---: | ---: | ---: | --- | --- |"]
        lines += [markdown_line(cells_of(columns.without_sizes(vars(one)))) for one in chosen]
        runs = dict.fromkeys(one.run for one in chosen)
        return "\n".join([*lines, "", *(self._about(run) for run in runs)]) + "\n"

    @property
    def targets(self) -> int:
        """The number of figures with a target."""
        return sum(bool(one.target) for one in self._figures.values())

    @property
    def missed(self) -> list[str]:
        """The names of figures that miss their target."""
        return [name for name, one in self._figures.items() if one.target and not one.reached]

    @property
    def machine(self) -> str:
        """The machine and the versions of most runs."""
        lines = Counter(machine_line(run["facts"]) for run in self.runs.values())
        return lines.most_common(1)[0][0]

    def _about(self, run: str) -> str:
        """Return when and how a run was made, and its machine if it is not that of most runs."""
        facts, command = self.runs[run]["facts"], self.runs[run]["command"]
        machine = machine_line(facts)
        other = "" if machine == self.machine else f", {machine}"
        return f"{when_line(facts)}{other}: `{command}`."


def _table_of(name: str) -> str:
    for table, of in TABLES.items():
        if name.startswith(of.names):
            return table
    return MAIN


def read(path: Path = FIGURES) -> Figures:
    """Read the file."""
    return Figures(json.loads(path.read_text("utf-8")))


def merge(run: Run, command: str, path: Path = FIGURES) -> None:
    """Write the figures of a run to the file, in place of earlier figures of the same rows."""
    content = json.loads(path.read_text("utf-8"))
    name = f"{run.facts['date']} {command}"
    content["runs"][name] = {"command": command, "facts": run.facts}
    for figure in run.figures:
        known = figure.as_dict()
        content["figures"][figure.row.name] = {
            "run": name,
            **{key: value for key, value in known.items() if key not in _OF_ROUNDS},
        }
    used = {one["run"] for one in (*content["figures"].values(), *content["values"].values())}
    content["runs"] = {key: value for key, value in content["runs"].items() if key in used}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


def filled(text: str, figures: Figures) -> str:
    """Return a page with all its places filled."""
    text = _TABLE.sub(lambda m: f"{m[1]}{_table(m[2], figures)}{m[3]}", text)
    return _WORDS.sub(lambda m: f"{m[1]}{WORDS[m[2]](figures)}{m[3]}", text)


def _table(name: str, figures: Figures) -> str:
    if name not in ("summary", "readme"):
        return figures.table(name)
    rows = summary(figures)
    if name == "readme":
        rows = [row for row in rows if row[0].startswith(README)]
    lines = [markdown_line(("", "stock", "celery_delayq")), "| --- | ---: | ---: |"]
    lines += [markdown_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def fill(pages: Iterable[Path] = PAGES, path: Path = FIGURES) -> None:
    """Fill the pages."""
    figures = read(path)
    for page in pages:
        page.write_text(filled(page.read_text("utf-8"), figures), "utf-8")


#: Most seconds of a core a second for which a Redis should be busy; GB of the example's server.
BUSY, SERVER = 0.7, 48


def _cores(f: Figures) -> float:
    """Return the cores of Redis for 1,000,000 delayed tasks a minute."""
    return float(f["counting-delayed-cpu"].ours) * 1e-6 * 1_000_000 / 60


def _gigabytes(f: Figures) -> float:
    """Return the GB of 100,000,000 entries."""
    return float(f["large-memory"].ours) * 100_000_000 / 1e9


#: Words in the pages.
WORDS: dict[str, Callable[[Figures], str]] = {
    "kib-per-far-eta": lambda f: f"{f['rss-growth'].stock * 1024 / 100_000:.0f} KiB",
    "stock-wait-behind-far": lambda f: f"{f['wait-100000'].stock / 1000:.0f} s",
    "delayed-cpu": lambda f: f"{f['counting-delayed-cpu'].ours:.0f} µs",
    "delayed-rate": lambda f: f"{BUSY / f['counting-delayed-cpu'].ours * 1e6:,.0f}",
    "delayed-cores": lambda f: f"{_cores(f):.1f} cores",
    "delayed-servers": lambda f: f"{ceil(_cores(f) / BUSY)} servers",
    "fleet-p99": lambda f: f"{f['fleet-late'].ours:.0f} ms",
    "small-entry-memory": lambda f: f"{f['control-memory'].ours:,.0f} bytes",
    "entry-memory": lambda f: f"{f['large-memory'].ours:,.0f} bytes",
    "memory-of-many": lambda f: f"{_gigabytes(f):,.0f} GB",
    "servers-of-many": lambda f: f"{ceil(2 * _gigabytes(f) / SERVER)} servers of {SERVER} GB",
    "machine": lambda f: f.machine,
    "missed-targets": lambda f: f"{len(f.missed)} of {f.targets}",
    "many": lambda f: f"{f['schedule-many'].ours:,.0f}/s",
    "many-beside-retries": lambda f: f"{f.values['schedule-many@retries']:,.0f}/s",
    "many-beside-dead-letters": lambda f: f"{f.values['schedule-many@dead-letters']:,.0f}/s",
}


#: Beginnings of the summary's rows that the README shows too.
README = (
    "publish rate with an ETA",
    "`schedule_many`",
    "get, cancel, move or run",
    "worker memory",
    "lateness at",
    "100,000 periodic entries",
)


def summary(f: Figures) -> list[tuple[str, str, str]]:
    """Return the rows of the summary: the most important figures of all tables."""
    control = [f[f"control-{name}"].ours for name in ("get", "cancel", "reschedule", "run-now")]
    pools = [f"{f[f'immediate-{pool}'].ratio:.1f}" for pool in ("solo", "prefork", "threads")]
    return [
        (
            "publish rate with an ETA, relative to stock: one by one / in a batch",
            "1 / 1",
            f"{f['publish-eta'].ratio:.2f} / {f['publish-batch-eta'].ratio:.2f}",
        ),
        (
            "`schedule_many`, beside stock's one by one",
            f"{f['schedule-many'].stock:,.0f}/s",
            f"{f['schedule-many'].ours:,.0f}/s",
        ),
        (
            "get, cancel, move or run one of a million entries, p99",
            NONE,
            f"{min(control):.1f} to {max(control):.1f} ms",
        ),
        (
            "a page of 100 of a million, p99; count by task",
            NONE,
            f"{f['control-list'].ours:.1f} ms; {f['control-count-task'].ours:.1f} ms",
        ),
        (
            "Redis memory per entry: 1 KB message, index by task, unique key",
            NONE,
            f"{f['control-memory'].ours:,.0f} bytes",
        ),
        (
            "rate of immediate tasks through one worker, relative to stock: solo / "
            "prefork `-c 2` / threads `-c 4`",
            "1 / 1 / 1",
            " / ".join(pools),
        ),
        (
            "worker memory for 100,000 far ETAs",
            f"{f['rss-growth'].stock:.0f} MiB",
            f"{f['rss-growth'].ours:.1f} MiB",
        ),
        (
            "an immediate task behind 100,000 ETA tasks starts after",
            f"{f['wait-100000'].stock / 1000:.0f} s",
            f"{f['wait-100000'].ours:.0f} ms",
        ),
        (
            "lateness at 1,000 due per second: p50 / p99",
            f"{f['lateness-p50'].stock:.1f} / {f['lateness-p99'].stock:.0f} ms",
            f"{f['lateness-p50'].ours:.1f} / {f['lateness-p99'].ours:.0f} ms",
        ),
        (
            "10,000 due at one instant (prefork `-c 2`): all done after",
            f"{f['burst'].stock:.1f} s",
            f"{f['burst'].ours:.1f} s",
        ),
        (
            "TERM with 20,000 far ETAs: the worker has ended after",
            f"{f['term-etas'].stock:.1f} s",
            f"{f['term-etas'].ours:.1f} s",
        ),
        (
            "Redis commands per second, idle worker: alone / one of a fleet of 100",
            f"{f['idle-1'].stock:.2f} / {NONE}",
            f"{f['idle-1'].ours:.2f} / {f['fleet-idle'].ours:.2f}",
        ),
        (
            "CPU of Redis for a delayed task, from publish to ack",
            NONE,
            f"{f['counting-delayed-cpu'].ours:.0f} µs",
        ),
        ("started before their time", f"{f['early'].stock:.0f}", f"{f['early'].ours:.0f}"),
        (
            "lateness of a retry after 0.5 s: p99",
            f"{f['retry-p99'].stock:.1f} ms",
            f"{f['retry-p99'].ours:.1f} ms",
        ),
        (
            "100,000 dead letters replayed / archived to SQLite, on a slower day "
            f"(`schedule_many`: {f.values['schedule-many@dead-letters']:,.0f}/s)",
            NONE,
            f"{f['dead-letters-replay'].ours:,.0f}/s / {f['dead-letters-archive'].ours:,.0f}/s",
        ),
        (
            "100,000 periodic entries, 1,000 due each second, two workers: "
            "share of ticks fired in time / lateness p99",
            f"{f['periodic-fired'].stock:.1f} % (`celery beat`)",
            f"{f['periodic-fired'].ours:.0f} % / {f['periodic-lateness'].ours:.0f} ms",
        ),
        (
            "memory of a periodic entry; takeover when a dispatcher dies",
            f"{f['periodic-memory'].stock:,.0f} B in beat; {NONE}",
            f"{f['periodic-memory'].ours:,.0f} B in Redis; "
            f"{f['periodic-takeover'].ours / 1000:.2f} s",
        ),
        (
            "Spark, `local[2]`, 500,000 rows into the queue, beside a plain pipelined loop / "
            "the same rows again",
            f"{f['spark-write'].stock:,.0f}/s",
            f"{f['spark-write'].ours:,.0f}/s / {f['spark-write-again'].ours:,.0f}/s",
        ),
        (
            "Spark reads the schedule, beside a loop over `delayq.list`",
            f"{f['spark-read'].stock:,.0f}/s",
            f"{f['spark-read'].ours:,.0f}/s",
        ),
    ]


if __name__ == "__main__":
    fill()
