"""The only place that spells the name of a Redis key.

Our own keys carry the queue's name as a hash tag, so that all of a queue's keys share one
slot. The ready lists keep the names that kombu gives them: stock producers, stock workers
and Flower use the same lists. On a Redis Cluster each name begins with a hash tag
(:mod:`celery_delayq.model.cluster_tags`), so that all keys of its queues share one slot.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

from celery_delayq.errors import ConfigError
from celery_delayq.model.lookup import to_bytes
from celery_delayq.settings import Limits
from celery_delayq.utils import foreign

#: What kombu puts between a queue's name and a priority step.
DEFAULT_SEPARATOR = "\x06\x16"

#: Keys of the layouts before 0.1.0 that have other names now.
EARLIER_KEYS = ("delayq:agenda", "delayq:reaping", "delayq:deploys", "delayq:beats")

#: kombu's default priority steps: one ready list for each.
DEFAULT_STEPS = (0, 3, 6, 9)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a queue's ready lists are laid out, and how fast they are filled.

    Attributes
    ----------
    sep, steps : str, tuple[int, ...]
        kombu's ``sep`` and ``priority_steps``.
    limits : Limits
        Limits that its consumers have set. Other processes promote its entries, and trim its
        dead letters, by them.
    """

    sep: str = DEFAULT_SEPARATOR
    steps: tuple[int, ...] = DEFAULT_STEPS
    limits: Limits = field(default_factory=Limits)

    def step(self, priority: int) -> int:
        """Return the step whose list takes *priority*, by kombu's rule."""
        return self.steps[bisect(self.steps, priority) - 1]

    def step_of(self, message: Mapping[str, Any]) -> int:
        """Return the step whose list takes a message, as kombu chooses it: 0 without a priority."""
        try:
            priority = int(message["properties"]["priority"])
        except (TypeError, ValueError, OverflowError, KeyError):
            return self.step(0)
        return self.step(max(0, min(priority, 9)))

    @property
    def text(self) -> str:
        """The form in which the registry keeps this layout."""
        return _layout_text(self)

    @classmethod
    def loads(cls, text: bytes | str) -> Layout:
        """Read the :attr:`text` of a layout.

        Raises
        ------
        RecordError
            The text is something else.
        """
        with foreign.record_errors(f"queue layout {text[:200]!r} in the registry"):
            data = foreign.loads(text)
            sep, steps = data["sep"], tuple(int(step) for step in data["steps"])
            if not isinstance(sep, str) or not steps:
                raise ValueError("no separator or no steps")
            defaults = Limits()._asdict().items()
            limits = {name: type(default)(data.get(name, default)) for name, default in defaults}
            return cls(sep, steps, Limits(**limits))


@cache
def _layout_text(layout: Layout) -> str:
    limits = {name: value for name, value in layout.limits._asdict().items() if value}
    return json.dumps({"sep": layout.sep, "steps": layout.steps, **limits})


_STATE_KEYS: Callable[[QueueKeys], tuple[str, ...]] = attrgetter(
    *("due", "entries", "tasks", "paused_due", "unique", "duplicate_ids"),
    *("ready_index", "leased_index", "totals"),
)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """Full names of the keys of one queue.

    due
        Sorted set: entry id, scored by the moment it is due in ms since 1970.
    entries
        Hash: entry id to record (see :mod:`celery_delayq.model.envelope`).
    tasks
        Sorted set, all scores 0: ``task NUL due NUL id``, to count and find by task.
    paused_due
        Sorted set like ``tasks``, of those whose task is paused and whose moment has passed.
    unique
        Hash: unique key to the id that has it (``include/tracking.lua``).
    duplicate_ids
        Sorted set, all scores 0: ``id NUL message_id`` of entries whose id was taken when they
        came.
    ready_index
        Hash: entry id to its record in the ready index (``include/tracking.lua``).
    leased_index
        Hash: the same while the message is leased.
    pace
        Hash: how much of the queue may be promoted now (``include/dispatch/rate_limit.lua``).
    dead
        Hash: dead letter id to dead letter.
    dead_at
        Sorted set: dead letter id, scored by the moment it died in ms since 1970.
    wake
        List of one empty element while something may be ready: idle consumers block on it.
    leases
        Sorted set: worker id, scored by the end of its lease in ms of lease time.
    deliveries
        Hash: SHA1 of a message that came back to how often (``include/lease.lua``).
    request_numbers
        Hash: worker id to the last request number for which it got something.
    quarantined
        List: messages to deliver alone.
    quarantine_turn
        String: the worker id that makes itself free for one of them.
    totals
        Hash: what was counted in the queue (``include/totals.lua``).
    readers
        Sorted set: when each reading of the schedule by pages began (µs), scored by until when it
        is taken to go on (ms).
    moved, moved_before
        Sorted sets: which entries were moved meanwhile (``include/pages/reading.lua``).
    """

    own: str
    due: str
    entries: str
    tasks: str
    paused_due: str
    unique: str
    duplicate_ids: str
    ready_index: str
    leased_index: str
    pace: str
    dead: str
    dead_at: str
    wake: str
    leases: str
    deliveries: str
    request_numbers: str
    quarantined: str
    quarantine_turn: str
    totals: str
    readers: str
    moved: str
    moved_before: str

    @property
    def schedule(self) -> tuple[str, str, str]:
        """The keys that hold the scheduled entries."""
        return self.due, self.entries, self.tasks

    @property
    def moves(self) -> tuple[str, str, str]:
        """The keys of what is moved while somebody reads."""
        return self.readers, self.moved, self.moved_before

    @property
    def state(self) -> tuple[str, ...]:
        """The keys with which scripts about entries begin (``include/tracking.lua``)."""
        return _STATE_KEYS(self)

    @property
    def by_id(self) -> tuple[str, str, str, str]:
        """The keys in which a message is found by its id."""
        return self.entries, self.ready_index, self.leased_index, self.duplicate_ids

    def answer(self, token: str) -> str:
        """String: the reply of a call, in case it was lost; expires."""
        return f"{self.own}answer:{token}"

    def turning(self, ready_list: str) -> str:
        """String: how many messages of a ready list ``drop_cancelled`` has not looked at yet."""
        return f"{self.own}turning:{ready_list}"

    def leased(self, worker_id: str) -> bytes:
        """Hash: field to message of all messages leased to a process (``include/lease.lua``).

        In bytes, since a worker id that somebody else wrote may be no text.
        """
        return f"{self.own}leased:".encode() + to_bytes(worker_id)


_KEY_FIELDS = [each.name for each in fields(QueueKeys)[1:]]


@lru_cache(maxsize=1024)
def _queue_keys(own: str) -> QueueKeys:
    return QueueKeys(own, *[own + name for name in _KEY_FIELDS])


class Keys:
    """Key names under one ``global_keyprefix`` in one database, or in a hash tag of a cluster."""

    def __init__(self, prefix: str = "", database: int = 0, tag: str = "") -> None:
        self.prefix, self.database, self.tag = prefix, database, tag
        own = f"{prefix}delayq:"
        #: Sorted set: queue name, scored by when to look at its schedule next (ms).
        self.next_due = f"{own}next_due"
        #: Hash, the registry: queue name to :class:`Layout`.
        self.queues = f"{own}queues"
        #: Sorted set: queue name, scored by when to look for ended leases (ms of lease time).
        self.lease_ends = f"{own}lease_ends"
        #: Hash of lease time: ``seen`` and ``stood``, both in ms (``include/lease.lua``); and
        #: ``dispatched``, when a dispatcher last had nothing left to move, or moved something (ms).
        self.clock = f"{own}clock"
        #: Hash: ``revision``; ``q<queue>`` and ``t<task>``: paused since then (ms).
        self.control = f"{own}control"
        #: Sorted set: ``i<task id>``, ``s<stamps in JSON>``, ``r<root id>`` or ``g<group id>``, by
        #: when it was revoked (ms).
        self.revoked = f"{own}revoked"
        #: Stream: the runs that have ended (:mod:`celery_delayq.model.history`).
        self.history = f"{own}history"
        #: String: there while it is a worker's turn to archive dead letters; expires.
        self.archiving = f"{own}archiving"
        #: Hash: name of a periodic entry to its record (:mod:`celery_delayq.periodic.policy`).
        self.periodic = f"{own}periodic"
        #: Sorted set: name of a periodic entry, scored by when to look at it next (ms).
        self.periodic_at = f"{own}periodic_at"
        #: Hash: what was counted of the ticks of periodic entries (``periodic/fire.lua``).
        self.ticks = f"{own}ticks"
        #: Hash: which versions of the periodic entries in code are about
        #: (``periodic/announce_version.lua``).
        self.code_versions = f"{own}code_versions"
        #: Sorted set: each ``celery beat`` that runs, scored by until when it is said to (ms).
        self.celery_beats = f"{own}celery_beats"
        #: Channel: ``<µs until due> <queue>`` when an entry came that is due earlier. Redis'
        #: channels span its databases, so the name holds the database.
        self.wake = f"{own}wake:{database}"
        #: Channel: the heartbeat of the dispatcher on duty (``dispatch/next_queue.lua``).
        #: Dispatchers listen to it to be counted, too. Only the one on duty listens to
        #: :attr:`wake`, so that a message does not wake them all.
        self.fleet = f"{own}fleet:{database}"
        #: Channel: a message when periodic entries were written.
        self.periodic_wake = f"{own}periodic_wake:{database}"
        #: String, on a Redis Cluster: how many hash tags there are.
        self.cluster_tags = f"{own}cluster_tags"

    def __repr__(self) -> str:
        return f"Keys(prefix={self.prefix!r}, database={self.database})"

    def named(self, service: str) -> str:
        """Return the name of a service for log lines, with its shard on a Redis Cluster."""
        return f"{service} for the shard of {self.tag}" if self.tag else service

    def of_tag(self, tag: str) -> Keys:
        """Return the names for the queues of one hash tag of a Redis Cluster.

        Each is that of a single Redis behind the tag, ``{dq07-5}:{mail}:due``, and so none is that
        of another queue's list. Redis goes by the first braces.

        Raises
        ------
        ConfigError
            The prefix has a brace.
        """
        if "{" in self.prefix:
            raise ConfigError(
                f"global_keyprefix {self.prefix!r}: expected one without '{{' on a Redis Cluster, "
                "where the first braces of a key decide on its node"
            )
        return Keys(f"{self.prefix}{{{tag}}}:", tag=tag)

    def answer(self, token: str) -> str:
        """String: the same for a call that concerns no queue."""
        return f"{self.prefix}delayq:answer:{token}"

    def interrupt(self, name: str) -> str:
        """List: an element that ends the wait of one idle consumer; expires."""
        return f"{self.prefix}delayq:interrupt:{name}"

    def budget(self, name: str) -> str:
        """Set: the retries of all members of a canvas, where they share a number of them."""
        return f"{self.prefix}delayq:budget:{name}"

    def worker_id(self, name: str) -> str:
        """String: there while a process with that worker id lives.

        The number of its last call of ``history/add.lua``, or 1.
        """
        return f"{self.prefix}delayq:worker_id:{name}"

    def queue(self, name: str) -> QueueKeys:
        """Return the names of our keys of the queue *name*."""
        return _queue_keys(f"{self.prefix}{{{name}}}:")

    def ready(self, name: str, step: int, layout: Layout) -> str:
        """Return the name of kombu's ready list of one priority step of a queue."""
        return f"{self.prefix}{name}{layout.sep}{step}" if step else f"{self.prefix}{name}"

    def ready_lists(self, name: str, layout: Layout) -> Sequence[str]:
        """Return the names of all ready lists of a queue, in the order of ``layout.steps``."""
        return [self.ready(name, step, layout) for step in layout.steps]

    def stock(self, name: str) -> str:
        """Return the full name of a key that kombu spells without the prefix."""
        return f"{self.prefix}{name}"
