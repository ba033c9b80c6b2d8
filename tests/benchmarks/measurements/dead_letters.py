"""What dead letters cost to replay and to archive: few of them, the same with many.

There is nothing on stock to compare with, so the two columns are the two sizes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from celery_delayq import DeadFilter, DelayQ
from tests.support.dead_letters import details, stored

from ..bench import OURS, Bench
from ..model import BenchError, Better, Figure, Row, Target, measurement

#: Bytes of an argument: with it message and details of a dead letter have 1 KB each.
TEXT = 170

ROUNDS = 3


def _at_least(limit: float) -> Target:
    return Target(f"≥ {limit:,.0f}/s", lambda f: f.ours >= limit)


REPLAY = Row(
    "dead-letters-replay",
    "replaying dead letters ({:,} | {:,})",
    "per s",
    Better.HIGHER,
    _at_least(20_000),
)
ARCHIVE = Row(
    "dead-letters-archive",
    "archiving dead letters to SQLite ({:,} | {:,})",
    "per s",
    Better.HIGHER,
    _at_least(5_000),
)


def _fill(delayq: DelayQ, client: Any, number: int) -> None:
    """Store dead letters with messages as Celery sends them: scripts replay these as they are."""
    delayq.app.send_task("shop.mail", (1, "x" * TEXT), queue="celery")
    message = json.loads(client.lpop("celery"))
    store, told = delayq.store, details()
    began = store.now_ms() - number
    for start in range(0, number, 100):
        dead_letters = []
        for n in range(start, min(start + 100, number)):
            id = f"{n:032x}"
            message["headers"].update(id=id, root_id=id)
            data = stored(began + n, "it failed", json.dumps(message).encode(), told)
            dead_letters.append((id, began + n, data))
        store.dead_letters.restore("celery", dead_letters)


def _replay(delayq: DelayQ) -> int:
    return delayq.replay_all(DeadFilter(queue="celery")).done


def _archive(delayq: DelayQ) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return delayq.archive_dead(f"sqlite:///{Path(folder) / 'dead_letters.db'}").moved


def _rates(
    bench: Bench, row: Row, change: Callable[[DelayQ], int], sizes: tuple[int, int]
) -> Figure:
    def measure(size: int) -> float:
        with bench.station(OURS) as station, station.delayq() as delayq:
            _fill(delayq, station.client, size)
            began = time.perf_counter()
            done = change(delayq)
            seconds = time.perf_counter() - began
            if done != size or delayq.count_dead():
                raise BenchError(f"{done} of {size} dead letters were done")
            return size / seconds

    seen = bench.in_turns(row.name, ROUNDS, sizes, measure)
    return row.titled(*sizes).figure(seen[0], seen[1])


@measurement("dead-letters", order=97)
def dead_letters(bench: Bench) -> Iterator[Figure]:
    """Replaying and archiving dead letters."""
    few, many = bench.size.entries
    sizes = few, max(few, many // 10)
    yield _rates(bench, REPLAY, _replay, sizes)
    yield _rates(bench, ARCHIVE, _archive, sizes)
