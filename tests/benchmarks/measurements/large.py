"""Cost of operations for Redis, with few entries and with millions.

Stock has no such operations, so the two columns are the two sizes. The rows compare CPU of Redis: a
call that waits for a core shows nothing about the size.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import chain
from operator import methodcaller
from typing import Any

from celery_delayq import DelayQ, Filter
from celery_delayq.admin.lateness import MAX_RUNS, lateness
from celery_delayq.admin.load_ahead import load_ahead
from celery_delayq.cli.commands.plot import lines_of
from celery_delayq.cli.lines import Paper
from celery_delayq.cli.top.drawing import Status, draw
from celery_delayq.cli.top.frame import Request, read
from celery_delayq.cli.top.state import State
from celery_delayq.schedule.items import Item
from celery_delayq.store.keys import QueueKeys
from celery_delayq.testing import ManagedProcess, wait_until
from celery_delayq.web.pages.overview import STEPS
from celery_delayq.web.site import Site
from tests.support.runs import finished

from ..bench import OURS, Bench, Station, now_ms, percentile
from ..filling import fill, id_of, remind, some_day
from ..model import BenchError, Better, Figure, Row, Target, at_most, measurement
from ..pauses import SLOW, Pauses, longest_row, seconds_of
from ..processes import APP, ROOT

#: Measured calls of one entry, and entries of each operation on many.
CALLS, SOME = 2_000, 5_000
ROUNDS = 5
#: Entries that `schedule_many` sends in one call, and calls that it sends together.
PORTION, PORTIONS = 50, 10

#: Where looks are drawn.
PAPER = Paper(120)

TASK, PAUSED_TASK = "shop.tasks.send_reminder", "shop.tasks.paused"


def _steady(ratio: float = 1.25) -> Target:
    return Target(f"ratio ≤ {ratio:g}", lambda f: f.ratio is not None and f.ratio <= ratio)


def large_row(name: str, title: str, unit: str, target: Target | None, digits: int = 1) -> Row:
    """Return a row about two sizes."""
    return Row(f"large-{name}", f"{title} ({{:,}} and {{:,}})", unit, Better.LOWER, target, digits)


COSTS = {
    "publish": large_row("publish", "publish, CPU of Redis", "µs/entry", _steady()),
    "many": large_row("many", "schedule_many, CPU of Redis", "µs/entry", _steady()),
    "promote": large_row("promote", "promote, CPU of Redis", "µs/entry", _steady()),
    "get": large_row("get", "get, CPU of Redis", "µs/entry", _steady()),
    "reschedule": large_row("reschedule", "reschedule, CPU of Redis", "µs/entry", _steady()),
    "update": large_row("update", "update, CPU of Redis", "µs/entry", _steady()),
    "cancel": large_row("cancel", "cancel, CPU of Redis", "µs/entry", _steady()),
    "reschedule_all": large_row("reschedule-all", "reschedule_all, CPU of Redis", "µs/entry", None),
    "run_all_now": large_row("run-all-now", "run_all_now, CPU of Redis", "µs/entry", None),
    "cancel_all": large_row("cancel-all", "cancel_all, CPU of Redis", "µs/entry", None),
    "pause": large_row("pause", "due in a pause, then resumed, CPU of Redis", "µs/entry", None),
    "entries": large_row("entries", "entries(), CPU of Redis", "µs/entry", None),
}
RAW = large_row(
    "raw",
    "raw HSETNX and ZADD of the same bytes to the same keys, CPU of Redis",
    "µs/entry",
    None,
)
OWN = large_row("many-own", "schedule_many less the raw commands, CPU of Redis", "µs/entry", None)
PAGE = large_row("page", "a page of 100 anywhere, p99", "ms", at_most(10, "ms"), 2)
STATS = large_row("stats", "stats", "ms", None)
LOOKS = {
    "top": large_row("top", "a frame of top, CPU of its process", "ms", at_most(200, "ms")),
    "plot": large_row("plot", "plot by task, CPU of its process", "ms", at_most(200, "ms")),
}
MEMORY = large_row("memory", "memory per entry", "bytes", _steady(1.02), 0)


def _cpu(client: Any) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


@dataclass
class Filled:
    """A database with very many entries, and operations on it."""

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
        """Run one operation; return the CPU of Redis for each entry, in µs."""
        operation: Callable[[], int] = getattr(self, f"_{name}")
        before = _cpu(self.client)
        number = operation()
        if not number:
            raise BenchError(f"{name} did nothing")
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

    def raw_cost(self) -> float:
        """CPU of Redis for storing the same data by plain commands, for each entry, in µs.

        The data go to the same keys in the same portions, and are removed again.
        """
        key, client = self.delayq.store.keys.queue("celery"), self.client
        record = client.hget(key.entries, self.ids[0])
        portions = [_raw_portion(key, record) for _ in range(SOME // PORTION)]
        before = _cpu(client)
        for start in range(0, len(portions), PORTIONS):
            pipeline = client.pipeline(transaction=False)
            for command in chain.from_iterable(portions[start : start + PORTIONS]):
                pipeline.execute_command(*command)
            pipeline.execute()
        cost = (_cpu(client) - before) / SOME * 1e6
        for *stored, dues, members in portions:
            client.hdel(key.entries, *(command[2] for command in stored))
            client.zrem(key.due, *dues[3::2])
            client.zrem(key.tasks, *members[3::2])
        return cost

    def _get(self) -> int:
        return sum(self.delayq.get(id) is not None for id in self.ids[:CALLS])

    def _reschedule(self) -> int:
        return sum(
            bool(self.delayq.reschedule(id, countdown=some_day())) for id in self.ids[:CALLS]
        )

    def _update(self) -> int:
        return sum(
            bool(self.delayq.update(id, args=[n, "y" * 200]))
            for n, id in enumerate(self.ids[:CALLS])
        )

    def _cancel(self) -> int:
        return sum(bool(self.delayq.cancel(id)) for id in self._next_ids())

    def _some(self) -> Filter:
        """About SOME entries with neighbouring dues, at a random place."""
        due = self.delayq.store.keys.queue("celery").due
        first = random.randrange(max(1, self.delayq.count() - SOME))
        ends = (self.client.zrange(due, n, n, withscores=True) for n in (first, first + SOME - 1))
        begin, end = (datetime.fromtimestamp(score / 1000, timezone.utc) for [(_, score)] in ends)
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
        """The time of pages in random places, in ms."""
        times = []
        for _ in range(CALLS // 10):
            due_from = _at(some_day())
            began = time.perf_counter()
            self.delayq.list(due_from=due_from)
            times.append((time.perf_counter() - began) * 1000)
        return times

    def counts(self) -> list[float]:
        """The time of a count of a task from random times on, in ms."""
        froms = [_at(some_day()) for _ in range(CALLS // 10)]
        return [seconds_of(partial(self.delayq.count, task=TASK, due_from=f)) * 1000 for f in froms]

    def stats(self) -> float:
        """The time of ``stats``, in ms."""
        return statistics.median(seconds_of(self.delayq.stats) * 1000 for _ in range(5))

    def look(self, name: str) -> float:
        """The CPU that this process needs for a look, in ms. It waits for Redis besides."""
        operation: Callable[[], int] = getattr(self, f"_{name}")
        self._fill_history()
        began = time.process_time()
        if not operation():
            raise BenchError(f"{name} shows nothing")
        return (time.process_time() - began) * 1000

    def _fill_history(self) -> None:
        """Have as many runs as a look reads at most."""
        store, now = self.delayq.store, now_ms()
        missing = MAX_RUNS - store.history.count()
        for start in range(0, missing, PORTION):
            runs = [
                finished(id_of(n), now - n, due=now - n - 70, started=now - n - 5)
                for n in range(start, start + PORTION)
            ]
            store.history.add("bench", start + 1, MAX_RUNS, runs)

    def _top(self) -> int:
        state = State()
        with closing(Site(self.delayq.app)) as site:
            frame = read(site, Request.of(state))
        return len(draw(state, frame, Status("redis"), PAPER).lines)

    def _plot(self) -> int:
        session, step = self.delayq.session, STEPS["hour"]
        load, late = load_ahead(session, *step, "task"), lateness(session, *step, "task")
        return len([*lines_of(load, late, "hour", "task", PAPER)])


def _raw_portion(key: QueueKeys, record: str) -> list[tuple[Any, ...]]:
    """Return the commands that store a portion of entries, as the script does."""
    stored: list[tuple[Any, ...]] = []
    dues: list[Any] = []
    members: list[Any] = []
    for _ in range(PORTION):
        name, due = str(uuid.uuid4()), f"{now_ms() + some_day() * 1000:015.0f}"
        stored.append(("HSETNX", key.entries, name, record))
        dues += due, name
        members += "0", f"{TASK}\0{due}\0{name}"
    return [*stored, ("ZADD", key.due, *dues), ("ZADD", key.tasks, *members)]


def _at(countdown: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=countdown)


@contextmanager
def _station(bench: Bench) -> Iterator[Filled]:
    with bench.station(OURS) as station, station.delayq() as delayq:
        for name in (TASK, PAUSED_TASK):
            delayq.app.task(name=name)(remind)
        yield Filled(station, delayq, [], 0)


def fill_up(bench: Bench, filled: Filled, number: int) -> None:
    """Add entries up to a number, and keep some new ids for single calls."""
    if number <= filled.number:
        return
    bench.note(f"{number:,} entries")
    before = filled.client.info("memory")["used_memory"]
    fill(filled.station.settings, TASK, range(filled.number, number), bench.folder)
    used = filled.client.info("memory")["used_memory"] - before
    filled.bytes_each = used / (number - filled.number)
    some = random.sample(range(filled.number, number), min(number - filled.number, 10 * CALLS))
    filled.ids, filled.number = [*map(id_of, some)], number


class Comparison:
    """Measures the same with few and with many entries, in turns.

    Parameters
    ----------
    bench : Bench
        Shows the current step.
    few, many : Filled
        The two schedules.
    """

    def __init__(self, bench: Bench, few: Filled, many: Filled) -> None:
        self._bench, self._both, self._pauses = bench, (few, many), Pauses(few.client)
        self._longest: dict[Row, list[list[float]]] = {}

    def titled(self, row: Row) -> Row:
        """Return a row with both sizes in its title."""
        return row.titled(*(filled.number for filled in self._both))

    def figure(self, row: Row, measure: Callable[[Filled], float], rounds: int = 1) -> Figure:
        """Return the measured figure."""
        seen: list[list[float]] = [[], []]
        longest = self._longest[row] = [[], []]
        for turn in range(rounds):
            for place in (0, 1) if turn % 2 else (1, 0):
                filled = self._both[place]
                self._bench.note(f"{row.name}: round {turn + 1} of {rounds}, {filled.number:,}")
                seen[place].append(self._pauses.measured(partial(measure, filled)))
                longest[place].append(self._pauses.longest)
        return self.titled(row).figure(seen[0], seen[1])

    def longest(self, row: Row) -> Figure:
        """Return the longest script calls of a measured row, the longest first."""
        few, many = self._longest[row]
        return self.titled(longest_row(row)).figure([max(few)], [max(many)])

    def slow(self, name: str, what: str = "entries") -> Iterator[Figure]:
        """Yield the rows of the slow calls so far, and of the longest call."""
        return self._pauses.figures(name, f"{self._both[1].number:,} {what}")


def _compared(bench: Bench, few: Filled, many: Filled) -> Iterator[Figure]:
    """Yield the figures of operations with few and with many entries."""
    comparison = Comparison(bench, few, many)
    for name, row in COSTS.items():
        cost = comparison.figure(row, methodcaller("cost", name), ROUNDS)
        yield cost
        if name == "pause":
            yield comparison.longest(row)
        if name == "many":
            raw = comparison.figure(RAW, Filled.raw_cost, ROUNDS)
            yield raw
            own = [cost.stock - raw.stock], [cost.ours - raw.ours]
            yield comparison.titled(OWN).figure(*own)
    yield comparison.figure(PAGE, lambda f: percentile(f.pages(), 99), ROUNDS)
    yield comparison.figure(STATS, Filled.stats, ROUNDS)
    for name, row in LOOKS.items():
        yield comparison.figure(row, methodcaller("look", name), ROUNDS)
    yield comparison.titled(MEMORY).figure([few.bytes_each], [many.bytes_each])
    yield from comparison.slow(SLOW.name)


def of_size(figure: Figure, size: int) -> Figure:
    """Return a figure of another size than the last one, with its own name."""
    name = figure.row.name.replace("large-", f"large-{size}-", 1)
    return replace(figure, row=replace(figure.row, name=name))


@contextmanager
def sizes(bench: Bench) -> Iterator[Iterator[tuple[Filled, Filled]]]:
    """Yield few and many entries, for each number of many; few are filled again each time."""
    first, *others = bench.size.large

    def filled() -> Iterator[tuple[Filled, Filled]]:
        for size in others:
            few.client.flushdb()
            few.number = 0
            fill_up(bench, few, first)
            fill_up(bench, many, size)
            yield few, many

    with _station(bench) as few, _station(bench) as many:
        yield filled()


@measurement("large", order=91)
def large(bench: Bench) -> Iterator[Figure]:
    """What operations cost Redis, beside few entries and beside millions."""
    with sizes(bench) as filled:
        for few, many in filled:
            for figure in _compared(bench, few, many):
                last = many.number == bench.size.large[-1]
                yield figure if last else of_size(figure, many.number)
