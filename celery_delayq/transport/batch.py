"""Behind :meth:`kombu.Producer.batch` (kombu 5.7 and newer): many messages in few round trips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from kombu import exceptions
from kombu.transport import redis as stock
from redis.exceptions import ResponseError

from celery_delayq.errors import NotReplicated
from celery_delayq.model import publish_outcome
from celery_delayq.model.envelope import Entry
from celery_delayq.model.publish_outcome import PublishOutcome
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting import replies
from celery_delayq.store.scripting.calls import Call, Puts, Readies, pack
from celery_delayq.store.scripting.scripts import Script


class PublishBatch:
    """Buffers messages and sends them together, by kombu's rules for batches.

    Nothing is sent before :meth:`flush` or before *max_size* messages are there, and nothing is
    repeated. While Redis works on one full buffer the next one fills: its replies are read when
    that is sent, so an error of a full buffer shows one buffer later, but never after the end.

    Parameters
    ----------
    channel : Channel
        Routes the messages.
    max_size : int
        Buffered commands and entries at which they are sent.
    """

    def __init__(self, channel: stock.Channel, max_size: int) -> None:
        self.channel = channel
        self.max_size = max_size
        self._outboxes: dict[Store, _Outbox] = {}
        self._buffered = 0
        #: Of the message being routed: where each part goes, how, and the part.
        self._routed: list[tuple[Store, Callable[[str], Any] | None, str, tuple[Any, ...]]] = []
        self._unusable: str | None = None
        #: What reports the outcomes of the messages.
        self._report: publish_outcome.Report | None = None
        channel.connection.batches += 1

    def publish(self, message: dict[str, Any], **kwargs: Any) -> Any:
        """Route one message and buffer all its commands or, after an error, none."""
        self._check_usable()
        self._report = publish_outcome.current_report() or self._report
        self._routed.clear()
        result = self.channel.basic_publish(message, _publish_batch=self, **kwargs)
        for store, new, queue, part in self._routed:
            outbox = self._outboxes.get(store)
            if outbox is None:
                outbox = self._outboxes[store] = _Outbox(store)
            if new is None:
                outbox.commands.append(part)
            else:
                outbox.call(new, queue).add(*part)
        self._buffered += len(self._routed)
        if self._buffered >= self.max_size:
            self._send()
        return result

    def add(self, name: str, key: str, *args: Any) -> None:
        """Add one of kombu's commands for the message being routed."""
        command = (name.upper(), f"{self.channel.global_keyprefix}{key}", *args)
        self._routed.append((self.channel.store, None, "", command))

    def add_entry(self, store: Store, queue: str, entry: Entry) -> None:
        """Add an entry for the message being routed."""
        self._routed.append((store, store.puts, queue, (entry,)))

    def add_ready(self, store: Store, queue: str, step: int, message: bytes) -> None:
        """Add a message that is to run at once."""
        self._routed.append((store, store.ready_call, queue, (step, message)))

    def flush(self) -> None:
        """Send the buffer and wait until Redis has taken all of it.

        Raises
        ------
        kombu.exceptions.BatchPublishError
            Redis refused something or went away; what it has taken is uncertain.
        NotReplicated
            Redis has taken all, but fewer replicas have it than ``wait_replicas`` asks for.
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

    def discard(self) -> None:
        """Drop the buffer."""
        self._unusable = "is aborted"
        self._forget()

    def close(self) -> None:
        """Give the connection back; one with unread replies is closed."""
        if self._unusable == "is closed":
            return
        self._unusable = "is closed"
        self._forget()
        self.channel.connection.batches -= 1
        for outbox in self._outboxes.values():
            outbox.wire.close()

    def _send(self) -> None:
        """Send the buffer, after reading the replies to the one before."""
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

    def _failed(self, exc: Exception) -> Exception:
        self._unusable = "cannot be reused after a failure"
        self._forget()
        error: Exception = exceptions.BatchPublishError(
            f"Redis publish batch failed, what it has taken is uncertain: {exc}"
        )
        return error

    def _forget(self) -> None:
        for outbox in self._outboxes.values():
            outbox.forget()
        self._buffered = 0

    def _check_usable(self) -> None:
        if self._unusable:
            failed = self._unusable == "cannot be reused after a failure"
            error = exceptions.BatchPublishError if failed else RuntimeError
            raise error(f"Redis publish batch {self._unusable}")


class _Outbox:
    """The buffer of one store, and its connection.

    Parameters
    ----------
    store : Store
        Where it goes.
    """

    def __init__(self, store: Store) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.wire = store.wire()
        #: For each outstanding reply its script call, or None for another command.
        self.unread: deque[Call | None] = deque()
        self._calls: list[Puts | Readies] = []
        #: The last call of each kind for each queue.
        self._open: dict[tuple[Callable[[str], Any], str], Any] = {}

    def call(self, new: Callable[[str], Any], queue: str) -> Any:
        """Return the script call for a queue, by *new*, that takes another message."""
        call = self._open.get((new, queue))
        if call is None or call.is_full:
            call = self._open[new, queue] = new(queue)
            self._calls.append(call)
        return call

    def send(self) -> None:
        """Send what is there."""
        commands = [*self.commands, *self._script_commands()]
        sent: list[Any] = [None] * len(self.commands) + self._calls
        self.forget()
        if commands:
            # Before they are sent: a time limit may come in between.
            self.unread.extend(sent)
            self.wire.send(pack(commands), len(commands))

    def _script_commands(self) -> Iterator[tuple[Any, ...]]:
        """Yield the commands of the script calls.

        The first one of each script carries the source: one that the server does not know would
        fail all.
        """
        known: set[Script] = set()
        for call in self._calls:
            source = call.script not in known
            known.add(call.script)
            yield call.command(source=source)

    def read(self, errors: list[Exception], found: list[PublishOutcome]) -> None:
        """Read all outstanding replies.

        Refusals go into *errors*, outcomes that are about another message into *found*.
        """
        while self.unread:
            call = self.unread[0]
            try:
                reply = self.wire.read()
                if isinstance(call, Puts):
                    for outcome in replies.Puts.read(reply).outcomes(call):
                        if outcome.put.other:
                            found.append(outcome)
                        error = publish_outcome.refusal_error(outcome)
                        if error is not None:
                            errors.append(error)
            except ResponseError as exc:
                errors.append(exc)
            self.unread.popleft()

    def forget(self) -> None:
        """Drop what is not sent."""
        self.commands.clear()
        self._calls.clear()
        self._open.clear()
