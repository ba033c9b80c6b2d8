"""Values that every measurement gets: the server, the two sides, the size of the run."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from celery import Celery

from celery_delayq import DelayQ, Limit
from celery_delayq.embedded import EmbeddedRedis
from tests.support.programs import redis_server_on_path

from .app import Settings
from .model import BenchError
from .processes import ROOT, Firer, Pool, Publisher, Worker, probe
from .records import Records

DATABASES = 64
DAY_MS = 86_400_000

Outcome = TypeVar("Outcome")
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Side:
    """One of the two compared sides."""

    name: str
    scheme: str
    delayq: bool

    def __str__(self) -> str:
        return self.name


STOCK = Side("stock", "redis", delayq=False)
OURS = Side("ours", "delayq+redis", delayq=True)
#: Replaces our side in a calibration run, which shows how much equal sides differ here.
STOCK_AGAIN = Side("stock again", "redis", delayq=False)


@dataclass(frozen=True)
class Size:
    """The numbers of tasks, entries and rounds."""

    rounds: int = 9
    publish_count: int = 2_000
    batch_count: int = 5_000
    far: tuple[int, ...] = (0, 10_000, 100_000)
    per_second: int = 1_000
    lateness_seconds: int = 8
    burst: int = 10_000
    load_rounds: int = 2
    immediate: int = 10_000
    #: Tasks that a rate holds, and other lanes beside theirs.
    limited: int = 20_000
    lanes: int = 100_000
    term_etas: int = 20_000
    worker_rounds: int = 3
    fast_rounds: int = 7
    idle_seconds: int = 20
    entries: tuple[int, int] = (1_000, 1_000_000)
    #: Numbers of entries: few first, then more.
    large: tuple[int, ...] = (10_000, 1_000_000, 3_000_000)
    short: tuple[int, int] = (10_000, 10_000_000)
    dead: tuple[int, int] = (10_000, 200_000)
    #: Entries, or dead letters, that one call changes.
    bulk: tuple[int, int] = (10_000, 100_000)

    def up_to(self, most: int) -> Size:
        """Return this size with at most *most* entries in the rows of large schedules."""
        large = tuple(sorted({min(each, most) for each in self.large}))
        (few, short), (few_dead, dead) = self.short, self.dead
        return replace(
            self, large=large, short=(few, min(short, most)), dead=(few_dead, min(dead, most))
        )


#: For the published table.
FULL = Size()
#: For a quick try.
QUICK = Size(
    rounds=3,
    publish_count=1_000,
    batch_count=2_500,
    far=(0, 10_000),
    lateness_seconds=3,
    burst=3_000,
    load_rounds=1,
    immediate=2_000,
    limited=3_000,
    lanes=5_000,
    term_etas=3_000,
    worker_rounds=2,
    fast_rounds=3,
    idle_seconds=6,
    entries=(1_000, 100_000),
    large=(10_000, 50_000, 100_000),
    short=(10_000, 100_000),
    dead=(1_000, 10_000),
    bulk=(1_000, 10_000),
)


class Servers(Protocol):
    """What a station needs: a Redis, or the masters of a cluster."""

    def client(self, **options: Any) -> Any:
        """Return a client of a database."""

    def url_for(self, scheme: str, database: int, /) -> str:
        """Return the URL of a database."""


class Station:
    """One side in its own database, with its records file."""

    def __init__(
        self, side: Side, server: Servers, database: int, folder: Path, at_least_once: bool
    ) -> None:
        self.side = side
        self.database = database
        self.client: Any = server.client(db=database, decode_responses=True)
        self.records = Records(folder / f"records-{database}")
        self.settings = Settings(
            broker=server.url_for(side.scheme, database),
            records=str(self.records.path),
            delayq=side.delayq,
            at_least_once=at_least_once,
        )
        self._folder = folder
        #: The folder with the package and the benchmarks of worker and publisher.
        self.code = ROOT

    def worker(self, pool: Pool = Pool.SOLO, queues: tuple[str, ...] = ()) -> Worker:
        """Return a worker of this side; it runs inside ``with``."""
        log = self._folder / f"worker-{self.database}.log"
        return Worker(self.settings, log, pool, queues, self.code)

    def firer(self, entries: int, ticking: int = 0) -> Firer:
        """Return a process that fires periodic entries; for beat they are in its settings."""
        settings = self.settings
        if not self.side.delayq:
            settings = replace(settings, entries=entries, ticking=ticking)
        log, notes = (self._folder / f"firer-{self.database}{end}" for end in (".log", ""))
        for old in self._folder.glob(f"{notes.name}*"):
            old.unlink()
        return Firer(settings, log, notes)

    def publisher(self) -> Publisher:
        """Return a publisher of this side; it runs inside ``with``."""
        log = self._folder / f"publisher-{self.database}.log"
        return Publisher(self.settings, log, self.code)

    @contextmanager
    def delayq(self, limits: Mapping[str, Limit] | None = None) -> Iterator[DelayQ]:
        """Yield a client of our side."""
        with (
            Celery("shop", broker=self.settings.broker, set_as_current=False) as app,
            DelayQ(app, limits=limits) as delayq,
        ):
            app.conf.task_ignore_result = True
            yield delayq

    def clear(self) -> None:
        """Empty the database and the records; no worker may run."""
        self.client.flushdb()
        self.records.clear()


@dataclass
class Bench:
    """A run: makes stations and knows the size."""

    server: EmbeddedRedis
    size: Size
    #: Shows the current step.
    note: Callable[[str], None]
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
        """Yield one side in an empty database, which is dropped afterwards."""
        number = 1 + next(self._numbers) % (DATABASES - 1)
        station = Station(side, self.server, number, self.folder, self.at_least_once)
        station.client.flushdb()
        try:
            yield station
        finally:
            station.client.flushdb()
            station.client.close()
            station.records.path.unlink(missing_ok=True)

    @contextmanager
    def warmed_up(self, side: Side) -> Iterator[tuple[Station, Publisher, Worker]]:
        """Yield a station, and a publisher and a worker that have run some tasks."""
        with (
            self.station(side) as station,
            station.publisher() as publisher,
            station.worker(self.pool) as worker,
        ):
            for _ in range(5):
                probe(worker, publisher, station.records, 10.0)
            yield station, publisher, worker

    def in_turns(
        self,
        title: str,
        rounds: int,
        kinds: tuple[Kind, Kind],
        measure: Callable[[Kind], Outcome],
        *,
        warm_up: bool = False,
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Return the results of ``measure`` for two kinds, in turns, so that drift cancels.

        :param warm_up: measure one round more, and drop its result.
        """
        seen: tuple[list[Outcome], list[Outcome]] = ([], [])
        for number in range(-warm_up, rounds):
            for place in (0, 1) if number % 2 == 0 else (1, 0):
                kind = kinds[place]
                self.note(f"{title}: round {number + 1} of {rounds}, {kind}")
                try:
                    outcome = measure(kind)
                except BenchError as error:
                    raise BenchError(f"{kind}: {error}") from error
                if number >= 0:
                    seen[place].append(outcome)
        return seen

    def in_rounds(
        self,
        title: str,
        rounds: int,
        measure: Callable[[Station, Publisher], Outcome],
        *,
        warm_up: bool = False,
    ) -> tuple[list[Outcome], list[Outcome]]:
        """Return the results of ``measure`` on stock and on ours, in turns.

        :param measure: starts a worker on an empty station and ends it; the publisher stays.
        """
        with ExitStack() as stack:
            places: dict[str, tuple[Station, Publisher]] = {}
            for side in self.sides:
                station = stack.enter_context(self.station(side))
                places[side.name] = station, stack.enter_context(station.publisher())

            def measure_side(side: Side) -> Outcome:
                station, publisher = places[side.name]
                station.clear()
                return measure(station, publisher)

            return self.in_turns(title, rounds, self.sides, measure_side, warm_up=warm_up)


def new_server(*, appendonly: bool = False, **given: Any) -> EmbeddedRedis:
    """Return a server of the machine's own program if there is one; without *appendonly* it stores
    nothing.
    """
    options = {"databases": DATABASES}
    program = redis_server_on_path()
    return EmbeddedRedis(executable=program, appendonly=appendonly, options=options, **given)


def now_ms() -> int:
    """Return the local clock in milliseconds since the epoch."""
    return round(time.time() * 1000)


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed."""
    if not values:
        raise BenchError("no task ran, so that there is nothing to take a percentile of")
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
