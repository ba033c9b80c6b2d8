"""Time of calls that manage the schedule, with few and with very many entries.

Stock has no such calls, so the two columns are the two sizes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from tests.support.runs import finished

from ..bench import OURS, Bench, percentile
from ..model import Better, Figure, Row, Target, at_most, measurement

#: Calls in each round, for its 99th percentile.
CALLS = 100
ROUNDS = 5

#: Bytes of a message with its envelope.
MESSAGE = 1024

TASK = "shop.tasks.send_reminder"

#: Runs in the history, and runs that one call adds.
RUNS, RUNS_PER_CALL = 20_000, 500


def _steady(limit: float) -> Target:
    return Target(
        f"≤ {limit:g} ms, ratio ≤ 1.5",
        lambda f: f.ours <= limit and f.ratio is not None and f.ratio <= 1.5,
    )


def _row(name: str, title: str, target: Target | None) -> Row:
    return Row(f"control-{name}", title + " ({:,} | {:,} entries)", "ms", Better.LOWER, target, 2)


ROWS = {
    "get": _row("get", "get, p99", _steady(2)),
    "why": _row("why", "why of a scheduled task, p99", None),
    "why_unknown": _row("why-unknown", f"why of no task, {RUNS:,} runs in the history, p99", None),
    "cancel": _row("cancel", "cancel, p99", _steady(2)),
    "reschedule": _row("reschedule", "reschedule, p99", _steady(2)),
    "update": _row("update", "update, p99", _steady(2)),
    "run_now": _row("run-now", "run_now, p99", _steady(2)),
    "list": _row("list", "a page of 100, p99", at_most(10, "ms")),
    "list_task": _row("list-task", "a page of 100 of one task, p99", at_most(10, "ms")),
    "count_task": _row("count-task", "count by task, p99", at_most(10, "ms")),
}
SLOW = Row(
    "control-slow",
    "Redis calls over 10 ms ({:,} | {:,} entries)",
    "calls",
    Better.LOWER,
    at_most(0),
)
#: Most of p99 of `reschedule` that p99 of `update` may be, at the large size.
UPDATE_RATIO = 1.5
UPDATE = Row(
    "control-update-beside",
    "p99 with {1:,} entries: reschedule | update",
    "ms",
    Better.LOWER,
    Target(f"ratio ≤ {UPDATE_RATIO:g}", lambda f: f.ratio is not None and f.ratio <= UPDATE_RATIO),
    2,
)
MEMORY = Row(
    "control-memory",
    "memory per entry, 1 KB messages, unique key ({:,} | {:,} entries)",
    "bytes",
    Better.LOWER,
    at_most(1850, "bytes"),
)


@dataclass
class Filled:
    """A filled database."""

    delayq: DelayQ
    ids: list[str]
    bytes_each: float
    #: Numbers that are no orders yet, so that each update changes the unique key.
    _orders: Iterator[int] = field(default_factory=lambda: count(9_000_000))

    def calls(self) -> dict[str, Callable[[str], object]]:
        """The measured call of each row."""
        pages = self._pages()
        return {
            "get": self.delayq.get,
            "why": self.delayq.why,
            "why_unknown": lambda id: self.delayq.why(f"no {id}"),
            "reschedule": lambda id: self.delayq.reschedule(id, countdown=100_000),
            "list": lambda _: next(pages),
            "list_task": lambda _: self.delayq.list(task=TASK),
            "count_task": lambda _: self.delayq.count(task=TASK),
            "update": lambda id: self.delayq.update(id, args=[next(self._orders), "x" * 500]),
            "run_now": self.delayq.run_now,
            "cancel": self.delayq.cancel,
        }

    def _pages(self) -> Iterator[object]:
        """Yield the pages in turn; the first one follows the last one."""
        cursor = None
        while True:
            page = self.delayq.list(cursor=cursor)
            yield page
            cursor = page.cursor


def _send_reminder(order: int, text: str) -> None:
    """The task of the entries; never runs."""


@contextmanager
def _filled(bench: Bench, number: int) -> Iterator[Filled]:
    with bench.station(OURS) as station, station.delayq() as delayq:
        task = delayq.app.task(name=TASK, unique_key="order:{order}", on_conflict="keep")(
            _send_reminder
        )
        ids = [f"{random.getrandbits(128):032x}" for _ in range(number)]
        before = station.client.info("memory")["used_memory"]
        text = "x" * _padding(delayq, task, station.client)
        bench.note(f"{number:,} entries")
        delayq.schedule_many(
            (
                Item(args=(i, text), countdown=50_000 + random.random() * 86_400, id=id)
                for i, id in enumerate(ids, 1_000_000)
            ),
            task=task,
        )
        used = station.client.info("memory")["used_memory"] - before
        _fill_history(delayq)
        random.shuffle(ids)
        yield Filled(delayq, ids, used / number)


def _fill_history(delayq: DelayQ) -> None:
    store = delayq.store
    now = store.now_ms()
    for number in range(1, RUNS // RUNS_PER_CALL + 1):
        runs = [finished(f"{random.getrandbits(128):032x}", now) for _ in range(RUNS_PER_CALL)]
        store.history.add("bench", number, 10 * RUNS, runs)


def _padding(delayq: DelayQ, task: Any, client: Any) -> int:
    """Return the length of an argument that gives a message the wanted length; at least 0."""
    result = task.apply_async((1_000_000, ""), countdown=100_000)
    [record] = client.hvals("{celery}:entries")
    delayq.cancel(result.id)
    # An argument is in the body, in base64, and in argsrepr.
    return max(0, int((MESSAGE - len(record.partition("\n")[2])) / (4 / 3 + 1)))


def _p99(call: Callable[[str], object], ids: list[str]) -> float:
    """Return the 99th percentile of the time of one call, in ms."""
    return percentile([_time_of(call, id) for id in ids], 99)


def _p99_in_turns(calls: Sequence[Callable[[str], object]], ids: list[str]) -> list[float]:
    """Return :func:`_p99` of each call. All are made for an id before the next id has its turn.

    What slows down the machine meanwhile slows down all of them. Each call is as often the first
    for an id as the others: the first reads the entry from cold memory.
    """
    times: list[list[float]] = [[] for _ in calls]
    for turn, id in enumerate(ids):
        for step in range(len(calls)):
            place = (turn + step) % len(calls)
            times[place].append(_time_of(calls[place], id))
    return [percentile(each, 99) for each in times]


def _time_of(call: Callable[[str], object], id: str) -> float:
    """Return the time of one call, in ms."""
    began = time.perf_counter()
    call(id)
    return (time.perf_counter() - began) * 1000


@measurement("control", order=90)
def control(bench: Bench) -> Iterator[Figure]:
    """Finding, cancelling, moving and counting entries, few and very many of them."""
    sizes = bench.size.entries
    with ExitStack() as stack:
        filled = [stack.enter_context(_filled(bench, size)) for size in sizes]
        client = stack.enter_context(bench.server.client(decode_responses=True))
        client.config_set("slowlog-log-slower-than", 10_000)
        client.slowlog_reset()
        calls = [each.calls() for each in filled]
        pair = [calls[1][name] for name in ("reschedule", "update")]
        beside = [_p99_in_turns(pair, filled[1].ids[: CALLS * ROUNDS]) for _ in range(ROUNDS)]
        moves, updates = zip(*beside, strict=True)
        yield UPDATE.titled(*sizes).figure(moves, updates)
        for name, row in ROWS.items():
            seen: list[list[float]] = [[], []]
            for number in range(ROUNDS):
                bench.note(f"{name}: round {number + 1} of {ROUNDS}")
                for place in (0, 1) if number % 2 else (1, 0):
                    ids = filled[place].ids
                    # A call needs entries that no earlier call has run or cancelled.
                    start = number * CALLS + (len(ids) // 2 if name == "cancel" else 0)
                    seen[place].append(_p99(calls[place][name], ids[start : start + CALLS]))
            figure = row.titled(*sizes).figure(seen[0], seen[1])
            if name == "get":
                most = 10 * figure.ours
            if name.startswith("why"):
                figure = figure.with_target(most, f"≤ 10 times get ({most:.1f} ms)")
            yield figure
        slow = client.slowlog_get(128)
        yield SLOW.titled(*sizes).figure([0], [len(slow)], {"slow": [str(one) for one in slow]})
        few, many = (each.bytes_each for each in filled)
        yield MEMORY.titled(*sizes).figure([few], [many])
