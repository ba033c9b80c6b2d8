"""The publishing half of the channel: waits for confirms, puts delayed tasks into the cascade."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from secrets import token_hex
from typing import Any

from amqp.exceptions import (
    AccessRefused,
    ChannelError,
    NotFound,
    PreconditionFailed,
    RecoverableConnectionError,
    ResourceLocked,
)
from kombu.transport import pyamqp

from celery_delayq.errors import InvalidOption, NoQueue, NotSupported, QueueFull
from celery_delayq.model import envelope
from celery_delayq.model.envelope import PROPERTY, Due
from celery_delayq.settings import Settings
from celery_delayq.transport.amqp import cascade
from celery_delayq.transport.amqp.batch import PublishBatch
from celery_delayq.transport.amqp.confirms import Confirms
from celery_delayq.transport.amqp.declarer import Declarer, not_allowed
from celery_delayq.transport.amqp.frames import (
    NO_HEADERS,
    Content,
    encoded,
    encoding_errors,
    publish_frames,
)
from celery_delayq.transport.amqp.messages import OWN_HEADER, REDIS_OPTIONS, Routed, is_task
from celery_delayq.transport.amqp.topology import Topology
from celery_delayq.transport.amqp.waiting import limit_wait, silence_ends

#: Faster than ``json.dumps``.
_ENCODE = json.JSONEncoder().encode

#: Seconds between two attempts to send to a new queue.
_LEADER_RETRY_SECONDS = 0.05

#: Exclusive queues that connections of this process have declared, such as a worker's mailbox.
_EXCLUSIVE_QUEUES: set[str] = set()


class PublishChannel(pyamqp.Channel):
    """A channel to RabbitMQ that keeps a task in delay queues until it is due."""

    connection: Any
    _confirms: Confirms | None = None

    def __init__(self, connection: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(connection, *args, **kwargs)
        self.auto_decode = False  # a dead letter contains the bytes of its message
        # Kept, since tasks may end after the connection was closed.
        self._transport = connection.delayq
        #: The ``delayq`` settings of the connection.
        self.settings: Settings = self._transport.settings

    def basic_publish(
        self,
        message: Any,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        **options: Any,
    ) -> Any:
        """Send a message. For a task, wait until the broker has stored it.

        Raises
        ------
        InvalidETA
            The ETA is malformed, or too far away.
        InvalidOption
            AMQP cannot encode the message, or the exchange does not exist.
        InvalidOption, ConfigError, NotAllowed
            The message has an ETA, and its delay queues cannot be declared: see
            :meth:`celery_delayq.transport.amqp.declarer.Declarer.prepare`.
        NotSupported
            The message has a unique key, or another option that needs Redis.
        NotAllowed, QueueFull, NoQueue, BrokerBlocked, BrokerTimeout
            The broker refuses the message, no queue gets it, or the broker does not answer in 30 s.
        """
        timeout = options.pop("confirm_timeout", None) or options.get("timeout")
        if not is_task(message):
            result = self._basic_publish(message, exchange, routing_key, mandatory, **options)
            if self._confirms is not None:
                self._confirms.skip()
            return result
        with self.limit_wait(timeout):
            sent = [self.routed(message, exchange, routing_key)]
            self.post(sent)
            for error in self.confirmed(sent).values():
                raise error
        return None

    def routed(
        self, message: Any, exchange: str, routing_key: str, due: Due | None = None
    ) -> Routed:
        """Return a message with its exchange, routing key and due time.

        Declares the delay queues, exchanges and bindings that the message needs. *due* replaces the
        message's ETA.
        """
        if not is_task(message):
            return Routed(encoded(message.body, message.properties), exchange, routing_key)
        headers, topology = message.properties["application_headers"], self.topology
        due = due or envelope.due_when_sent({"headers": headers, "properties": message.properties})
        now_ms = time.time() * 1000
        due_ms = None if due is None else due.ms + (now_ms if due.relative else 0)
        delay = None if due_ms is None else topology.delay(due_ms - now_ms)
        own = message.properties.get(PROPERTY)
        if own and (lacking := [name for name in REDIS_OPTIONS if name in own]):
            raise NotSupported(
                f"{REDIS_OPTIONS[lacking[0]]}: an amqp broker cannot do this; "
                "a broker delayq+redis:// can"
            )
        if delay is None or due_ms is None:
            return Routed(message, exchange, routing_key)
        self.declarer.prepare(delay.entry.level, exchange, routing_key)
        return Routed(message, exchange, routing_key, due_ms)

    def send(self, messages: Sequence[Routed]) -> dict[int, Exception]:
        """Send messages and wait until the broker has answered for all.

        Returns
        -------
        dict[int, Exception]
            The error of each message that the broker refused or AMQP cannot encode, by index in
            *messages*.

        Raises
        ------
        BrokerBlocked, BrokerTimeout
            The broker does not answer in 30 s.
        """
        with self.limit_wait():
            try:
                self.post(messages)
            except InvalidOption as exc:  # nothing was sent
                if len(messages) == 1:
                    return {0: exc}
            else:
                return self.confirmed(messages)
        return {
            place: error
            for place, each in enumerate(messages)
            for error in self.send([each]).values()
        }

    def confirmed(self, messages: Sequence[Routed]) -> dict[int, Exception]:
        """Wait for the answers to the messages posted last. Return their errors, as :meth:`send`.

        Call it within :meth:`limit_wait`.
        """
        errors = self.refused()
        while (
            again := [
                n
                for n, error in errors.items()
                if messages[n].due_ms is not None and isinstance(error, QueueFull)
            ]
        ) and self.declarer.has_just_declared():
            # A new delay queue refuses all messages until it has a leader.
            time.sleep(_LEADER_RETRY_SECONDS)
            self.post([messages[n] for n in again])
            later = self.refused()
            errors = {n: error for n, error in errors.items() if n not in again}
            errors |= {again[n]: error for n, error in later.items()}
        return errors

    def post(self, messages: Sequence[Routed]) -> None:
        """Send messages in one write, without waiting for answers.

        Call it within :meth:`limit_wait`.
        """
        connection = self._connected()
        if self._confirms is None:
            self._confirms = Confirms(self)
        # Encoding all messages together takes half of the time.
        contents = [_content(each) for each in messages]
        frames = [
            self._frames(each, content, connection.frame_max)
            for each, content in zip(messages, contents, strict=True)
        ]
        for each, content in zip(messages, contents, strict=True):
            self._confirms.note(content.message_id, each.routing_key)
        connection.transport.write(b"".join(frames))
        connection.bytes_sent += 1  # py-amqp's heartbeats check whether this number has changed

    def _frames(self, routed: Routed, content: Content, frame_max: int) -> bytes:
        """Return the frames of a message, with the delay computed now."""
        _, exchange, routing_key, due_ms = routed
        more = NO_HEADERS
        if due_ms is not None and (
            delay := self.topology.delay(max(due_ms - time.time() * 1000, 1))
        ):
            exchange, more = self.topology.entry(delay.entry), delay.headers()
        return publish_frames(self.channel_id, frame_max, content, exchange, routing_key, more)

    def refused(self) -> dict[int, Exception]:
        """Wait until the broker has answered for all posted messages. Return their errors."""
        if self._confirms is None:
            return {}
        try:
            self._confirms.wait(self._connected())
        except ChannelError as exc:
            self.declarer.forget()
            if isinstance(exc, AccessRefused):
                raise not_allowed(exc) from exc
            if "max size" in exc.reply_text:
                raise InvalidOption(
                    f"{exc.reply_text}: send less, such as where the data are, or raise RabbitMQ's "
                    "max_message_size"
                ) from exc
            if isinstance(exc, (NotFound, PreconditionFailed)):
                raise InvalidOption(exc.reply_text) from exc
            raise
        errors = self._confirms.take_refused()
        if any(isinstance(error, NoQueue) for error in errors.values()):
            self.declarer.forget()
        return errors

    def limit_wait(self, seconds: float | None = None) -> AbstractContextManager[None]:
        """Return the context in which messages are posted: see :func:`limit_wait`."""
        return limit_wait(self._connected(), seconds)

    def _do_revive(self) -> None:
        """Open the channel again after RabbitMQ has closed it, without confirm mode."""
        self._confirms = None
        self.events.clear()
        super()._do_revive()

    def send_method(self, *args: Any, **options: Any) -> Any:
        """Send a method, such as a declaration."""
        with encoding_errors:
            return super().send_method(*args, **options)

    def queue_declare(self, queue: str = "", passive: bool = False, **options: Any) -> Any:
        """Declare a queue.

        Raises
        ------
        amqp.exceptions.RecoverableConnectionError
            An exclusive queue that an earlier connection of this process declared is still locked:
            RabbitMQ has not noticed yet that the connection was lost, or that its node is down.
            A worker connects again, and declares the queue after the lock.
        amqp.exceptions.ResourceLocked
            Another process has declared the exclusive queue, such as a worker with the same name.
        """
        try:
            result = super().queue_declare(queue, passive=passive, **options)
        except ResourceLocked as exc:
            if queue in _EXCLUSIVE_QUEUES:
                raise RecoverableConnectionError(exc.reply_text) from exc
            raise
        if options.get("exclusive"):
            _EXCLUSIVE_QUEUES.add(queue)
        if not passive:
            arguments = options.get("arguments") or {}
            ends = ("auto_delete", "exclusive")
            temporary = self._transport.temporary_queues
            if any(options.get(each) for each in ends) or "x-expires" in arguments:
                temporary.add(queue)
            else:
                temporary.discard(queue)
        return result

    def queue_bind(self, queue: str = "", *args: Any, **options: Any) -> Any:
        """Bind a queue.

        Raises
        ------
        amqp.exceptions.RecoverableConnectionError
            A temporary queue that this connection declared is gone: RabbitMQ may remove queues of a
            lost node late. A worker connects again, and declares the queue.
        """
        try:
            return super().queue_bind(queue, *args, **options)
        except NotFound as exc:
            if queue in self._transport.temporary_queues and "no queue" in exc.reply_text:
                raise RecoverableConnectionError(exc.reply_text) from exc
            raise

    def wait(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Wait for a reply.

        Raises
        ------
        NotAllowed
            The account lacks a right.
        """
        try:
            with silence_ends(self.connection):
                timeout = timeout or self.connection.reply_timeout
                return super().wait(*args, timeout=timeout, **options)
        except AccessRefused as exc:
            raise not_allowed(exc) from exc

    def can_schedule(self, queue: str) -> bool:
        """Return whether *queue* is permanent, so that a task for it may wait for a year."""
        return queue not in self._transport.temporary_queues

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return a batch. It is sent by ``flush``, and when it has *max_size* messages."""
        return PublishBatch(self, max_size)

    @property
    def topology(self) -> Topology:
        """The names of our queues and exchanges in the broker."""
        topology: Topology = self._transport.topology
        return topology

    @property
    def declarer(self) -> Declarer:
        """Declares queues, exchanges and bindings once for the connection."""
        connection = self._connected()
        if connection.declarer is None:
            connection.declarer = Declarer(connection, self.topology, declare=self.settings.declare)
        declarer: Declarer = connection.declarer
        return declarer

    def _connected(self) -> Any:
        connection = self.connection
        if connection is None or connection.transport is None:
            raise RecoverableConnectionError("the connection is closed")
        return connection


def _content(routed: Routed) -> Content:
    """Return a message in the form that is sent.

    The message itself does not change, since kombu publishes it again after an error.
    """
    message, exchange, _, due_ms = routed
    if isinstance(message, Content):
        return message
    properties = dict(message.properties)
    headers = cascade.original_headers(properties["application_headers"])
    own = dict(properties.get(PROPERTY) or {})
    own.pop("countdown", None)
    if headers.get("eta") is not None:
        own["eta"] = headers["eta"]
        headers["eta"] = None
    if due_ms is not None:
        # `expiration` would end the message in a delay queue. Workers check `expires`.
        properties["expiration"] = None
        headers[cascade.TARGET_HEADER] = exchange
        headers[cascade.DUE_HEADER] = _iso(due_ms)
    if own:
        with encoding_errors:
            headers[OWN_HEADER] = _ENCODE(own)
    properties["application_headers"] = headers
    properties.setdefault("message_id", token_hex(16))
    return encoded(message.body, properties)


def _iso(ms: float) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
