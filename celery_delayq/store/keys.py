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
from celery_delayq.model.script_values import to_bytes
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

    The comments of this module are the tables of ``docs/keys.md``, which has the formats too.
    """

    own: str

    # -- Schedule of a queue

    #: Sorted set: entry id → due; + 10^15 if due, and held by a pause or a limit.
    due: str
    #: Hash: entry id → record.
    entries: str
    #: Sorted set, scores 0: ``task NUL due NUL id``, to count and find by task.
    tasks: str
    #: Sorted set, scores 0: as ``tasks``, due entries of paused tasks.
    paused_due: str
    #: Sorted set, scores 0: ``lane NUL step NUL due NUL id`` of due entries in lanes of limits.
    held: str
    #: Sorted set: lane → when its first entry may go (µs); ``inf``: waits for a permit.
    lanes: str
    #: Hash: unique key → owner, ``<since>=<id> NUL <message id>``.
    unique: str
    #: Sorted set, scores 0: ``id NUL message id`` of an entry whose id was taken.
    duplicate_ids: str
    #: Hash: state of ``promote_rate`` and ``max_ready``.
    pace: str
    #: Hash: counters.
    totals: str

    # -- Ready and leased messages of a queue

    #: Hash: entry id → index value of a ready message.
    ready_index: str
    #: Hash: entry id → index value of a leased message.
    leased_index: str
    #: List: one empty element while a message may be ready; idle consumers block on it.
    wake: str
    #: List: the same, while a lane may go.
    lanes_wake: str
    #: Sorted set: worker id → end of its lease, in lease time.
    leases: str
    #: Hash: SHA1 of a message → ``<reclaimed> <crashed> <requeued>``.
    deliveries: str
    #: Hash: worker id → last request number that got messages.
    request_numbers: str
    #: List: messages to deliver alone.
    quarantined: str
    #: String: worker id that makes itself free for a quarantined message.
    quarantine_turn: str

    # -- Dead letters of a queue

    #: Hash: id → ``2 <died> <due> <length> <reason>\n<details in JSON><message>``; without details
    #: ``1 <died> <due> <reason>\n<message>``.
    dead: str
    #: Sorted set: id → time of death.
    dead_at: str

    # -- A schedule that somebody reads page by page (expiring)

    #: Sorted set: begin of a reading (µs) → its end at the latest.
    readers: str
    #: Sorted set: name of an entry → its last move (µs), and ``name NUL since NUL until NUL task``
    #: → its due from since to until (µs).
    moved: str
    #: Sorted set: members of ``moved`` before it became too long.
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

    # -- Schedule of a queue

    def answer(self, token: str) -> str:
        """String: reply of a change, for a minute."""
        return f"{self.own}answer:{token}"

    # -- Ready and leased messages of a queue

    def turning(self, ready_list: str) -> str:
        """String: number of messages that ``migrate --to stock`` has still to check."""
        return f"{self.own}turning:{ready_list}"

    def leased(self, worker_id: str) -> bytes:
        """Hash: ``<request number>:<place>`` → leased value.

        In bytes, since a worker id that other code wrote may not be UTF-8.
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

        # -- All queues

        #: Hash: registry, queue → separator, priority steps, limits (:class:`Layout`).
        self.queues = f"{own}queues"
        #: Sorted set: queue → next look at its schedule.
        self.next_due = f"{own}next_due"
        #: Sorted set: queue → end of its next lease, in lease time.
        self.lease_ends = f"{own}lease_ends"
        #: Hash: lease time and dispatchers.
        self.clock = f"{own}clock"
        #: Hash: ``revision``; ``q<queue>`` and ``t<task>`` → paused since.
        self.control = f"{own}control"
        #: Hash: ``c<limit>``, ``o<limit>`` → definition by the code, by people; ``r<limit>`` →
        #: change of the rate (µs).
        self.limits = f"{own}limits"
        #: Sorted set, scores 0: ``lane NUL queue NUL id NUL message id`` of leased messages of
        #: limits.
        self.permits = f"{own}permits"
        #: Sorted set: lane → its slots are used up to (µs).
        self.slots = f"{own}slots"
        #: Sorted set, scores 0: ``lane NUL queue`` of lanes that wait for a permit.
        self.blocked_lanes = f"{own}blocked_lanes"
        #: Sorted set, scores 0: ``queue NUL lane`` of lanes with a permit that came back.
        self.freed_lanes = f"{own}freed_lanes"
        #: Sorted set: ``i<id>``, ``s<stamps in JSON>``, ``r<root id>`` or ``g<group id>`` → time of
        #: the revoke.
        self.revoked = f"{own}revoked"
        #: Stream: finished runs, field ``r`` (``model/history.py``).
        self.history = f"{own}history"
        #: String: runs by task (``include/history.lua``).
        self.history_index = f"{own}history_index"
        #: String: the index before that one.
        self.history_index_before = f"{own}history_index_before"
        #: String: worker that archives dead letters; expires.
        self.archiving = f"{own}archiving"
        #: String: number of hash tags of a Redis Cluster; on other masters it is
        #: ``delayq:cluster_tags:<n>``.
        self.cluster_tags = f"{own}cluster_tags"

        # -- Periodic entries

        #: Hash: name → ``<state>\n<definition in JSON>``.
        self.periodic = f"{own}periodic"
        #: Sorted set: name → next look at it.
        self.periodic_at = f"{own}periodic_at"
        #: Hash: counters of ticks by outcome, since ``epoch``.
        self.ticks = f"{own}ticks"
        #: Hash: announced code versions with periodic entries.
        self.code_versions = f"{own}code_versions"
        #: Sorted set: running ``celery beat`` → end of its announcement.
        self.celery_beats = f"{own}celery_beats"

        # -- Channels, which all databases share

        #: Channel: ``<µs until due> <queue>``, an entry that is due before all others. Only the
        #: dispatcher on duty subscribes, so that a wake-up does not wake all dispatchers.
        self.wake = f"{own}wake:{database}"
        #: Channel: duty heartbeat, ``1`` if a dispatcher looks at the ready lists, else ``0``. Its
        #: subscribers are the dispatchers.
        self.fleet = f"{own}fleet:{database}"
        #: Channel: a periodic entry was written.
        self.periodic_wake = f"{own}periodic_wake:{database}"

    def __repr__(self) -> str:
        return f"Keys(prefix={self.prefix!r}, database={self.database})"

    def named(self, service: str) -> str:
        """Return the name of a service for log lines; on a Redis Cluster with its shard."""
        return f"{service} for the shard of {self.tag}" if self.tag else service

    def of_tag(self, tag: str) -> Keys:
        """Return the names for the queues of one hash tag of a Redis Cluster.

        Each name is the tag and then the name on a single Redis, such as ``{dq00-0}:{mail}:due``.
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

    # -- All queues

    def answer(self, token: str) -> str:
        """String: reply of a change that concerns no queue, for a minute."""
        return f"{self.prefix}delayq:answer:{token}"

    def interrupt(self, consumer: str) -> str:
        """List: ends the wait of one idle consumer; expires."""
        return f"{self.prefix}delayq:interrupt:{consumer}"

    def budget(self, canvas: str) -> str:
        """Set: used retries of a canvas whose members share a budget."""
        return f"{self.prefix}delayq:budget:{canvas}"

    def worker_id(self, worker_id: str) -> str:
        """String: last call number of ``history/add``, or 1; expires after the process."""
        return f"{self.prefix}delayq:worker_id:{worker_id}"

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
