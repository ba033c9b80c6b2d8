"""The consuming half of the channel: delivers and settles messages, and makes dead letters."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from amqp import spec
from amqp.exceptions import ChannelError, RecoverableConnectionError
from kombu.exceptions import OperationalError

from celery_delayq.errors import DelayQError, InvalidETA, InvalidOption
from celery_delayq.integration import worker
from celery_delayq.integration.endings import not_begun
from celery_delayq.integration.install import change_consumer
from celery_delayq.model import envelope
from celery_delayq.model.dead_letter import pack_details
from celery_delayq.model.envelope import PROPERTY, Due
from celery_delayq.transport.amqp.dead_letter_connection import (
    WORKER_TIMEOUT_SECONDS,
    DeadLetterConnection,
    NewDeadLetter,
)
from celery_delayq.transport.amqp.dead_letters import DeadLetterStream
from celery_delayq.transport.amqp.inbound import UNREADABLE_HEADER
from celery_delayq.transport.amqp.messages import (
    OWN_HEADER,
    Message,
    deliveries_before,
    is_task,
    own_of,
)
from celery_delayq.transport.amqp.publish import PublishChannel
from celery_delayq.transport.amqp.sizes import ready_messages
from celery_delayq.transport.amqp.waiting import REPLY_SECONDS, silence_ends
from celery_delayq.transport.rejected import (
    MALFORMED_ERRORS,
    drop_malformed,
    handle_or_refuse,
    log_refused,
    reason_of,
)
from celery_delayq.utils.once import warn_once
from celery_delayq.utils.text import text_of

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Unacked:
    """An unacknowledged message, and the reason if the message is about to be rejected."""

    message: Message
    queue: str
    crashed: bool = False
    reason: str | None = None
    details: bytes = b""


class Channel(PublishChannel):
    """A channel to RabbitMQ that makes dead letters of rejected messages."""

    Message = Message

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unacked: dict[int, Unacked] = {}
        self._put_off_again_at = 0.0
        self._prefetch_grows = False
        #: The connection on which RabbitMQ has not yet confirmed that this channel is closed.
        self._closed_on: Any = None

    # -- to consume

    def basic_consume(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_ack: bool = False,
        callback: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> Any:
        if worker.consumes_tasks(self):
            change_consumer()
            self._dead_letter_connection.check()
            if self.can_schedule(queue):
                self.declarer.bind_again(queue)
        if consumer_tag and callback is not None and not no_ack:  # the reader of streams has no tag
            callback = partial(self._deliver, queue, callback)
        elif callback is not None and consumer_tag:
            callback = drop_malformed(callback)
        return super().basic_consume(
            queue, consumer_tag=consumer_tag, no_ack=no_ack, callback=callback, **options
        )

    def basic_qos(
        self, prefetch_size: int, prefetch_count: int, a_global: bool, **options: Any
    ) -> Any:
        # Only a count of the whole channel (a_global) can grow while a consumer runs. Celery sets
        # no such count with quorum queues, and kombu sets none with RabbitMQ 4.
        self._prefetch_grows = a_global
        return super().basic_qos(prefetch_size, prefetch_count, a_global, **options)

    def basic_cancel(self, consumer_tag: str, *args: Any, **options: Any) -> Any:
        """Cancel a consumer. Requeue messages that come before RabbitMQ has answered.

        A solo worker that ends would run such a message in its signal handler.
        """
        if isinstance(self.callbacks.get(consumer_tag), partial):
            self.callbacks[consumer_tag] = lambda message: self.basic_reject(
                message.delivery_tag, requeue=True
            )
        return super().basic_cancel(consumer_tag, *args, **options)

    def basic_get(self, queue: str = "", no_ack: bool = False, **options: Any) -> Any:
        found = super().basic_get(queue, no_ack=no_ack, **options)
        if found is not None and not no_ack:
            found.delivery_info["queue"] = queue
        return found

    def _deliver(self, queue: str, callback: Callable[[Any], Any], message: Any) -> None:
        """Hand out a message, unless it must wait or becomes a dead letter."""
        message.delivery_info["queue"] = queue
        settle = partial(self._is_settled, queue, callback)
        refuse = partial(self._refuse_malformed, message, queue)
        if not handle_or_refuse(settle, message, refuse, MALFORMED_ERRORS):
            handle_or_refuse(callback, message, partial(self._refuse_unacked, message))

    def _refuse_malformed(self, message: Any, queue: str, exc: Exception) -> None:
        self._refuse(message, queue, log_refused(exc, by_worker=self._serves_worker))

    def _refuse_unacked(self, message: Any, exc: Exception) -> None:
        """Make a dead letter of a message handed out, unless the message is settled or runs."""
        why = log_refused(exc, by_worker=self._serves_worker)
        unacked = self._unacked.get(message.delivery_tag)
        if unacked is not None and not_begun.refuse(unacked.message):
            unacked.message._state = "REJECTED"  # so that no other code settles the message
            self.add_dead_letter(message.delivery_tag, _id_of(unacked.message), why)

    @property
    def _serves_worker(self) -> bool:
        """Whether Celery's worker consumes by this channel, and the connection is open."""
        is_connected = self.connection is not None and self.connection.connected
        return is_connected and worker.consumes_tasks(self)

    def _is_settled(self, queue: str, callback: Callable[[Any], Any], message: Any) -> bool:
        """Put a received message off if it must wait, or make a dead letter of it if it is
        undecodable or was delivered too often. Return whether either was done.
        """
        headers = message.properties.get("application_headers") or {}
        if UNREADABLE_HEADER in headers:
            self._refuse(message, queue, f"undecodable message: {headers[UNREADABLE_HEADER]}")
            return True
        if not is_task(message):
            return False
        due = self._due_later(message)
        if due is not None:
            if self._put_off(message, queue, due):
                return True
            if not self._prefetch_grows and worker.consumes_tasks(self):
                # In Celery's memory the message would use up one of the prefetch until it is due.
                seconds = min(REPLY_SECONDS, max(due.ms / 1000 - time.time(), 0.1))
                worker.call_later(seconds, self._deliver_again, queue, callback, message)
                return True
        count = deliveries_before(message)
        if not 0 < self.settings.max_deliveries < count:
            return False
        why = f"its process died {count} times"
        self._refuse(message, queue, why, pack_details({"deliveries": count}))
        return True

    def _deliver_again(self, queue: str, callback: Callable[[Any], Any], message: Any) -> None:
        """Hand out a message that could not be put off. RabbitMQ requeues the messages of a lost
        connection.
        """
        if self.connection is not None:
            self._deliver(queue, callback, message)

    def _refuse(self, message: Any, queue: str, why: str, details: bytes = b"") -> None:
        """Make a dead letter of a message that was not handed out."""
        if self.can_schedule(queue):
            unacked = Unacked(Message(message, channel=self), queue, reason=why, details=details)
            self._unacked[message.delivery_tag] = unacked
        self.basic_reject(message.delivery_tag)

    def _put_off(self, message: Any, queue: str, due: Due) -> bool:
        """Put a stock producer's message with an ETA into the cascade. Return whether it is stored.

        A message that is not stored waits in the worker's memory.

        Raises
        ------
        InvalidETA
            The delay is longer than ``max_delay``.
        """
        if not self.can_schedule(queue) or time.monotonic() < self._put_off_again_at:
            return False
        try:
            for error in self._dead_letter_connection.send(
                [(message, queue, due)], timeout=WORKER_TIMEOUT_SECONDS
            ).values():
                raise error
        except InvalidETA:
            raise
        except (DelayQError, OperationalError, *self.connection.client.connection_errors) as exc:
            warn_once(logger, f"tasks with an ETA wait in this worker's memory: {exc}")
            if not isinstance(exc, InvalidOption):  # InvalidOption concerns only this message
                self._put_off_again_at = time.monotonic() + REPLY_SECONDS
            return False
        self.basic_ack(message.delivery_tag)
        return True

    def _due_later(self, message: Any) -> Due | None:
        """Return the ETA of a message that must wait. Move a past ETA to the ``delayq`` header."""
        headers = message.properties["application_headers"]
        if headers.get("eta") is None:
            return None
        try:
            due = envelope.due_of_eta(headers["eta"])
        except InvalidETA:
            return None  # Celery rejects the message, and logs its own error
        if due.ms > time.time() * 1000 + self.settings.min_delay * 1000:
            return due
        headers[OWN_HEADER] = json.dumps({**own_of(message), "eta": headers["eta"]})
        headers["eta"] = None
        return None

    def message_to_python(self, raw_message: Any) -> Any:
        """Decode a message. Note the message as unacknowledged, if it must be acknowledged."""
        message = Message(raw_message, channel=self)
        queue = (raw_message.delivery_info or {}).get("queue")
        if queue and self.can_schedule(queue):
            message.properties[PROPERTY]["queue"] = queue
            self._unacked[message.delivery_tag] = Unacked(message, queue)
        return message

    def close(self, *args: Any, **options: Any) -> Any:
        """Close the channel. Its number stays in use until RabbitMQ answers.

        The answer is not awaited while RabbitMQ blocks the connection.
        """
        connection = self.connection
        if not self.is_open or connection is None or not connection.connected:
            return super().close(*args, **options)
        self.is_closing = True  # py-amqp now ignores all but the answer
        try:
            with connection.transport.having_timeout(WORKER_TIMEOUT_SECONDS):
                self.send_method(spec.Channel.Close, "BsBB", (0, "", 0, 0))
            with silence_ends(connection):
                while self.connection is not None and not connection.blocked:
                    connection.drain_events(timeout=connection.reply_timeout)
        finally:
            if self.connection is not None:
                self._closed_on, self.connection = connection, None
        return None

    def collect(self) -> None:
        """Drop the channel's state, and free its number."""
        self.connection, self._closed_on = self.connection or self._closed_on, None
        super().collect()

    def _on_close(self, reply_code: int, reply_text: str, *method: int) -> Any:
        """Raise the error of a lost connection if RabbitMQ itself closes the channel, for example
        after ``consumer_timeout``. With that error Celery connects again; another error would end
        the worker.
        """
        try:
            return super()._on_close(reply_code, reply_text, *method)
        except ChannelError as exc:
            if any(method):
                raise
            raise RecoverableConnectionError(reply_text) from exc

    # -- to settle

    @property
    def deliveries(self) -> Channel:
        """This channel: RabbitMQ settles a message only on the channel that delivered it."""
        return self

    def basic_ack(self, delivery_tag: Any, multiple: bool = False, **options: Any) -> Any:
        self._unacked.pop(delivery_tag, None)
        return super().basic_ack(delivery_tag, multiple, **options)

    def basic_reject(self, delivery_tag: Any, requeue: bool = False, **options: Any) -> Any:
        unacked = self._unacked.get(delivery_tag)
        if unacked is None:
            return super().basic_reject(delivery_tag, requeue, **options)
        if requeue and not self._is_last(unacked):
            del self._unacked[delivery_tag]
            return super().basic_reject(delivery_tag, True, **options)
        why = "killed its process too often" if requeue else reason_of(unacked.message)
        self.add_dead_letter(delivery_tag, _id_of(unacked.message), why)
        return None

    def _is_last(self, unacked: Unacked) -> bool:
        """Return whether a message has ended its process more than ``max_deliveries`` times."""
        deliveries: int = unacked.message.properties[PROPERTY]["deliveries"]
        return unacked.crashed and 0 < self.settings.max_deliveries < deliveries

    def note_failure(
        self, tag: Any, *, crashed: bool = False, reason: str | None = None, details: bytes = b""
    ) -> bool:
        """Note why a message is about to be requeued or rejected. Return False if it is settled."""
        unacked = self._unacked.get(tag)
        if unacked is not None:
            unacked.crashed, unacked.reason, unacked.details = crashed, reason, details
        return unacked is not None

    def note_cancelled(self, tag: Any) -> None:
        """Do nothing: RabbitMQ requeues the messages of a closed channel."""

    def add_dead_letter(self, tag: Any, id: str, reason: str) -> bool:
        """Make a dead letter of an unacknowledged message. Return whether there is one."""
        unacked = self._unacked.get(tag)
        if unacked is None or self.connection is None:
            return False
        new = NewDeadLetter(
            unacked.queue, id, unacked.reason or reason, unacked.message.pack(), unacked.details
        )
        connection = self._dead_letter_connection
        if not worker.consumes_tasks(self):
            connection.ask(lambda stream: stream.add(*new))
        elif not connection.add(new, self, tag):
            return True
        self.basic_ack(tag)
        return True

    def ack_stored(self, tag: Any) -> None:
        """Acknowledge a message whose dead letter was stored late."""
        if tag in self._unacked and self.connection is not None:
            self.basic_ack(tag)

    def add_dead_letter_copy(
        self, _tag: Any, queue: str, id: str, reason: str, message: bytes, details: bytes
    ) -> None:
        """Make a dead letter of a failed task. Leaves the task's message as it is."""
        self._dead_letter_connection.add(NewDeadLetter(queue, id, reason, message, details))

    def collect_unroutable(self) -> None:
        """Make dead letters of due messages whose queue was deleted."""
        name = self.topology.unroutable
        if not ready_messages(self.connection, [name]).get(name):
            return
        while (found := self.basic_get(name)) is not None:
            message, queue = Message(found, channel=self), found.delivery_info["routing_key"]
            reason = f"it was due, and there is no queue {queue!r}"
            try:
                self.dead_letters.add(queue, _id_of(message), reason, message.pack())
            except Exception:
                self.basic_reject(message.delivery_tag, requeue=True)
                raise
            self.basic_ack(message.delivery_tag)

    # -- the stream of dead letters

    @property
    def _dead_letter_connection(self) -> DeadLetterConnection:
        """The connection that stores dead letters. Usable after the channel was closed."""
        found: DeadLetterConnection = self._transport.dead_letter_connection
        return found

    @property
    def dead_letters(self) -> DeadLetterStream:
        """The dead letters of this broker, accessed over this channel."""
        return DeadLetterStream(self, self.topology)


def _id_of(message: Message) -> str:
    """Return the id for a dead letter: that of its message as text, or a new id."""
    return text_of(message.headers.get("id") or f"refused-{uuid4()}")
