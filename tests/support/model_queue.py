"""The effect of each script on one queue, in plain Python.

The first item of each list runs next. Time is lease time in seconds, moved manually.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from celery_delayq.model.envelope import Record
from celery_delayq.model.totals import kind_of
from celery_delayq.store.leases import AcquireReply, Counted, DeliveryCounts, Mark, Reclaimed
from tests.support.leases import Retried
from tests.support.model_dead_letters import DeadLetterModel
from tests.support.model_schedule import is_late
from tests.support.model_tracking import NOW, Label, Plan, duplicate

#: Marks of messages that do not run, by :attr:`~tests.support.model_tracking.Tracked.dropped`.
MARKS = [None, Mark("cancelled"), Mark("replaced"), Mark("skipped")]
SKIPPED = 3

#: The counter of each mark.
DROPPED = {1: "cancelled", 2: "replaced"}


class Leased(NamedTuple):
    """A field of a process: a message, or None after a retry has replaced it."""

    step: int
    alone: bool
    message: bytes | None


@dataclass(kw_only=True)
class QueueModel(DeadLetterModel):
    """One queue with its schedule, and the processes that have leased its messages."""

    now: int = 0
    leased: dict[str, dict[str, Leased]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    request_numbers: dict[str, int] = field(default_factory=dict)
    turn: str | None = None
    #: Whether the process reports messages that do not run.
    reports: bool = False
    lease_ends: int | None = None

    # -- lease

    def acquire(
        self,
        who: str,
        lease: int,
        request_number: str,
        limit: int,
        lists: int,
        others: int,
        *,
        reports: bool,
    ) -> AcquireReply:
        """Lease up to *limit* messages, or return those of an earlier request again."""
        self.reports = reports
        self.count_others()
        mine = self.leased.setdefault(who, {})
        names = [f"{request_number}:{place}" for place in range(1, limit + 1)]
        last = self.request_numbers.get(who, 0)
        room = False
        tracked = bool(self.waiting)
        if int(request_number) <= last:
            leases = {
                name: one for name in names if (one := mine.get(name)) and one.message is not None
            }
        else:
            taken: list[Leased] = []
            if self.queue_paused:
                pass
            elif self.quarantined and not mine and not others:
                step, message = self.quarantined.pop(0)
                taken = [Leased(step, True, message)] if self._admit(message, who) else []
                self.turn = None
            else:
                if self.quarantined and self.turn is None:
                    self.turn = who
                room = bool(self.quarantined) and self.turn == who
                if not room:
                    taken = list(self._take(who, limit, lists))
            leases = dict(zip(names, taken, strict=False))
            mine.update(leases)
        if leases:
            self.request_numbers[who] = max(last, int(request_number))
            self._extend_lease(who, lease)
        filled = [place for place, step in enumerate(self.layout.steps, 1) if self.ready.get(step)]
        self.marker = bool(filled) or (bool(self.quarantined) and self.turn is None)
        if not filled and not self.quarantined and tracked:
            self.forget_waiting()
        if self.queue_paused:
            filled, self.marker = [], False
        return AcquireReply(
            filled[0] if filled else 0,
            any(one.alone for one in leases.values()),
            room,
            [(name, one.message or b"", self._counts(one)) for name, one in leases.items()],
            self.revision,
            marks={name: mark for name, one in leases.items() if (mark := self._mark(one))},
        )

    def _mark(self, one: Leased) -> Mark | None:
        """Return why a leased message does not run, without its lateness."""
        label = Label.of(one.message or b"")
        here = self.running.values()
        found = [each for each in here if label and each.message_id == label.message_id]
        return MARKS[found[0].dropped] if found else None

    def _take(self, who: str, limit: int, lists: int) -> Iterator[Leased]:
        for step in self.layout.steps[:lists]:
            waiting = self.ready.get(step, [])
            batch, waiting[:] = waiting[:limit], waiting[limit:]
            for message in batch:
                if self._admit(message, who):
                    limit -= 1
                    yield Leased(step, False, message)

    def _admit(self, message: bytes, who: str) -> bool:
        """Note which process has leased a message; False for a message that does not run."""
        label = Label.of(message)
        if label is None:
            return True
        tracked = self.untrack_message(self.waiting, label)
        if not tracked.dropped and is_late(label, tracked.due):
            tracked = tracked._replace(dropped=SKIPPED)
        if not tracked.dropped or (self.reports and not self._has_other(label)):
            self.track(self.running, label.id, tracked._replace(who=who))
            if tracked.dropped:
                self.release(label)
            return True
        self.forget(self.waiting, message)
        if tracked.dropped != SKIPPED:
            self.counts.pop(message, None)
            self.gone.append(message)
            self.counted[DROPPED[tracked.dropped]] += 1
        else:
            self.counted["dead:skipped"] += 1
            self._add_dead_letter(message, "skipped", label.id)
        return False

    def _has_other(self, label: Label) -> bool:
        """Return whether another message has the same id."""
        here = (self.scheduled, self.waiting, self.running)
        own = duplicate(label.id, label.message_id)
        return any(label.id in index for index in here) or any(
            name.startswith(f"{label.id}\0") and name != own for name in self.duplicate_ids
        )

    def _counts(self, one: Leased) -> DeliveryCounts:
        return self.counts.get(one.message or b"", DeliveryCounts())

    def _extend_lease(self, who: str, lease: int) -> None:
        end = self.ends[who] = self.now + lease
        self.lease_ends = end if self.lease_ends is None else min(end, self.lease_ends)

    def extend(self, who: str, lease: int) -> int:
        """Extend a lease; return the number of leased messages."""
        count = len(self.leased.get(who, {}))
        if count:
            self._extend_lease(who, lease)
        return count

    def ack(self, who: str, fields: Iterable[str]) -> int:
        """Forget messages; return how many were leased."""
        there = [one for name in fields if (one := self._drop(who, name))]
        for one in there:
            if one.message is not None:
                self._finish(one)
        return len(there)

    def _drop(self, who: str, name: str) -> Leased | None:
        return self.leased.get(who, {}).pop(name, None)

    def _finish(self, one: Leased) -> None:
        message, mark = one.message or b"", self._mark(one)
        dropped = MARKS.index(mark)
        self.counted[DROPPED.get(dropped, "acked")] += 1
        (self.gone if dropped else self.done).append(message)
        self.counts.pop(message, None)
        self.forget(self.running, message)

    def requeue(
        self, who: str, fields: Sequence[str], *, last: bool, counted: Counted, max_deliveries: int
    ) -> tuple[int, int]:
        """Put messages back; return the number of ready ones and of dead ones."""
        moved = dead_lettered = 0
        for name in fields if last else reversed(fields):
            one = self._drop(who, name)
            if one is None or one.message is None:
                continue
            if counted == "died":
                fate = self._count_death(who, one, one.message, max_deliveries, last=last)
                dead_lettered += fate == "dead_lettered"
                moved += fate != "dead_lettered"
                self.marker = self.marker or fate != "dead_lettered"
                continue
            count = self._counts(one)
            if counted != "nothing":
                count = count._replace(**{counted: getattr(count, counted) + 1})
                self.counts[one.message] = count
            if counted == "crashed" and max_deliveries and count.crashed > max_deliveries:
                self.forget(self.running, one.message)
                reason = f"killed its process {count.crashed} times"
                self._add_dead_letter(one.message, reason, _id(one.message))
                dead_lettered += 1
            else:
                self._requeue_one(one, one.message, last=last)
                moved += 1
        self.counted["redelivered"] += moved if counted != "nothing" else 0
        self.counted["dead:crashed"] += dead_lettered
        return moved, dead_lettered

    def _requeue_one(self, one: Leased, message: bytes, *, last: bool) -> None:
        self.marker = True
        self.track_requeued(message)
        if one.alone:
            self.quarantined.insert(len(self.quarantined) if last else 0, (one.step, message))
            return
        waiting = self.ready.setdefault(one.step, [])
        waiting.insert(len(waiting) if last else 0, message)

    def reject(self, who: str, name: str, id: str, reason: str, details: bytes = b"") -> bool:
        """Make a dead letter of a message; False if it is not leased."""
        one = self._drop(who, name)
        if one is None or one.message is None:
            return False
        self.registered = True
        self.counted[f"dead:{kind_of(reason)}"] += 1
        self.forget(self.running, one.message)
        self._add_dead_letter(one.message, reason, id, details)
        return True

    def retry(
        self,
        who: str,
        name: str,
        id: str,
        due: int,
        record: Record,
        policy: str = "",
        *,
        when_due: str,
    ) -> Retried:
        """Publish a message in place of another one."""
        one = self.leased.get(who, {}).get(name)
        if one is None:
            return "gone"
        if one.message is None:
            return "duplicate"
        if due <= NOW and when_due == "leave":
            return "due"
        label = Label.of(record.message)
        plan = Plan("store", due)
        if policy and label:
            plan = self.decide(label, due, policy, retry=True)
        if plan.what == "superseded" and when_due == "keep":
            plan = plan._replace(what="beside")
        old = Label.of(one.message)
        if old is not None:
            its_due = self.untrack_message(self.running, old).due
            if when_due == "keep" and its_due:
                due = min(due, its_due)
            self.duplicate_ids.discard(duplicate(old.id, old.message_id))
        scheduled = due > NOW or when_due == "keep"
        if plan.what != "superseded":
            self._store(id, due, record, keep=when_due == "keep")
        else:
            self.published.append(record.message)
            self.gone.append(record.message)
        self.release(old)
        if plan.what == "store" and policy and label:
            self.take_key(label, policy, scheduled=scheduled)
        elif label:
            self.disowned.add(label.message_id)
        self.done.append(one.message)
        self.counts.pop(one.message, None)
        self.leased[who][name] = one._replace(message=None)
        if plan.what == "superseded":
            self.counted["replaced"] += 1
            return "superseded"
        self.counted["retried"] += when_due == "push"
        return "scheduled" if scheduled else "ready"

    # -- reclaim

    def ended(self, who: str) -> bool:
        """Return whether the lease of a process has ended."""
        return who in self.ends and self.ends[who] <= self.now

    def first_ended_lease(self) -> str | None:
        """Return the process whose lease ends first."""
        return min(self.ends, key=lambda who: (self.ends[who], who), default=None)

    def reclaim_expired(self, who: str, fields: Iterable[str], max_deliveries: int) -> Reclaimed:
        """Reclaim *fields* of a process whose lease has ended. Redis decides which fields."""
        results: Counter[str] = Counter()
        if self.ended(who):
            # The message that runs first is added last, at the front.
            for name in sorted(fields, key=_order, reverse=True):
                one = self._drop(who, name)
                assert one is not None
                if one.message is not None:
                    results[self._count_death(who, one, one.message, max_deliveries)] += 1
            if not self.leased.get(who):
                del self.ends[who]
                self.request_numbers.pop(who, None)
            if results["requeued"] or results["quarantined"]:
                self.marker = True
            self.counted["redelivered"] += results["requeued"] + results["quarantined"]
            self.counted["dead:crashed"] += results["dead_lettered"]
        self.lease_ends = min(self.ends.values(), default=None)
        more = self.lease_ends is not None and self.lease_ends <= self.now
        return Reclaimed(
            more, results["requeued"], results["quarantined"], results["dead_lettered"]
        )

    def _count_death(
        self, who: str, one: Leased, message: bytes, max_deliveries: int, *, last: bool = False
    ) -> str:
        count = self._counts(one)
        count = count._replace(reclaimed=count.reclaimed + 1)
        if max_deliveries and count.reclaimed > max_deliveries and one.alone:
            self.forget(self.running, message)
            reason = f"its worker died {count.reclaimed} times, the last time with no other message"
            details = {"worker": who, "deliveries": sum(count)}
            self._add_dead_letter(message, reason, _id(message), json.dumps(details).encode())
            return "dead_lettered"
        self.counts[message] = count
        self.track_requeued(message)
        if max_deliveries and count.reclaimed >= max_deliveries:
            self.quarantined.append((one.step, message))
            return "quarantined"
        waiting = self.ready.setdefault(one.step, [])
        waiting.insert(len(waiting) if last else 0, message)
        return "requeued"


def _order(name: str) -> list[int]:
    return [int(part) for part in name.split(":")]


def _id(message: bytes) -> str | None:
    """Return the id in a message's label."""
    label = Label.of(message)
    return label and label.id
