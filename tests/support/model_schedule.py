"""The model of a queue's schedule.

No due is between :data:`PAST` and a time far in the future, except times of Redis' clock.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from celery_delayq.model.envelope import Record, task_field
from celery_delayq.model.publish_outcome import Put
from celery_delayq.model.script_values import StatusCode
from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import DeliveryCounts
from tests.support.model_tracking import (
    NOW,
    Label,
    Place,
    Plan,
    Scheduled,
    Tracked,
    Tracking,
    duplicate,
)

#: A due before this time has long passed (ms).
PAST = 10**9

#: The outcome for several messages with one id: the first of these.
_RANK: Sequence[StatusCode] = ("r", "w", "c", "p", "d", "m", "u")


class ModelDeadLetter(NamedTuple):
    """A dead letter, under its requested id."""

    id: str
    reason: str
    message: bytes
    details: bytes = b""


@dataclass(kw_only=True)
class ScheduleModel(Tracking):
    """One queue, the common state of all queues, and the leased messages of its processes."""

    name: str
    layout: Layout
    published: list[bytes] = field(default_factory=list)
    ready: dict[int, list[bytes]] = field(default_factory=dict)
    counts: dict[bytes, DeliveryCounts] = field(default_factory=dict)
    quarantined: list[tuple[int, bytes]] = field(default_factory=list)
    dead: list[ModelDeadLetter] = field(default_factory=list)
    done: list[bytes] = field(default_factory=list)
    #: Messages that were cancelled, replaced, cleared or taken by stock workers.
    gone: list[bytes] = field(default_factory=list)
    marker: bool = False
    next_due: int | None = None
    registered: bool = False
    queue_paused: bool = False
    paused: set[str] = field(default_factory=set)
    revision: int = 0
    #: Counts, by the names of ``model/totals.py``.
    counted: Counter[str] = field(default_factory=Counter)
    #: Ready messages that others have added less those they took, since the last script looked.
    unseen: int = 0

    # -- publish, promote

    def push(self, step: int, message: bytes) -> None:
        """Publish a ready message."""
        self.published.append(message)
        self.counted["accepted"] += 1
        self._push(step, message)

    def stock_sends(self, step: int, message: bytes) -> None:
        """Let a stock producer publish a message."""
        self.published.append(message)
        self.ready.setdefault(step, []).append(message)
        self.unseen += 1

    def count_others(self) -> None:
        """Count the messages that others have added or taken."""
        self.counted["accepted" if self.unseen > 0 else "taken"] += abs(self.unseen)
        self.unseen = 0

    def _push(self, step: int, message: bytes) -> None:
        self.ready.setdefault(step, []).append(message)
        self.marker = True

    def schedule(
        self,
        id: str,
        due: int,
        record: Record,
        policy: str = "",
        *,
        retry: bool = False,
        most: int = 0,
        counted: str = "accepted",
    ) -> Put:
        """Publish a message for later or for now, or publish it again."""
        label = Label.of(record.message)
        if self.is_known(record.message_id):
            return Put("duplicate")
        plan = Plan("store", due)
        if policy and label:
            if label.key in self.owners:
                self._forget_what_stock_took()
            plan = self.decide(label, due, policy, retry=retry)
            if plan.what not in ("store", "beside"):
                return Put(plan.what, plan.owner)  # type: ignore[arg-type]
        full = 0 < most <= len(self.scheduled) and plan.due > NOW
        if full and plan.place != "scheduled":
            return Put("full")
        if plan.place in ("scheduled", "waiting"):
            self._drop_entry(plan.name, plan.place, replaced=True)
        self._store(id, plan.due, record)
        self.counted[counted] += 1
        self.counted["retried"] += most == -1
        if plan.what == "store" and policy and label:
            self.take_key(label, policy, scheduled=plan.due > NOW)
        elif label:
            self.disowned.add(label.message_id)
        if plan.place in ("scheduled", "waiting"):
            return Put("replaced", plan.owner)
        return Put("scheduled" if plan.due > NOW else "ready")

    def _drop_entry(self, name: str, place: Place, *, replaced: bool = False) -> None:
        """Remove a scheduled message; a ready one is dropped when its turn comes."""
        if place == "scheduled":
            self.gone.append(self.remove_entry(name).record.message)
            self.counted["replaced" if replaced else "cancelled"] += 1
        else:
            dropped = 2 if replaced else 1
            one = self.waiting[name] = self.waiting[name]._replace(dropped=dropped)
            self.release(Label(name.partition("\0")[0], one.message_id, 0, one.unique))

    def _store(self, id: str, due: int, record: Record, *, keep: bool = False) -> None:
        self.published.append(record.message)
        if due > NOW or keep:
            self.add_entry(id, Scheduled(due, record))
            self._announce(due)
        else:
            self._make_ready(record, due)

    def _make_ready(self, record: Record, due: int) -> None:
        self.registered = True
        self._push(record.priority, record.message)
        self._track_ready(record, due or NOW)

    def _track_ready(self, record: Record, due: int) -> None:
        label = Label.of(record.message)
        if label is not None:
            tracked = Tracked(label.message_id, due, label.unique, task_field(record.task))
            self.track(self.waiting, label.id, tracked)

    def _announce(self, due: int) -> None:
        self.registered = True
        self._look_at(due)

    def _look_at(self, due: int) -> None:
        self.next_due = due if self.next_due is None else min(self.next_due, due)

    def clock_is_set_back(self) -> None:
        """Plan a look at the queue now."""
        if self.next_due is not None:
            self._look_at(NOW)

    def plan_next_look(self) -> None:
        """Set the next-due index to the first due, without entries that are paused and due."""
        times = (one.due for one in self.scheduled.values() if not one.paused_due)
        self.next_due = min(times, default=None)

    def plan_look_on_removal(self) -> None:
        """Plan the next look when entries have left. A look for paused and due entries stays."""
        if not any(one.paused_due for one in self.scheduled.values()):
            self.plan_next_look()

    def becomes_due(self, name: str, due: int) -> None:
        """Move the due of an entry to the past."""
        self.scheduled[name] = self.scheduled[name]._replace(due=due, paused_due=False)
        self._announce(due)

    def promote(self, limit: int) -> tuple[int, int]:
        """Look at up to *limit* due entries; return how many moved, and how many died."""
        if self.queue_paused:
            self.next_due = None
            return 0, 0
        if self.waiting:
            self._forget_what_stock_took()
        more, put_back = self._unpause(limit)
        limit -= put_back // 2
        here = self.scheduled.items()
        due = sorted((one.due, name) for name, one in here if one.due <= NOW and not one.paused_due)
        moved: list[str] = []
        for _, name in due[:limit]:
            one = self.scheduled[name]
            if one.record.task in self.paused:
                self.scheduled[name] = one._replace(paused_due=True)
            else:
                moved.append(name)
        self._move(moved)
        self.counted["promoted"] += len(moved)
        # The queue may have been paused until now.
        self.marker = self.marker or any(self.ready.values())
        self.plan_next_look()
        if more:
            self._look_at(NOW)
        return len(moved), 0

    def _move(self, names: Iterable[str]) -> None:
        entries = [self.take_entry(name) for name in names]
        for entry in entries:
            self._make_ready(entry.record, entry.due)
        for entry in entries:
            self.release(Label.of(entry.record.message))

    def _unpause(self, limit: int) -> tuple[bool, int]:
        """Unpause entries that were paused and due and whose tasks were resumed.

        Returns whether there may be more, and how many were unpaused.
        """
        entries = [(name, one) for name, one in self.scheduled.items() if one.paused_due]
        paused_due = sorted((one.record.task, one.due, name) for name, one in entries)
        remaining = limit
        for task in sorted({task for task, _, _ in paused_due}):
            if remaining <= 0:
                return True, limit
            if task in self.paused:
                continue
            mine = [name for each, _, name in paused_due if each == task]
            for name in mine[:remaining]:
                self.scheduled[name] = self.scheduled[name]._replace(paused_due=False)
            if len(mine) > remaining:
                return True, limit
            remaining -= len(mine)
        return False, limit - remaining

    def _add_dead_letter(
        self, message: bytes, reason: str, id: str | None = None, details: bytes = b""
    ) -> None:
        self.counts.pop(message, None)
        id = digest(message) if id is None else id
        self.dead.append(ModelDeadLetter(id, reason, message, details))

    # -- manage the schedule

    def cancel(self, ids: Iterable[str], if_due: int | None = None) -> list[StatusCode]:
        """Cancel messages that are not leased."""
        self._forget_what_stock_took()
        found = [worst(self._cancel(*each, if_due) for each in self.find(id)) for id in ids]
        self.plan_look_on_removal()
        return found

    def _forget_what_stock_took(self) -> None:
        if not any(self.ready.values()) and not self.quarantined:
            self.forget_waiting()

    def _cancel(self, name: str, place: Place, if_due: int | None) -> StatusCode:
        if place == "running":
            return "r"
        found = self.scheduled[name] if place == "scheduled" else self.waiting[name]
        if if_due is not None and found.due != if_due:
            return "c"
        self._drop_entry(name, place)
        return "d" if place == "scheduled" else "m"

    def reschedule(self, id: str, due: int, if_due: int | None = None) -> StatusCode:
        """Move a scheduled entry."""
        return worst(self._move_to(name, place, due, if_due) for name, place in self.find(id))

    def _move_to(self, name: str, place: Place, due: int, if_due: int | None) -> StatusCode:
        if place != "scheduled":
            return "r" if place == "running" else "w"
        if if_due is not None and self.scheduled[name].due != if_due:
            return "c"
        if due <= NOW:
            return "p"
        self.scheduled[name] = self.scheduled[name]._replace(due=due, paused_due=False)
        self._look_at(due)
        return "d"

    def swap(self, name: str, before: Record, after: Record, if_due: int | None) -> StatusCode:
        """Swap the record of an entry that is as it was read."""
        one = self.scheduled.get(name)
        if one is None:
            return self._state_of(name.partition("\0")[0], before.message_id)
        if one.record != before or if_due not in (None, one.due):
            return "c"
        old, new = Label.of(before.message), Label.of(after.message)
        key, old_key = (each and each.unique != "-" and each.key for each in (new, old))
        owner = self.owners.get(key) if key and key != old_key else None
        if owner and key and self.find_owner(owner, key):
            return "k"
        moves = one.paused_due and (before.task, before.priority) != (after.task, after.priority)
        self.scheduled[name] = one._replace(record=after, paused_due=one.paused_due and not moves)
        self.published.remove(before.message)
        self.published.append(after.message)
        if moves:
            self._look_at(one.due)
        if key != old_key:
            former = self.owners.get(old_key or "")
            is_own = former and old and former[:2] == old[:2]
            self.release(old)
            if key and new:
                policy = "l" if is_own and former and former.since else "r"
                self.take_key(new, policy, scheduled=True)
        return "d"

    def _state_of(self, id: str, message_id: str) -> StatusCode:
        names = id, duplicate(id, message_id)
        indexes: tuple[tuple[StatusCode, dict[str, Tracked]], ...]
        indexes = ("w", self.waiting), ("r", self.running)
        for code, index in indexes:
            there = (index[name] for name in names if name in index)
            if any(each.message_id == message_id and not each.dropped for each in there):
                return code
        return "u"

    def run_now(
        self, ids: Iterable[str], if_due: int | None, dues: Mapping[str, int]
    ) -> list[StatusCode]:
        """Make scheduled entries the next to run; *dues* has the times of Redis' clock by name."""
        found = [worst(self._run(*each, if_due, dues) for each in self.find(id)) for id in ids]
        self.plan_look_on_removal()
        return found

    def _run(
        self, name: str, place: Place, if_due: int | None, dues: Mapping[str, int]
    ) -> StatusCode:
        if place != "scheduled":
            return "r" if place == "running" else "w"
        entry = self.scheduled[name]
        if if_due is not None and entry.due != if_due:
            return "c"
        if self.queue_paused or entry.record.task in self.paused:
            self.scheduled[name] = entry._replace(due=dues[name], paused_due=False)
            self._look_at(dues[name])
            return "d"
        self.take_entry(name)
        self.counted["promoted"] += 1
        self.marker = True
        self.ready.setdefault(entry.record.priority, []).insert(0, entry.record.message)
        self._track_ready(entry.record, NOW)
        self.release(Label.of(entry.record.message))
        return "d"

    def pause(self, *, queue: bool, task: str, resume: bool) -> bool:
        """Pause or resume the queue or a task; return whether this changes anything."""
        was = self.queue_paused if queue else task in self.paused
        if queue:
            self.queue_paused = not resume
        elif resume:
            self.paused.discard(task)
        else:
            self.paused.add(task)
        if resume and self.scheduled:  # a queue without entries is not on the next-due index
            self._look_at(NOW)
        changed = was == resume
        self.revision += changed
        return changed

    def purge(self) -> tuple[int, int]:
        """Purge scheduled and ready messages.

        Returns how many were scheduled or quarantined, and how many were ready.
        """
        self.count_others()
        count = len(self.scheduled) + len(self.quarantined)
        ready = sum(map(len, self.ready.values()))
        self.counted["purged"] += count + ready
        for waiting in self.ready.values():
            self.gone += waiting
            waiting.clear()
        self.gone += [one.record.message for one in self.scheduled.values()]
        self.gone += [message for _, message in self.quarantined]
        kept = {
            one.unique[1:]
            for name, one in self.running.items()
            if one.unique[0] == "d"
            and one.unique[1:] in self.owners
            and self.owners[one.unique[1:]][:2] == (name.partition("\0")[0], one.message_id)
        }
        self.scheduled.clear()
        self.quarantined.clear()
        self.waiting.clear()
        self.duplicate_ids = {name for name in self.running if "\0" in name}
        self.owners = {key: owner for key, owner in self.owners.items() if key in kept}
        self.marker, self.next_due = False, None
        return count, ready

    def stock_takes(self, step: int) -> None:
        """Let a stock worker take the next message of a list. No script sees it."""
        self.gone.append(self.ready[step].pop(0))
        self.unseen -= 1


def worst(outcomes: Iterable[StatusCode]) -> StatusCode:
    """Return the outcome for several messages with one id."""
    return min(outcomes, key=_RANK.index, default="u")


def is_late(label: Label | None, due: int) -> bool:
    """Return whether a message is too late to start; a due of about now is never late."""
    return label is not None and label.skip > 0 and 0 < due <= PAST


def digest(message: bytes) -> str:
    """Return the field under which Redis counts deliveries of a message."""
    return hashlib.sha1(message, usedforsecurity=False).hexdigest()
