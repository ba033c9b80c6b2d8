"""Finds inconsistencies between keys, and repairs them.

Scripts keep all keys consistent. Manual changes, a restored backup, another program or a bug may
make keys inconsistent. Each check is one atomic script call, so checks are exact while workers run.
The same call repairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import attrgetter

from celery_delayq.admin.findings import Report
from celery_delayq.admin.hash_tags import unfinished
from celery_delayq.dispatch.dispatcher import DEFER_SECONDS
from celery_delayq.errors import CommandRefused
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.repair import CALL_MEMBERS, Batch, Found
from celery_delayq.store.repair_tracking import Tracked
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS
from celery_delayq.store.store import Store, layouts
from celery_delayq.store.stores import Stores
from celery_delayq.utils.portions import batches

#: Attempts to count messages at one moment. An attempt fails if processes start or end meanwhile.
COUNT_ATTEMPTS = 3

#: Most running messages that are checked in one queue.
MAX_TRACKED_MESSAGES = 10_000

_WRONG_TYPE = re.compile(r"WRONGTYPE (.+?, expected an? \w+|[^,]+)")


def check(
    stores: Stores, settings: Settings, *, queue: str | None = None, repair: bool = False
) -> Iterator[Report]:
    """Check all queues or one queue. With *repair*, repair the findings.

    A check may be interrupted and repeated. Workers and producers may run during a check.

    Parameters
    ----------
    settings : Settings
        Only ``lease`` and ``revoke_expires`` are used.

    Yields
    ------
    Report
        The same object after each step, for a progress bar.
    """
    report = Report()
    try:
        # First, because resuming a queue sets its place in the next-due index.
        for each in unfinished(stores, settings.revoke_expires, queue):
            repaired = each.finish() if repair else 0
            report.add(each.queue, Found(each.kind, each.number, repaired, each.examples))
    except (*OUTAGE_ERRORS, CommandRefused) as exc:  # perhaps of another shard
        report.notes.append(
            f"the pauses, revokes and limits of all hash tags were not compared: {exc}"
        )
    for store in stores if queue is None else [stores.of(queue)]:
        yield from _Check(store, settings.lease, repair, report).run(queue)


class _Check:
    """A check of the queues of one store."""

    def __init__(self, store: Store, lease: float, repair: bool, report: Report) -> None:
        self._store = store
        self._checks = store.repair
        self._tracks = store.repair_tracking
        self._lease = lease
        self._repair = repair
        self._report = report
        self._wrong: set[tuple[str, str]] = set()
        self._holders: dict[str, set[str]] = {}

    def run(self, queue: str | None) -> Iterator[Report]:
        self._shared_types()
        known, names = dict[str, Layout](), set[str]()
        with self._wrong_type_as_finding(""):
            known = layouts(self._store.registry())
        with self._wrong_type_as_finding(""):
            names = self._checks.indexed_queues()
        names |= known.keys()
        if queue is not None:
            names &= {queue}
        self._holders = self._checks.worker_ids_by_queue(queue)
        names |= {*self._holders}
        report = self._report
        queues = sorted(names)
        report.queues += queues
        report.total += sum(sum(self._checks.key_sizes(name)) for name in names)
        if queue is None:
            report.total += self._checks.periodic_size()
        yield report
        layout_of = {name: known.get(name, self._store.layout) for name in queues}
        for name, layout in layout_of.items():
            self._types(name, self._tracks.wrong_types(name, layout))
            yield from self._check_running(name)
            for look in (
                self._checks.check_index,
                self._checks.check_entries,
                self._checks.check_due,
                self._tracks.check_paused_due,
                self._tracks.check_lanes,
                self._tracks.check_forgotten_lanes,
                self._tracks.check_ready,
                self._tracks.check_leased,
                self._checks.check_dead_letters,
                self._checks.check_death_times,
            ):
                yield from self._walk(name, look)
            with self._wrong_type_as_finding(name):
                for ids in [*batches(self._all_holders(name), CALL_MEMBERS)] or [[]]:
                    self._add_findings(
                        name, self._checks.check_leases(name, ids, self._lease, repair=self._repair)
                    )
            with self._wrong_type_as_finding(name):
                # A queue with a promote_rate below 1 is promoted less than once a second.
                rate = layout.limits.promote_rate
                deferred = max(DEFER_SECONDS, 1 / rate if rate else 0)
                self._add_findings(
                    name, self._checks.check_queue(name, layout, deferred, repair=self._repair)
                )
            with self._wrong_type_as_finding(name):
                self._totals(name, layout)
            yield report
        yield from self._check_permits(queue)
        if queue is None:
            yield from self._walk("", self._checks.check_periodic)

    def _walk(self, queue: str, look: Callable[..., Batch]) -> Iterator[Report]:
        """Check all members of a key in batches."""
        cursor = None
        with self._wrong_type_as_finding(queue):
            while cursor != 0:
                batch = look(queue, cursor or 0, repair=self._repair)
                self._add_findings(queue, batch)
                cursor = batch.cursor
                self._report.done += batch.looked
                yield self._report

    def _check_permits(self, queue: str | None) -> Iterator[Report]:
        """Find permits of messages that are not leased."""
        cursor = None
        with self._wrong_type_as_finding(""):
            while cursor != 0:
                cursor, found = self._tracks.check_permits(
                    cursor or 0, repair=self._repair, queue=queue
                )
                for name, batch in found:
                    self._add_findings(name, batch)
                yield self._report

    def _check_running(self, queue: str) -> Iterator[Report]:
        """Find messages that count as running but are leased to no process."""
        with self._wrong_type_as_finding(queue):
            missing = {
                each.message: each
                for each in islice(self._tracks.tracked(queue, "running"), MAX_TRACKED_MESSAGES)
            }
            # List the processes after the messages: the list then contains the process of each
            # message.
            for worker_id in self._all_holders(queue):
                for message in self._tracks.leased(queue, worker_id):
                    missing.pop(message or b"", None)
                    self._report.done += 1
                yield self._report
            # A message may have moved since. So one call checks each remaining message again.
            by_holder = sorted(missing.values(), key=attrgetter("holder"))
            for holder, those in groupby(by_holder, attrgetter("holder")):
                for group in batches(those, CALL_MEMBERS):
                    self._add_missing(queue, holder, group)

    def _add_missing(self, queue: str, holder: str, group: Sequence[Tracked]) -> None:
        """Report messages that count as leased to a process, but were not found."""
        gone = self._tracks.check_gone(queue, [holder], group, repair=self._repair)
        if gone is not None:
            self._add_findings(queue, gone)
        else:
            self._report.notes.append(
                f"{queue}: {len(group):,} messages that count as running were not found, "
                "and too much would have to be read at once to be sure that they are gone"
            )

    def _totals(self, queue: str, layout: Layout) -> None:
        """Compare the counters with the messages, unless another finding may be the cause."""
        if any(
            each.queue == queue and each.found > each.repaired for each in self._report.findings
        ):
            return
        for _ in range(COUNT_ATTEMPTS):
            holders = self._all_holders(queue)
            batch = self._tracks.check_totals(queue, layout, holders, repair=self._repair)
            if batch is not None:
                self._add_findings(queue, batch)
                return
        self._report.notes.append(
            f"{queue}: the counters were not compared with the messages, of which too many are "
            "leased, or by processes that come and go"
        )

    def _all_holders(self, queue: str) -> list[str]:
        """Return the processes that may have leased messages, with or without a valid lease."""
        return sorted({*self._holders.get(queue, ()), *self._checks.worker_ids_of(queue)})

    def _add_findings(self, queue: str, batch: Batch) -> None:
        for found in batch.found:
            self._report.add(queue, found)

    @contextmanager
    def _wrong_type_as_finding(self, queue: str) -> Iterator[None]:
        """Report a key of the wrong type as a finding, and continue with the next check."""
        try:
            yield
        except CommandRefused as exc:
            wrong = _WRONG_TYPE.search(str(exc))
            if wrong is None:
                raise
            named = "expected" in wrong[1]
            if named or all(known != queue for known, _ in self._wrong):
                self._types(queue, [wrong[1]])

    def _shared_types(self) -> None:
        """Report shared keys of the wrong type. In a repair, delete keys that stop dispatching."""
        wrong = self._tracks.wrong_shared_types()
        deleted = self._store.repair_types() if self._repair else []
        if deleted:
            self._report.add("", Found("wrong_type", len(deleted), len(deleted), deleted))
        self._types("", [what for what in wrong if what not in deleted])

    def _types(self, queue: str, wrong: Iterable[str]) -> None:
        """Report each key of the wrong type once."""
        for what in wrong:
            if not {(queue, what), ("", what)} & self._wrong:
                self._wrong.add((queue, what))
                self._report.add(queue, Found("wrong_type", 1, 0, [what]))
