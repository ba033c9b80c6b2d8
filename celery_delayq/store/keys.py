"""The only place that builds names of Redis keys.

The name of each of our keys contains the queue's name as a hash tag, so that all keys of a queue
share one slot. The ready lists have kombu's names, since stock producers, stock workers and Flower
use the same lists. On a Redis Cluster each name begins with a hash tag
(:mod:`celery_delayq.model.cluster_tags`), so that all keys of the tag's queues share one slot.

The names after ``KEYS`` in the header of a script are attributes here
(:meth:`celery_delayq.store.scripting.calls.Call.of`).
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

#: kombu's separator between a queue's name and a priority step.
DEFAULT_SEPARATOR = "\x06\x16"

#: Keys of the layouts before 0.1.0 that have other names now.
EARLIER_KEYS = ("delayq:agenda", "delayq:reaping", "delayq:deploys", "delayq:beats")

#: kombu's default priority steps: one ready list for each.
DEFAULT_STEPS = (0, 3, 6, 9)


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of a queue's ready lists, and the queue's limits.

    Attributes
    ----------
    sep, steps : str, tuple[int, ...]
        kombu's ``sep`` and ``priority_steps``.
    limits : Limits
        Limits that the queue's consumers have set. All processes that promote the queue's entries
        or trim its dead letters keep these limits.
    """

    sep: str = DEFAULT_SEPARATOR
    steps: tuple[int, ...] = DEFAULT_STEPS
    limits: Limits = field(default_factory=Limits)

    def step(self, priority: int) -> int:
        """Return the priority step of the ready list for *priority*, by kombu's rule."""
        return self.steps[bisect(self.steps, priority) - 1]

    def step_of(self, message: Mapping[str, Any]) -> int:
        """Return the priority step of a message's ready list, by kombu's rule. A message without a
        priority has priority 0.
        """
        try:
            priority = int(message["properties"]["priority"])
        except (TypeError, ValueError, OverflowError, KeyError):
            return self.step(0)
        return self.step(max(0, min(priority, 9)))

    @property
    def text(self) -> str:
        """The layout in the form of the registry."""
        return _layout_text(self)

    @classmethod
    def loads(cls, text: bytes | str) -> Layout:
        """Read the :attr:`text` of a layout.

        Raises
        ------
        RecordError
            The text is not a layout.
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
    *("due", "entries", "tasks", "paused_due", "held", "lanes", "unique", "duplicate_ids"),
    *("ready_index", "leased_index", "totals"),
)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """Full names of the keys of one queue.

    due
        Sorted set: entry id, scored by its due time in ms since 1970.
    entries
        Hash: entry id to record (see :mod:`celery_delayq.model.envelope`).
    tasks
        Sorted set, all scores 0: ``task NUL due NUL id``, to count and find by task.
    paused_due
        Sorted set like ``tasks``: due entries of paused tasks.
    held
        Sorted set, all scores 0: ``lane NUL step NUL due NUL id`` of entries that wait in lanes.
    lanes
        Sorted set: lane, scored by the time at which its first entry may go, in µs since 1970.
    unique
        Hash: unique key to the id of the task that has it (``include/tracking.lua``).
    duplicate_ids
        Sorted set, all scores 0: ``id NUL message_id`` of entries whose id already belonged to
        another message when they were added.
    ready_index
        Hash: entry id to the state of a ready message (``include/tracking.lua``).
    leased_index
        Hash: entry id to the state of a leased message.
    pace
        Hash: the number of entries that may be promoted now (``include/dispatch/rate_limit.lua``).
    dead
        Hash: dead letter id to dead letter.
    dead_at
        Sorted set: dead letter id, scored by its time of death in ms since 1970.
    wake
        List with one empty element while a message may be ready. Idle consumers block on the list.
    lanes_wake
        List like ``wake``, while a lane may go. Consumers with a free slot block on it too.
    leases
        Sorted set: worker id, scored by the end of its lease in ms of lease time.
    deliveries
        Hash: SHA1 of a requeued or reclaimed message to its delivery counts
        (``include/leases/death_counts.lua``).
    request_numbers
        Hash: worker id to the last request number for which it got messages.
    quarantined
        List: quarantined messages, which are delivered alone.
    quarantine_turn
        String: the worker id that settles its messages to take a quarantined message.
    totals
        Hash: the queue's counters (``include/totals.lua``).
    readers
        Sorted set: the time (µs) at which each reading of the schedule by pages began, scored by
        the time (ms) until which the reading may continue.
    moved, moved_before
        Sorted sets: entries that were moved during readings (``include/pages/reading.lua``).
    """

    own: str
    due: str
    entries: str
    tasks: str
    paused_due: str
    held: str
    lanes: str
    unique: str
    duplicate_ids: str
    ready_index: str
    leased_index: str
    pace: str
    dead: str
    dead_at: str
    wake: str
    lanes_wake: str
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
        """The keys of the scheduled entries."""
        return self.due, self.entries, self.tasks

    @property
    def moves(self) -> tuple[str, str, str]:
        """The keys of readings, and of entries moved during readings."""
        return self.readers, self.moved, self.moved_before

    @property
    def state(self) -> tuple[str, ...]:
        """The first keys of all scripts for entries (``include/tracking.lua``)."""
        return _STATE_KEYS(self)

    @property
    def by_id(self) -> tuple[str, str, str, str]:
        """The keys that contain messages by id."""
        return self.entries, self.ready_index, self.leased_index, self.duplicate_ids

    def answer(self, token: str) -> str:
        """String: the reply of a call, for a repeated call with the same token; expires."""
        return f"{self.own}answer:{token}"

    def turning(self, ready_list: str) -> str:
        """String: number of messages of a ready list that ``drop_cancelled`` has still to check."""
        return f"{self.own}turning:{ready_list}"

    def leased(self, worker_id: str) -> bytes:
        """Hash: field to message of all messages leased to a process.

        ``include/leases/lease.lua`` has the form of a value. In bytes, since a worker id
        that other code wrote may not be UTF-8.
        """
        return f"{self.own}leased:".encode() + to_bytes(worker_id)


_KEY_FIELDS = [each.name for each in fields(QueueKeys)[1:]]


@lru_cache(maxsize=1024)
def _queue_keys(own: str) -> QueueKeys:
    return QueueKeys(own, *[own + name for name in _KEY_FIELDS])


class Keys:
    """Names of keys with a ``global_keyprefix`` in a database, or for a hash tag of a cluster."""

    def __init__(self, prefix: str = "", database: int = 0, tag: str = "") -> None:
        self.prefix, self.database, self.tag = prefix, database, tag
        own = f"{prefix}delayq:"
        #: Sorted set: queue name, scored by the time of the next look at its schedule (ms).
        self.next_due = f"{own}next_due"
        #: Hash, the registry: queue name to :class:`Layout`.
        self.queues = f"{own}queues"
        #: Sorted set: queue name, scored by the next look for ended leases (ms of lease time).
        self.lease_ends = f"{own}lease_ends"
        #: Hash of lease time: ``seen`` and ``stood``, both in ms (``include/leases/lease.lua``).
        #: Also ``dispatched``: the time (ms) at which a dispatcher last moved an entry, or had none
        #: to move.
        self.clock = f"{own}clock"
        #: Hash: ``revision``; ``q<queue>`` and ``t<task>``: the time of the pause (ms).
        self.control = f"{own}control"
        #: Hash: the definitions of limits (``include/limits/lanes.lua``).
        self.limits = f"{own}limits"
        #: Sorted sets about lanes of limits (``include/limits/permits.lua``): the permits, the used
        #: slots, the lanes that wait for a permit, and those for which one has come back.
        self.permits = f"{own}permits"
        self.slots = f"{own}slots"
        self.blocked_lanes = f"{own}blocked_lanes"
        self.freed_lanes = f"{own}freed_lanes"
        #: Sorted set: ``i<task id>``, ``s<stamps in JSON>``, ``r<root id>`` or ``g<group id>``,
        #: scored by the time of the revoke (ms).
        self.revoked = f"{own}revoked"
        #: Stream: the ended runs (:mod:`celery_delayq.model.history`).
        self.history = f"{own}history"
        #: Strings: the index of the history by task (``include/history.lua``).
        self.history_index = f"{own}history_index"
        self.history_index_before = f"{own}history_index_before"
        #: String: the worker that has the turn to archive dead letters; expires.
        self.archiving = f"{own}archiving"
        #: Hash: name of a periodic entry to its record (:mod:`celery_delayq.periodic.policy`).
        self.periodic = f"{own}periodic"
        #: Sorted set: name of a periodic entry, scored by the time of the next look at it (ms).
        self.periodic_at = f"{own}periodic_at"
        #: Hash: counters of the ticks of periodic entries (``periodic/fire.lua``).
        self.ticks = f"{own}ticks"
        #: Hash: the announced code versions (``periodic/announce_version.lua``).
        self.code_versions = f"{own}code_versions"
        #: Sorted set: each running ``celery beat``, scored by the time until which it is announced
        #: (ms).
        self.celery_beats = f"{own}celery_beats"
        #: Channel: ``<µs until due> <queue>`` for a new entry that is due before all others. All
        #: databases of Redis share its channels, so the name contains the database.
        self.wake = f"{own}wake:{database}"
        #: Channel: the heartbeat of the dispatcher on duty (``dispatch/next_queue.lua``). All
        #: dispatchers subscribe, also to be counted. Only the dispatcher on duty subscribes to
        #: :attr:`wake`, so that a wake-up does not wake all dispatchers.
        self.fleet = f"{own}fleet:{database}"
        #: Channel: a message for each write of periodic entries.
        self.periodic_wake = f"{own}periodic_wake:{database}"
        #: String, on a Redis Cluster: the number of hash tags.
        self.cluster_tags = f"{own}cluster_tags"

    def __repr__(self) -> str:
        return f"Keys(prefix={self.prefix!r}, database={self.database})"

    def named(self, service: str) -> str:
        """Return the name of a service for log lines; on a Redis Cluster with its shard."""
        return f"{service} for the shard of {self.tag}" if self.tag else service

    def of_tag(self, tag: str) -> Keys:
        """Return the names for the queues of one hash tag of a Redis Cluster.

        Each name is the tag and then the name on a single Redis, such as ``{dq07-5}:{mail}:due``.
        So no name is that of another queue's list. Redis uses only the first braces.

        Raises
        ------
        ConfigError
            The prefix contains a brace.
        """
        if "{" in self.prefix:
            raise ConfigError(
                f"global_keyprefix {self.prefix!r}: expected one without '{{' on a Redis Cluster, "
                "where the first braces of a key decide on its node"
            )
        return Keys(f"{self.prefix}{{{tag}}}:", tag=tag)

    def answer(self, token: str) -> str:
        """String: the reply of a call that concerns no queue; expires."""
        return f"{self.prefix}delayq:answer:{token}"

    def interrupt(self, name: str) -> str:
        """List: one element ends the wait of one idle consumer; expires."""
        return f"{self.prefix}delayq:interrupt:{name}"

    def budget(self, name: str) -> str:
        """Set: the used retries of a canvas whose members share a retry budget."""
        return f"{self.prefix}delayq:budget:{name}"

    def worker_id(self, name: str) -> str:
        """String: exists while the process of a worker id lives.

        The value is the number of the process' last call of ``history/add.lua``, or 1.
        """
        return f"{self.prefix}delayq:worker_id:{name}"

    def queue(self, name: str) -> QueueKeys:
        """Return the names of our keys for the queue *name*."""
        return _queue_keys(f"{self.prefix}{{{name}}}:")

    def ready(self, name: str, step: int, layout: Layout) -> str:
        """Return the name of kombu's ready list of one priority step of a queue."""
        return f"{self.prefix}{name}{layout.sep}{step}" if step else f"{self.prefix}{name}"

    def ready_lists(self, name: str, layout: Layout) -> Sequence[str]:
        """Return the names of all ready lists of a queue, in the order of ``layout.steps``."""
        return [self.ready(name, step, layout) for step in layout.steps]

    def stock(self, name: str) -> str:
        """Return the full name of a kombu key that is given without the prefix."""
        return f"{self.prefix}{name}"


def queue_name(name: bytes) -> str | None:
    """Return the name of a queue; None for bytes that are not UTF-8, so not a queue of ours."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
