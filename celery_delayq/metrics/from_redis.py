"""Metrics of Redis. A scrape takes a few round trips, for any number of queues."""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence, Set
from functools import partial
from typing import NamedTuple

from celery_delayq.app import DelayQ
from celery_delayq.metrics.catalogue import COUNTERS
from celery_delayq.metrics.sheet import Sheet
from celery_delayq.metrics.slow_numbers import SlowNumbers
from celery_delayq.model.totals import Totals
from celery_delayq.store.gauges import QueueGauges, ServerGauges
from celery_delayq.store.store import Store, layouts
from celery_delayq.store.stores import Stores
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)


class _StoreReading(NamedTuple):
    """The values of one store.

    Attributes
    ----------
    scheduled : int
        Number of scheduled entries in all queues of the store.
    owners : Sequence[str]
        The owners of its counters, as for :class:`Epochs`.
    """

    server: ServerGauges
    scheduled: int
    owners: Sequence[str]


class FromRedis:
    """Reads gauges and counters of the queues in Redis' registry and of the app's queues.

    Parameters
    ----------
    tasks : int
        Most pairs of queue and task with metrics of their own.
    """

    broker = "redis"

    def __init__(self, delayq: DelayQ, tasks: int) -> None:
        self._ask = delayq.session.ask
        self._consumed = frozenset(delayq.app.amqp.queues)
        self._slow = SlowNumbers(self._consumed, tasks)
        self._epochs = Epochs()
        #: The stores that the last scrape could not read, with the reasons.
        self.away = ""

    def read(self) -> bytes:
        """Return the metrics of a scrape, in Prometheus' text format."""
        return self._ask(self._read).text()

    def read_slow(self) -> bytes:
        """Return the slow metrics, in Prometheus' text format."""
        return self._ask(self._slow.read)

    def _read(self, stores: Stores) -> Sheet:
        sheet = Sheet()
        read, self.away = stores.ask_each(self._consumed, partial(self._read_store, sheet))
        _put_servers(sheet, read)
        if not self.away:
            self._epochs.keep({owner for each in read for owner in each.owners})
        return sheet

    def _read_store(self, sheet: Sheet, store: Store, consumed: Set[str]) -> _StoreReading:
        gauges = store.gauges
        server = gauges.server()
        known = layouts(server.registry)
        names = sorted({*known, *consumed})
        queues = gauges.queues({name: known.get(name, store.layout) for name in names})
        for key in server.broken:
            _warn(key)
        scheduled = 0
        for name in names:
            found = queues[name]
            if not isinstance(found, QueueGauges):
                _warn(f"queue {name!r}", str(found))
                continue
            scheduled += found.sizes.scheduled
            _put_queue(sheet, name, found, server.now, name in server.paused)
            if found.leased is None:
                _warn(f"leased messages of queue {name!r}")
            if found.totals is None:
                _warn(f"counters of queue {name!r}")
            elif found.totals.epoch:
                self._put_totals(sheet, name, found.totals, server)
        tick_owner = f"t{store.keys.ticks}"
        if (ticks := server.ticks).epoch:
            epoch = self._epoch(server, tick_owner, ticks.epoch, [*ticks.outcomes.values()])
            for outcome, count in ticks.outcomes.items():
                sheet.put("ticks_total", count, outcome, epoch)
        return _StoreReading(server, scheduled, [tick_owner, *(f"q{name}" for name in names)])

    def _put_totals(self, sheet: Sheet, name: str, totals: Totals, server: ServerGauges) -> None:
        counts, dead = totals.counts, totals.dead_lettered
        values = [*(counts[counter] for counter in COUNTERS), *dead.values()]
        epoch = self._epoch(server, f"q{name}", totals.epoch, values)
        for counter in COUNTERS:
            sheet.put(f"{counter}_total", counts[counter], name, epoch)
        for reason, count in dead.items():
            sheet.put("dead_lettered_total", count, name, reason, epoch)

    def _epoch(self, server: ServerGauges, owner: str, epoch: str, values: list[int]) -> str:
        # After a failover, all exporters use the same name, also those that were restarted.
        source = f"{epoch}-{server.lineage}" if server.lineage else epoch
        return self._epochs.name(owner, source, values, server.now)


def _warn(what: str, why: str = "a key of a wrong type") -> None:
    warn_once(logger, f"No numbers of {what}, fsck tells more: {why}")


def _put_servers(sheet: Sheet, read: Sequence[_StoreReading]) -> None:
    """Put values of servers; of the masters of a Redis Cluster the worst value."""
    servers = [each.server for each in read]
    sheet.put("clock_skew_seconds", max((each.skew for each in servers), key=abs))
    dispatched = [(each.server.dispatched, each.scheduled) for each in read]
    known = [(at, scheduled) for at, scheduled in dispatched if at is not None]
    if known:
        # A shard without scheduled entries needs no dispatcher.
        waiting = [at for at, scheduled in known if scheduled]
        dispatched_ms = min(waiting) if waiting else max(at for at, _ in known)
        sheet.put("last_dispatch_timestamp_seconds", dispatched_ms / 1000)
    memory = [each.memory for each in servers if each.memory is not None]
    if memory:
        used, most = max(memory, key=lambda each: (each[0] / each[1] if each[1] else 0, each[0]))
        sheet.put("redis_memory_used_bytes", used)
        sheet.put("redis_memory_max_bytes", most)


def _put_queue(sheet: Sheet, name: str, found: QueueGauges, now: int, is_paused: bool) -> None:
    size, _, leased = found
    if is_paused:
        size = size.in_paused_queue()
    waits = [0]
    if size.overdue and size.first_due is not None:
        waits.append(now - size.first_due)
    if not is_paused and size.oldest_ready is not None:
        waits.append(now - size.oldest_ready)  # negative for a task that run_now made ready early
    sheet.put("entries", size.scheduled - size.paused - size.held, name, "scheduled")
    sheet.put("entries", size.paused, name, "paused")
    sheet.put("entries", size.held, name, "held")
    sheet.put("entries", size.ready, name, "ready")
    if leased is not None:
        sheet.put("entries", leased, name, "leased")
    sheet.put("entries", size.dead, name, "dead")
    sheet.put("overdue_entries", size.overdue, name)
    sheet.put("oldest_due_age_seconds", max(waits) / 1000, name)
    if size.first_due is not None:
        sheet.put("next_due_timestamp_seconds", size.first_due / 1000, name)
    sheet.put("queue_paused", int(is_paused), name)
    sheet.put("leasing_processes", size.leasing, name)


class Epochs:
    """Names epochs of counters: a counter that gets smaller gets a new epoch.

    To Prometheus, a counter that gets smaller has begun again at 0, so ``increase()`` adds its full
    value. After a failover to an old replica, ``increase()`` would count everything a second time.
    """

    def __init__(self) -> None:
        #: By owner and source: the epoch and the values that were last exported.
        self._known: dict[str, dict[str, tuple[str, Sequence[int]]]] = {}

    def name(self, owner: str, source: str, values: Sequence[int], now: int) -> str:
        """Return the epoch under which to export *values*.

        Parameters
        ----------
        owner : str
            Whose counters these are.
        source : str
            Where the counters come from. The text changes when they begin again at 0.
        now : int
            The time, for the name of a new epoch.
        """
        known = self._known.setdefault(owner, {})
        name, last_values = known.get(source, (source, values))
        if any(value < before for value, before in zip(values, last_values, strict=True)):
            name = f"{source}.{now}"
        known[source] = name, values
        return name

    def keep(self, owners: Container[str]) -> None:
        """Forget all other owners."""
        self._known = {owner: each for owner, each in self._known.items() if owner in owners}
