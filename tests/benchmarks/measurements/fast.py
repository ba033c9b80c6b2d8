"""User CPU for each task that each group of changes for speed saves.

Each round measures every kind once, in an order that rotates: all groups on (three times), and all
but one group, for each group. The saving of a group is the median over the rounds of its kind less
the mean of the kinds with all groups on. The noise is the largest such median of two kinds with all
groups on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from statistics import fmean, median

import psutil

from celery_delayq.integration import fast
from celery_delayq.integration.fast.group import Group

from ..bench import OURS, Bench, Station
from ..model import Better, Figure, Row, Target, measurement
from ..processes import Pool, Worker
from ..publisher import Order
from .immediate import SLOWEST

#: Kinds with all groups on.
ALL_ON = ("all", "all again", "all once more")
UNIT = "µs of user CPU/task"

Measure = Callable[[Station], float]


@contextmanager
def _environment(kind: str) -> Iterator[None]:
    """Leave a group out in processes that are started inside."""
    before = os.environ.get(fast.VARIABLE)
    os.environ[fast.VARIABLE] = "1" if kind in ALL_ON else f"-{kind}"
    try:
        yield
    finally:
        del os.environ[fast.VARIABLE]
        if before is not None:
            os.environ[fast.VARIABLE] = before


def _publishing(bench: Bench) -> Measure:
    count = 2 * bench.size.publish_count

    def publish(station: Station) -> float:
        with station.publisher() as publisher:
            publisher.publish(Order(count // 4))
            return publisher.publish(Order(count)).user_seconds / count * 1e6

    return publish


def _user_seconds(worker: Worker) -> float:
    main = psutil.Process(worker.pid)
    return float(sum(each.cpu_times().user for each in (main, *main.children(recursive=True))))


def _running(bench: Bench) -> Measure:
    count = bench.size.immediate

    def run(station: Station) -> float:
        records = station.records
        with station.publisher() as publisher:
            publisher.publish(Order(count, batch=500, recorded=True))
        with station.worker(Pool.PREFORK) as worker:
            # Without the work of a worker before its first tasks.
            records.wait_for(count // 10, count / SLOWEST, worker.check)
            first, before = len(records), _user_seconds(worker)
            records.wait_for(count, count / SLOWEST, worker.check)
            return (_user_seconds(worker) - before) / (count - first) * 1e6

    return run


def _difference(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the differences, round by round."""
    return median(one - other for one, other in zip(values, others, strict=True))


def _compare(bench: Bench, what: str, groups: list[Group], measure: Measure) -> Iterator[Figure]:
    rounds = bench.size.fast_rounds
    kinds = (*ALL_ON, *(group.name for group in groups))
    seen: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        turn = number % len(kinds)
        for kind in (*kinds[turn:], *kinds[:turn]):
            bench.note(f"fast, {what}: round {number + 1} of {rounds}, {kind}")
            with _environment(kind), bench.station(OURS) as station:
                seen[kind].append(measure(station))
    alike = [seen[kind] for kind in ALL_ON]
    one, other = max(combinations(alike, 2), key=lambda pair: abs(_difference(*pair)))
    noise = abs(_difference(one, other))
    row = Row(f"fast-noise-{what}", f"{what}: the same twice", UNIT, Better.LOWER, digits=1)
    yield row.figure(one, other)
    enough = Target(
        f"saves ≥ {2 * noise:.1f}",
        lambda figure: _difference(figure.stock_rounds, figure.ours_rounds) >= 2 * noise,
    )
    all_on = [fmean(values) for values in zip(*alike, strict=True)]
    for group in groups:
        row = Row(group.row, f"{what}: {group.name}", UNIT, Better.LOWER, enough, digits=1)
        yield row.figure(seen[group.name], all_on)


@measurement("fast", order=300)
def fast_groups(bench: Bench) -> Iterator[Figure]:
    """User CPU for each task without and with each group of changes that serve speed alone."""
    sending = [group for group in fast.GROUPS if group.process]
    running = [group for group in fast.GROUPS if group.worker]
    yield from _compare(bench, "send", sending, _publishing(bench))
    yield from _compare(bench, "run", running, _running(bench))
