"""Implements :meth:`kombu.Producer.batch` (kombu 5.7 and newer) with few round trips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from kombu import exceptions
from kombu.transport import redis as stock
from redis.exceptions import ResponseError

from celery_delayq.errors import NotReplicated
from celery_delayq.model import publish_outcome
from celery_delayq.model.envelope import Entry
from celery_delayq.model.publish_outcome import PublishOutcome
from celery_delayq.store.scripting.calls import Call, EntriesCall, ReadyCall, pack
from celery_delayq.store.scripting.replies import EntriesReply
from celery_delayq.store.scripting.scripts import Script
from celery_delayq.store.store import Store


class BatchState(Enum):
    """Whether a batch takes messages; the values end the texts of errors.

    From state to state: OPEN to FAILED by an error, any state to ABORTED by `discard`, any state to
    CLOSED by `close`.
    """

    OPEN = "is open"
    FAILED = "cannot be reused after a failure"
    ABORTED = "is aborted"
    CLOSED = "is closed"


class Batch:
    """A batch by the rules of kombu: it takes no message after a failure or after its end.

    Parameters
    ----------
    transport : Any
        Counts its open batches.
    broker : str
        The broker's name in the texts of errors.
    """

    def __init__(self, transport: Any, broker: str) -> None:
        self._state = BatchState.OPEN
        self._transport, self._broker = transport, broker
        transport.batches += 1

    def discard(self) -> None:
        """Drop the unsent messages."""
        self._state = BatchState.ABORTED
        self._forget()

    def close(self) -> None:
        """Drop the unsent messages, and end the batch."""
        if self._state is not BatchState.CLOSED:
            self._transport.batches -= 1
        self._state = BatchState.CLOSED
        self._forget()

    def _forget(self) -> None:
        raise NotImplementedError

    def _failed(self, exc: Exception) -> Exception:
        self._state = BatchState.FAILED
        self._forget()
        error: Exception = exceptions.BatchPublishError(
            f"{self._broker} publish batch failed, what it has taken is uncertain: {exc}"
        )
        return error

    def _check_usable(self) -> None:
        if self._state is not BatchState.OPEN:
            failed = self._state is BatchState.FAILED
            error = exceptions.BatchPublishError if failed else RuntimeError
            raise error(f"{self._broker} publish batch {self._state.value}")


class _Part(NamedTuple):
    """A part of a message: an argument list for a script call, or a command of kombu.

    *new_call* makes a call for a queue, to which *arguments* are added. None: *arguments* are a
    command of kombu.
    """

    store: Store
    new_call: Callable[[str], Any] | None
    queue: str
    arguments: tuple[Any, ...]


class PublishBatch(Batch):
    """Buffers messages and sends them together.

    The buffer is sent by :meth:`flush`, or when it has *max_size* parts. Nothing is sent twice.
    While Redis works on one full buffer, the next buffer fills. The replies to a full buffer are
    read before the next buffer is sent, or by :meth:`flush`. So an error of a full buffer is raised
    one buffer later, at the latest by :meth:`flush`.

    Parameters
    ----------
    channel : Channel
        Routes the messages.
    max_size : int
        Number of buffered parts, commands and entries, at which the buffer is sent.
    """

    def __init__(self, channel: stock.Channel, max_size: int) -> None:
        super().__init__(channel.connection, "Redis")
        self.channel = channel
        self.max_size = max_size
        self._outboxes: dict[Store, _Outbox] = {}
        self._buffered = 0
        #: Parts of the message being routed.
        self._routed: list[_Part] = []
        #: Receives the outcomes of the messages.
        self._report: publish_outcome.Report | None = None

    def publish(self, message: dict[str, Any], **kwargs: Any) -> Any:
        """Route one message, and buffer all its parts or, after an error, none."""
        self._check_usable()
        self._report = publish_outcome.current_report() or self._report
        self._routed.clear()
        result = self.channel.basic_publish(message, _publish_batch=self, **kwargs)
        for store, new_call, queue, arguments in self._routed:
            outbox = self._outboxes.get(store)
            if outbox is None:
                outbox = self._outboxes[store] = _Outbox(store)
            if new_call is None:
                outbox.commands.append(arguments)
            else:
                outbox.call(new_call, queue).add(*arguments)
        self._buffered += len(self._routed)
        if self._buffered >= self.max_size:
            self._send()
        return result

    def add(self, name: str, key: str, *args: Any) -> None:
        """Add one of kombu's commands for the message being routed."""
        command = (name.upper(), f"{self.channel.global_keyprefix}{key}", *args)
        self._routed.append(_Part(self.channel.store, None, "", command))

    def add_entry(self, store: Store, queue: str, entry: Entry) -> None:
        """Add an entry for the message being routed."""
        self._routed.append(_Part(store, store.schedule_call, queue, (entry,)))

    def add_ready(self, store: Store, queue: str, *message: Any) -> None:
        """Add a message without a delay: the arguments of :meth:`ReadyCall.add`."""
        self._routed.append(_Part(store, store.ready_call, queue, message))

    def flush(self) -> None:
        """Send the buffer and wait until Redis has stored all messages.

        Raises
        ------
        kombu.exceptions.BatchPublishError
            Redis refused a message or went away. Which messages Redis has stored is unknown.
        NotReplicated
            Redis has stored all messages, but fewer than ``wait_replicas`` replicas have.
        """
        self._check_usable()
        self._send()
        self._read()
        settings = self.channel.settings
        if settings.wait_replicas:
            try:
                for outbox in self._outboxes.values():
                    outbox.wire.wait(settings.wait_replicas, settings.wait_timeout)
            except NotReplicated:
                raise
            except Exception as exc:
                raise self._failed(exc) from exc

    def close(self) -> None:
        """Release the connections. A connection with unread replies is closed."""
        super().close()
        for outbox in self._outboxes.values():
            outbox.wire.close()

    def _send(self) -> None:
        """Send the buffer, after reading the replies to the former buffer."""
        self._read()
        self._buffered = 0
        try:
            for outbox in self._outboxes.values():
                outbox.send()
        except Exception as exc:
            raise self._failed(exc) from exc

    def _read(self) -> None:
        """Read all outstanding replies."""
        errors: list[Exception] = []
        found: list[PublishOutcome] = []
        try:
            for outbox in self._outboxes.values():
                outbox.read(errors, found)
        except Exception as exc:
            raise self._failed(exc) from exc
        if found and self._report is not None:
            self._report(found)
        if errors:
            raise self._failed(errors[0]) from errors[0]

    def _forget(self) -> None:
        for outbox in self._outboxes.values():
            outbox.forget()
        self._buffered = 0


class _Outbox:
    """The buffer of one store, and its connection.

    Parameters
    ----------
    store : Store
        The store to which the buffer is sent.
    """

    def __init__(self, store: Store) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.wire = store.wire()
        #: The script call of each outstanding reply; None for another command.
        self.unread: deque[Call | None] = deque()
        self._calls: list[EntriesCall | ReadyCall] = []
        #: The last call of each kind for each queue.
        self._last_calls: dict[tuple[Callable[[str], Any], str], Any] = {}

    def call(self, new_call: Callable[[str], Any], queue: str) -> Any:
        """Return a script call for a queue with room for another message, made by *new_call*."""
        call = self._last_calls.get((new_call, queue))
        if call is None or call.is_full:
            call = self._last_calls[new_call, queue] = new_call(queue)
            self._calls.append(call)
        return call

    def send(self) -> None:
        """Send the buffer."""
        commands = [*self.commands, *self._script_commands()]
        sent: list[Any] = [None] * len(self.commands) + self._calls
        self.forget()
        if commands:
            # Before sending: a task's time limit may end `send` after Redis has got the commands.
            # Then the replies are still read, or the connection is closed.
            self.unread.extend(sent)
            self.wire.send(pack(commands), len(commands))

    def _script_commands(self) -> Iterator[tuple[Any, ...]]:
        """Yield the commands of the script calls.

        The first call of each script sends its source: one script that the server lacks would fail
        all calls.
        """
        known: set[Script] = set()
        for call in self._calls:
            source = call.script not in known
            known.add(call.script)
            yield call.command(source=source)

    def read(self, errors: list[Exception], found: list[PublishOutcome]) -> None:
        """Read all outstanding replies.

        Refusals go into *errors*. Outcomes that name another message go into *found*.
        """
        while self.unread:
            call = self.unread[0]
            try:
                reply = self.wire.read()
                if isinstance(call, EntriesCall):
                    outcomes = [*EntriesReply.read(reply).outcomes(call)]
                    found += [each for each in outcomes if each.put.other]
                    errors += filter(None, map(publish_outcome.refusal_error, outcomes))
            except ResponseError as exc:
                errors.append(exc)
            self.unread.popleft()

    def forget(self) -> None:
        """Drop the unsent messages."""
        self.commands.clear()
        self._calls.clear()
        self._last_calls.clear()
