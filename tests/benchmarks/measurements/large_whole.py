"""What goes over a whole schedule, beside few entries and beside millions of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import ManagedProcess, wait_until

from ..bench import Bench
from ..model import BenchError, Figure, measurement
from ..pauses import SLOW, seconds_of
from ..processes import APP, ROOT
from .large import Comparison, Filled, fill_up, large_row, of_size, sizes

WORKER = large_row("worker", "start of a worker", "s", None, 2)
FSCK = large_row("fsck", "fsck", "s", None)
EXPORT = large_row("export", "export to a file", "s", None)
RESTART = large_row("restart", "restart of Redis with appendonly", "s", None, 2)
#: Seconds for Redis to write its log, and to read it.
TIMEOUT = 1800.0


def worker(filled: Filled) -> float:
    """Return how long a worker takes to start, in seconds."""
    began = time.perf_counter()
    with filled.station.worker():
        return time.perf_counter() - began


def fsck(filled: Filled) -> float:
    """Return how long ``fsck`` takes, in seconds."""
    command = [sys.executable, "-m", *APP, "delayq", "fsck"]
    env = filled.station.settings.to_environment()

    def run() -> None:
        with ManagedProcess(command, env=env, cwd=ROOT) as process:
            if process.wait(3600):
                raise BenchError(f"fsck: {process.log[-500:]}")

    return seconds_of(run)


def export(filled: Filled) -> float:
    """Return how long an export takes, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        return seconds_of(lambda: filled.delayq.export_to(Path(folder) / "schedule.jsonl"))


def restarted(bench: Bench) -> float:
    """Let the server log all that it has, and return how many seconds it takes to start again."""
    with bench.server.client() as client:
        client.config_set("appendonly", "yes")

        def is_written() -> bool:
            about = client.info("persistence")
            return not (about["aof_rewrite_in_progress"] or about["aof_rewrite_scheduled"])

        wait_until(is_written, TIMEOUT, "the log of Redis")
    bench.server.stop(TIMEOUT)
    folder, program = bench.server.data_dir, bench.server.executable
    server = EmbeddedRedis(executable=program, data_dir=folder, timeout=TIMEOUT)
    try:
        began = time.perf_counter()
        server.start()
        return time.perf_counter() - began
    finally:
        server.close()
        shutil.rmtree(folder / "appendonlydir", ignore_errors=True)
        bench.server.start()


@measurement("large-whole", order=92)
def large_whole(bench: Bench) -> Iterator[Figure]:
    """Starts, fsck and export beside few entries and beside millions: half an hour."""
    first, *_, last = bench.size.large
    with sizes(bench) as filled:
        for few, many in filled:
            comparison = Comparison(bench, few, many)
            figures = [
                comparison.figure(WORKER, worker, 3),
                comparison.figure(FSCK, fsck),
                comparison.figure(EXPORT, export),
                comparison.slow(SLOW.name.replace("slow", "whole-slow")),
            ]
            for figure in figures:
                yield figure if many.number == last else of_size(figure, many.number)
        bench.note("restart")
        long = restarted(bench)
        # The server is empty now.
        few.number = 0
        fill_up(bench, few, first)
        yield RESTART.titled(first, last).figure([restarted(bench)], [long])
