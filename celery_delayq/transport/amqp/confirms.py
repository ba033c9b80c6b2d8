"""Publisher confirms: which messages of a channel the broker has stored.

py-amqp's wait accepts any confirm. After a returned message, the next publish would get the confirm
of the returned message.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from amqp import spec

from celery_delayq.errors import NoQueue, QueueFull
from celery_delayq.transport.amqp.topology import APPLY_COMMAND

#: The frame that acknowledges one message.
_ACK_FRAME = Struct(">BHIHHQBB").pack


class Confirms:
    """The published messages of one channel, by their numbers.

    Parameters
    ----------
    channel : amqp.Channel
        Put into confirm mode.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._last_number = 0
        self._first_number = 1
        #: The target of each message without an answer, by the message's number.
        self._unconfirmed: dict[int, str] = {}
        #: The error of each refused message, by the message's number.
        self.refused: dict[int, Exception] = {}
        #: The number of each message that may be returned, by message id.
        self._returnable_numbers: dict[str, int] = {}
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)

    def note(self, message_id: str, target: str) -> int:
        """Note that the next message is being published. Return the message's number."""
        self._last_number += 1
        self._unconfirmed[self._last_number] = target
        self._returnable_numbers[message_id] = self._last_number
        return self._last_number

    def skip(self) -> None:
        """Count a published message whose answer is not awaited: RabbitMQ counts it too.

        The message has no index in :meth:`take_refused`.
        """
        self._last_number += 1
        if not self._unconfirmed:
            self._first_number = self._last_number + 1

    def wait(self, connection: Any) -> None:
        """Wait until the broker has answered for all messages. The socket's timeout applies.

        Raises
        ------
        TimeoutError
            The broker did not answer.
        amqp.exceptions.RecoverableConnectionError
            The connection was lost. Which messages the broker has stored is unknown.
        """
        if len(self._unconfirmed) == 1 and connection.reads(
            _ACK_FRAME(
                1, self._channel.channel_id, 13, *spec.Basic.Ack, *self._unconfirmed, 0, 0xCE
            )
        ):
            self._unconfirmed.clear()
        while self._unconfirmed:
            connection.drain_events()

    def take_refused(self) -> dict[int, Exception]:
        """Return and forget the errors of refused messages, by index since the former call."""
        errors = {
            number - self._first_number: self.refused[number] for number in sorted(self.refused)
        }
        self._first_number = self._last_number + 1
        self.refused.clear()
        self._returnable_numbers.clear()
        return errors

    def _settled(self, number: int, multiple: bool) -> list[tuple[int, str]]:
        done = [each for each in self._unconfirmed if each <= number] if multiple else [number]
        return [(each, self._unconfirmed.pop(each)) for each in done if each in self._unconfirmed]

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        self._settled(delivery_tag, multiple)

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        for number, target in self._settled(delivery_tag, multiple):
            error = QueueFull(
                f"RabbitMQ refused a message for {target!r}: the queue, or the delay queue of "
                "this delay, is full or has no leader"
            )
            self.refused.setdefault(number, error)

    def _on_return(self, _exc: Exception, exchange: str, routing_key: str, message: Any) -> None:
        # The return of a message comes before its confirm.
        number = self._returnable_numbers.get(message.properties.get("message_id", ""))
        if number is not None:
            why = "declare the queue and its binding first"
            if exchange in self._channel.topology.entries():
                why = (
                    "its delay queues were deleted, or delays were closed: "
                    f"{APPLY_COMMAND} opens them"
                )
            self.refused[number] = NoQueue(
                f"RabbitMQ has no queue for a message for {routing_key!r}, sent to exchange "
                f"{exchange!r}; {why}"
            )
