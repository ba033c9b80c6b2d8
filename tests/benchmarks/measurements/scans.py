"""Calls that read a whole schedule, with few and with ten million short records.

The records are written directly: as many messages of Celery would take 22 GB.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial

from celery_delayq import DelayQ, Filter
from celery_delayq.admin.health import why_not_ready
from celery_delayq.model.envelope import Record
from celery_delayq.store.scripting.calls import pack

from ..bench import OURS, Bench, Station, now_ms, percentile
from ..filling import DAY
from ..model import Better, Figure, Row, at_most, measurement
from ..pauses import Pauses, longest_row, seconds_of
from .large_whole import restarted

#: Records of one write, and calls of each kind.
PORTION, CALLS = 1_000, 200

TASK = "shop.tasks.short"


def _row(name: str, title: str, limit: float | None = None) -> Row:
    target = None if limit is None else at_most(limit, "ms")
    title = f"short records: {title} ({{:,}} and {{:,}})"
    return Row(f"scans-{name}", title, "ms", Better.LOWER, target, 2)


PAGE = _row("page", "a page of 100 anywhere, p99", 10)
OF_TASK = _row("task", "a page of 100 of a task anywhere, p99", 10)
COUNT = _row("count", "count by task and time, p99", 10)
DRY_RUN = _row("dry-run", "cancel_all, dry run")
STATS = _row("stats", "stats")
HEALTH = _row("health", "health --ready")
RESTART = Row(
    "scans-restart", "short records: restart of Redis ({:,} and {:,})", "s", Better.LOWER, None, 2
)


def _fill(station: Station, delayq: DelayQ, number: int) -> None:
    """Write entries that are due within a day, after a day."""
    store = delayq.store
    key, first = store.keys.queue("celery"), now_ms() + int(DAY * 1000)
    store.register("celery")
    step = DAY * 1000 / number
    connection = station.client.connection_pool.get_connection()
    try:
        for start in range(0, number, PORTION):
            records: list[bytes] = []
            dues: list[bytes] = []
            members: list[bytes] = []
            for n in range(start, min(start + PORTION, number)):
                due, id = first + int(n * step), b"%08x" % (n * 2_654_435_761 % 2**32)
                records += id, Record(0, id.decode(), TASK, b"{}").pack()
                dues += b"%d" % due, id
                members += b"0", b"%b\0%015d\0%b" % (TASK.encode(), due, id)
            commands = (
                ("HSET", key.entries, *records),
                ("ZADD", key.due, *dues),
                ("ZADD", key.tasks, *members),
            )
            connection.send_packed_command([pack(commands)])
            for _ in commands:
                connection.read_response()
    finally:
        station.client.connection_pool.release(connection)


def _some_time() -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=DAY * (1 + random.random()))


def _p99(call: Callable[[], object]) -> float:
    return percentile([seconds_of(call) * 1000 for _ in range(CALLS)], 99)


#: The measured call of each row, in ms.
MEASURED: dict[Row, Callable[[DelayQ], float]] = {
    PAGE: lambda d: _p99(lambda: d.list(due_from=_some_time())),
    OF_TASK: lambda d: _p99(lambda: d.list(task=TASK, due_from=_some_time())),
    COUNT: lambda d: _p99(lambda: d.count(task=TASK, due_from=_some_time())),
    DRY_RUN: lambda d: 1000 * seconds_of(lambda: d.cancel_all(Filter(task=TASK), dry_run=True)),
    STATS: lambda d: 1000 * seconds_of(d.stats),
    HEALTH: lambda d: 1000 * seconds_of(lambda: why_not_ready(d.app)),
}


@measurement("scans", order=93)
def scans(bench: Bench) -> Iterator[Figure]:
    """What looks at a whole schedule, beside ten million short records."""
    sizes = bench.size.short
    with bench.station(OURS) as station, station.delayq() as delayq:
        seen: dict[Row, list[float]] = {
            each: [] for row in MEASURED for each in (row, longest_row(row))
        }
        seen[RESTART] = []
        for size in sizes:
            bench.note(f"{size:,} entries")
            station.client.flushdb()
            _fill(station, delayq, size)
            pauses = Pauses(station.client)
            for row, measure in MEASURED.items():
                bench.note(f"{row.name}: {size:,}")
                seen[row].append(pauses.measured(partial(measure, delayq)))
                seen[longest_row(row)].append(pauses.longest)
            bench.note("restart")
            seen[RESTART].append(restarted(bench))
        for row, (few, many) in seen.items():
            yield row.titled(*sizes).figure([few], [many])
        yield from pauses.figures("scans-slow", f"{sizes[-1]:,} short records")
