"""What operations cost Redis, beside few entries and beside millions.

There is nothing on stock to compare with, so the two columns are two sizes. CPU of Redis is
compared, since a call that waits for a core says nothing about the size.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from celery_delayq import DelayQ, Filter
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.schedule.items import Item
from celery_delayq.testing import ManagedProcess, wait_until

from ..bench import OURS, Bench, Station, percentile
from ..filling import DAY, fill, id_of, remind, some_day
from ..model import BenchError, Better, Figure, Row, Target, at_most, measurement
from ..pauses import SLOW, Pauses, seconds_of
from ..processes import APP, ROOT

#: Calls of one entry that are measured, and entries of each operation on many.
CALLS, SOME = 2_000, 5_000
ROUNDS = 3

TASK, PAUSED_TASK = "shop.tasks.send_reminder", "shop.tasks.paused"


def _steady(ratio: float = 1.25) -> Target:
    return Target(f"ratio ≤ {ratio:g}", lambda f: f.ratio is not None and f.ratio <= ratio)


def _row(name: str, title: str, unit: str, target: Target | None, digits: int = 1) -> Row:
    return Row(f"large-{name}", f"{title} ({{:,}} and {{:,}})", unit, Better.LOWER, target, digits)


COSTS = {
    "publish": _row("publish", "publish, CPU of Redis", "µs/entry", _steady()),
    "many": _row("many", "schedule_many, CPU of Redis", "µs/entry", _steady()),
    "promote": _row("promote", "promote, CPU of Redis", "µs/entry", _steady()),
    "get": _row("get", "get, CPU of Redis", "µs/entry", _steady()),
    "reschedule": _row("reschedule", "reschedule, CPU of Redis", "µs/entry", _steady()),
    "cancel": _row("cancel", "cancel, CPU of Redis", "µs/entry", _steady()),
    "reschedule_all": _row("reschedule-all", "reschedule_all, CPU of Redis", "µs/entry", None),
    "run_all_now": _row("run-all-now", "run_all_now, CPU of Redis", "µs/entry", None),
    "cancel_all": _row("cancel-all", "cancel_all, CPU of Redis", "µs/entry", None),
    "pause": _row("pause", "due in a pause, then resumed, CPU of Redis", "µs/entry", None),
    "entries": _row("entries", "entries(), CPU of Redis", "µs/entry", None),
}
PAGE = _row("page", "a page of 100 anywhere, p99", "ms", at_most(10, "ms"), 2)
STATS = _row("stats", "stats", "ms", None)
WORKER = _row("worker", "start of a worker", "s", None, 2)
FSCK = _row("fsck", "fsck", "s", None)
EXPORT = _row("export", "export to a file", "s", None)
RESTART = _row("restart", "restart of Redis with appendonly", "s", None, 2)
MEMORY = _row("memory", "memory per entry", "bytes", _steady(1.02), 0)
#: Seconds for Redis to write its log, and to read it.
TIMEOUT = 1800.0


def _cpu(client: Any) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


@dataclass
class Filled:
    """A database with very many entries, and what is done with it."""

    station: Station
    delayq: DelayQ
    ids: list[str]
    number: int
    bytes_each: float = 0.0

    @property
    def client(self) -> Any:
        """Its Redis."""
        return self.station.client

    def cost(self, name: str) -> float:
        """Run one operation, return the CPU of Redis for each entry, in µs."""
        operation: Callable[[], int] = getattr(self, f"_{name}")
        before = _cpu(self.client)
        number = operation()
        cost = (_cpu(self.client) - before) / number * 1e6
        if missing := max(0, self.number - self.delayq.count()):
            self._schedule(missing, TASK)
        return cost

    def _next_ids(self, number: int = CALLS) -> list[str]:
        taken, self.ids = self.ids[:number], self.ids[number:]
        return taken

    def _publish(self) -> int:
        task = self.delayq.app.tasks[TASK]
        for n in range(CALLS):
            task.apply_async((n, "x" * 200), countdown=some_day())
        return CALLS

    def _many(self) -> int:
        return self._schedule(SOME, TASK)

    def _schedule(self, number: int, task: str, countdown: float | None = None) -> int:
        self.delayq.schedule_many(
            (Item(args=(n, "x" * 200), countdown=countdown or some_day()) for n in range(number)),
            task=task,
        )
        return number

    def _get(self) -> int:
        return sum(self.delayq.get(id) is not None for id in self.ids[:CALLS])

    def _reschedule(self) -> int:
        return sum(
            bool(self.delayq.reschedule(id, countdown=some_day())) for id in self.ids[:CALLS]
        )

    def _cancel(self) -> int:
        return sum(bool(self.delayq.cancel(id)) for id in self._next_ids())

    def _some(self) -> Filter:
        """About so many entries, one span of the days over which they are spread."""
        share = SOME / self.delayq.count()
        first = random.random() * max(0, 1 - share)
        begin, end = (_at(DAY * (1 + place)) for place in (first, first + share))
        return Filter(task=TASK, due_from=begin, due_to=end)

    def _reschedule_all(self) -> int:
        return self.delayq.reschedule_all(self._some(), by=1).done

    def _run_all_now(self) -> int:
        done = self.delayq.run_all_now(self._some()).done
        self.client.unlink("celery")
        return done

    def _cancel_all(self) -> int:
        return self.delayq.cancel_all(self._some()).done

    def _entries(self) -> int:
        return sum(1 for _ in zip(range(SOME * 4), self.delayq.entries(page=500), strict=False))

    def _promote(self) -> int:
        self._schedule(SOME, TASK, 2.0)
        with self._dispatcher():
            wait_until(lambda: self.client.llen("celery") == SOME, 60, "promoted")
        self.client.unlink("celery")
        return SOME

    def _pause(self) -> int:
        self._schedule(SOME, PAUSED_TASK, 2.0)
        self.delayq.pause(task=PAUSED_TASK)
        with self._dispatcher():
            wait_until(lambda: self.delayq.stats().paused == SOME, 60, "paused")
            self.delayq.resume(task=PAUSED_TASK)
            wait_until(lambda: self.client.llen("celery") == SOME, 60, "promoted")
        self.client.unlink("celery")
        return SOME

    @contextmanager
    def _dispatcher(self) -> Iterator[None]:
        command = [sys.executable, "-m", *APP, "delayq", "dispatch"]
        env = self.station.settings.to_environment()
        with ManagedProcess(command, env=env, cwd=ROOT):
            yield

    def pages(self) -> list[float]:
        """How long pages in random places take, in ms."""
        times = []
        for _ in range(CALLS // 10):
            due_from = _at(some_day())
            began = time.perf_counter()
            self.delayq.list(due_from=due_from)
            times.append((time.perf_counter() - began) * 1000)
        return times

    def stats(self) -> float:
        """How long ``stats`` takes, in ms."""
        return statistics.median(seconds_of(self.delayq.stats) * 1000 for _ in range(5))

    def worker(self) -> float:
        """How long a worker takes to start, in seconds."""
        began = time.perf_counter()
        with self.station.worker():
            return time.perf_counter() - began

    def fsck(self) -> float:
        """How long ``fsck`` takes, in seconds."""
        command = [sys.executable, "-m", *APP, "delayq", "fsck"]
        env = self.station.settings.to_environment()

        def run() -> None:
            with ManagedProcess(command, env=env, cwd=ROOT) as process:
                if process.wait(3600):
                    raise BenchError(f"fsck: {process.log[-500:]}")

        return seconds_of(run)

    def export(self) -> float:
        """How long an export takes, in seconds."""
        with tempfile.TemporaryDirectory() as folder:
            return seconds_of(lambda: self.delayq.export_to(Path(folder) / "schedule.jsonl"))


def _at(countdown: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=countdown)


@contextmanager
def _filled(bench: Bench, number: int) -> Iterator[Filled]:
    with bench.station(OURS) as station, station.delayq() as delayq:
        for name in (TASK, PAUSED_TASK):
            delayq.app.task(name=name)(remind)
        filled = Filled(station, delayq, [], 0)
        _fill(bench, filled, number)
        yield filled


def _fill(bench: Bench, filled: Filled, number: int) -> None:
    """Add entries up to a number, and take some ids of the new ones for single calls."""
    if number <= filled.number:
        return
    bench.note(f"{number:,} entries")
    before = filled.client.info("memory")["used_memory"]
    fill(filled.station.settings, TASK, range(filled.number, number), bench.folder)
    used = filled.client.info("memory")["used_memory"] - before
    filled.bytes_each = used / (number - filled.number)
    some = random.sample(range(filled.number, number), min(number - filled.number, 10 * CALLS))
    filled.ids, filled.number = [*map(id_of, some)], number


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


def _compared(bench: Bench, few: Filled, many: Filled) -> Iterator[Figure]:
    """Yield the figures of operations beside few and beside many entries."""
    pauses = Pauses(few.client)

    def figure(row: Row, measure: Callable[[Filled], float], rounds: int = 1) -> Figure:
        seen: list[list[float]] = [[], []]
        for turn in range(rounds):
            for place in (0, 1) if turn % 2 else (1, 0):
                filled = (few, many)[place]
                bench.note(f"{row.name}: round {turn + 1} of {rounds}, {filled.number:,}")
                seen[place].append(pauses.measured(partial(measure, filled)))
        return row.titled(few.number, many.number).figure(seen[0], seen[1])

    for name, row in COSTS.items():
        yield figure(row, methodcaller("cost", name), ROUNDS)
    yield figure(PAGE, lambda f: percentile(f.pages(), 99), ROUNDS)
    yield figure(STATS, Filled.stats, ROUNDS)
    yield figure(WORKER, Filled.worker, ROUNDS)
    yield figure(FSCK, Filled.fsck)
    yield figure(EXPORT, Filled.export)
    yield MEMORY.titled(few.number, many.number).figure([few.bytes_each], [many.bytes_each])
    yield pauses.figure(SLOW.name, many.number)


def _of_size(figure: Figure, size: int) -> Figure:
    """Return a figure of another size than the last one, with a name of its own."""
    name = figure.row.name.replace("large-", f"large-{size}-", 1)
    return replace(figure, row=replace(figure.row, name=name))


@measurement("large", order=91)
def large(bench: Bench) -> Iterator[Figure]:
    """What operations cost Redis, beside few entries and beside millions."""
    first, *between, last = bench.size.large
    with _filled(bench, first) as few, _filled(bench, between[0] if between else last) as many:
        for size in between:
            _fill(bench, many, size)
            for figure in _compared(bench, few, many):
                yield _of_size(figure, size)
            few.client.flushdb()
            few.number = 0
            _fill(bench, few, first)
        _fill(bench, many, last)
        yield from _compared(bench, few, many)
        bench.note("restart")
        long = restarted(bench)
        # The server is empty now.
        few.number = 0
        _fill(bench, few, first)
        yield RESTART.titled(first, last).figure([restarted(bench)], [long])
