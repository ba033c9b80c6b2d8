"""Cost of periodic entries: memory, time of an idle dispatcher, and punctuality.

On stock the same entries are those of ``celery beat``.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timezone

from celery_delayq.periodic import policy
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.runner import CLAIM_MS
from celery_delayq.store.periodic import EntryWrite

from ..bench import OURS, STOCK, Bench, Side, Station, percentile
from ..model import Better, Figure, Row, Target, below, measurement
from ..processes import Pool
from ..records import Record

BATCH = 500

#: Seconds for which an idle process is watched, and for which ticks are counted.
WATCHED = 20.0
FIRED = 10.0

#: Seconds until the first tick that counts.
LEAD = 5.0

#: Time from the writing of an entry to its first tick (ms). Workers start meanwhile.
BEFORE_MS = 5000

MEMORY = Row(
    "periodic-memory",
    "{:,} periodic entries: memory of one in Redis; stock: in beat",
    "B",
    Better.LOWER,
    below(1024, "B"),
)
IDLE = Row(
    "periodic-idle",
    "{:,} periodic entries: CPU of an idle dispatcher; stock: of beat",
    "% of a core",
    Better.LOWER,
    below(2, "%"),
    digits=2,
)
SHARE = Row(
    "periodic-fired",
    "{:,} ticks due each second, two workers: share fired in time",
    "%",
    Better.HIGHER,
    Target("100 %", lambda figure: figure.ours >= 100),
    digits=1,
)
LATE = Row(
    "periodic-lateness",
    "{:,} ticks due each second, two workers: lateness, p99; "
    f"a tick that did not run counts as {FIRED:g} s",
    "ms",
    Better.LOWER,
    below(50, "ms"),
    digits=1,
)
TAKEOVER = Row(
    "periodic-takeover",
    "takeover of a tick whose dispatcher died (median, worst)",
    "ms",
    Better.LOWER,
    below(1000, "ms"),
)

#: Number of dispatchers that die, and seconds between two ticks.
DEATHS = 10
STEP = 2.0


def _enter(station: Station, entries: int, ticking: int) -> None:
    """Make periodic entries. Those that tick each second do so one after the other."""
    with station.delayq() as delayq:
        gate = delayq.store.periodic
        writings: list[EntryWrite] = []
        # Ticking entries are written last, so that they are not late before workers start.
        for n in reversed(range(entries)):
            ticks = n < ticking
            if not writings:
                now = delayq.store.now_ms()
            definition = Definition.from_fields(
                1.0 if ticks else 86_400.0,
                name=f"customer-{n}-report",
                task="bench.tick",
                args=[n],
                catch_up="all",
            )
            after = BEFORE_MS + n * 1000 // ticking if ticks else 0
            entry = policy.begin(definition, now + after, timezone.utc)
            writings.append(EntryWrite(entry.name, "", entry.pack(), entry.next_look_ms))
            if len(writings) == BATCH or n == 0:
                gate.write(writings)
                writings.clear()


def _memory_and_time(bench: Bench, side: Side, entries: int) -> tuple[float, float]:
    """Return the bytes of an entry, and the share of a core of an idle process (%)."""
    with bench.station(side) as station:
        bench.note(f"{entries:,} periodic entries, {side.name}")
        before = station.client.info("memory")["used_memory"]
        if side.delayq:
            _enter(station, entries, 0)
            used = station.client.info("memory")["used_memory"] - before
        else:
            with station.firer(0) as firer:
                firer.rest()
                before = firer.rss()
        with station.firer(entries) as firer:
            firer.rest()
            if not side.delayq:
                used = firer.rss() - before
            return used / entries, 100 * firer.busy(WATCHED)


def _ticks(bench: Bench, side: Side, entries: int, rate: int) -> tuple[float, list[float]]:
    """Return the share of ticks that were fired in time (%), and their lateness (ms)."""
    with bench.station(side) as station:
        bench.note(f"{rate:,} ticks due each second, {side.name}")
        if side.delayq:
            _enter(station, entries, rate)
            with _workers(station, bench.pool):
                return _of_ours(_seen(station), rate)
        with _workers(station, bench.pool), station.firer(entries, rate) as firer:
            station.records.wait_for(1, 120.0, firer.check)
            return _of_beat(_seen(station), rate)


@contextmanager
def _workers(station: Station, pool: Pool) -> Iterator[None]:
    """Two workers: users do not run only one with such a load."""
    with station.worker(pool), station.worker(pool):
        yield


def _seen(station: Station) -> tuple[float, list[Record]]:
    """Let ticks run for a while; return when this began, and all runs."""
    begin = time.time() + LEAD
    time.sleep(LEAD + FIRED + 1.0)
    return begin, station.records.read()


def _of_ours(seen: tuple[float, list[Record]], rate: int) -> tuple[float, list[float]]:
    begin, records = seen
    counted = [each for each in records if begin <= each.due < begin + FIRED]
    return _with_missing([each.lateness_ms for each in counted], rate)


def _of_beat(seen: tuple[float, list[Record]], rate: int) -> tuple[float, list[float]]:
    begin, records = seen
    starts: dict[float, list[float]] = defaultdict(list)
    for each in records:
        if begin <= each.start < begin + FIRED:
            starts[each.due].append(each.start)
    late = [
        1000 * (start - runs[0] - n) for runs in starts.values() for n, start in enumerate(runs)
    ]
    return _with_missing(late, rate)


def _with_missing(late: list[float], rate: int) -> tuple[float, list[float]]:
    """Add the ticks that did not run: they are late by the whole time at least."""
    expected = round(rate * FIRED)
    return 100 * len(late) / expected, late + [1000 * FIRED] * (expected - len(late))


def _takeovers(bench: Bench) -> list[float]:
    """Claim ticks without firing them, as a dying dispatcher; return their lateness (ms)."""
    late: list[float] = []
    with bench.station(OURS) as station, station.delayq() as delayq:
        gate = delayq.store.periodic
        # With overlap="skip" no tick is scheduled ahead.
        delayq.periodic.add("alone", STEP, "bench.tick", [0], overlap="skip", catch_up="all")
        with station.worker() as worker:
            while len(late) < DEATHS:
                bench.note(f"a dispatcher dies: {len(late) + 1} of {DEATHS}")
                [tick] = delayq.periodic.next("alone")
                time.sleep(max(0.0, tick.timestamp() - time.time() - 0.1))
                taken = False
                while not taken and time.time() < tick.timestamp() + STEP / 4:
                    taken = bool(gate.claim_due(1, CLAIM_MS).records)
                before = len(station.records)
                if taken:
                    station.records.wait_for(before + 1, 30.0, worker.check)
                    late.append(station.records.read(before)[0].lateness_ms)
                else:  # the worker was faster
                    time.sleep(STEP / 2)
    return late


@measurement("periodic", order=98)
def periodic_entries(bench: Bench) -> Iterator[Figure]:
    """Memory, idle time and punctuality of periodic entries."""
    entries, rate = max(bench.size.far), bench.size.per_second
    stock, ours = (_memory_and_time(bench, side, entries) for side in (STOCK, OURS))
    yield MEMORY.titled(entries).figure([stock[0]], [ours[0]])
    yield IDLE.titled(entries).figure([stock[1]], [ours[1]])
    stock_ticks, our_ticks = (_ticks(bench, side, entries, rate) for side in (STOCK, OURS))
    yield SHARE.titled(rate).figure([stock_ticks[0]], [our_ticks[0]])
    yield LATE.titled(rate).figure(
        [percentile(stock_ticks[1], 99)],
        [percentile(our_ticks[1], 99)],
        {
            side: {str(mark): percentile(late, mark) for mark in (1, 50, 90, 99, 99.9, 100)}
            for side, (_, late) in (("stock", stock_ticks), ("ours", our_ticks))
        },
    )
    takeovers = _takeovers(bench)
    yield TAKEOVER.figure([percentile(takeovers, 50)], [max(takeovers)], {"lateness_ms": takeovers})
