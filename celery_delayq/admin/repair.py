"""Find what does not fit together among our keys, and repair it.

Our scripts leave every key in step with the others. What a hand, a restored backup, another
program or a bug has put out of step is found here. Each look is one script call that sees one
moment, so it is right while workers run; repairing happens in the same call.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from redis.exceptions import ResponseError

from celery_delayq.admin.findings import Report
from celery_delayq.dispatch.dispatcher import DEFER
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.repair import Batch, Found, RepairStore, batches
from celery_delayq.store.repair_tracking import Index, Place, RepairTracking
from celery_delayq.store.schedule import Store, layouts

#: Most messages to read, and most counts of deliveries or names of messages to look at, to find
#: those that are stale.
MOST_COUNTS = 10_000

#: Seconds in which something that is ready and wakes nobody must move: idle consumers look at their
#: queues each second (``block_timeout``).
WAKE_PATIENCE = 2.0

#: A lease on nothing is reclaimed once it has ended; it is told when it was not for so many
#: seconds, or one lease.
EMPTY_LEASE = 10.0

_WRONG_TYPE = re.compile(r"WRONGTYPE (.+?, expected an? \w+|[^,]+)")


def check(
    store: Store, settings: Settings, *, queue: str | None = None, repair: bool = False
) -> Iterator[Report]:
    """Look at all queues, or at one, and repair what is wrong if told so.

    May be interrupted and repeated; workers and producers may go on.

    Parameters
    ----------
    settings : Settings
        ``lease`` is read.

    Yields
    ------
    Report
        The same object after each step, for a progress bar.
    """
    return _Check(store, settings, repair).run(queue)


class _Check:
    """One walk over the queues."""

    def __init__(self, store: Store, settings: Settings, repair: bool) -> None:
        self._store = store
        self._checks = RepairStore(store)
        self._tracks = RepairTracking(store)
        self._settings = settings
        self._repair = repair
        self._report = Report()
        self._wrong: set[tuple[str, str]] = set()
        self._holders: dict[str, set[str]] = defaultdict(set)

    def run(self, queue: str | None) -> Iterator[Report]:
        known = layouts(self._store.registry())
        names = {*known, *self._checks.named()}
        if queue is not None:
            names &= {queue}
        for own in self._checks.owned(queue):
            names.add(own.queue)
            if own.worker_id is not None:
                self._holders[own.queue].add(own.worker_id)
        report = self._report
        report.queues = sorted(names)
        stores = (self._checks, self._tracks)
        report.total = sum(sum(each.sizes(name)) for name in names for each in stores)
        if queue is None:
            report.total += self._checks.periodic_size()
        yield report
        self._types("", self._tracks.wrong_shared_types())
        layout_of = {name: known.get(name, self._store.layout) for name in report.queues}
        for name, layout in layout_of.items():
            self._types(name, self._tracks.wrong_types(name))
            # Only what is found counts as the owner of a unique key.
            yield from self._held(name)
            yield from self._ready(name, layout)
            for look in (
                self._tracks.unique,
                self._checks.index,
                self._checks.entries,
                self._checks.due,
                self._tracks.paused_due,
                self._tracks.duplicate_ids,
                self._tracks.waiting,
                self._tracks.running,
                self._checks.dead_letters,
                self._checks.deaths,
            ):
                yield from self._walk(name, look)
            with self._surviving(name):
                self._leases(name)
            with self._surviving(name):
                # At a rate of less than one a second it is looked at as rarely.
                deferred = max(DEFER, 1 / layout.rate if layout.rate else 0)
                self._take(name, self._checks.queue(name, layout, deferred, repair=self._repair))
            with self._surviving(name):
                self._counts(name, layout)
            yield report
        if queue is None:
            yield from self._walk("", self._checks.periodic)
            yield from self._walk("", self._checks.looks)
        yield from self._wakes(layout_of)

    def _walk(self, queue: str, look: Callable[..., Batch]) -> Iterator[Report]:
        """Look at all members of a key."""
        cursor = None
        with self._surviving(queue):
            while cursor != 0:
                batch = look(queue, cursor or 0, repair=self._repair)
                self._take(queue, batch)
                cursor = batch.cursor
                self._report.done += batch.looked
                yield self._report

    def _held(self, queue: str) -> Iterator[Report]:
        """Find held messages that are not tracked, and what is tracked and not held."""
        with self._surviving(queue):
            yield from self._tracked(
                queue,
                "running",
                lambda: self._tracks.held_places(queue, self._all_holders(queue)),
            )

    def _ready(self, queue: str, layout: Layout) -> Iterator[Report]:
        """Find ready messages that are not tracked, and what is tracked and not ready."""
        with self._surviving(queue):
            tracked = self._tracks.count(queue, "waiting")
            sizes = self._store.sizes(queue, layout)
            if sizes.ready + self._checks.quarantined(queue) <= MOST_COUNTS:
                yield from self._tracked(
                    queue, "waiting", lambda: self._tracks.ready_places(queue, layout)
                )
            elif tracked:
                self._report.notes.append(
                    f"{queue}: {tracked:,} names of ready messages were not looked at, since all "
                    f"of {sizes.ready:,} messages would have to be read (at most "
                    f"{MOST_COUNTS:,} are)"
                )

    def _tracked(
        self, queue: str, index: Index, find_places: Callable[[], list[Place]]
    ) -> Iterator[Report]:
        """Compare what is tracked with all messages that are there."""
        seen = self._tracks.sample(queue, index, MOST_COUNTS)
        missing = {each.message: each for each in seen}
        # Who holds something that was seen is among the places that are found after that.
        places = find_places()
        for place in places:
            cursor = None
            while cursor != 0:
                batch, there = self._tracks.messages(queue, place, cursor or 0, repair=self._repair)
                self._take(queue, batch)
                cursor = batch.cursor
                self._report.done += batch.looked
                for message in there:
                    missing.pop(message, None)
                yield self._report
        # What was not met may have moved meanwhile, and come back.
        for group in batches(missing.values()):
            if index == "running":
                places = self._tracks.held_places(queue, sorted({each.holder for each in group}))
            gone = self._tracks.gone(queue, index, places, group, repair=self._repair)
            if gone is not None:
                self._take(queue, gone)
            else:
                self._report.notes.append(
                    f"{queue}: {len(group):,} messages that count as {index} were not found, and "
                    "too much would have to be read at once to be sure that they are gone"
                )

    def _all_holders(self, queue: str) -> list[str]:
        """Return the processes that may hold something, with a lease or without."""
        return sorted({*self._holders[queue], *self._checks.leaseholders(queue)})

    def _leases(self, queue: str) -> None:
        lease = self._settings.lease
        over = max(lease, EMPTY_LEASE)
        for worker_ids in batches(self._all_holders(queue)) or [[]]:
            self._take(
                queue, self._checks.leases(queue, worker_ids, lease, over, repair=self._repair)
            )

    def _counts(self, queue: str, layout: Layout) -> None:
        """Find counts of deliveries whose message is gone: popped by a stock worker, or purged."""
        counted = self._checks.count_counts(queue)
        if not counted:
            return
        messages = self._store.sizes(queue, layout).ready
        messages += sum(held for _, _, held in self._store.leases.leases(queue))
        if messages > MOST_COUNTS:
            self._report.notes.append(
                f"{queue}: {counted:,} counts of deliveries were not looked at, since all of "
                f"{messages:,} messages would have to be read (at most {MOST_COUNTS:,} are)"
            )
            return
        seen = self._checks.sample_counts(queue, MOST_COUNTS)
        if counted > len(seen):
            self._report.notes.append(
                f"{queue}: {len(seen):,} of {counted:,} counts of deliveries were looked at"
            )
        stale = self._checks.stale_counts(queue, layout, seen, self._holders[queue])
        for pairs in batches(stale.items()):
            self._take(queue, self._checks.counts(queue, dict(pairs), repair=self._repair))

    def _wakes(self, layout_of: dict[str, Layout]) -> Iterator[Report]:
        """Find what is ready, wakes nobody, and does not move."""
        signs = {}
        for queue, layout in layout_of.items():
            with self._surviving(queue):
                signs[queue] = self._checks.wake(queue, layout)
        signs = {queue: sign for queue, sign in signs.items() if sign}
        if signs:
            time.sleep(WAKE_PATIENCE)
        for queue, sign in signs.items():
            again = self._checks.wake(queue, layout_of[queue], sign if self._repair else "")
            if again == sign:
                self._report.add(queue, Found("no_wake", 1, int(self._repair), [queue]))
        yield self._report

    def _take(self, queue: str, batch: Batch) -> None:
        for found in batch.found:
            self._report.add(queue, found)

    @contextmanager
    def _surviving(self, queue: str) -> Iterator[None]:
        """Make a finding of a key of another type; what else there is to look at goes on."""
        try:
            yield
        except ResponseError as exc:
            wrong = _WRONG_TYPE.search(str(exc))
            if wrong is None:
                raise
            named = "expected" in wrong[1]
            if named or all(known != queue for known, _ in self._wrong):
                self._types(queue, [wrong[1]])

    def _types(self, queue: str, wrong: Iterable[str]) -> None:
        """Take up, once, what is said of keys of another type."""
        for what in wrong:
            if not {(queue, what), ("", what)} & self._wrong:
                self._wrong.add((queue, what))
                self._report.add(queue, Found("wrong_type", 1, 0, [what]))
