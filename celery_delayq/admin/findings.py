"""Kinds of findings of ``fsck``, and the report of a check. No I/O."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from celery_delayq.store.repair import MAX_EXAMPLES, Found


class Cause(Enum):
    """Causes of inconsistent keys. Neither scripts nor crashes make keys inconsistent."""

    LOST_KEY = "a key was evicted or deleted"
    OLD_KEY = "a key was restored without the others"
    OTHER_PROGRAM = "another program has written to a key"
    OTHER_VERSION = "another version of the package has written it"
    INTERRUPTED = "a call to several hash tags of a cluster was interrupted"
    FAILOVER = "a failover has lost the last writes to one hash tag of a cluster"


class Kind(NamedTuple):
    """A kind of inconsistency, its repair and its possible causes."""

    what: str
    repairing: str
    causes: tuple[Cause, ...] = (Cause.LOST_KEY, Cause.OLD_KEY)


KINDS = {
    "no_record": Kind(
        "scheduled without a record: the message is lost", "a dead letter tells of it"
    ),
    "unscheduled": Kind(
        "record without a due time: would never run",
        "due as the index by task says, else its ETA, else now",
    ),
    "unreadable": Kind(
        "record that cannot be read",
        "none, a dead letter when it is due",
        (Cause.OTHER_VERSION, Cause.OTHER_PROGRAM),
    ),
    "misindexed": Kind("in the index by task without such an entry", "removed from the index"),
    "unindexed": Kind("entry that the index by task lacks", "added to the index"),
    "lost_paused_due": Kind(
        "paused and due entry that is not listed: would not come back when its task goes on",
        "listed",
    ),
    "misplaced_paused": Kind(
        "listed as paused and due, and is not: would be due at another time when its task goes on",
        "removed from the list",
        (Cause.OLD_KEY,),
    ),
    "lost_held": Kind(
        "held entry that its lane does not list: would never run", "due again, and held again"
    ),
    "lost_lane": Kind(
        "lane with held entries that nobody looks at: they would never run", "tried at once"
    ),
    "forgotten_lane": Kind(
        "lane that waits for a permit which nothing gives back: its entries would never run",
        "tried at once",
    ),
    "misplaced_held": Kind(
        "listed in a lane, and is not held there: counts as held",
        "removed from the lane",
        (Cause.OTHER_VERSION, Cause.OLD_KEY),
    ),
    "lost_permit": Kind(
        "permit of a message that is not leased: takes a place of its limit",
        "given back",
        (Cause.OTHER_VERSION, Cause.LOST_KEY, Cause.OLD_KEY),
    ),
    "unlisted_duplicate": Kind(
        "second message with the same id that is not listed: is not found by its id", "listed"
    ),
    "gone_running": Kind(
        "counts as running, and is leased to no process: keeps its unique key, cannot be cancelled",
        "forgotten, and its unique key is free",
    ),
    "next_due_late": Kind(
        "the next-due index looks at the queue too late or never", "set to the first due"
    ),
    "unregistered": Kind("the registry lacks the queue", "added, with this app's priority steps"),
    "unleased": Kind(
        "process that has messages without a lease: they would never come back",
        "the lease ends one lease from now",
    ),
    "unwatched": Kind("leases that nobody looks at when they end", "looked at by then"),
    "unlisted_dead_letter": Kind("dead letter that the list by time lacks", "listed"),
    "no_dead_letter": Kind("in the list of dead letters by time, and there is none", "removed"),
    "unlisted_periodic": Kind("periodic entry that nobody looks at: would not fire", "looked at"),
    "unreadable_periodic": Kind(
        "periodic entry that cannot be read: does not fire",
        "none, remove it or add it again",
        (Cause.OTHER_VERSION, Cause.OTHER_PROGRAM),
    ),
    "unfinished_pause": Kind(
        "paused in some hash tags only", "paused in all", (Cause.INTERRUPTED, Cause.FAILOVER)
    ),
    "unfinished_resume": Kind(
        "still paused in some hash tags", "resumed in all", (Cause.INTERRUPTED, Cause.FAILOVER)
    ),
    "unfinished_revoke": Kind(
        "revoked in some hash tags only",
        "revoked in all; what is scheduled stays until it is due, revoke it again to remove it",
        (Cause.INTERRUPTED, Cause.FAILOVER),
    ),
    "unfinished_limit": Kind(
        "limit that people have changed in some hash tags only",
        "changed in all",
        (Cause.INTERRUPTED, Cause.FAILOVER),
    ),
    "totals_differ": Kind(
        "the counters do not add up to the messages that are there",
        "the difference counts as accepted or as taken",
        (Cause.LOST_KEY, Cause.OLD_KEY, Cause.OTHER_PROGRAM),
    ),
    "wrong_type": Kind(
        "key of the wrong type",
        "deleted if nothing is dispatched without it, else none, look at it yourself",
        (Cause.OTHER_PROGRAM,),
    ),
}


@dataclass(slots=True)
class Finding:
    """The number of findings of one kind in one queue.

    A member of a key may be counted twice if the key grows or shrinks much during the check. No
    member is missed.
    """

    queue: str
    kind: str
    found: int = 0
    repaired: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The findings so far.

    *done* of about *total* members of keys are checked. Each of *notes* says what was not checked,
    and why.
    """

    total: int = 0
    done: int = 0
    queues: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def found(self) -> int:
        """Number of findings."""
        return sum(finding.found for finding in self.findings)

    @property
    def repaired(self) -> int:
        """Number of repaired findings."""
        return sum(finding.repaired for finding in self.findings)

    @property
    def unrepaired(self) -> int:
        """Number of findings that are not repaired."""
        return self.found - self.repaired

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        findings = [{**asdict(each), "what": KINDS[each.kind].what} for each in self.findings]
        totals = {name: getattr(self, name) for name in ("found", "repaired", "unrepaired")}
        return {**totals, "queues": self.queues, "findings": findings, "notes": self.notes}

    def add(self, queue: str, found: Found) -> None:
        """Add the findings of one call."""
        for finding in self.findings:
            if (finding.queue, finding.kind) == (queue, found.kind):
                break
        else:
            finding = Finding(queue, found.kind)
            self.findings.append(finding)
        finding.found += found.number
        finding.repaired += found.repaired
        new = [id for id in found.examples if id not in finding.examples]
        finding.examples += new[: MAX_EXAMPLES - len(finding.examples)]
