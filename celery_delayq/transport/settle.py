"""What becomes of messages that were handed out, when their channel may have been closed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

from celery_delayq.integration import worker
from celery_delayq.store.leases import Counted
from celery_delayq.store.schedule import Store
from celery_delayq.transport.divert import DivertChannel
from celery_delayq.utils import native_threads

logger = native_threads.Logger(__name__)

#: Dead letters after which to look whether there are too many dead letters.
TRIM_AFTER = 100


class SettleChannel(DivertChannel):
    """A channel that gives messages back, and makes dead letters of them."""

    _dead_lettered = 0

    def requeue(self, tags: Iterable[str], *, last: bool = False, counted: Counted) -> None:
        """Put messages back into their ready lists, after all others with *last*."""
        fields: dict[tuple[str, Counted, bytes], list[str]] = {}
        for tag in tags:
            holding = self.keeper.drop(tag)
            if holding is not None:
                why: Counted = "crashed" if holding.crashed else counted
                details = holding.details if holding.crashed else b""
                key = holding.queue, why, details
                fields.setdefault(key, []).append(self.keeper.field(tag))
        most = self.keeper.max_deliveries

        def put_back(store: Store) -> None:
            for (queue, why, details), names in fields.items():
                _, dead_lettered = store.leases.requeue(
                    queue,
                    self.keeper.worker_id,
                    names,
                    last=last,
                    counted=why,
                    most=most,
                    details=details,
                )
                if dead_lettered:
                    logger.error("A task of queue %r that kills its process is dead", queue)

        self._do(put_back)

    def note_cancelled(self, tag: str) -> None:
        """Take note that nobody works on a message any more, though its object may live on."""
        holding = self.keeper.held.get(tag)
        if holding is not None:
            holding.message = None
            if self.connection is None:
                self.keeper.orphan([tag])

    def add_dead_letter(self, tag: str, id: str, reason: str) -> bool:
        """Make a dead letter of a message that is held; return whether it was."""
        holding = self.keeper.drop(tag)
        if holding is None:
            return False
        why, queue, field = holding.reason or reason, holding.queue, self.keeper.field(tag)
        me, details, run = self.keeper.worker_id, holding.details, holding.run
        self._do(lambda store: store.leases.dead_letter(queue, me, field, id, why, details, run))
        self._after_burial(queue)
        return True

    def add_dead_letter_copy(
        self, queue: str, id: str, reason: str, message: bytes, details: bytes
    ) -> None:
        """Make a dead letter of what failed after it was acknowledged."""
        lost = f"Task {id!r} is no dead letter, and its message is lost: {reason!r}"
        self._do(lambda store: store.add_dead_letter(queue, id, reason, message, details), lost)
        self._after_burial(queue)

    def _after_burial(self, queue: str) -> None:
        """Now and then, forget dead letters beyond the limits."""
        self._dead_lettered += 1
        if self._dead_lettered % TRIM_AFTER == 0:
            self._do(lambda store: store.dead_letters.trim_by(queue, store.layout_of(queue)))

    def _do(self, change: Callable[[Store], Any], lost: str = "") -> None:
        """Change something in Redis: at once, or by the keeper.

        By the keeper where there is no connection, and for greenlets of eventlet: the consumer may
        close its connections while they wait for an answer, and then they would wait for ever.

        *lost* says what is lost if the process ends before Redis is back.
        """
        waits_for_ever = native_threads.is_eventlet() and self._fetcher.is_elsewhere
        if self.connection is not None and not waits_for_ever:
            try:
                change(self.store)
                return
            except Exception as exc:
                # Redis is away, or a signal handler runs where greenlets may not wait.
                logger.warning("Done a little later: %r", exc)
            except BaseException:
                # A greenlet is killed while it waits, or the process is to end.
                self.keeper.changes.add(change, lost)
                raise
        self.keeper.changes.add(change, lost)

    def note_failure(
        self, tag: str, *, crashed: bool = False, reason: str | None = None, details: bytes = b""
    ) -> bool:
        """Take note of why a message is about to come back or to be rejected, if it is held."""
        holding = self.keeper.held.get(tag)
        if holding is not None:
            holding.crashed, holding.reason, holding.details = crashed, reason, details
        return holding is not None

    def hand_back(self, tags: list[str]) -> None:
        """Put back what was handed out and is not done: at once, or when nobody works on it."""
        held = [tag for tag in tags if tag in self.keeper.held]
        if worker.lost_connection(self):
            gc.collect()  # what Celery has dropped must not look alive
            self.keeper.orphan(held)
        else:
            self.requeue(held, counted="died" if worker.failed() else "requeued")
