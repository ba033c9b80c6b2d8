"""The end of each delivery of a channel."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.integration import worker
from celery_delayq.settings import Settings
from celery_delayq.store.leases import Counted
from celery_delayq.store.store import Store

logger = logging.getLogger(__name__)

#: Dead letters of a channel after which it checks whether there are too many.
TRIM_DEAD_LETTERS = 100


class Deliveries:
    """Ends the deliveries of one channel: each is acknowledged, requeued, or a dead letter.

    A task may end after its channel was closed. Then the thread of the lease keeper makes the
    change in Redis. The keeper also repeats changes that fail at first.

    Parameters
    ----------
    keeper : LeaseKeeper
        The lease keeper of this process for this Redis database.
    store : Store
        The store, on connections of the channel.
    settings : Settings
        The settings of the connection.
    """

    def __init__(self, keeper: LeaseKeeper, store: Store, settings: Settings) -> None:
        self.keeper = keeper
        self.settings = settings
        #: None after the channel was closed.
        self._store: Store | None = store
        self._dead_lettered = 0

    def ack(self, tag: str, *, at_once: bool) -> None:
        """Acknowledge a message: with the next request, or *at_once*."""
        self.keeper.ack(tag)
        if at_once and self._store is not None:
            self.keeper.acks.flush(self._store)

    def requeue(self, tags: Iterable[str], *, last: bool = False, counted: Counted) -> None:
        """Requeue messages before all others or, with *last*, after all others."""
        fields: dict[tuple[str, Counted, bytes], list[str]] = {}
        for tag in tags:
            leased_message = self.keeper.release(tag)
            if leased_message is not None:
                cause: Counted = "crashed" if leased_message.crashed else counted
                details = leased_message.details if leased_message.crashed else b""
                key = leased_message.queue, cause, details
                fields.setdefault(key, []).append(self.keeper.field(tag))
        if not fields:
            return
        me, max_deliveries = self.keeper.worker_id, self.keeper.max_deliveries

        def put_back(store: Store) -> None:
            for (queue, cause, details), names in fields.items():
                _, dead_lettered = store.leases.requeue(
                    queue,
                    me,
                    names,
                    last=last,
                    counted=cause,
                    max_deliveries=max_deliveries,
                    details=details,
                )
                if dead_lettered:
                    logger.error(
                        "task that kills its process: queue=%s dead_lettered=%d",
                        queue,
                        dead_lettered,
                    )

        self._change(put_back)

    def requeue_unacknowledged(self, tags: Iterable[str], *, reconnects: bool) -> None:
        """Requeue unacknowledged messages at once.

        If the worker *reconnects*, each message is requeued when its task has ended.
        """
        leased = [tag for tag in tags if tag in self.keeper.leased]
        if reconnects:
            gc.collect()  # messages that Celery has dropped must not look alive
            self.keeper.requeue_idle(leased)
        else:
            self.requeue(leased, counted="died" if worker.ends_by_error() else "requeued")

    def note_failure(
        self, tag: str, *, crashed: bool = False, reason: str | None = None, details: bytes = b""
    ) -> bool:
        """Note why a message is about to be requeued or rejected; False if it is not leased."""
        leased_message = self.keeper.leased.get(tag)
        if leased_message is None:
            return False
        leased_message.crashed = crashed
        leased_message.reason, leased_message.details = reason, details
        return True

    def note_cancelled(self, tag: str) -> None:
        """Note that no task works on a message any more.

        The keeper takes a living message object for a running task. An error that somebody keeps
        may refer to the object, so the keeper forgets the object here.
        """
        leased_message = self.keeper.leased.get(tag)
        if leased_message is not None:
            leased_message.message = None
            if self._store is None:
                self.keeper.requeue_idle([tag])

    def add_dead_letter(self, tag: str, id: str, reason: str) -> bool:
        """Make a dead letter of a leased message; return whether it was leased."""
        leased_message = self.keeper.release(tag)
        if leased_message is None:
            return False
        me, field = self.keeper.worker_id, self.keeper.field(tag)
        queue, details, run = leased_message.queue, leased_message.details, leased_message.run
        reason = leased_message.reason or reason
        self._change(
            lambda store: store.leases.dead_letter(queue, me, field, id, reason, details, run)
        )
        self._trim_sometimes(queue)
        return True

    def add_dead_letter_copy(
        self, tag: str, queue: str, id: str, reason: str, message: bytes, details: bytes
    ) -> None:
        """Make a dead letter of a task that failed after, or just before, its acknowledgement.

        An acknowledgement that comes later does nothing.
        """
        if self.note_failure(tag, reason=reason, details=details) and self.add_dead_letter(
            tag, id, reason
        ):
            return
        loss_text = f"Task {id!r} is no dead letter, and its message is lost: {reason!r}"
        self._change(
            lambda store: store.dead_letters.add(queue, id, reason, message, details), loss_text
        )
        self._trim_sometimes(queue)

    def end(self, fetched: Sequence[str], *, reconnects: bool, holds_others: bool) -> None:
        """Requeue messages that were not handed out, and send acknowledgements.

        Parameters
        ----------
        fetched : Sequence[str]
            The tags of these messages.
        reconnects : bool
            Whether the connection is lost.
        holds_others : bool
            Whether other messages are handed out and not acknowledged.
        """
        if reconnects or self._store is None:
            # These messages have no objects, so the keeper requeues them at once.
            self.keeper.requeue_idle(fetched)
            return
        if fetched or holds_others:  # else do not wait for a silent server
            with suppress(Exception):  # the keeper tries again
                self.keeper.requeue_abandoned(self._store)
        self.requeue(fetched, counted="nothing")
        with suppress(Exception):  # the keeper sends the rest
            self.keeper.acks.drain(self._store)

    def close(self) -> None:
        """Leave further changes to the keeper: the channel is closed."""
        self._store = None
        self.keeper.finish()
        self.keeper.remove_channel()

    def _trim_sometimes(self, queue: str) -> None:
        """Delete dead letters beyond the limits, after each :data:`TRIM_DEAD_LETTERS`."""
        self._dead_lettered += 1
        if self._dead_lettered % TRIM_DEAD_LETTERS == 0:
            self._change(lambda store: store.dead_letters.trim_by(queue, store.layout_of(queue)))

    def _change(self, change: Callable[[Store], Any], loss_text: str = "") -> None:
        """Make a change in Redis at once, or have the keeper make it if there is no connection.

        *loss_text* is logged if the process ends before Redis is back.
        """
        if self._store is None:
            self.keeper.changes.add(change, loss_text)
            return
        try:
            change(self._store)
        except BaseException as exc:
            # Before logging: a greenlet may be killed while it logs.
            self.keeper.changes.add(change, loss_text)
            # A greenlet is killed while it waits, or the process ends.
            if not isinstance(exc, Exception):
                raise
            # Redis is away, or a signal handler runs, in which greenlets may not wait.
            logger.warning("Done a little later: %r", exc)
