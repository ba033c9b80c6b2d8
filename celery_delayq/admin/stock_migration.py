"""Moves the tasks of an app from stock Celery to this package and back. Queues may have tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from celery_delayq.errors import InvalidETA, NotSupported, RecordError
from celery_delayq.model import envelope
from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.model.scheduled import OUTCOMES, Outcome, moment
from celery_delayq.model.script_values import EntryCondition, FoundPage, ListedEntry
from celery_delayq.model.task_options import check_own
from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import place_of
from celery_delayq.store.paging import listed_pages
from celery_delayq.store.repair import CALL_MEMBERS, StockMessage
from celery_delayq.store.repair_tracking import Tracked, cancelled_in
from celery_delayq.store.scan import PAGE_MESSAGES
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store, layouts
from celery_delayq.store.stores import Stores
from celery_delayq.utils import foreign, message_json
from celery_delayq.utils.portions import batches, portions

#: Most cancelled messages of a ready list that are searched one by one. If there are more, the
#: whole list is rotated once, which takes as long as searching for 1,000 messages.
MAX_SEARCHED_MESSAGES = 1000

#: Attempts to give back an entry that other processes change at the same time.
GIVE_BACK_ATTEMPTS = 5


@dataclass(slots=True)
class Moved:
    """Counts of messages so far.

    *gone* messages did not exist any more. *unmovable* messages are unreadable or have no queue:
    they stay in place or become dead letters. *leased* messages belong to a process that may still
    run.
    """

    total: int
    scheduled: int = 0
    ready: int = 0
    gone: int = 0
    unmovable: int = 0
    leased: int = 0

    @property
    def done(self) -> int:
        """Number of processed messages."""
        return self.scheduled + self.ready + self.gone + self.unmovable + self.leased


class LivingProcess(NamedTuple):
    """A process of this package that has leased messages, and may still run.

    Attributes
    ----------
    worker_id : str
        Its name in Redis.
    queues : list[str]
        The queues of the messages.
    messages : int
        Number of leased messages.
    seconds : float
        Seconds after which Redis forgets the process, if it has been killed.
    """

    worker_id: str
    queues: list[str]
    messages: int
    seconds: float


def living_processes(session: Session) -> list[LivingProcess]:
    """Return the processes that have leased messages and may still run, by their worker ids.

    A worker in warm shutdown is one of them. It does not answer remote control.
    """
    with session.connection() as connection:
        store: Store = connection.default_channel.store
        queues_of: dict[str, list[str]] = {}
        for queue, worker_ids in sorted(store.repair.worker_ids_by_queue().items()):
            for worker_id in worker_ids:
                queues_of.setdefault(worker_id, []).append(queue)
        found = []
        for worker_id, queues in sorted(queues_of.items()):
            number = sum(len(store.leases.leased_fields(queue, worker_id)) for queue in queues)
            seconds = store.repair.claimed_seconds(worker_id)
            if number and seconds is not None:
                found.append(LivingProcess(worker_id, queues, number, seconds))
        return found


def check_single(session: Session) -> None:
    """Refuse a Redis Cluster. Stock Celery does not support Redis Cluster.

    Raises
    ------
    NotSupported
        The app's broker is a Redis Cluster.
    """
    if not session.stores.has_one:
        raise NotSupported(
            "stock Celery cannot use a Redis Cluster. Take two steps, each in either direction "
            "(docs/cluster.md): 1. move the tasks between the cluster and a single Redis by "
            "delayq export and import, dead export and import. 2. run migrate there"
        )


def from_stock(session: Session, *, dry_run: bool = False) -> Iterator[Moved]:
    """Take over the tasks of stock workers: all messages in kombu's ``unacked`` hash.

    A message with a future ETA goes to the schedule. Any other message goes to its ready list. Each
    message moves in one step, so the call may be interrupted and repeated. Stop the stock workers
    first. Otherwise they also run the tasks that they have in memory.

    Yields
    ------
    Moved
        The same object after each message, for a progress bar, and once before the first message.
    """
    with session.connection() as connection:
        channel = connection.default_channel
        for queue in session.app.amqp.queues.values():
            queue(channel).declare()  # so that kombu knows the types of the exchanges
        store: Store = channel.store
        unacked = store.keys.stock(channel.unacked_key)
        moved = Moved(total=store.unacked_count(unacked))
        yield moved
        for tag, data in store.scan.fields(unacked):
            try:
                raw, exchange, routing_key = foreign.loads(data)
                envelope.check_envelope(raw)
                queues = channel.bound_queues(exchange, routing_key)
                due = envelope.due_of(raw) or Due(0)
                entry = _entry(raw, store.layout.step_of(raw), due)
            except (ValueError, TypeError, InvalidETA):
                queues = []
            if not queues:
                moved.unmovable += 1
                yield moved
                continue
            if dry_run:
                outcome = "scheduled" if due.relative or due.ms > store.now_ms() else "ready"
            else:
                # kombu has one message for all queues of a topic. Only the last step removes the
                # message.
                *others, last = queues
                for other in others:
                    store.schedule(other, entry)
                outcome = store.take_from_unacked(last, entry, channel.unacked_keys(tag))
            setattr(moved, outcome, getattr(moved, outcome) + 1)
            yield moved


def to_stock(
    session: Session, *, dry_run: bool = False, spare_living: bool = False
) -> Iterator[Moved]:
    """Give all tasks back to stock workers: the schedule, and the leases of ended processes.

    Each entry goes to its ready list. The ETA of its message is the current due time, until which
    stock workers keep the message in memory. Messages of due entries have no ETA, also if their
    task is paused. Leased and quarantined messages go to their ready list unchanged. Cancelled
    ready messages are removed.

    Stop the workers of this package first. Otherwise they move entries back into the schedule, and
    their leased tasks run twice. The call may be interrupted and repeated.

    Parameters
    ----------
    spare_living : bool
        Skip processes that have sent a heartbeat within three times their lease.

    Yields
    ------
    Moved
        The same object after each entry or batch, for a progress bar, and once before the first.
    """
    with session.connection() as connection:
        store: Store = connection.default_channel.store
        returning = _ReturnToStock(store, dry_run=dry_run, spare_living=spare_living)
        known = layouts(store.registry())
        empty: dict[str, set[str]] = {queue: set() for queue in known}
        holders = {**empty, **returning.repair.worker_ids_by_queue()}
        returning.moved.total = sum(returning.count(*each) for each in holders.items())
        yield returning.moved
        for queue, worker_ids in holders.items():
            layout = known.get(queue, store.layout)
            yield from returning.return_scheduled(queue, layout)
            quarantined = returning.repair.quarantined(queue)
            for worker_id in sorted(worker_ids):
                yield from returning.return_leased(queue, layout, worker_id)
            yield from returning.return_quarantined(queue, layout, quarantined)
            returning.clear_ready(queue, layout)
            returning.remove_empty_leases(queue)


def etas_in_lists(session: Session) -> int:
    """Return the number of ready messages with a future ETA.

    Stock producers push such messages to ready lists. The first worker of this package that takes
    such a message moves it to the schedule. A stock worker keeps the message in memory. This reads
    all messages of all ready lists, in batches.
    """
    with session.connection() as connection:
        store: Store = connection.default_channel.store
        known = {
            **dict.fromkeys(session.app.amqp.queues, store.layout),
            **layouts(store.registry()),
        }
        now_ms = store.now_ms()
        return sum(
            has_future_eta(message, now_ms)
            for queue, layout in known.items()
            for message in store.ready_messages(queue, layout, sys.maxsize)
        )


def has_future_eta(message: bytes, now_ms: int) -> bool:
    """Return whether a ready message has a future ETA; False if it cannot be read."""
    try:
        raw = foreign.loads(message)
        envelope.check_envelope(raw)
        due = envelope.due_of(raw)
    except (ValueError, TypeError, InvalidETA, RecursionError):
        return False
    return due is not None and due.ms > now_ms


class _ReturnToStock:
    """Gives messages back to stock workers, one queue at a time."""

    def __init__(self, store: Store, *, dry_run: bool, spare_living: bool) -> None:
        self.store = store
        self.repair = store.repair
        self.tracks = store.repair_tracking
        self.moved = Moved(total=0)
        self.dry_run = dry_run
        self.spare_living = spare_living

    def count(self, queue: str, worker_ids: Iterable[str]) -> int:
        """Return the number of messages to move."""
        leased = (len(self.store.leases.leased_fields(queue, name)) for name in worker_ids)
        return self.store.scheduled(queue) + sum(leased) + self.repair.quarantined(queue)

    def return_scheduled(self, queue: str, layout: Layout) -> Iterator[Moved]:
        """Give back the scheduled entries, in order of their due times.

        A pass may miss entries that are added meanwhile. So passes are repeated until none is left.
        """
        unreadable: set[str] = set()
        stores = Stores.single(self.store)

        def ask(read: Callable[[Stores], FoundPage]) -> FoundPage:
            return read(stores)

        found = True
        while found:
            found = False
            began = self.store.now_us()
            pages = listed_pages(
                ask, queue, EntryCondition(), CALL_MEMBERS, began=began, records=False
            )
            for page in pages:
                names = [each.name for each in page.entries if each.name not in unreadable]
                for some in self._portions(queue, names):
                    unreadable |= self._release(queue, layout, some)
                    found = not self.dry_run
                    yield self.moved

    def _portions(self, queue: str, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield names in portions that occupy Redis for a short time only."""
        lengths = dict(zip(names, self.repair.lengths(queue, names), strict=True))
        # The call carries each record, and the message that replaces the record.
        return portions(names, CALL_MEMBERS, lambda name: 2 * lengths[name])

    def _release(self, queue: str, layout: Layout, names: Sequence[str]) -> set[str]:
        """Give back entries; return the names of unreadable entries."""
        moved, unreadable = self.moved, set()
        for _ in range(GIVE_BACK_ATTEMPTS):
            now, some = self.store.now_ms(), []
            for name, score, record in self.repair.scheduled(queue, names):
                if score is None:
                    moved.gone += 1
                    continue
                try:
                    if record is None:
                        raise RecordError("no record")
                    message = _stock_message(record, score, now)
                    some.append(StockMessage(name, score, record, message))
                except (RecordError, ValueError, LookupError, TypeError, AttributeError):
                    unreadable.add(name)
                    moved.unmovable += 1
            outcomes = [Outcome.DONE] * len(some)
            if some and not self.dry_run:
                codes = self.repair.give_back(queue, layout, some)
                outcomes = [OUTCOMES[code] for code in codes]
            moved.ready += outcomes.count(Outcome.DONE)
            moved.gone += outcomes.count(Outcome.UNKNOWN)
            pairs = zip(some, outcomes, strict=True)
            names = [each.name for each, outcome in pairs if outcome is Outcome.CHANGED]
            if not names:
                break
        return unreadable

    def clear_ready(self, queue: str, layout: Layout) -> None:
        """Clear the ready index, and remove the cancelled messages from the ready lists."""
        if self.dry_run:
            return
        tracked = self.tracks.tracked(queue, "waiting")
        cancelled = {each.message: each for each in tracked if each.value.startswith(b"!")}
        for ready_list in self.store.keys.ready_lists(queue, layout):
            if self.tracks.is_turning(queue, ready_list):  # an earlier call was interrupted
                self.tracks.drop_cancelled(queue, ready_list, cancelled)
            if cancelled:
                self._drop_cancelled(queue, layout, ready_list, cancelled)
        for some in batches(self.tracks.tracked(queue, "waiting"), CALL_MEMBERS):
            self.tracks.forget_ready(queue, layout, [(each, b"") for each in some])
        self.tracks.forget_ready(queue, layout)

    def _drop_cancelled(
        self, queue: str, layout: Layout, ready_list: str, cancelled: Mapping[bytes, Tracked]
    ) -> None:
        found = (
            (tracked, message)
            for messages in self.store.scan.messages(ready_list, 0, sys.maxsize, PAGE_MESSAGES)
            for message in messages
            if (tracked := cancelled_in(message, cancelled))
        )
        some = [*islice(found, MAX_SEARCHED_MESSAGES + 1)]
        if len(some) > MAX_SEARCHED_MESSAGES:
            self.tracks.drop_cancelled(queue, ready_list, cancelled)
            return
        for each in some:
            self.tracks.forget_ready(queue, layout, [each])

    def return_leased(self, queue: str, layout: Layout, worker_id: str) -> Iterator[Moved]:
        """Give back the messages of a process. They run next, in the order of their leases."""
        moved, leases = self.moved, self.store.leases
        fields = sorted(leases.leased_fields(queue, worker_id), key=place_of)
        spared = self.spare_living and self._lives(worker_id)
        # The last batch first, because each batch goes before all ready messages.
        for end in range(len(fields), 0, -CALL_MEMBERS):
            batch = fields[max(0, end - CALL_MEMBERS) : end]
            if spared:
                moved.leased += len(batch)
            else:
                ready, dead_lettered = len(batch), 0
                if not self.dry_run:
                    ready, dead_lettered = leases.requeue(queue, worker_id, batch, layout=layout)
                moved.ready += ready
                moved.unmovable += dead_lettered
                moved.gone += len(batch) - ready - dead_lettered
            yield moved

    def return_quarantined(self, queue: str, layout: Layout, before: int) -> Iterator[Moved]:
        """Give back the quarantined messages.

        *before* is the number of quarantined messages at the start. All others were leased, and are
        counted already.
        """
        moved = self.moved
        if self.dry_run:
            moved.ready += before
            yield moved
            return
        # `return_leased` counts as ready also the messages that it puts into quarantine.
        moved.ready -= self.repair.quarantined(queue) - before
        while any(outcome := self.repair.release_quarantined(queue, layout)):
            moved.ready += outcome[0]
            moved.unmovable += outcome[1]
            yield moved

    def _lives(self, worker_id: str) -> bool:
        return self.repair.claimed_seconds(worker_id) is not None

    def remove_empty_leases(self, queue: str) -> None:
        """Remove leases without messages, expired or not."""
        if self.dry_run:
            return
        names = self.repair.worker_ids_of(queue)
        if self.spare_living:
            names = {name for name in names if not self._lives(name)}
        # One call even without names: it also removes a queue without leases from their index.
        for worker_ids in [*batches(names, CALL_MEMBERS)] or [[]]:
            self.repair.forget_empty_leases(queue, worker_ids)


def _stock_message(record: bytes, score: float, now_ms: int) -> bytes:
    """Return the message of an entry for stock workers. The message of a due entry has no ETA."""
    due_ms = ListedEntry("", int(score), b"").due_ms
    eta = moment(due_ms).isoformat() if due_ms > now_ms else None
    return message_json.encode(
        envelope.for_stock(foreign.loads(Record.unpack(record).message), eta)
    )


def _entry(raw: dict[str, Any], step: int, due: Due) -> Entry:
    """Return the entry of a message. If it is not a task, the entry only goes to a ready list."""
    if envelope.due_of(raw) is not None:
        check_own(raw["properties"])
        return Entry.of(raw, step, due)
    message_id = str(raw["properties"]["delivery_tag"])
    return Entry(
        message_id, due, step, Record(step, message_id, "", message_json.encode(raw)).pack()
    )
