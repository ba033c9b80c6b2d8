"""The end of a delivery other than its acknowledgement: back to the queue, or a dead letter.

The channel of a message may have been closed by then.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from kombu.pidbox import Mailbox

from celery_delayq.dispatch.lease_keeper import ACK_INTERVAL, LeaseKeeper, keeper_of
from celery_delayq.dispatch.pacing import GATHER
from celery_delayq.errors import RecordError
from celery_delayq.integration import worker
from celery_delayq.model import envelope
from celery_delayq.model.dead_letter import pack_details
from celery_delayq.store.leases import Counted
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.replies import Held
from celery_delayq.transport.publish import PublishChannel
from celery_delayq.utils import message_json

logger = logging.getLogger(__name__)

#: Dead letters after which to look whether there are too many dead letters.
TRIM_AFTER = 100


#: Prefix and suffix of the names of reply exchanges of remote control.
_REPLY_PREFIX, _REPLY_SUFFIX = Mailbox.reply_exchange_fmt.split("%s")


def is_for_replies(exchange: str) -> bool:
    """Return whether an exchange is for the replies of remote control."""
    return exchange.startswith(_REPLY_PREFIX) and exchange.endswith(_REPLY_SUFFIX)


class SettleChannel(PublishChannel):
    """A channel that gives messages back, and makes dead letters of them."""

    #: Seconds between two looks at acknowledgements that no request took along.
    ack_interval = ACK_INTERVAL

    #: Whether it looks at the ready lists each time when it gets idle, and does not leave that to
    #: the fleet of dispatchers.
    looks_after_work = True

    #: Seconds between two promotions of a steady stream by the channel's dispatcher.
    gather = GATHER

    _dead_lettered = 0
    _keeper: LeaseKeeper | None = None

    @property
    def keeper(self) -> LeaseKeeper:
        """The lease keeper of this process for this Redis database; usable after :meth:`close`."""
        if self._keeper is None:
            self._keeper = keeper_of(
                self.place,
                lambda: LeaseKeeper(
                    *(self.new_store(), self.store.leases.claim, self.settings),
                    ack_interval=self.ack_interval,
                ),
            )
            self._keeper.join()
        return self._keeper

    # -- messages that are leased

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
        if not fields:
            return
        me, most = self.keeper.worker_id, self.keeper.max_deliveries

        def put_back(store: Store) -> None:
            for (queue, why, details), names in fields.items():
                _, dead_lettered = store.leases.requeue(
                    queue, me, names, last=last, counted=why, most=most, details=details
                )
                if dead_lettered:
                    logger.error(
                        "task that kills its process: queue=%s dead_lettered=%d",
                        queue,
                        dead_lettered,
                    )

        self._do(put_back)

    def note_cancelled(self, tag: str) -> None:
        """Note that no task works on a message any more, though its object may live on."""
        holding = self.keeper.held.get(tag)
        if holding is not None:
            holding.message = None
            if self.connection is None:
                self.keeper.orphan([tag])

    def add_dead_letter(self, tag: str, id: str, reason: str) -> bool:
        """Make a dead letter of a held message; return whether it was held."""
        holding = self.keeper.drop(tag)
        if holding is None:
            return False
        why, queue, field = holding.reason or reason, holding.queue, self.keeper.field(tag)
        me, details, run = self.keeper.worker_id, holding.details, holding.run
        self._do(lambda store: store.leases.dead_letter(queue, me, field, id, why, details, run))
        self._trim_sometimes(queue)
        return True

    def add_dead_letter_copy(
        self, tag: str, queue: str, id: str, reason: str, message: bytes, details: bytes
    ) -> None:
        """Make a dead letter of a task that failed after its acknowledgement, or before it: the
        acknowledgement that comes then does nothing.
        """
        if self.note_failure(tag, reason=reason, details=details) and self.add_dead_letter(
            tag, id, reason
        ):
            return
        lost = f"Task {id!r} is no dead letter, and its message is lost: {reason!r}"
        self._do(lambda store: store.dead_letters.add(queue, id, reason, message, details), lost)
        self._trim_sometimes(queue)

    def _trim_sometimes(self, queue: str) -> None:
        """Delete dead letters beyond the limits, once in a while."""
        self._dead_lettered += 1
        if self._dead_lettered % TRIM_AFTER == 0:
            self._do(lambda store: store.dead_letters.trim_by(queue, store.layout_of(queue)))

    def _do(self, change: Callable[[Store], Any], lost: str = "") -> None:
        """Change something in Redis: at once, or by the keeper where there is no connection.

        *lost* says what is lost if the process ends before Redis is back.
        """
        if self.connection is None:
            self.keeper.changes.add(change, lost)
            return
        try:
            change(self.store)
        except BaseException as exc:
            # First of all: whoever logs may be ended, too.
            self.keeper.changes.add(change, lost)
            # Else a greenlet is killed while it waits, or the process is to end.
            if not isinstance(exc, Exception):
                raise
            # Redis is away, or a signal handler runs where greenlets may not wait.
            logger.warning("Done a little later: %r", exc)

    def note_failure(
        self, tag: str, *, crashed: bool = False, reason: str | None = None, details: bytes = b""
    ) -> bool:
        """Note why a held message is about to be requeued or rejected."""
        holding = self.keeper.held.get(tag)
        if holding is not None:
            holding.crashed, holding.reason, holding.details = crashed, reason, details
        return holding is not None

    def hand_back(self, tags: list[str]) -> None:
        """Put unacknowledged messages back: at once, or when their tasks have ended."""
        held = [tag for tag in tags if tag in self.keeper.held]
        if worker.lost_connection(self.whole):
            gc.collect()  # what Celery has dropped must not look alive
            self.keeper.orphan(held)
        else:
            self.requeue(held, counted="died" if worker.failed() else "requeued")

    # -- messages that kombu keeps, or that cannot be read

    def _do_restore_message(
        self, payload: Any, exchange: str, routing_key: str, *rest: Any
    ) -> None:
        """Put back a message that kombu keeps; a reply without a bound queue is dropped."""
        if not self._lookup(exchange, routing_key):
            if is_for_replies(exchange):
                return  # whoever asked the workers has gone
            raise LookupError(f"no queue is bound to exchange {exchange!r} for {routing_key!r}")
        # kombu logs what it cannot put back, and then forgets it.
        envelope.check_envelope(payload)
        if not isinstance(payload.get("headers"), dict):
            raise RecordError("the message has no headers")
        self._get_message_priority(payload)
        super()._do_restore_message(payload, exchange, routing_key, *rest)

    def held(self, tag: str | bytes) -> Held:
        """Return where kombu keeps the message *tag* while a stock worker holds it."""
        stock_name = self.store.keys.stock
        return Held(stock_name(self.unacked_key), stock_name(self.unacked_index_key), tag)

    def add_dead_letter_held(self, tag: str | bytes, exc: Exception) -> None:
        """Make a dead letter of a message that kombu keeps and that cannot be put back."""
        held = self.held(tag)
        item = self.store.held_message(held)
        if item is not None:
            queue = _queue_of(item)
            # The list of a queue that is called like kombu's hash would be that hash.
            details = b"" if queue else pack_details({"unbound": []})
            self.add_dead_letter_item(queue or self.unacked_key, item, exc, details)
        # In this order: an index without its message does no harm.
        self.store.client.hdel(held.unacked, tag)
        self.store.client.zrem(held.unacked_index, tag)

    def add_dead_letter_item(
        self, queue: str, item: bytes, exc: Exception, details: bytes = b""
    ) -> None:
        log_undecodable(queue, item, exc)
        self.store_of(queue).dead_letters.add(
            queue, f"undecodable-{uuid4()}", f"undecodable message: {exc}", item, details
        )


def log_undecodable(queue: str, item: bytes, exc: Exception) -> None:
    logger.error(
        "An undecodable message in queue %r is now a dead letter: %s: %r", queue, exc, item[:200]
    )


def _queue_of(held: bytes) -> str | None:
    """Return the routing key behind a held message that cannot be read."""
    try:
        queue = message_json.decode(held.rpartition(b", ")[2].removesuffix(b"]"))
    except Exception:
        return None
    return queue if isinstance(queue, str) and held.startswith(b"[") else None
