"""Leased messages in Redis: acquire, extend, ack, requeue, dead-letter, replace, reclaim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

from celery_delayq.errors import CommandRefused, RecordError
from celery_delayq.model.envelope import Entry, dead_letter_text
from celery_delayq.model.script_values import score_of, to_bytes, to_text
from celery_delayq.model.totals import kind_of
from celery_delayq.store.history import joined
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting.calls import Call, Command, Steps
from celery_delayq.store.scripting.replies import answered
from celery_delayq.store.scripting.runner import StorePart
from celery_delayq.store.scripting.scripts import LIMITS
from celery_delayq.utils.foreign import record_errors

#: Most messages that one call requeues.
REQUEUE_BATCH = 50

#: The action if an entry that replaces a leased message is already due: the entry becomes ready,
#: nothing changes, or the entry is scheduled.
WhenDue = Literal["push", "leave", "keep"]

#: The count that a requeue raises: none, requeued, crashed (the message killed a pool process), or
#: died (its worker ended by an error, which the message may have caused).
Counted = Literal["nothing", "requeued", "crashed", "died"]


class DeliveryCounts(NamedTuple):
    """Numbers of earlier deliveries of a message, by their end."""

    reclaimed: int = 0
    crashed: int = 0
    requeued: int = 0

    @classmethod
    def read(cls, text: bytes) -> DeliveryCounts:
        """Read the text of ``write_deliveries`` in ``include/leases/death_counts.lua``."""
        return cls(*map(int, text.split())) if text else cls()


NO_DELIVERIES = DeliveryCounts()


class Mark(NamedTuple):
    """Why a leased message does not run. A skipped message is *late_ms* too late."""

    why: Literal["cancelled", "replaced", "skipped"]
    late_ms: int = 0

    @classmethod
    def of(cls, field: str) -> Mark:
        """Read the mark after a field. ``include/tracking.lua`` lists the marks."""
        _, _, mark = field.partition("!")
        if mark[:2] == "!!":
            return cls("skipped", int(mark[2:]))
        return cls("replaced" if mark else "cancelled")


class AcquireReply(NamedTuple):
    """The reply of ``leases/acquire.lua``.

    Attributes
    ----------
    first_list : int
        The number of the first ready list with more messages, from 1; 0 for none. The next lane
        that may go counts as the list of its priority.
    alone : bool
        Whether the message is quarantined. The process may take no other message until it is
        settled.
    must_make_room : bool
        Whether a quarantined message waits. The process may take none until it has settled all its
        messages.
    messages : list[tuple[str, bytes, DeliveryCounts]]
        Field, bytes and earlier deliveries of each message, in the order in which to run them.
    revision : int
        The revision of pauses and revokes.
    promoted : Mapping[str, int]
        By field: the time at which the message became ready, in ms since 1970, if known.
    others : bool
        Whether stock producers have pushed some of the messages.
    marks : Mapping[str, Mark]
        By field: the reason for which the message does not run.
    permits : Set[str]
        The fields of messages that have a permit of a limit.
    scarce : Set[str]
        Those of *permits* whose limit has few left.
    has_limits : bool
        Whether limits are defined.
    lanes_wait : bool
        Whether messages of limits may go of which the process gets no more than it can run now.
    """

    first_list: int
    alone: bool
    must_make_room: bool
    messages: list[tuple[str, bytes, DeliveryCounts]]
    revision: int = 0
    promoted: Mapping[str, int] = MappingProxyType({})
    others: bool = False
    marks: Mapping[str, Mark] = MappingProxyType({})
    permits: Set[str] = frozenset()
    scarce: Set[str] = frozenset()
    has_limits: bool = False
    lanes_wait: bool = False

    def about(self, field: str) -> tuple[int | None, Mark | None]:
        """Return when a message became ready, and why it does not run; each may be None."""
        return self.promoted.get(field), self.marks.get(field)

    @staticmethod
    def answers(reply: Any, request_number: str) -> bool:
        """Return whether a reply may belong to the request *request_number*."""
        if not isinstance(reply, list) or len(reply) < 4:
            return False
        fields = reply[2].partition(b" ")[2]
        return not fields or bool(fields.startswith(f"{request_number}:".encode()))

    @staticmethod
    def revision_in(reply: Sequence[Any]) -> int:
        """Return the revision in a reply."""
        return int(reply[2].partition(b" ")[0])

    @classmethod
    def read(cls, reply: Sequence[Any]) -> AcquireReply:
        """Read the reply."""
        first_list, how, fields, counts, *messages = reply
        revision, *names = fields.decode().split()
        permits: Set[str] = frozenset()
        scarce: Set[str] = frozenset()
        if b"~" in fields:
            permits = {name.partition("~")[0] for name in names if "~" in name}
            scarce = {name.partition("~")[0] for name in names if "~~" in name}
            names = [name.replace("~", "") for name in names]
        promoted: dict[str, int] = {}
        if b"@" in fields:
            times = [name.partition("@") for name in names]
            names = [name for name, _, _ in times]
            promoted = {name.partition("!")[0]: int(ms) for name, _, ms in times if ms}
        marks: dict[str, Mark] = {}
        if b"!" in fields:
            marks = {name.partition("!")[0]: Mark.of(name) for name in names if "!" in name}
            names = [name.partition("!")[0] for name in names]
        before = [DeliveryCounts.read(text) for text in counts.split(b",")[1:]]
        before = before or [NO_DELIVERIES] * len(names)
        return cls(
            int(first_list),
            how[:1] == b"1",
            how[:1] == b"2",
            list(zip(names, messages, before, strict=True)),
            int(revision),
            promoted,
            b"+" in how,
            marks,
            permits,
            scarce,
            b"~" in how,
            b"^" in how,
        )


class Acked(NamedTuple):
    """The reply of ``leases/ack.lua``.

    *known* counts leased messages; *done* counts handled fields, from the first field on.
    """

    known: int
    done: int


class Reclaimed(NamedTuple):
    """The reply of ``leases/reclaim_expired.lua``: numbers of messages.

    *more*: the queue has more messages to reclaim.
    """

    more: bool
    requeued: int
    quarantined: int
    dead_lettered: int


class LeaseStore(StorePart):
    """The part of the store for messages leased to a process by its *worker_id*.

    A leased message is the field ``<request_number>:<place>`` of the hash
    ``{queue}:leased:<worker_id>``.
    """

    def acquire_call(
        self,
        queue: str,
        worker_id: str,
        lease: float,
        request_number: str,
        limit: int,
        lists: int,
        others: int,
        reports: bool = False,
        scarce: int = 0,
        has_limits: bool = False,
    ) -> Call:
        """Return the call that leases up to *limit* messages, for :class:`AcquireReply`.

        Parameters
        ----------
        lease : float
            Seconds until the lease ends.
        request_number : str
            A new number for the worker id, or the number of a call whose reply was lost.
        lists : int
            Number of ready lists to take from, beginning with the most urgent.
        others : int
            Number of messages that the process has or may get, of all queues; -1 if the process
            cannot settle all of them for a quarantined message.
        reports : bool
            Whether to lease messages that do not run too, since the process reports them.
        scarce : int
            Most messages with scarce permits of a limit: as many as the process can run now.
        has_limits : bool
            Whether limits are defined, as the last reply has told. If they are, and this is False,
            the reply has no messages.
        """
        args = [queue, worker_id, _ms(lease), request_number, limit, lists, others]
        layout = self._runner.layout
        args += self._keys.wake, int(reports), scarce, *layout.steps
        name = "leases/acquire" + (LIMITS if has_limits else "")
        return self._new_call(name, queue, args, layout=layout, leased=worker_id)

    def acquire(
        self,
        queue: str,
        worker_id: str,
        lease: float,
        request_number: str,
        limit: int,
        others: int = 0,
        has_limits: bool = False,
        reports: bool = False,
    ) -> AcquireReply:
        """Lease up to *limit* messages of all priorities. Parameters of :meth:`acquire_call`."""
        lists = len(self._runner.layout.steps)
        call = self.acquire_call(
            queue,
            worker_id,
            lease,
            request_number,
            limit,
            lists,
            others,
            reports=reports,
            scarce=limit,
            has_limits=has_limits,
        )
        return AcquireReply.read(self._runner.run(call))

    def ack_call(
        self, queue: str, worker_id: str, runs: Mapping[str, bytes], has_permits: bool = False
    ) -> Call:
        """Return the call that acknowledges messages. Its reply is an :class:`Acked`.

        Parameters
        ----------
        runs : Mapping[str, bytes]
            A line for the history by field of each message; ``b""`` for no line.
        has_permits : bool
            Whether some message has a permit of a limit.
        """
        history_size = self._runner.limits(queue).history
        lines = joined(runs.values()) if history_size else b""
        args = [queue, self._keys.wake, history_size, lines, *runs]
        name = "leases/ack" + (LIMITS if has_permits else "")
        return self._new_call(name, queue, args, leased=worker_id)

    def extend(self, queue: str, worker_id: str, lease: float) -> int:
        """Extend the lease on a queue to *lease* seconds from now. Return the number of leased
        messages.
        """
        args = [queue, worker_id, _ms(lease)]
        return int(self._run("leases/extend", queue, args, leased=worker_id))

    def leased_fields(self, queue: str, worker_id: str) -> set[str]:
        """Return the fields of all messages leased to a worker id."""
        found = self._runner.client.hkeys(self._keys.queue(queue).leased(worker_id))
        return {*map(to_text, cast("list[bytes]", found))}

    def requeue(
        self,
        queue: str,
        worker_id: str,
        fields: Sequence[str],
        *,
        layout: Layout | None = None,
        last: bool = False,
        counted: Counted = "nothing",
        max_deliveries: int = 0,
        details: bytes = b"",
    ) -> tuple[int, int]:
        """Requeue messages, to run next or, with *last*, after all others.

        Parameters
        ----------
        counted : "nothing" | "requeued" | "crashed" | "died"
            What the delivery counts as.
        max_deliveries : int
            After more than this number of crashes ("crashed") a message becomes a dead letter.
            After this number of deaths of its worker ("died") the message is delivered alone, as in
            :meth:`reclaim_expired`. 0: no limit.
        details : bytes
            Details for the dead letter: how the process of the message ended.

        Returns
        -------
        (requeued, dead-lettered)
            Numbers of messages.
        """
        layout = layout or self._runner.layout
        order, steps = "last" if last else "first", layout.steps
        args = [queue, self._keys.wake, order, counted, max_deliveries, details]
        args += to_bytes(worker_id), len(steps), *steps
        requeued = dead_lettered = 0
        remaining = [*map(to_bytes, fields)]
        while remaining:
            # To run next: the last messages first, so that the first one is taken first.
            part = remaining[:REQUEUE_BATCH] if last else remaining[-REQUEUE_BATCH:]
            reply = self._run(
                "leases/requeue", queue, [*args, *part], layout=layout, leased=worker_id
            )
            requeued, dead_lettered, done = requeued + reply[0], dead_lettered + reply[1], reply[2]
            remaining = remaining[done:] if last else remaining[: len(remaining) - done]
        return requeued, dead_lettered

    def dead_letter(
        self,
        queue: str,
        worker_id: str,
        field: str,
        id: str,
        reason: str,
        details: bytes = b"",
        run: bytes = b"",
    ) -> bool:
        """Make a dead letter of a message; False if it is not leased.

        *details* are JSON that people and commands show. *run* is a line for the history.
        """
        texts = dead_letter_text(id), dead_letter_text(reason)
        history_size = self._runner.limits(queue).history
        args = [field, *texts, queue, self._runner.layout.text, details, history_size, run]
        args += kind_of(reason), self._keys.wake
        return bool(self._run("leases/dead_letter", queue, args, leased=worker_id))

    def replace_call(
        self,
        queue: str,
        entry: Entry,
        message_queue: str,
        worker_id: str,
        field: str,
        *,
        head: bytes,
        when_due: WhenDue,
        run: bytes = b"",
    ) -> Call:
        """Return the call that schedules *entry* on *queue* in place of a leased message.

        The message belongs to *message_queue*. *head* is its beginning up to its label
        (:func:`~celery_delayq.model.envelope.head_of`). *run* is a line for the history.
        The reply is ``scheduled``, ``ready``, ``due``, ``gone``, ``duplicate`` or ``superseded``.

        *when_due* is ``push`` for a retry, ``keep`` for a message of a paused task, and ``leave``
        for a message with an ETA that a stock producer has sent.
        """
        args = self._runner.entry_args(queue, entry)
        args += entry.policy, field, when_due, self._runner.limits(message_queue).history, run
        args += message_queue, head
        key = self._keys.queue(message_queue)
        return self._new_call(
            "leases/replace",
            queue,
            args,
            ready_list=self._keys.ready(queue, entry.priority, self._runner.layout),
            message_leased=key.leased(worker_id),
            message_deliveries=key.deliveries,
            message_leased_index=key.leased_index,
            message_totals=key.totals,
        )

    def claim(self, worker_id: str, seconds: float) -> bool:
        """Claim a worker id for *seconds*; False if it is in use."""
        name = self._keys.worker_id(worker_id)
        return bool(self._runner.client.set(name, "1", px=_ms(seconds), nx=True))

    def renew(self, worker_id: str, seconds: float) -> None:
        """Note that the process of a worker id lives, for *seconds*.

        A full server accepts this, but refuses a claim.
        """
        if not self._runner.client.pexpire(self._keys.worker_id(worker_id), _ms(seconds)):
            with suppress(CommandRefused):
                self.claim(worker_id, seconds)

    def disclaim(self, worker_id: str) -> None:
        """Note that the process of a worker id has ended."""
        self._runner.client.delete(self._keys.worker_id(worker_id))

    def leases_steps(self, queue: str) -> Steps[list[tuple[str, int, int]]]:
        """Return of each process: worker id, end of its lease in ms of lease time, and number of
        leased messages.
        """
        key = self._keys.queue(queue)
        found = yield Command.of("ZRANGE", key.leases, 0, -1)
        names = [*map(to_text, found)]
        calls = [Command.of("ZSCORE", key.leases, name) for name in found]
        calls += [Command.of("HLEN", key.leased(name)) for name in names]
        found = answered((yield calls))
        ends, counts = found[: len(names)], found[len(names) :]
        return [
            (name, score_of(its_end), number)
            for name, its_end, number in zip(names, ends, counts, strict=True)
            if its_end is not None
        ]

    def first_ended_lease(self, queue: str) -> str | None:
        """Return the worker id whose lease on a queue ends first."""
        first = self._runner.client.zrange(self._keys.queue(queue).leases, 0, 0)
        return to_text(cast("list[bytes]", first)[0]) if first else None

    def reclaim_expired(
        self,
        queue: str,
        layout: Layout,
        worker_id: str,
        limit: int,
        max_deliveries: int,
        max_gap: float = 10.0,
    ) -> Reclaimed:
        """Reclaim up to about *limit* messages of a worker id whose lease has ended.

        After *max_deliveries* deaths of its process a message is delivered alone. If that process
        dies too, the message becomes a dead letter. 0: no limit. *max_gap* as in
        :meth:`~celery_delayq.store.store.Store.next_queue`.
        """
        args = [queue, to_bytes(worker_id), limit, max_deliveries, _ms(max_gap), self._keys.wake]
        args += layout.steps
        more, *numbers = self._run(
            "leases/reclaim_expired", queue, args, layout=layout, leased=worker_id
        )
        return Reclaimed(more == b"1", *numbers)


def place_of(field: str) -> tuple[int, ...]:
    """Return a key that sorts fields in the order of their leases; other fields come first."""
    try:
        with record_errors("field"):
            return tuple(map(int, field.split(":")))
    except RecordError:
        return ()


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
