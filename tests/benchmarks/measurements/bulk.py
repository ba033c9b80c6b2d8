"""Rates of calls that change all entries of a schedule, of an import, and of a purge.

Stock has no such calls, so the two columns are the two sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from celery_delayq import DeadFilter, DelayQ, Filter
from celery_delayq.schedule.items import Item

from ..bench import OURS, Bench
from ..filling import remind, some_day
from ..model import BenchError, Better, Figure, Row, Target, measurement
from ..pauses import SLOW, Pauses, seconds_of
from .dead_letters import fill as fill_dead_letters

ROUNDS = 3

TASK = "shop.tasks.send_reminder"

#: Makes a change of a number of entries; returns how many it has changed.
Change = Callable[[DelayQ], int]


def _row(name: str, title: str, at_least: float | None) -> Row:
    target = at_least and Target(f"≥ {at_least:,.0f}/s", lambda f: f.ours >= (at_least or 0))
    return Row(f"bulk-{name}", title + " ({:,} | {:,})", "per s", Better.HIGHER, target or None)


CANCEL = _row("cancel", "cancel_all, with an event for each", 12_000)
RESULTS = _row("cancel-results", "cancel_all, with an event and a result for each", 8_000)
RESCHEDULE = _row("reschedule", "reschedule_all", None)
RUN_NOW = _row("run-now", "run_all_now", None)
IMPORT = _row("import", "import from a file", 15_000)
PURGE = _row("purge", "purge of all dead letters", 30_000)


def _schedule(delayq: DelayQ, number: int) -> None:
    delayq.app.task(name=TASK)(remind)
    items = (Item(args=(n, "x" * 200), countdown=some_day()) for n in range(number))
    delayq.schedule_many(items, task=TASK)


def _exported(delayq: DelayQ, client: Any, number: int, file: Path) -> None:
    _schedule(delayq, number)
    delayq.export_to(file)
    client.flushdb()


#: The changes of scheduled entries.
CHANGES: dict[Row, Change] = {
    CANCEL: lambda delayq: delayq.cancel_all(Filter(), everything=True).done,
    RESULTS: lambda delayq: delayq.cancel_all(Filter(), everything=True).done,
    RESCHEDULE: lambda delayq: delayq.reschedule_all(Filter(), by=5, everything=True).done,
    RUN_NOW: lambda delayq: delayq.run_all_now(Filter(), everything=True).done,
}


@measurement("bulk", order=96)
def bulk(bench: Bench) -> Iterator[Figure]:
    """cancel_all, reschedule_all, run_all_now, an import, and a purge of dead letters."""
    sizes = bench.size.bulk
    with bench.server.client() as client:
        pauses = Pauses(client)
    file = bench.folder / "bulk.jsonl"

    def rates(row: Row, prepare: Callable[..., object], change: Change) -> Figure:
        def measure(number: int) -> float:
            with bench.station(OURS) as station, station.delayq() as delayq:
                if row is RESULTS:
                    delayq.app.conf.task_ignore_result = False
                    delayq.app.conf.result_backend = bench.server.url_for("redis", station.database)
                prepare(delayq, station.client, number)
                done: list[int] = []
                seconds = pauses.measured(lambda: seconds_of(lambda: done.append(change(delayq))))
                if done != [number]:
                    raise BenchError(f"{done[0]:,} of {number:,} were changed")
                return number / seconds

        seen = bench.in_turns(row.name, ROUNDS, sizes, measure)
        return row.titled(*sizes).figure(seen[0], seen[1])

    for row, change in CHANGES.items():
        yield rates(row, lambda delayq, _, number: _schedule(delayq, number), change)
    yield rates(
        IMPORT,
        lambda delayq, client, number: _exported(delayq, client, number, file),
        lambda delayq: delayq.import_from(file).outcomes["scheduled"],
    )
    yield rates(
        PURGE,
        fill_dead_letters,
        lambda delayq: delayq.purge_all(DeadFilter(), everything=True).done,
    )
    yield from pauses.figures(SLOW.name.replace("large-slow", "bulk-slow"), "bulk changes")
