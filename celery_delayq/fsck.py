"""Find what does not fit together among our keys, and mend it.

Our scripts leave every key in step with the others. What a hand, a restored backup, another
program or a bug has put out of step is found here. Each look is one script call that sees one
moment, so it is right while workers run; mending happens in the same call.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from celery_delayq.conf import Settings
from celery_delayq.dispatcher import DEFER
from celery_delayq.keys import Layout
from celery_delayq.mend_store import EXAMPLES, Batch, Found, MendStore, batches
from celery_delayq.store import Store, layouts

#: Most messages to read, and most counts of deliveries to look at, to find those that are stale.
MOST_COUNTS = 10_000

#: Seconds in which something that is ready and wakes nobody must move: idle consumers look at their
#: queues each second (``block_timeout``).
WAKE_PATIENCE = 2.0

#: A lease on nothing is reaped once it has ended; it is told when it was not for so many seconds,
#: or one lease.
EMPTY_LEASE = 10.0

_WRONG_TYPE = re.compile(r"WRONGTYPE (.+?, expected an? \w+|[^,]+)")


@dataclass(frozen=True, slots=True)
class Kind:
    """What may be wrong, what mending does, and whether nothing is lost or late by it.

    What is *harmless* comes about without a fault, and goes again by itself or costs nothing.
    """

    what: str
    mending: str
    harmless: bool = False


KINDS = {
    "no_record": Kind(
        "scheduled without a record: the message is lost", "a dead letter tells of it"
    ),
    "unscheduled": Kind(
        "record without a due time: would never run",
        "due as the index by task says, else its ETA, else now",
    ),
    "unreadable": Kind("record that cannot be read", "none, a dead letter when it is due"),
    "misindexed": Kind("in the index by task without such an entry", "removed from the index"),
    "unindexed": Kind("entry that the index by task lacks", "added to the index"),
    "agenda_late": Kind("the agenda looks at the queue too late or never", "set to the first due"),
    "idle_agenda": Kind("the agenda names a queue with nothing scheduled", "removed", True),
    "unregistered": Kind("the registry lacks the queue", "added, with this app's priority steps"),
    "unleased": Kind(
        "process that holds messages without a lease: they would never come back",
        "the lease ends one lease from now",
    ),
    "unwatched": Kind("leases that nobody looks at when they end", "looked at by then"),
    "empty_lease": Kind("lease on nothing that ended long ago", "removed", True),
    "stale_nonce": Kind("last request of a process without a lease", "removed", True),
    "idle_reaping": Kind("the index of leases names a queue without any", "removed", True),
    "unlisted_letter": Kind("dead letter that the list by time lacks", "listed"),
    "no_letter": Kind("in the list of dead letters by time, and there is none", "removed"),
    "stale_count": Kind("count of deliveries of a message that is gone", "removed", True),
    "no_wake": Kind("something is ready and wakes nobody: up to 1 s late", "wakes", True),
    "wrong_type": Kind("key of the wrong type", "none, look at it yourself"),
}


@dataclass(slots=True)
class Finding:
    """How often one thing is wrong in one queue.

    Members that a walk over a key meets twice, because it grows or shrinks much meanwhile, are
    counted twice; none is missed.
    """

    queue: str
    kind: str
    found: int = 0
    repaired: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def harmless(self) -> bool:
        """Whether nothing is lost or late by it."""
        return KINDS[self.kind].harmless

    @property
    def left(self) -> int:
        """How many are not repaired."""
        return self.found - self.repaired


@dataclass(slots=True)
class Report:
    """What was found so far.

    *done* of about *total* members of keys were looked at; *notes* say what was not looked at and
    why.
    """

    total: int = 0
    done: int = 0
    queues: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def found(self) -> int:
        """How much was wrong, what is harmless included."""
        return sum(finding.found for finding in self.findings)

    @property
    def repaired(self) -> int:
        """How much of it is repaired."""
        return sum(finding.repaired for finding in self.findings)

    @property
    def left(self) -> int:
        """How much is still wrong, what is harmless not included."""
        return sum(finding.left for finding in self.findings if not finding.harmless)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        findings = [
            {
                "queue": finding.queue,
                "kind": finding.kind,
                "what": KINDS[finding.kind].what,
                "harmless": finding.harmless,
                "found": finding.found,
                "repaired": finding.repaired,
                "examples": finding.examples,
            }
            for finding in self.findings
        ]
        totals = {name: getattr(self, name) for name in ("found", "repaired", "left")}
        return {**totals, "queues": self.queues, "findings": findings, "notes": self.notes}

    def add(self, queue: str, found: Found) -> None:
        """Take up what one call found."""
        for finding in self.findings:
            if (finding.queue, finding.kind) == (queue, found.kind):
                break
        else:
            finding = Finding(queue, found.kind)
            self.findings.append(finding)
        finding.found += found.number
        finding.repaired += found.mended
        new = [id for id in found.examples if id not in finding.examples]
        finding.examples += new[: EXAMPLES - len(finding.examples)]


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
        self._mend = MendStore(store)
        self._settings = settings
        self._repair = repair
        self._report = Report()
        self._wrong: set[tuple[str, str]] = set()
        self._holders: dict[str, set[str]] = defaultdict(set)

    def run(self, queue: str | None) -> Iterator[Report]:
        known = layouts(self._store.registry())
        names = {*known, *self._mend.named()}
        if queue is not None:
            names &= {queue}
        for own in self._mend.owned(queue):
            names.add(own.queue)
            if own.incarnation is not None:
                self._holders[own.queue].add(own.incarnation)
        report = self._report
        report.queues = sorted(names)
        report.total = sum(sum(self._mend.sizes(name)) for name in names)
        yield report
        layout_of = {name: known.get(name, self._store.layout) for name in report.queues}
        for name, layout in layout_of.items():
            for look in (
                self._mend.index,
                self._mend.entries,
                self._mend.due,
                self._mend.letters,
                self._mend.deaths,
            ):
                yield from self._walk(name, look)
            with self._surviving(name):
                self._leases(name)
            with self._surviving(name):
                self._take(name, self._mend.queue(name, layout, DEFER, mend=self._repair))
            with self._surviving(name):
                self._counts(name, layout)
            yield report
        yield from self._wakes(layout_of)

    def _walk(self, queue: str, look: Callable[..., Batch]) -> Iterator[Report]:
        """Look at all members of a key."""
        cursor = None
        with self._surviving(queue):
            while cursor != 0:
                batch = look(queue, cursor or 0, mend=self._repair)
                self._take(queue, batch)
                cursor = batch.cursor
                self._report.done += batch.looked
                yield self._report

    def _leases(self, queue: str) -> None:
        lease = self._settings.lease
        over = max(lease, EMPTY_LEASE)
        names = sorted({*self._holders[queue], *self._mend.leaseholders(queue)})
        for incarnations in batches(names) or [[]]:
            self._take(
                queue, self._mend.leases(queue, incarnations, lease, over, mend=self._repair)
            )

    def _counts(self, queue: str, layout: Layout) -> None:
        """Find counts of deliveries whose message is gone: popped by a stock worker, or purged."""
        counted = self._mend.count_counts(queue)
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
        seen = self._mend.sample_counts(queue, MOST_COUNTS)
        if counted > len(seen):
            self._report.notes.append(
                f"{queue}: {len(seen):,} of {counted:,} counts of deliveries were looked at"
            )
        # A message that was put back while the others were read is found the second time.
        for _ in range(2):
            if seen:
                there = self._mend.digests(queue, layout, self._holders[queue])
                seen = {digest: text for digest, text in seen.items() if digest not in there}
        for pairs in batches(seen.items()):
            self._take(queue, self._mend.counts(queue, dict(pairs), mend=self._repair))

    def _wakes(self, layout_of: dict[str, Layout]) -> Iterator[Report]:
        """Find what is ready, wakes nobody, and does not move."""
        signs = {}
        for queue, layout in layout_of.items():
            with self._surviving(queue):
                signs[queue] = self._mend.wake(queue, layout)
        signs = {queue: sign for queue, sign in signs.items() if sign}
        if signs:
            time.sleep(WAKE_PATIENCE)
        for queue, sign in signs.items():
            again = self._mend.wake(queue, layout_of[queue], sign if self._repair else "")
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
            if (queue, wrong[1]) not in self._wrong:
                self._wrong.add((queue, wrong[1]))
                self._report.add(queue, Found("wrong_type", 1, 0, [wrong[1]]))
