"""Dead letters in RabbitMQ: a stream, whose messages are read and never consumed.

A dead letter is one message of the stream, in the same form as in Redis. No message can be removed
from a stream. So a second stream has a mark for each dead letter that was replayed or purged. Both
streams drop messages older than ``dead_letters_age``.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import uuid4

import amqp

from celery_delayq.errors import NoQueue, RecordError
from celery_delayq.model.dead_letter import DeadLetterRecord
from celery_delayq.transport.amqp.frames import encoded
from celery_delayq.transport.amqp.messages import Routed
from celery_delayq.transport.amqp.topology import Topology
from celery_delayq.utils import foreign
from celery_delayq.utils.foreign import record_errors
from celery_delayq.utils.text import text_of

#: Most unacknowledged messages that RabbitMQ sends to a reader.
_PREFETCH = 500

#: Bytes of dead letters after which a page ends.
PAGE_BYTES = 4_000_000

#: Seconds to wait for the last message of a stream. A stream has one, unless its first writer died.
_READ_SECONDS = 2.0

#: Headers with the queue and the id of a dead letter.
_QUEUE_HEADER, _ID_HEADER = "delayq-queue", "delayq-id"

#: Characters to which a dead letter's id is cut.
MAX_ID_CHARACTERS = 1000

#: The header with a message's offset in its stream.
_OFFSET_HEADER = "x-stream-offset"


class View(NamedTuple):
    """The contents of the streams at one moment.

    *settled* has the offsets of replayed and purged dead letters. *last_offset* is the offset of
    the last dead letter, *marked* that of the last mark.
    """

    settled: set[int]
    last_offset: int
    marked: int


class StoredDeadLetter(NamedTuple):
    """A dead letter with its queue and its offset in the stream."""

    offset: int
    queue: str
    dead_lettered: DeadLetterRecord


class DeadLetterStream:
    """The dead letters of a broker.

    Parameters
    ----------
    channel : Channel
        Publishes dead letters. Other channels of the same connection read them.
    topology : Topology
        Names the streams.
    """

    def __init__(self, channel: Any, topology: Topology) -> None:
        self._channel = channel
        self._name = topology.dead_letters
        self._marks = topology.settled

    def add(
        self,
        queue: str,
        id: str,
        reason: str,
        message: bytes,
        details: bytes = b"",
        *,
        died_ms: int | None = None,
    ) -> None:
        """Append a dead letter that died now or at *died_ms*, in ms since 1970.

        Raises
        ------
        amqp.exceptions.AMQPError
            The broker did not store the dead letter.
        """
        died_ms = died_ms or int(time.time() * 1000)
        id = id[:MAX_ID_CHARACTERS]
        self.restore([(queue, id, DeadLetterRecord.of(id, died_ms, reason, message, details).data)])

    def restore(self, dead_letters: Iterable[tuple[str, str, bytes]]) -> None:
        """Append dead letters: queue, id and record of each. Raises the errors of :meth:`add`."""
        self._append(
            self._name,
            [(data, {_QUEUE_HEADER: queue, _ID_HEADER: id}) for queue, id, data in dead_letters],
        )

    def settle(self, offsets: Sequence[int]) -> None:
        """Mark dead letters as replayed or purged."""
        # The offsets are in the body, since a stream drops headers that are lists.
        self._append(self._marks, [(json.dumps(list(offsets)).encode(), {})])

    def seed(self) -> None:
        """Put a first message into each stream: a reader of an empty stream waits for a timeout."""
        for stream, body in ((self._name, b""), (self._marks, b"[]")):
            self._append(stream, [(body, {})])

    def view(self, marked: int = -1) -> View:
        """Return the current contents of the streams.

        ``settled`` contains only dead letters whose mark comes after the offset *marked*.
        """
        last_mark = self._last_offset(self._marks)
        marks = self._messages(self._marks, marked + 1, last_mark)
        settled: set[int] = set()
        for mark in marks:
            with suppress(RecordError), record_errors("mark"):  # other clients may send anything
                settled.update(foreign.loads(mark.body))
        return View(settled, self._last_offset(self._name), last_mark)

    def oldest(self) -> int:
        """Return the offset of the first message of the stream, which must not be empty."""
        with _Reading(self._channel.connection, self._name, "first", ahead=1) as reading:
            return int(next(iter(reading)).headers[_OFFSET_HEADER])

    def page(self, view: View, first: int) -> tuple[list[StoredDeadLetter], int]:
        """Return the unsettled dead letters of one page, oldest first, and the next page's *first*.

        A page has about :data:`PAGE_BYTES`. After the last page, *first* is beyond
        ``view.last_offset``.
        """
        found: list[StoredDeadLetter] = []
        room = PAGE_BYTES
        for message in self._messages(self._name, first, view.last_offset):
            headers, body = message.headers, message.body
            first = headers[_OFFSET_HEADER] + 1
            if headers[_OFFSET_HEADER] not in view.settled and _QUEUE_HEADER in headers:
                data = body or b""
                dead_lettered = DeadLetterRecord.unpack(text_of(headers.get(_ID_HEADER)), data)
                queue = text_of(headers[_QUEUE_HEADER])
                found.append(StoredDeadLetter(first - 1, queue, dead_lettered))
                room -= len(data)
                if room <= 0:
                    return found, first
        return found, view.last_offset + 1

    def read(self, view: View | None = None) -> Iterator[StoredDeadLetter]:
        """Yield the dead letters that are neither replayed nor purged, oldest first.

        Dead letters added after *view* are not among them; by default, *view* is the current one.
        """
        view, first = view or self.view(), 0
        while first <= view.last_offset:
            page, first = self.page(view, first)
            yield from page

    def _append(self, stream: str, messages: Iterable[tuple[bytes, dict[str, Any]]]) -> None:
        """Append bodies with their headers."""
        sent = [
            Routed(
                encoded(
                    body,
                    {
                        "application_headers": headers,
                        "delivery_mode": 2,
                        "message_id": uuid4().hex,
                    },
                ),
                "",
                stream,
            )
            for body, headers in messages
        ]
        for _ in range(2):  # twice, since the stream may be deleted after its declaration
            self._channel.declarer.prepare_stream(stream)
            errors = self._channel.send(sent)
            if not any(isinstance(error, NoQueue) for error in errors.values()):
                break
        for error in errors.values():
            raise error

    def _messages(self, stream: str, first: int, last: int) -> Iterator[Any]:
        """Yield the messages of a stream from offset *first* to *last*."""
        if first > last:
            return
        with _Reading(self._channel.connection, stream, first) as reading:
            for message in reading:
                # RabbitMQ begins with the chunk that contains the offset.
                if message.headers[_OFFSET_HEADER] >= first:
                    yield message
                if message.headers[_OFFSET_HEADER] >= last:
                    return

    def _last_offset(self, stream: str) -> int:
        """Return the offset of a stream's last message; -1 for an empty or missing stream."""
        try:
            with _Reading(self._channel.connection, stream, "last") as reading:
                with suppress(TimeoutError):
                    next(iter(reading))
                # The rest of its chunk comes before the next reply.
                reading.channel.basic_qos(0, _PREFETCH, False)
                return reading.last_offset
        except amqp.exceptions.NotFound:
            return -1


class _Reading:
    """Reads a stream on a separate channel."""

    def __init__(
        self, connection: Any, stream: str, first: int | str, *, ahead: int = _PREFETCH
    ) -> None:
        self._connection = connection
        self._arrived: deque[Any] = deque()
        self._done = False
        self.last_offset = -1
        self.channel = connection.channel()
        self.channel.basic_qos(0, ahead, False)
        try:
            self._tag = self.channel.basic_consume(
                stream, callback=self._on_message, arguments={"x-stream-offset": first}
            )
        except amqp.exceptions.ChannelError:
            self.channel.close()
            raise

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self._done = True
        if self.channel.is_open:
            self.channel.basic_cancel(self._tag)
            self.channel.close()

    def __iter__(self) -> Iterator[Any]:
        while True:
            while not self._arrived:
                self._connection.drain_events(timeout=_READ_SECONDS)
            yield self._arrived.popleft()

    def _on_message(self, message: Any) -> None:
        self._arrived.append(message)
        self.last_offset = max(self.last_offset, message.headers[_OFFSET_HEADER])
        # After an acknowledgement RabbitMQ sends more messages.
        if not self._done and message.delivery_tag % (_PREFETCH // 4) == 0:
            self.channel.basic_ack(message.delivery_tag, multiple=True)
