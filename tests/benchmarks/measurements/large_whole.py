"""Operations on a whole schedule, with few entries and with millions."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from celery_delayq.admin.health import why_not_ready
from celery_delayq.testing import ManagedProcess, wait_until

from ..bench import Bench, new_server, percentile
from ..model import BenchError, Figure, at_most, measurement
from ..pauses import SLOW, seconds_of
from ..processes import APP, ROOT
from .large import Comparison, Filled, fill_up, large_row, of_size, sizes

WORKER = large_row("worker", "start of a worker", "s", None, 2)
FSCK = large_row("fsck", "fsck", "s", None)
COUNT = large_row("count", "count by task and time, p99", "ms", at_most(10, "ms"), 2)
HEALTH = large_row("health", "health --ready", "ms", None)
EXPORT = large_row("export", "export to a file", "s", None)
COMPAT = large_row("compat", "compat: could this code run all entries?", "s", None)
SEARCH = large_row("search", "search of all entries by an argument", "s", None)
PURGE = large_row("purge", "purge of the queue", "s", None, 2)
IMPORT = large_row("import", "import from a file", "s", None)
RESTART = large_row("restart", "restart of Redis with appendonly", "s", None, 2)
#: Seconds for Redis to write its log, and to read it.
TIMEOUT = 1800.0


def worker(filled: Filled) -> float:
    """Return the time of a worker's start, in seconds."""
    began = time.perf_counter()
    with filled.station.worker():
        return time.perf_counter() - began


def fsck(filled: Filled) -> float:
    """Return the time of ``fsck``, in seconds."""
    command = [sys.executable, "-m", *APP, "delayq", "fsck"]
    env = filled.station.settings.to_environment()

    def run() -> None:
        with ManagedProcess(command, env=env, cwd=ROOT) as process:
            if process.wait(3600):
                raise BenchError(f"fsck: {process.log[-500:]}")

    return seconds_of(run)


def export(filled: Filled) -> float:
    """Return the time of an export, in seconds."""
    return seconds_of(lambda: filled.delayq.export_to(_file(filled)))


def compat(filled: Filled) -> float:
    """Return the time of a check whether the code could run all entries, in seconds."""

    def check() -> None:
        report = filled.delayq.compat()
        if report.binds < filled.number:
            raise BenchError(f"{report.binds:,} of {filled.number:,} entries bind")

    return seconds_of(check)


def search(filled: Filled) -> float:
    """Return the time of a search by argument that reads all entries, in seconds."""

    def find() -> None:
        if found := filled.delayq.count(arg={"0": "no such value"}):
            raise BenchError(f"{found:,} entries were found by an argument that none has")

    return seconds_of(find)


def purge(filled: Filled) -> float:
    """Return the time of a purge of the queue, in seconds."""
    took = seconds_of(filled.delayq.app.control.purge)
    if left := filled.delayq.count():
        raise BenchError(f"{left:,} entries are left after the purge")
    return took


def import_from(filled: Filled) -> float:
    """Return the time of an import of the export, in seconds."""
    took = seconds_of(lambda: filled.delayq.import_from(_file(filled)))
    _file(filled).unlink()
    if (number := filled.delayq.count()) != filled.number:
        raise BenchError(f"{number:,} of {filled.number:,} entries were imported")
    return took


def _file(filled: Filled) -> Path:
    return filled.station.records.path.with_suffix(".jsonl")


def count(filled: Filled) -> float:
    """Return the time of counts of a task, p99, in ms."""
    return percentile(filled.counts(), 99)


def health(filled: Filled) -> float:
    """Return the time of a readiness probe, in ms."""

    def probe() -> None:
        if why := why_not_ready(filled.delayq.app):
            raise BenchError(f"Redis is not ready: {why}")

    return statistics.median(seconds_of(probe) * 1000 for _ in range(9))


def restarted(bench: Bench) -> float:
    """Let the server log all its data; return the seconds of its next start."""
    with bench.server.client() as client:
        client.config_set("appendonly", "yes")

        def is_written() -> bool:
            about = client.info("persistence")
            return not (about["aof_rewrite_in_progress"] or about["aof_rewrite_scheduled"])

        wait_until(is_written, TIMEOUT, "the log of Redis")
    bench.server.stop(TIMEOUT)
    folder = bench.server.data_dir
    server = new_server(appendonly=True, data_dir=folder, timeout=TIMEOUT)
    try:
        began = time.perf_counter()
        server.start()
        return time.perf_counter() - began
    finally:
        server.close()
        shutil.rmtree(folder / "appendonlydir", ignore_errors=True)
        bench.server.start()


#: In this order: the purge removes all entries, and the import restores them.
PASSING = {
    **{COUNT: count, HEALTH: health, EXPORT: export, COMPAT: compat},
    **{SEARCH: search, PURGE: purge, IMPORT: import_from},
}


@measurement("large-file", order=91)
def large_file(bench: Bench) -> Iterator[Figure]:
    """Count to import beside few entries and beside millions."""
    with sizes(bench) as filled:
        for few, many in filled:
            comparison = Comparison(bench, few, many)
            figures = []
            for row, measure in PASSING.items():
                figure = comparison.figure(row, measure)
                if row is EXPORT:
                    most = 2 * figure.ours
                elif row in (COMPAT, SEARCH):
                    figure = figure.with_target(most, f"≤ 2 times export ({most:.1f} s)")
                figures += [figure, comparison.longest(row)]
            name = SLOW.name.replace("slow", "file-slow")
            figures.extend(comparison.slow(name, "entries: count to import"))
            for figure in figures:
                last = many.number == bench.size.large[-1]
                yield figure if last else of_size(figure, many.number)


@measurement("large-whole", order=92)
def large_whole(bench: Bench) -> Iterator[Figure]:
    """Starts and fsck beside few entries and beside millions, and the restart of Redis."""
    first, *_, last = bench.size.large
    with sizes(bench) as filled:
        for few, many in filled:
            comparison = Comparison(bench, few, many)
            figures = [
                comparison.figure(WORKER, worker, 3),
                comparison.figure(FSCK, fsck),
                *comparison.slow(SLOW.name.replace("slow", "whole-slow"), "entries: start, fsck"),
            ]
            for figure in figures:
                yield figure if many.number == last else of_size(figure, many.number)
        bench.note("restart")
        long = restarted(bench)
        # The server is empty now.
        few.number = 0
        fill_up(bench, few, first)
        yield RESTART.titled(first, last).figure([restarted(bench)], [long])
