"""Publishes a message into the schedule, into its ready list, or in place of the message that it
retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from celery_delayq.errors import InvalidETA
from celery_delayq.integration.endings import run_history
from celery_delayq.model import delivery, envelope, publish_outcome
from celery_delayq.model.delivery import LeasePlace
from celery_delayq.model.envelope import Due, Entry
from celery_delayq.model.publish_outcome import PublishOutcome, Put
from celery_delayq.model.task_options import check_own
from celery_delayq.settings import Settings
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.replies import EntriesReply
from celery_delayq.store.store import Store
from celery_delayq.transport.batch import PublishBatch
from celery_delayq.utils import message_json

logger = logging.getLogger(__name__)


class Publication(NamedTuple):
    """A script call that publishes one message, and the function that reads its reply."""

    call: Call
    read: Callable[[Any], None]


class Publisher:
    """Decides how messages are published, and sends nothing.

    The channel sends the call of a script: at once, with ``wait_replicas`` or on an event loop.

    Parameters
    ----------
    settings : Settings
        ``min_delay`` and ``history`` are read.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def publication(
        self,
        store: Store,
        queue: str,
        message: Mapping[str, Any],
        database_id_of: Callable[[str], str],
    ) -> Publication:
        """Return the script call that publishes a message to a permanent queue.

        Parameters
        ----------
        database_id_of : Callable[[str], str]
            Returns the id of the database with the messages of a queue. A retry whose former
            message is in another database is published as a new message.
        """
        lease = delivery.retry_of(message)
        if lease is not None:
            if lease.database_id == database_id_of(queue) and _is_first(message, queue):
                return self._retry(store, queue, message, lease)
            message = delivery.without_retry_note(message)
        entry = self.entry_of(store, message)
        if entry is None:
            ready = store.ready_call(queue)
            ready.add(*_ready_arguments(store, message))
            return Publication(ready, _read_nothing)
        # If Redis refused a retry whose former message is acknowledged, the task would be lost.
        call = store.schedule_call(queue, retry=bool(message["headers"].get("retries")))
        call.add(entry)
        task_id = str(message["headers"]["id"])
        return Publication(call, partial(_read_scheduled, queue, task_id, entry.data))

    def add_to(
        self, batch: PublishBatch, store: Store, queue: str, message: Mapping[str, Any]
    ) -> None:
        """Add a message for a permanent queue to a batch. A retry is added as a new message."""
        message = delivery.without_retry_note(message)
        entry = self.entry_of(store, message)
        if entry is None:
            batch.add_ready(store, queue, *_ready_arguments(store, message))
        else:
            batch.add_entry(store, queue, entry)

    def entry_of(self, store: Store, message: Mapping[str, Any]) -> Entry | None:
        """Return the entry for the schedule; None if the message goes to its ready list.

        A task with an option that a script checks, such as a unique key, is an entry too.
        """
        due = envelope.due_when_sent(message)
        if envelope.is_special(message) or not (due is None or self._is_short(store, due)):
            return Entry.of(message, store.layout.step_of(message), due or Due(0))
        return None

    def due_later(self, store: Store, message: Mapping[str, Any]) -> Due | None:
        """Return the ETA of a received message that must be scheduled, else None."""
        try:
            due = envelope.due_of(message)
        except InvalidETA:
            return None  # Celery rejects the message, and logs its own error
        return None if due is None or self._is_short(store, due) else due

    def _is_short(self, store: Store, due: Due) -> bool:
        """Return whether a delay is below ``min_delay``: the worker waits, without the schedule."""
        least = self._settings.min_delay
        if not least:
            return False
        wait_ms = due.ms if due.relative else due.ms - store.now_ms()
        return 0 < wait_ms < least * 1000

    def _retry(
        self, store: Store, queue: str, message: Mapping[str, Any], lease: LeasePlace
    ) -> Publication:
        """Schedule a retry in place of the running task's message."""
        due = envelope.due_when_sent(message) or Due(0)
        entry = Entry.of(message, store.layout.step_of(message), due)
        worker_id, _, field = lease.tag.partition(":")
        run = run_history.of_retry() if self._settings.history else b""
        head = envelope.head_with(lease.label, lease.limit)
        call = store.leases.replace_call(
            queue, entry, lease.queue, worker_id, field, head=head, when_due="push", run=run
        )
        return Publication(call, partial(_read_retry, queue, entry.id))


def entry_of_received(store: Store, message: Mapping[str, Any], due: Due) -> Entry:
    """Return the entry for a message that a stock producer may have sent.

    Raises
    ------
    RecordError
        The message's ``delayq`` property is not in the form that scripts expect.
    """
    check_own(message["properties"])
    return Entry.of(message, store.layout.step_of(message), due)


def _is_first(message: Mapping[str, Any], queue: str) -> bool:
    """Return whether *queue* is the first queue of a message: a topic may lead to several."""
    first: str = message["properties"][envelope.PROPERTY].setdefault("retried_to", queue)
    return first == queue


def _ready_arguments(store: Store, message: Mapping[str, Any]) -> tuple[int, bytes, bool]:
    """Return priority step and bytes of a message without a delay, and whether it is a task."""
    step = store.layout.step_of(message)
    return step, message_json.encode(message), envelope.is_task(message)


def _read_nothing(_reply: Any) -> None:
    """Ignore the reply to a push, which contains no outcome."""


def _read_scheduled(queue: str, task_id: str, record: bytes, reply: Any) -> None:
    """Note the outcome of an entry. Raises the errors of :func:`publish_outcome.note_outcome`."""
    _, [put], replaced = EntriesReply.read(reply)
    publish_outcome.note_outcome(PublishOutcome(task_id, put, queue, record, replaced.get(0, b"")))


def _read_retry(queue: str, task_id: str, reply: Any) -> None:
    """Log the reason if Redis has not stored the retry."""
    if reply == b"superseded":
        publish_outcome.note_outcome(PublishOutcome(task_id, Put("superseded"), queue))
        logger.info("Task %r is not tried again: another one has taken its unique key", task_id)
    if reply == b"gone":
        logger.warning(
            "The retry of task %r is void: its message was given to another worker, "
            "which runs it again",
            task_id,
        )
