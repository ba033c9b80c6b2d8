"""Limits: what they cost where they never hold, and how exact a rate and a concurrency are.

The rate that holds is a quarter of the rate without a limit, which is measured first. What Redis
has handed out is counted by samples of its keys, each one transaction, so a window between two
samples is exact.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery_delayq import Item, Limit
from tests.support import older_version
from tests.support.permits import most_above

from ..app import LANE_LIMIT, LANE_TASK
from ..bench import OURS, STOCK, Bench, Side, Station, percentile
from ..model import (
    BenchError,
    Better,
    Figure,
    Row,
    Target,
    at_most,
    measurement,
    ratio_at_least,
    ratio_at_most,
)
from ..pauses import SLOW, Pauses
from ..processes import ROOT, Pool, Worker
from ..publisher import Order
from .immediate import SLOWEST, Drained
from .redis_cpu import used

#: A limit that never holds.
NEVER = {"concurrency": 1_000_000}
ONE_AT_ONCE = {"concurrency": 1}
#: One less than two workers run.
THREE_AT_ONCE = {"concurrency": 3}

#: Share of the rate without a limit, and seconds of the rate in a burst.
SHARE, BURST_SECONDS = 0.25, 0.1
#: Tasks a second of a slow rate, and seconds of its run.
SLOW_RATE, SLOW_SECONDS = 5.0, 20
#: Seconds between two samples, and seconds that a run may take beside twice those of its rate.
SAMPLE, PATIENCE = 0.01, 60.0
#: Stock starts fewer tasks than its rate allows: one of so many is enough to measure that.
STOCK_PART = 10
#: Seconds until the worker has tried the first task of each lane.
LANES_PATIENCE = 600.0

HELD = "tasks held by a rate of a quarter"
USED = Row(
    "limits-rate-used",
    f"{{:,}} {HELD}: started of those allowed (stock: its rate_limit)",
    "%",
    Better.HIGHER,
    Target("≥ 97 %", lambda figure: figure.ours >= 97),
    digits=1,
)
#: With a burst of 1, the default of ``Limit``. Each wait ends a little late: that costs high rates
#: much.
ONES = (
    Row(
        "limits-rate-used-1",
        "{:,} tasks held by {:g}/s, burst 1: started of those allowed (stock: its rate_limit)",
        "%",
        Better.HIGHER,
        Target("≥ 97 %", lambda figure: figure.ours >= 97),
        digits=1,
    ),
    Row(
        "limits-rate-used-1-fast",
        f"{{:,}} {HELD} ({{:,.0f}}/s), burst 1: started of those allowed",
        "%",
        Better.HIGHER,
        digits=1,
    ),
)
CALLS = Row(
    "limits-rate-calls",
    f"{{:,}} {HELD}: calls of scripts (stock: none)",
    "per task",
    Better.LOWER,
    at_most(3),
    digits=2,
)
LANES = Row(
    "limits-lanes",
    f"{{:,}} {HELD}: alone, and beside {{:,}} blocked lanes",
    "tasks/s",
    Better.HIGHER,
    ratio_at_least(0.75),
)
PERMIT = Row(
    "limits-permit-p99",
    "start to next start without a limit; end to next start with concurrency 1: p99",
    "ms",
    Better.LOWER,
    at_most(50, "ms"),
    digits=1,
)
PERMITS = Row(
    "limits-permits-p99",
    "two workers, start to next start without a limit; end to next start with concurrency 3: p99",
    "ms",
    Better.LOWER,
    at_most(100, "ms"),
    digits=1,
)
SLOW_ONE, SLOW_LANES = "limits-lane-slow", "limits-lanes-slow"
#: Rows of tasks without a limit: beside an earlier version, and where other tasks have limits.
BEFORE, OTHERS = "limits-none-before", "limits-none-others"

Settings = Mapping[str, Any]


@contextmanager
def _station(bench: Bench, side: Side, limit: Settings | None) -> Iterator[Station]:
    """Yield a station with late acknowledgement, and its tasks with a limit."""
    with bench.station(side) as station:
        limit = None if limit is None else dict(limit)
        station.settings = replace(station.settings, at_least_once=True, limit=limit)
        yield station


def _publish(station: Station, order: Order) -> None:
    with station.publisher() as publisher:
        publisher.publish(order, timeout=600.0)


@dataclass(frozen=True)
class Cost:
    """Tasks a second of one worker; CPU (µs) and commands of Redis for each task, with publishing.

    Commands are those of ``INFO commandstats``, including commands in scripts.
    """

    speed: float
    cpu: float
    commands: float


def _drain(
    bench: Bench, limit: Settings | None = None, *, code: Path = ROOT, has_others: bool = False
) -> Cost:
    """Publish immediate tasks one by one, then let a worker run them.

    *has_others*: other tasks have limits. *code* has the package.
    """
    count = bench.size.immediate
    with _station(bench, OURS, limit) as station:
        station.code = code
        if has_others:
            with station.delayq() as delayq:
                delayq.store.task_limits.announce({"other": Limit("other", rate=1).definition.text})
        cpu, commands = used(station.client)
        _publish(station, Order(count, recorded=True))
        with station.worker(Pool.PREFORK) as worker:
            station.records.wait_for(count, count / SLOWEST, worker.check)
            speed = Drained.of(station.records.read()).per_second
            time.sleep(0.1)  # the last acknowledgements
        cpu_then, commands_then = used(station.client)
        return Cost(speed, (cpu_then - cpu) / count * 1e6, (commands_then - commands) / count)


@dataclass
class HandOuts:
    """Tasks that a station had handed out at several times of Redis' clock (s)."""

    count: int
    samples: list[tuple[float, int]] = field(default_factory=list)

    @contextmanager
    def sampled(self, station: Station) -> Iterator[None]:
        """Sample while the block runs. All tasks have been published before."""
        with station.delayq() as delayq:
            key = delayq.store.keys.queue("celery")
        ended, errors = threading.Event(), []

        def sample() -> None:
            try:
                while not ended.wait(SAMPLE):
                    self.samples.append(self._sample(station.client, key.held))
            except Exception as error:  # raised by the caller's thread
                errors.append(error)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if errors:
            raise errors[0]

    def _sample(self, client: Any, held: str) -> tuple[float, int]:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.zlexcount(held, "[bench:", "[bench;")
            pipeline.llen("celery")
            (seconds, micros), in_lane, ready = pipeline.execute()
        return seconds + micros / 1e6, self.count - in_lane - ready


@dataclass(frozen=True)
class Held:
    """A run of tasks that a rate holds."""

    used: float
    per_second: float
    calls: float
    most_above: float


def _calls(client: Any) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


@dataclass(frozen=True)
class Load:
    """Tasks that a rate holds, of which *started* are waited for."""

    count: int
    started: int
    rate: float
    burst_seconds: float = BURST_SECONDS

    @property
    def burst(self) -> int:
        """The burst of the limit."""
        return max(1, round(self.rate * self.burst_seconds))

    @property
    def limit(self) -> dict[str, Any]:
        """The arguments of the limit."""
        return {"rate": self.rate, "burst": self.burst}

    def run(self, bench: Bench, side: Side, *, lanes: int = 0) -> Held:
        """Publish the tasks, then let a worker run them; beside blocked lanes, if any."""
        with _station(bench, side, self.limit) as station:
            if lanes:
                _block(station, lanes)
            return self._run(station)

    def _run(self, station: Station) -> Held:
        client, before = station.client, _calls(station.client)
        hand_outs = HandOuts(self.count)
        _publish(station, Order(self.count, recorded=True))
        sampled = hand_outs.sampled(station) if station.side.delayq else nullcontext()
        with sampled, station.worker(Pool.PREFORK) as worker:
            patience = PATIENCE + 2 * self.count / self.rate
            station.records.wait_for(self.started, patience, worker.check)
            calls = _calls(client) - before
        starts = sorted(record.start for record in station.records.read())[: self.started]
        took = starts[-1] - starts[0]
        above = 0.0
        if station.side.delayq:
            above = most_above(hand_outs.samples, self.rate)
            if above > self.burst + 1e-3:
                raise BenchError(
                    f"{above:.1f} tasks above {self.rate:.1f}/s in one window: the burst is "
                    f"{self.burst}"
                )
        burst = self.burst if station.side.delayq else 1
        used = len(starts) / (self.rate * took + burst)
        return Held(100 * used, len(starts) / took, calls / self.started, above)


def _block(station: Station, lanes: int) -> None:
    """Let tasks wait in so many lanes, whose one slot of a day is used."""
    with station.delayq({LANE_TASK: Limit("lanes", **LANE_LIMIT)}) as delayq:
        items = (Item(args=(number % lanes,)) for number in range(2 * lanes))
        delayq.schedule_many(items, task=LANE_TASK)
        key = delayq.store.keys.queue("celery")
        with station.worker(Pool.PREFORK) as worker:
            deadline = time.monotonic() + LANES_PATIENCE
            while (
                station.client.zcard(key.held) != lanes
                or station.client.llen("celery")
                or station.client.zcount(key.lanes, "-inf", time.time() * 1e6)
                or delayq.stats().leased
            ):
                worker.check()
                if time.monotonic() > deadline:
                    raise BenchError(f"{lanes:,} lanes were not blocked in {LANES_PATIENCE:g} s")
                time.sleep(0.1)


def _gaps(bench: Bench, limit: Settings | None, workers: int = 1) -> list[float]:
    """Return the ms from each start to the next; with a limit, from each end to the start that it
    allowed.
    """
    count = bench.size.immediate // 10
    with _station(bench, OURS, limit) as station, ExitStack() as stack:
        delayq = stack.enter_context(station.delayq())
        delayq.pause(queue="celery")  # until all workers are there
        _publish(station, Order(count, working=True))
        for number in range(workers):
            log = bench.folder / f"permits-{number}.log"
            worker = stack.enter_context(Worker(station.settings, log, Pool.PREFORK, ()))
        delayq.resume(queue="celery")
        station.records.wait_for(count, count / SLOWEST * 10, worker.check)
        # A record has start and end.
        starts, ends = map(sorted, zip(*station.records.read(), strict=True))
    if limit is None:
        return [(after - before) * 1000 for before, after in pairwise(starts)]
    most = limit["concurrency"]
    gaps = [(start - end) * 1000 for end, start in zip(ends, starts[most:], strict=False)]
    if min(gaps) < 0:
        raise BenchError(f"more than {most} tasks ran at once")
    return gaps


def _never(bench: Bench) -> tuple[float, list[Figure]]:
    """Return the rate without a limit, and the figures of a limit that never holds."""
    rounds = bench.size.worker_rounds
    kinds: tuple[Settings | None, Settings | None] = (None, NEVER)
    title = "immediate tasks, prefork: without a limit, with a limit that never holds"
    free, limited = bench.in_turns(title, rounds, kinds, lambda limit: _drain(bench, limit))
    speeds = [each.speed for each in free]
    row = Row("limits-never", title, "tasks/s", Better.HIGHER, ratio_at_least(0.5))
    cpu = Row(
        "limits-redis-cpu",
        "immediate tasks: CPU of Redis without a limit, with one",
        "µs/task",
        Better.LOWER,
        digits=1,
    )
    figures = [
        row.figure(speeds, [each.speed for each in limited]),
        cpu.figure([each.cpu for each in free], [each.cpu for each in limited]),
    ]
    return statistics.median(speeds), figures


def _held(bench: Bench, rate: float) -> Iterator[Figure]:
    size, rounds = bench.size, bench.size.load_rounds
    load = Load(size.limited, size.limited, rate)
    loads = {STOCK: replace(load, started=size.limited // STOCK_PART), OURS: load}
    stock, ours = bench.in_turns(
        USED.titled(size.limited).title,
        rounds,
        (STOCK, OURS),
        lambda side: loads[side].run(bench, side),
    )
    raw = {"rate": rate, "burst": load.burst, "most above": [each.most_above for each in ours]}
    yield USED.titled(size.limited).figure(
        [each.used for each in stock], [each.used for each in ours], raw
    )
    yield CALLS.titled(size.limited).figure([0.0] * rounds, [each.calls for each in ours])
    alone, beside = bench.in_turns(
        LANES.name, rounds, (0, size.lanes), lambda lanes: load.run(bench, OURS, lanes=lanes)
    )
    yield LANES.titled(size.limited, size.lanes).figure(
        [each.per_second for each in alone], [each.per_second for each in beside]
    )


def _one_by_one(bench: Bench, rate: float) -> Iterator[Figure]:
    """Yield the rows of a burst of 1: at a slow rate, and at that of the other rows."""
    slow, part = round(SLOW_RATE * SLOW_SECONDS), bench.size.limited // STOCK_PART
    loads = Load(slow, slow, SLOW_RATE, 0.0), Load(part, part, rate, 0.0)
    for row, load in zip(ONES, loads, strict=True):
        titled = row.titled(load.count, load.rate)
        stock, ours = bench.in_turns(
            titled.title,
            bench.size.load_rounds,
            (STOCK, OURS),
            partial(_used_of, bench, load),
        )
        yield titled.figure(stock, ours)


def _used_of(bench: Bench, load: Load, side: Side) -> float:
    return load.run(bench, side).used


def _slow(bench: Bench, rate: float) -> Iterator[Figure]:
    """Yield the rows of slow scripts: with very many lanes, and with very many tasks of one."""
    size = bench.size
    runs = (
        (SLOW_LANES, f"{size.lanes:,} lanes", size.limited, size.lanes),
        (SLOW_ONE, f"a lane of {size.lanes:,}", size.lanes, 0),
    )
    with bench.station(OURS) as station:
        for name, beside, count, lanes in runs:
            bench.note(SLOW.titled(beside).title)

            def run(load: Load = Load(count, size.limited, rate), lanes: int = lanes) -> float:
                return load.run(bench, OURS, lanes=lanes).per_second

            pauses = Pauses(station.client)
            pauses.measured(run)
            yield from pauses.figures(name, beside)


@measurement("limits", order=62)
def limits(bench: Bench) -> Iterator[Figure]:
    """Tasks with a limit: what it costs, how exact its rate and concurrency are, many lanes."""
    free, figures = _never(bench)
    yield from figures
    yield from _held(bench, SHARE * free)
    yield from _one_by_one(bench, SHARE * free)
    gaps = bench.in_turns(
        PERMIT.title,
        bench.size.load_rounds,
        (None, ONE_AT_ONCE),
        lambda limit: percentile(_gaps(bench, limit), 99),
    )
    yield PERMIT.figure(*gaps)
    gaps = bench.in_turns(
        PERMITS.title,
        bench.size.load_rounds,
        (None, THREE_AT_ONCE),
        lambda limit: percentile(_gaps(bench, limit, workers=2), 99),
    )
    yield PERMITS.figure(*gaps)
    yield from _slow(bench, SHARE * free)


def _without(
    bench: Bench,
    name: str,
    title: str,
    kinds: tuple[Settings, Settings],
    targets: tuple[Target | None, Target | None] = (None, None),
) -> Iterator[Figure]:
    """Yield the rows of tasks without a limit: commands and CPU of Redis.

    *kinds* are arguments of :func:`_drain`.
    """
    first, second = bench.in_turns(
        title, bench.size.fast_rounds, kinds, lambda kind: _drain(bench, **kind)
    )
    per_task, cpu = f"{title}: commands of Redis", f"{title}: CPU of Redis"
    yield Row(f"{name}-commands", per_task, "per task", Better.LOWER, targets[0], digits=2).figure(
        [each.commands for each in first], [each.commands for each in second]
    )
    yield Row(f"{name}-cpu", cpu, "µs/task", Better.LOWER, targets[1], digits=1).figure(
        [each.cpu for each in first], [each.cpu for each in second]
    )


@measurement("without-limits", order=63)
def without_limits(bench: Bench) -> Iterator[Figure]:
    """Tasks without a limit: beside the version before limits, and beside tasks with limits."""
    title = "immediate tasks without a limit"
    yield from _without(
        bench, OTHERS, f"{title}: no limits, limits of other tasks", ({}, {"has_others": True})
    )
    try:
        code = older_version.unpack(bench.folder / "before")
    except older_version.MissingHistory as exc:
        raise BenchError(str(exc)) from exc
    yield from _without(
        bench,
        BEFORE,
        f"{title}: version {older_version.COMMIT}, this version",
        ({"code": code}, {}),
        (ratio_at_most(1.02), ratio_at_most(1.03)),
    )
