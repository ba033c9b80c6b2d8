"""Declares the queues, exchanges and bindings that a message needs, or checks that they exist."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed

from celery_delayq.errors import ConfigError, DelayQError, InvalidOption, NotAllowed
from celery_delayq.transport.amqp.topology import (
    APPLY_COMMAND,
    CLOSED_TYPE,
    Binding,
    ExchangeItem,
    Item,
    QueueItem,
    Topology,
)

#: Seconds after its declaration in which a quorum queue elects a leader, on a busy machine too.
_LEADER_SECONDS = 5.0


class Declarer:
    """Declares each queue, exchange and binding once for a connection.

    Parameters
    ----------
    connection : amqp.Connection
        The declarer opens a separate channel, since an error closes the channel.
    declare : bool
        False: only check that queues and exchanges exist.
    """

    def __init__(self, connection: Any, topology: Topology, *, declare: bool = True) -> None:
        self._connection = connection
        self._topology = topology
        self._passive = not declare
        self._opened: Any = None
        self._declared_at = -_LEADER_SECONDS
        self.forget()

    def forget(self) -> None:
        """Forget all declarations, so that they are repeated: a queue may have been deleted."""
        self._levels = -1
        self._queues: set[str] = set()
        self._exchanges: set[str] = set()
        self._streams: set[str] = set()

    def has_just_declared(self) -> bool:
        """Return whether queues may have been declared too recently to take messages."""
        return time.monotonic() < self._declared_at + _LEADER_SECONDS

    def prepare(self, entry: int, exchange: str, routing_key: str) -> None:
        """Declare all queues and exchanges for a message that enters the cascade at level *entry*.

        Raises
        ------
        InvalidOption
            The queue *routing_key* or the exchange does not exist, or is a fanout exchange.
        ConfigError
            A queue or exchange of the cascade has other arguments, or is missing and must not be
            declared.
        NotAllowed
            The account lacks a right.
        """
        known, target = (
            (self._queues, routing_key) if exchange == "" else (self._exchanges, exchange)
        )
        if entry <= self._levels and target in known:
            return
        names = self._topology
        items: list[Item] = []
        if self._levels < 0:
            items += names.ends()
        for level in range(self._levels + 1, entry + 1):
            items += names.at_level(level)
        if target in known:
            self.declare(items)
        elif exchange == "":
            self.declare(items)
            self.bind(routing_key)
        else:
            self._check_exchange(exchange)
            self.declare([*items, *names.at_exchange(exchange)])
        self._levels = max(self._levels, entry)
        known.add(target)

    def prepare_stream(self, name: str) -> None:
        """Declare a stream of dead letters, unless a stream exists, with any age limit.

        Raises the errors of :meth:`prepare`.
        """
        if name in self._streams:
            return
        try:
            self._channel.queue_declare(name, passive=True)
        except NotFound:
            self.declare(item for item in self._topology.streams() if item.name == name)
        self._streams.add(name)

    def declare(self, items: Iterable[Item]) -> None:
        """Declare *items*. Raises the errors of :meth:`prepare`."""
        try:
            # Only the last command waits for an answer: one round trip for all items.
            self._send(items)
            self._wait()
            self._declared_at = time.monotonic()
        except NotFound as exc:
            raise ConfigError(
                f"{exc.reply_text}; it may not be declared here (delayq setting declare=False): "
                f"an account that may configure declares it with {APPLY_COMMAND}"
            ) from exc
        except ChannelError as exc:
            raise self._explained(exc) from exc

    def bind(self, queue: str) -> None:
        """Let due messages for *queue* leave the cascade. Raises the errors of :meth:`prepare`."""
        try:
            self._channel.queue_bind(queue, self._topology.to_queue, routing_key=queue)
        except NotFound as exc:
            raise InvalidOption(
                f"queue={queue!r}: RabbitMQ has no queue of this name; declare it first, or send "
                "to an exchange"
            ) from exc
        except ChannelError as exc:
            raise self._explained(exc) from exc

    def bind_again(self, queue: str) -> None:
        """Bind a queue again: it may have been deleted after a publisher bound it."""
        with suppress(
            InvalidOption, NotAllowed
        ):  # no delayed message was sent yet: its publisher will bind the queue
            self.bind(queue)

    def _check_exchange(self, exchange: str) -> None:
        try:
            self._channel.exchange_declare(exchange, "direct", passive=True)
        except NotFound as exc:
            raise InvalidOption(
                f"exchange={exchange!r}: RabbitMQ has no exchange of this name; declare it first"
            ) from exc
        except ChannelError as exc:
            raise self._explained(exc) from exc
        try:
            # The exchange exists, so this changes nothing. The answer tells whether it is a fanout.
            self._channel.exchange_declare(exchange, "fanout", durable=True, auto_delete=False)
        except NotAllowed:
            return
        except PreconditionFailed as exc:
            if "arg 'type'" in exc.reply_text:
                return
        raise InvalidOption(
            f"exchange={exchange!r} is a fanout exchange: it cannot delay a task; send without "
            "eta and countdown, or to a queue"
        )

    @property
    def _channel(self) -> Any:
        if self._opened is None or not self._opened.is_open:
            self._opened = self._connection.channel()
        return self._opened

    def _send(self, items: Iterable[Item]) -> None:
        channel = self._channel
        durable = {"durable": True, "auto_delete": False, "nowait": True, "passive": self._passive}
        for item in items:
            match item:
                case ExchangeItem(name, type, arguments):
                    channel.exchange_declare(name, type, arguments=dict(arguments), **durable)
                case QueueItem(name, arguments):
                    channel.queue_declare(name, arguments=dict(arguments), **durable)
                case Binding(source, target, arguments) if not self._passive:
                    is_queue = isinstance(target, QueueItem)
                    bind = channel.queue_bind if is_queue else channel.exchange_bind
                    bind(target.name, source, arguments=dict(arguments), nowait=True)

    def _wait(self) -> None:
        """Wait until the broker has handled all commands, or has refused one."""
        self._channel.basic_qos(0, 0, False)

    def _explained(self, exc: ChannelError) -> Exception:
        """Return our error for an error of RabbitMQ, with advice."""
        text: str = exc.reply_text
        if not isinstance(exc, PreconditionFailed):
            return DelayQError(text)
        if f"'{CLOSED_TYPE}'" in text and any(name in text for name in self._topology.entries()):
            return ConfigError(
                "delays were closed by celery -A app delayq topology --delete; open them again "
                f"with {APPLY_COMMAND}"
            )
        return ConfigError(
            f"{text}; something else is called so, or it was declared with other values of unit, "
            "queue_type, max_length or dead_letters_age: take these, choose another prefix, or "
            "remove it with celery -A app delayq topology --delete"
        )


def not_allowed(exc: AccessRefused) -> NotAllowed:
    """Return our error for RabbitMQ's error of a missing right."""
    return NotAllowed(
        f"{exc.reply_text}; docs/rabbitmq.md lists the rights that each account needs"
    )
