"""Publisher confirms: which of a channel's messages the broker has taken.

py-amqp's own wait takes any confirm for the one that it waits for: after a returned message the
next publish would get the confirm of the one before.
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
    """The publishes of one channel, by their numbers.

    Parameters
    ----------
    channel : amqp.Channel
        It is put into confirm mode.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._last_number = 0
        self._first_number = 1
        #: Where each message was sent for that has no answer yet, by its number.
        self._unconfirmed: dict[int, str] = {}
        #: The error of each message that was refused, by its number.
        self.refused: dict[int, Exception] = {}
        #: By message id: the number of a message that may be returned.
        self._returnable_numbers: dict[str, int] = {}
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)

    def note(self, message_id: str, target: str) -> int:
        """Note that the next message is being published; return its number."""
        self._last_number += 1
        self._unconfirmed[self._last_number] = target
        self._returnable_numbers[message_id] = self._last_number
        return self._last_number

    def skip(self) -> None:
        """Count a message that was published and whose answer nobody waits for, as RabbitMQ does.

        It is not among the places of :meth:`take_refused`.
        """
        self._last_number += 1
        if not self._unconfirmed:
            self._first_number = self._last_number + 1

    def wait(self, connection: Any) -> None:
        """Wait until the broker has answered for all that was published, within the timeout of the
        connection's socket.

        Raises
        ------
        TimeoutError
            It did not answer.
        amqp.exceptions.RecoverableConnectionError
            The connection was lost; what the broker has taken is not known.
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
        """Return the errors of refused messages since the last call, by place; forget them."""
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
        # It comes before the confirm of the same message.
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
