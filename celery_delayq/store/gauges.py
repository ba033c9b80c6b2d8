"""Reads numbers of all queues in three round trips, and samples ready messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

from celery_delayq.errors import CommandRefused
from celery_delayq.model.script_values import to_text
from celery_delayq.model.totals import TickTotals, Totals
from celery_delayq.store.keys import Keys, Layout, queue_name
from celery_delayq.store.scan import PAGE_MESSAGES, ScanStore
from celery_delayq.store.scripting.calls import Call, Command, Steps, pack
from celery_delayq.store.scripting.clock import clock_us, time_command
from celery_delayq.store.scripting.refusals import is_denied
from celery_delayq.store.scripting.replies import Sizes, answered, cut
from celery_delayq.store.scripting.runner import ScriptRunner, StorePart, ran, with_sources
from celery_delayq.store.waits import lease_now
from celery_delayq.utils import foreign

T = TypeVar("T")

#: Most worker ids of a queue that ``schedule/counts`` returns.
MAX_WORKER_IDS = 1000

#: Most queues whose ready messages are read together, up to 1 MB of each queue at a time.
SAMPLED_QUEUES = 50

#: Most ready messages of a queue and priority that are read. From a longer list a sample of about
#: this size is read.
SAMPLE_MESSAGES = 1000

#: Number of stretches in which a sample is read.
SAMPLE_STRETCHES = 10

#: Most messages between the beginning of a stretch and the nearer end of the list: Redis walks
#: there node by node.
MAX_STRETCH_DEPTH = 50_000

#: ms after its due time from which the tick of a periodic entry counts as late.
LATE_TICK_MS = 10_000


class ServerGauges(NamedTuple):
    """Numbers of a Redis server, and of data that belongs to no queue.

    Attributes
    ----------
    now : int
        Redis' clock in ms since 1970.
    skew : float
        Seconds by which this machine's clock is ahead of Redis' clock.
    registry : Mapping[str, bytes]
        The stored layout of each queue.
    paused : frozenset[str]
        The paused queues.
    ticks : TickTotals
        The outcomes of the ticks of periodic entries.
    dispatched : int | None
        The time at which a dispatcher last moved an entry, or had none to move (ms); None if never.
    memory : tuple[int, int] | None
        Bytes that Redis uses, and its limit, 0 for none; None if Redis does not tell.
    lineage : str
        A text that changes at each failover and restart of Redis; ``""`` if Redis does not tell.
    broken : Sequence[str]
        Keys of a wrong type. They are read as empty.
    """

    now: int
    skew: float
    registry: Mapping[str, bytes]
    paused: frozenset[str]
    ticks: TickTotals
    dispatched: int | None
    memory: tuple[int, int] | None
    lineage: str
    broken: Sequence[str]


class FleetGauges(NamedTuple):
    """What Redis knows of its dispatchers.

    Attributes
    ----------
    dispatchers : int | None
        Number of dispatchers that listen; None if the account may not ask.
    on_duty : str
        The dispatcher on duty; ``""`` if none is.
    called_ms, dispatched_ms : int | None
        When the dispatcher on duty last called, and when a dispatcher last moved an entry, or had
        none to move (ms since 1970).
    lease_now_ms : int
        Lease time in ms, by which leases end.
    """

    dispatchers: int | None
    on_duty: str
    called_ms: int | None
    dispatched_ms: int | None
    lease_now_ms: int


class QueueGauges(NamedTuple):
    """Sizes and counters of a queue at one moment, and the number of leased messages.

    Counters and leased messages are None if their keys have a wrong type.
    """

    sizes: Sizes
    totals: Totals | None
    leased: int | None


class GaugeStore(StorePart):
    """The part of the store for metrics. It only reads."""

    def __init__(self, runner: ScriptRunner) -> None:
        super().__init__(runner)
        self._scan = ScanStore(runner)

    def server(self) -> ServerGauges:
        """Return the numbers that belong to no queue, in one round trip.

        Raises
        ------
        CommandRefused
            The account may not read the keys.
        """
        keys = (self._keys.queues, self._keys.control, self._keys.ticks, self._keys.clock)
        began = time.time()
        with self._runner.client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*time_command().args)
            for key in keys:
                pipe.hgetall(key)
            pipe.info("memory")
            pipe.info("replication")
            *found, memory, replication = pipe.execute(raise_on_error=False)
        here = (began + time.time()) / 2
        broken = [key for key, each in zip(keys, found[1:], strict=True) if _is_broken(each)]
        clock_reply, registry, control, ticks, clock = (
            {} if _is_broken(each) else each for each in found
        )
        now_us = clock_us(clock_reply)
        # The account may lack the right to INFO.
        told = {} if isinstance(memory, Exception) else memory
        used = (int(told["used_memory"]), int(told.get("maxmemory", 0))) if told else None
        replid = "" if isinstance(replication, Exception) else replication.get("master_replid", "")
        return ServerGauges(
            now=now_us // 1000,
            skew=here - now_us / 1_000_000,
            registry={name: text for each, text in registry.items() if (name := queue_name(each))},
            paused=frozenset(to_text(name[1:]) for name in control if name[:1] == b"q"),
            ticks=TickTotals.read(ticks),
            dispatched=foreign.parse_integer(clock.get(b"dispatched", b"")),
            memory=used,
            lineage=str(replid)[:8],
            broken=broken,
        )

    def fleet(self) -> FleetGauges:
        """Return what Redis knows of its dispatchers."""
        with self._runner.client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*time_command().args)
            pipe.hgetall(self._keys.clock)
            pipe.pubsub_numsub(self._keys.fleet)
            clock_reply, clock, listening = pipe.execute(raise_on_error=False)
        if isinstance(clock, Exception):
            raise clock
        number = {name: foreign.parse_integer(value) for name, value in clock.items()}
        now_ms = clock_us(clock_reply) // 1000
        stood_ms = number.get(b"stood") or 0
        return FleetGauges(
            None if isinstance(listening, Exception) else int(listening[0][1]),
            to_text(clock.get(b"duty", b"")),
            number.get(b"duty_at"),
            number.get(b"dispatched"),
            lease_now(now_ms, number.get(b"seen"), stood_ms),
        )

    def code_versions(self) -> dict[str, int]:
        """Return the announced versions of periodic entries in code, by source and version, with
        the times of their last announcements (ms).
        """
        found = cast("dict[bytes, bytes]", self._runner.client.hgetall(self._keys.code_versions))
        versions: dict[str, int] = {}
        for field, times in found.items():
            source, is_version, version = to_text(field).rpartition("\0")
            last = foreign.parse_integer(times.rpartition(b" ")[2])
            if is_version and last is not None:
                versions[f"{source} {version[:12]}"] = last
        return versions

    def sizes_steps(self, queue: str, layout: Layout) -> Steps[Sizes]:
        """Return the sizes of a queue at one moment."""
        return Sizes.read((yield self._new_call("schedule/counts", queue, layout=layout))[0])

    sizes = ran(sizes_steps)

    def queues(self, layouts: Mapping[str, Layout]) -> dict[str, QueueGauges | CommandRefused]:
        """Return the numbers of queues by name, in two round trips; an error for a broken queue.

        Raises
        ------
        CommandRefused
            The account may not read the queues.
        """
        found: dict[str, QueueGauges | CommandRefused] = {}
        sizes: dict[str, Sizes] = {}
        totals: dict[str, Totals | None] = {}
        commands = _packed(self._keys, tuple(layouts.items()))
        for name, reply in zip(
            layouts, self._runner.ask_packed(commands, len(layouts)), strict=True
        ):
            if isinstance(reply, CommandRefused):
                if is_denied(reply):
                    raise reply
                found[name] = reply
            else:
                sizes[name] = Sizes.read(reply[0])
                totals[name] = None if reply[1] == b"-" else _totals(reply[1])
        with self._runner.client.pipeline(transaction=False) as pipe:
            for name, size in sizes.items():
                for worker_id in size.worker_ids:
                    pipe.hlen(self._keys.queue(name).leased(worker_id))
            replies = iter(pipe.execute(raise_on_error=False))
        for name, size in sizes.items():
            counts = [next(replies) for _ in size.worker_ids]
            leased = None if any([*map(_is_broken, counts)]) else sum(counts)
            found[name] = QueueGauges(size, totals[name], leased)
        return found

    def periodic(self, now: int) -> tuple[dict[str, int], int]:
        """Return the number of periodic entries by status, and the number of late entries."""
        late = self._runner.client.zcount(self._keys.periodic_at, "-inf", now - LATE_TICK_MS)
        statuses: dict[str, int] = {}
        for _, record in self._scan.fields(self._keys.periodic):
            status = record.partition(b"\n")[0].rpartition(b" ")[2].decode("utf-8", "replace")
            statuses[status] = statuses.get(status, 0) + 1
        return statuses, cast(int, late)

    def leased_steps(self, queue: str, size: Sizes) -> Steps[int]:
        """Return the number of leased messages of a queue."""
        key, worker_ids = self._keys.queue(queue), size.worker_ids
        if len(worker_ids) >= MAX_WORKER_IDS:  # there may be more
            found = yield Command.of("ZRANGE", key.leases, 0, -1)
            worker_ids = tuple(map(to_text, found))
        return sum(answered((yield [Command.of("HLEN", key.leased(name)) for name in worker_ids])))

    def memory_steps(self, queue: str) -> Steps[int | None]:
        """Return the approximate bytes of a queue's schedule; None if Redis does not tell."""
        sizes = yield [Command.of("MEMORY", "USAGE", key) for key in self._keys.queue(queue).state]
        known = not any(isinstance(each, Exception) for each in sizes)
        return sum(size or 0 for size in sizes) if known else None

    def sample_steps(
        self, queue: str, layout: Layout, read: Callable[[bytes], T]
    ) -> Steps[list[tuple[float, list[T]]]]:
        """Return samples of a queue's ready messages, for each non-empty list.

        A sample is a weight and the results of *read*: each result stands for as many messages as
        the weight.
        """
        lists = self._keys.ready_lists(queue, layout)
        lengths = answered((yield [Command.of("LLEN", name) for name in lists]))
        samples: list[tuple[float, list[T]]] = []
        for name, length in zip(lists, lengths, strict=True):
            if length <= SAMPLE_MESSAGES:
                places = [
                    range(length)[at : at + PAGE_MESSAGES] for at in range(0, length, PAGE_MESSAGES)
                ]
            else:
                size, near = SAMPLE_MESSAGES // SAMPLE_STRETCHES, min(length, 2 * MAX_STRETCH_DEPTH)
                starts = [near * place // SAMPLE_STRETCHES for place in range(SAMPLE_STRETCHES)]
                half, beyond = SAMPLE_STRETCHES // 2, length - near
                starts = [*starts[:half], *(beyond + start for start in starts[half:])]
                places = [range(start, start + size) for start in starts]
            found: list[T] = []
            for place in places:
                # One call for a stretch. The call ends after about 1 MB: fewer large messages.
                reply = yield self._scan.messages_call(name, -place.start - 1, len(place))
                found += map(read, cut(*reply))
            if found:
                samples.append((length / len(found), found))
        return samples


@lru_cache(maxsize=32)
def _packed(keys: Keys, layouts: tuple[tuple[str, Layout], ...]) -> bytes:
    """Return the commands that read queues. Cached for each scrape, since packing takes long."""
    calls = [Call.of(keys, "schedule/counts", name, layout=layout) for name, layout in layouts]
    return pack(with_sources(calls))


def _totals(text: bytes) -> Totals:
    parts = iter(text.split(b" "))
    return Totals.read(dict(zip(parts, parts, strict=False)))


def _is_broken(reply: Any) -> bool:
    """Return whether a reply is the error of a wrong type. Raises any other refusal."""
    if not isinstance(reply, Exception):
        return False
    if "WRONGTYPE" not in str(reply):
        raise reply
    return True
