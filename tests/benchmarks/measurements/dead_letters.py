"""What dead letters cost to replay and to archive: few of them, the same with many.

There is nothing on stock to compare with, so the two columns are the two sizes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from celery_delayq import DeadFilter, DelayQ
from celery_delayq.model.dead_letter import pack_details

from ..bench import OURS, Bench
from ..model import BenchError, Better, Figure, Row, Target, measurement

#: Bytes of an argument that makes a message of about 1 KB, and of a traceback.
TEXT = 170
TRACEBACK = 700

ROUNDS = 3
BATCH = 500
QUEUE = "celery"


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


@contextmanager
def _delayq(bench: Bench) -> Iterator[tuple[DelayQ, bytes]]:
    """Give the client, and a message such as may have died."""
    with bench.station(OURS) as station:
        app = Celery("shop", broker=station.settings.broker, set_as_current=False)
        app.conf.task_ignore_result = True
        delayq = DelayQ(app)
        app.send_task("shop.tasks.send_reminder", (1_000_000, "x" * TEXT), queue=QUEUE)
        message = station.client.lpop(QUEUE)
        delayq.store.register(QUEUE)
        try:
            yield delayq, message.encode() if isinstance(message, str) else message
        finally:
            delayq.close()
            app.close()


def _add_dead_letter(delayq: DelayQ, number: int, like: bytes) -> None:
    """Make so many dead letters."""
    message: dict[str, Any] = json.loads(like)
    details = pack_details(
        {
            "exception": "ConnectionError",
            "message": "the shop is closed",
            "traceback": "x" * TRACEBACK,
            "retries": 3,
            "worker": "celery@shop",
        }
    )
    died = delayq.store.now_ms() - number
    for start in range(0, number, BATCH):
        rows = []
        for n in range(start, min(start + BATCH, number)):
            message["headers"].update(id=f"{n:032x}", root_id=f"{n:032x}", retries=3)
            header = b"2 %d 0 %d failed after 3 retries: closed\n" % (died + n, len(details))
            data = header + details + json.dumps(message).encode()
            rows.append((f"{n:032x}", died + n, data))
        delayq.store.dead_letters.keep(QUEUE, rows)


def _replay(delayq: DelayQ) -> int:
    return delayq.replay_all(DeadFilter(queue=QUEUE)).done


def _archive(delayq: DelayQ) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return delayq.archive_dead(f"sqlite:///{Path(folder) / 'dead_letters.db'}").moved


def _rates(
    bench: Bench, row: Row, change: Callable[[DelayQ], int], sizes: tuple[int, int]
) -> Figure:
    seen: list[list[float]] = [[], []]
    for place, size in enumerate(sizes):
        for number in range(ROUNDS):
            bench.note(f"{row.name}: {size:,} dead letters, round {number + 1} of {ROUNDS}")
            with _delayq(bench) as (delayq, message):
                _add_dead_letter(delayq, size, message)
                began = time.perf_counter()
                done = change(delayq)
                seen[place].append(size / (time.perf_counter() - began))
                if done != size or delayq.count_dead():
                    raise BenchError(f"{done} of {size} dead letters were done")
    return row.titled(*sizes).figure(seen[0], seen[1])


@measurement("dead-letters", order=97)
def dead_letters(bench: Bench) -> Iterator[Figure]:
    """Replaying and archiving dead letters."""
    few, many = bench.size.entries
    sizes = few, max(few, many // 10)
    yield _rates(bench, REPLAY, _replay, sizes)
    yield _rates(bench, ARCHIVE, _archive, sizes)
