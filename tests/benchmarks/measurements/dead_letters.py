"""Cost of replaying, archiving, reading and purging dead letters, with few and with many.

Stock has no dead letters, so the two columns are the two sizes.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from celery_delayq import DeadFilter, DelayQ
from tests.support.dead_letters import details, stored

from ..bench import OURS, Bench, percentile
from ..model import BenchError, Better, Figure, Row, Target, at_most, measurement
from ..pauses import SLOW, seconds_of
from .large import Comparison, Filled, large_row

#: Bytes of an argument with which message and details of a dead letter have 1 KB each.
TEXT = 170

ROUNDS = 3

#: Dead letters of a page, and of a replay beside many; number of calls of each kind.
SOME, CALLS = 100, 50


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


LIST = large_row("dead-list", "a page of 100 dead letters anywhere, p99", "ms", None)
COUNT = large_row("dead-count", "count of dead letters by time, p99", "ms", at_most(10, "ms"), 2)
HUNDRED = large_row("dead-replay", "replay of a hundred dead letters", "ms", None)
PURGE = large_row("dead-purge", "purge of all dead letters", "s", None, 2)


def fill(delayq: DelayQ, client: Any, number: int) -> None:
    """Store dead letters with messages as Celery sends them, which scripts replay unparsed.

    One died each ms, the last one just now.
    """
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
            fill(delayq, station.client, size)
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


@contextmanager
def _filled(bench: Bench, number: int) -> Iterator[Filled]:
    with bench.station(OURS) as station, station.delayq() as delayq:
        bench.note(f"{number:,} dead letters")
        fill(delayq, station.client, number)
        yield Filled(station, delayq, [], number)


def _times(filled: Filled) -> list[datetime]:
    """Return the times of death of some dead letters, one hundred dead letters apart."""
    first = next(filled.delayq.dead_letters()).dead_lettered.died_ms
    places = random.sample(range(filled.number // SOME), min(CALLS, filled.number // SOME // 2))
    epoch = datetime.fromtimestamp(0, timezone.utc)
    return [epoch + timedelta(milliseconds=first + place * SOME) for place in places]


def _page(filled: Filled, start: datetime) -> None:
    list(islice(filled.delayq.dead_letters(died_from=start), SOME))


def _list(filled: Filled) -> float:
    """Return the time of pages, p99, in ms."""
    took = [seconds_of(partial(_page, filled, start)) for start in _times(filled)]
    return percentile(took, 99) * 1000


def _count(filled: Filled) -> float:
    """Return the time of counts, p99, in ms."""
    count = filled.delayq.count_dead
    took = [seconds_of(partial(count, died_from=start)) for start in _times(filled)]
    return percentile(took, 99) * 1000


def _hundred(filled: Filled) -> float:
    """Return the time of a replay of one hundred, in ms."""
    took = []
    for start in _times(filled):
        until = start + timedelta(milliseconds=SOME - 1)
        chosen = DeadFilter(queue="celery", died_from=start, died_to=until)
        began = time.perf_counter()
        done = filled.delayq.replay_all(chosen).done
        took.append((time.perf_counter() - began) * 1000)
        if done != SOME:
            raise BenchError(f"{done} of {SOME} dead letters were replayed")
    return statistics.median(took)


def _purge(filled: Filled) -> float:
    """Return the time of a purge of all, in seconds."""
    took = seconds_of(lambda: filled.delayq.purge_all(DeadFilter(), everything=True))
    if left := filled.delayq.count_dead():
        raise BenchError(f"{left} dead letters are left")
    return took


@measurement("large-dead", order=94)
def large_dead(bench: Bench) -> Iterator[Figure]:
    """A page, a count, a replay and the purge of dead letters, few of them and many."""
    few, many = bench.size.dead
    with _filled(bench, few) as of_few, _filled(bench, many) as of_many:
        comparison = Comparison(bench, of_few, of_many)
        rows = {LIST: _list, COUNT: _count, HUNDRED: _hundred, PURGE: _purge}
        for row, measure in rows.items():
            yield comparison.figure(row, measure)
            yield comparison.longest(row)
        yield from comparison.slow(SLOW.name.replace("slow", "dead-slow"), "dead letters")
