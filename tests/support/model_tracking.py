"""The model of scheduled, ready and leased messages.

Names are those of ``include/tracking.lua``: the id or, if another message has it, ``id NUL
message_id``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import unquote

from celery_delayq.model.envelope import Record
from celery_delayq.model.script_values import Name

#: Stands for any time of Redis' clock during the test (ms).
NOW = 2_000_000_000_000

_LABEL = re.compile(rb'\{"properties": \{"delayq": \{"label": "(\S*) (\S+) (\d+) (\S+)"')

Place = Literal["scheduled", "waiting", "running"]


def about(ms: float) -> int:
    """Return :data:`NOW` for a time that may be of Redis' clock, else *ms*."""
    return NOW if 10**12 < ms < 3 * 10**12 else int(ms)


def duplicate(id: str, message_id: str) -> str:
    """Return the second name of a message."""
    return f"{id}\0{message_id}"


class Scheduled(NamedTuple):
    """An entry: its due (ms since 1970), its data, and whether it is paused and due."""

    due: int
    record: Record
    paused_due: bool = False


class Label(NamedTuple):
    """The label of a message; *unique* is a scope (``s`` or ``d``) and a key, or ``-``."""

    id: str
    message_id: str
    skip: int
    unique: str

    @classmethod
    def of(cls, message: bytes) -> Label | None:
        """Read the label of a message; None without a label."""
        match = _LABEL.match(message)
        if match is None:
            return None
        id, message_id, skip, unique = (each.decode() for each in match.groups())
        return cls(unquote(id), message_id, int(skip), unique)

    @property
    def key(self) -> str:
        """The unique key without its scope."""
        return self.unique[1:]

    @property
    def counts_until_done(self) -> bool:
        """Whether a message has the key until it is done, and not only while it is scheduled."""
        return self.unique[0] == "d"


class Tracked(NamedTuple):
    """The tracked values of a ready or leased message.

    *dropped* is 1 for a cancelled message, 2 for a message whose unique key another one has, 3 for
    a leased message that is too late. Such a message does not run.
    """

    message_id: str
    due: int
    unique: str
    task: str
    who: str = ""
    dropped: int = 0

    @property
    def value(self) -> bytes:
        """The stored value."""
        text = f"{'!' * self.dropped}{self.message_id} {self.due} {self.unique} {self.task}"
        return f"{text} {self.who}".encode() if self.who else text.encode()


class Owner(NamedTuple):
    """The owner of a unique key; *since* says whether the time of its start is stored."""

    id: str
    message_id: str
    since: bool


class Plan(NamedTuple):
    """The decision about a message with a unique key, and the message that it supersedes."""

    what: Literal["store", "beside", "kept", "conflict", "superseded"]
    due: int
    owner: str = ""
    place: Place | None = None
    name: str = ""


@dataclass(kw_only=True)
class Tracking:
    """Scheduled, ready and leased messages by name, and the owners of unique keys."""

    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    waiting: dict[str, Tracked] = field(default_factory=dict)
    running: dict[str, Tracked] = field(default_factory=dict)
    duplicate_ids: set[str] = field(default_factory=set)
    owners: dict[str, Owner] = field(default_factory=dict)
    #: Ids of messages that have lost their key to another one, or never had it.
    disowned: set[str] = field(default_factory=set)

    # -- names

    def names_of(self, id: str) -> list[str]:
        """Return all names that a message with an id may have; a name is returned alone."""
        if isinstance(id, Name):
            return [str(id)]
        return [id, *(name for name in self.duplicate_ids if name.startswith(f"{id}\0"))]

    def find(self, id: str) -> list[tuple[str, Place]]:
        """Return the places of all messages with an id, by message id, without cancelled ones."""
        found: list[tuple[str, str, Place]] = []
        for name in self.names_of(id):
            if name in self.scheduled:
                found.append((self.scheduled[name].record.message_id, name, "scheduled"))
            if name in self.waiting and not self.waiting[name].dropped:
                found.append((self.waiting[name].message_id, name, "waiting"))
            if name in self.running and not self.running[name].dropped:
                found.append((self.running[name].message_id, name, "running"))
        return [(name, place) for _, name, place in sorted(found)]

    def entry_of(self, message_id: str) -> str | None:
        """Return the name of a message's entry."""
        names = (
            name for name, one in self.scheduled.items() if one.record.message_id == message_id
        )
        return next(names, None)

    def is_known(self, message_id: str) -> bool:
        """Return whether a message is scheduled, or is ready or leased with a label."""
        here = [*self.waiting.values(), *self.running.values()]
        return self.entry_of(message_id) is not None or any(
            one.message_id == message_id for one in here
        )

    def add_entry(self, id: str, entry: Scheduled) -> None:
        """Store an entry under its id, or under its second name."""
        name = id
        if id in self.scheduled:
            name = duplicate(id, entry.record.message_id)
            self.duplicate_ids.add(name)
        self.scheduled[name] = entry

    def take_entry(self, name: str) -> Scheduled:
        """Take an entry out of the schedule; it keeps its unique key."""
        self.duplicate_ids.discard(name)
        return self.scheduled.pop(name)

    def remove_entry(self, name: str) -> Scheduled:
        """Take an entry out of the schedule, and release its unique key."""
        entry = self.take_entry(name)
        self.release(Label.of(entry.record.message))
        return entry

    def with_key(self) -> Iterator[tuple[str, str, str]]:
        """Yield key, id and message id of all messages that have or would have a unique key."""
        for entry in self.scheduled.values():
            label = Label.of(entry.record.message)
            if label is not None and label.unique != "-":
                yield label.key, label.id, label.message_id
        for index in (self.waiting, self.running):
            for name, one in index.items():
                if one.unique[0] == "d" and not one.dropped:
                    yield one.unique[1:], name.partition("\0")[0], one.message_id

    # -- ready and leased

    def track(self, index: dict[str, Tracked], id: str, tracked: Tracked) -> None:
        """Note the place of a message."""
        name = id
        if id in index and index[id].message_id != tracked.message_id:
            name = duplicate(id, tracked.message_id)
            self.duplicate_ids.add(name)
        index[name] = tracked

    def untrack_message(self, index: dict[str, Tracked], label: Label) -> Tracked:
        """Forget the place of a message; return its tracked values."""
        for name in (label.id, duplicate(label.id, label.message_id)):
            if name in index and index[name].message_id == label.message_id:
                return index.pop(name)
        return Tracked(label.message_id, 0, label.unique, "")

    def track_requeued(self, message: bytes) -> None:
        """Note that a leased message is ready again."""
        label = Label.of(message)
        if label is not None:
            tracked = self.untrack_message(self.running, label)
            due = 0 if label.skip and not tracked.dropped else tracked.due
            self.track(self.waiting, label.id, tracked._replace(who="", due=due))

    def forget(self, index: dict[str, Tracked], message: bytes) -> None:
        """Note that a message has gone."""
        label = Label.of(message)
        if label is not None:
            self.untrack_message(index, label)
            self.duplicate_ids.discard(duplicate(label.id, label.message_id))
            self.release(label)

    def forget_waiting(self) -> None:
        """No message is ready: forget messages that stock workers took."""
        self.waiting.clear()
        if not self.scheduled and not self.running:
            self.duplicate_ids.clear()
            self.owners.clear()

    # -- unique keys

    def find_owner(self, owner: Owner, key: str) -> tuple[Place, str] | None:
        """Return the place of a message that has a key, and its name there."""
        names = (owner.id, duplicate(owner.id, owner.message_id))
        for name in names:
            if name in self.scheduled:
                label = Label.of(self.scheduled[name].record.message)
                if label is not None and (label.message_id, label.key) == (owner.message_id, key):
                    return "scheduled", name
        owned = owner.message_id, f"d{key}"
        indexes: dict[Place, dict[str, Tracked]]
        indexes = {"waiting": self.waiting, "running": self.running}
        for place, index in indexes.items():
            for name in names:
                one = index.get(name)
                if one is not None and (one.message_id, one.unique) == owned:
                    return None if one.dropped else (place, name)
        return None

    def release(self, label: Label | None) -> None:
        """Release the key of a message that has left a place, unless it has the key in another."""
        if label is not None and label.unique != "-":
            owner = self.owners.get(label.key)
            if owner and owner[:2] == label[:2] and not self.find_owner(owner, label.key):
                del self.owners[label.key]

    def decide(self, label: Label, due: int, policy: str, *, retry: bool) -> Plan:
        """Return the decision about a message with a unique key."""
        owner = self.owners.get(label.key)
        found = self.find_owner(owner, label.key) if owner else None
        if owner is None or found is None:
            return Plan("store", due)
        place, name = found
        if owner.id == label.id and place == "running" and retry:
            return Plan("store", due, owner.id)
        if retry:
            return Plan("superseded" if policy in "rl" else "beside", due, owner.id)
        if policy == "k":
            return Plan("kept", due, owner.id)
        if policy == "e":
            return Plan("conflict", due, owner.id)
        if policy == "l" and place == "scheduled":
            due = max(due, self.scheduled[name].due)
        return Plan("store", due, owner.id, place, name)

    def take_key(self, label: Label, policy: str, *, scheduled: bool) -> None:
        """Give the key to the stored message; a running owner runs on."""
        if scheduled or label.counts_until_done:
            self.owners[label.key] = Owner(label.id, label.message_id, policy == "l")
            here = (message_id for key, _, message_id in self.with_key() if key == label.key)
            self.disowned.update(
                message_id for message_id in here if message_id != label.message_id
            )
            self.disowned.discard(label.message_id)


def label_of(message: bytes) -> Label:
    """Return the label of a message that has one."""
    label = Label.of(message)
    assert label is not None, message
    return label
