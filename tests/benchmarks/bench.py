"""What every measurement is given: the server, the two sides, the size of the run."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from .app import Settings
from .model import BenchError
from .processes import Firer, Pool, Publisher, Worker
from .records import Records
from .server import DATABASES, RedisServer

DAY_MS = 86_400_000

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Side:
    """One of the two things compared."""

    name: str
    scheme: str
    delayq: bool


STOCK = Side("stock", "redis", delayq=False)
OURS = Side("ours", "delayq+redis", delayq=True)
#: Stands in for our side in a calibration run, which shows how far equal things differ here.
STOCK_AGAIN = Side("stock again", "redis", delayq=False)


class Note(Protocol):
    """Shows what goes on now."""

    def __call__(self, text: str) -> None: ...


@dataclass(frozen=True)
class Size:
    """How much is measured; :data:`FULL` for the table, :data:`QUICK` to try things out."""

    rounds: int
    publish_count: int
    batch_count: int
    far: tuple[int, ...]
    per_second: int
    lateness_seconds: int
    burst: int
    load_rounds: int
    immediate: int
    term_etas: int
    worker_rounds: int
    idle_seconds: int
    entries: tuple[int, int]


FULL = Size(
    rounds=9,
    publish_count=2_000,
    batch_count=5_000,
    far=(0, 10_000, 100_000),
    per_second=1_000,
    lateness_seconds=8,
    burst=10_000,
    load_rounds=2,
    immediate=10_000,
    term_etas=20_000,
    worker_rounds=3,
    idle_seconds=20,
    entries=(1_000, 1_000_000),
)
QUICK = Size(
    rounds=3,
    publish_count=1_000,
    batch_count=2_500,
    far=(0, 10_000),
    per_second=1_000,
    lateness_seconds=3,
    burst=3_000,
    load_rounds=1,
    immediate=2_000,
    term_etas=3_000,
    worker_rounds=2,
    idle_seconds=6,
    entries=(1_000, 100_000),
)


class Station:
    """One side in a database of its own, with its records file."""

    def __init__(
        self, side: Side, server: RedisServer, database: int, folder: Path, at_least_once: bool
    ) -> None:
        self.side = side
        self.database = database
        self.client: Any = server.connect(database)
        self.records = Records(folder / f"records-{database}")
        self.settings = Settings(
            broker=server.url(side.scheme, database),
            records=str(self.records.path),
            delayq=side.delayq,
            at_least_once=at_least_once,
            ready_fd=None,
        )
        self._folder = folder

    def worker(self, pool: Pool = Pool.SOLO, queues: tuple[str, ...] = ()) -> Worker:
        """A worker of this side; it runs inside ``with``."""
        log = self._folder / f"worker-{self.database}.log"
        return Worker(self.settings, log, pool, queues)

    def firer(self, entries: int, ticking: int = 0) -> Firer:
        """What fires periodic entries on this side; beat is told of them."""
        settings = replace(
            self.settings, entries=(0, 0) if self.side.delayq else (entries, ticking)
        )
        log, notes = (self._folder / f"firer-{self.database}{end}" for end in (".log", ""))
        for old in self._folder.glob(f"{notes.name}*"):
            old.unlink()
        return Firer(settings, log, notes)

    def publisher(self) -> Publisher:
        """A publisher of this side; it runs inside ``with``."""
        return Publisher(self.settings, self._folder / f"publisher-{self.database}.log")

    def clear(self) -> None:
        """Make the database and the records as empty as they were; no worker may be running."""
        self.client.flushdb()
        self.records.clear()


@dataclass
class Bench:
    """A run: hands out stations and knows the size."""

    server: RedisServer
    size: Size
    note: Note
    ours: Side = OURS
    at_least_once: bool = False
    pool: Pool = Pool.PREFORK
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="delayq-bench-")))
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def sides(self) -> tuple[Side, Side]:
        """Stock first, then ours."""
        return STOCK, self.ours

    @contextmanager
    def station(self, side: Side) -> Iterator[Station]:
        """One side in a fresh database, dropped afterwards."""
        number = 1 + next(self._numbers) % (DATABASES - 1)
        station = Station(side, self.server, number, self.folder, self.at_least_once)
        station.client.flushdb()
        try:
            yield station
        finally:
            station.client.flushdb()
            station.client.close()
            station.records.path.unlink(missing_ok=True)

    def in_turn(self, number: int) -> tuple[Side, Side]:
        """The sides in the order of this round: A B, B A, A B …, so that drift cancels."""
        stock, ours = self.sides
        return (stock, ours) if number % 2 == 0 else (ours, stock)

    def in_rounds(
        self, title: str, rounds: int, measure: Callable[[Station, Publisher], Outcome]
    ) -> tuple[list[Outcome], list[Outcome]]:
        """What ``measure`` saw on stock and on ours, which take turns.

        :param measure: starts a worker on an empty station and ends it; the publisher stays.
        """
        seen: dict[str, list[Outcome]] = {side.name: [] for side in self.sides}
        with ExitStack() as stack:
            stations = {s.name: stack.enter_context(self.station(s)) for s in self.sides}
            publishers = {n: stack.enter_context(s.publisher()) for n, s in stations.items()}
            for number in range(rounds):
                for side in self.in_turn(number):
                    self.note(f"{title}: round {number + 1} of {rounds}, {side.name}")
                    station = stations[side.name]
                    station.clear()
                    try:
                        seen[side.name].append(measure(station, publishers[side.name]))
                    except BenchError as error:
                        raise BenchError(f"{side.name}: {error}") from error
        stock, ours = (seen[side.name] for side in self.sides)
        return stock, ours


def now_ms() -> int:
    """Local clock, milliseconds since the epoch."""
    return round(time.time() * 1000)


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of the values do not exceed."""
    if not values:
        raise BenchError("no task ran, so that there is nothing to take a percentile of")
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
