"""A separate connection for dead letters: a worker's own connection is busy with deliveries."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from amqp.exceptions import InternalError, PreconditionFailed
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from celery_delayq.errors import (
    BrokerTimeout,
    InvalidOption,
    NoQueue,
    NotAllowed,
    RecordError,
)
from celery_delayq.integration import worker
from celery_delayq.integration.interrupts import SHUTDOWN_GUARD
from celery_delayq.model.dead_letter import MAX_TEXT_CHARACTERS, pack_details
from celery_delayq.model.envelope import Due
from celery_delayq.transport.amqp.dead_letters import DeadLetterStream, StoredDeadLetter, View
from celery_delayq.transport.amqp.messages import Routed
from celery_delayq.transport.amqp.waiting import limit_wait
from celery_delayq.utils import foreign
from celery_delayq.utils.foreign import record_errors
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Most attempts of a call, each on a new connection.
_CALL_ATTEMPTS = 2

#: The errors of RabbitMQ for a stream that another process has just declared, and the intervals, in
#: seconds, between the attempts after such an error.
_STREAM_START_ERRORS = (InternalError, PreconditionFailed)
_STREAM_START_RETRIES: dict[str, Any] = {
    "max_retries": 5,
    "interval_start": 0.05,
    "interval_step": 0.1,
}

#: Most seconds that a worker waits for RabbitMQ's answer before it does other work.
WORKER_TIMEOUT_SECONDS = 2.0

#: Seconds between two attempts to store dead letters: in an outage, and after any other error.
_OUTAGE_RETRY_SECONDS, _ERROR_RETRY_SECONDS = 1.0, 10.0


#: Headers that identify a task.
KEPT_HEADERS = frozenset({"id", "task", "root_id", "parent_id", "group", "retries", "argsrepr"})


class NewDeadLetter(NamedTuple):
    """The stored data of a dead letter."""

    queue: str
    id: str
    reason: str
    message: bytes
    details: bytes = b""


def _without_message(new: NewDeadLetter) -> NewDeadLetter:
    """Return a dead letter without its message. Its details get the message's headers and size."""
    size, details = len(new.message), dict[str, Any]()
    with suppress(RecordError, ValueError, TypeError):
        details.update(foreign.loads(new.details or b"{}"))
    with suppress(RecordError), record_errors("message"):
        headers = foreign.loads(new.message)["headers"]
        # A task's headers are short. Large headers may be the reason for the refusal.
        details["headers"] = {
            name: headers[name]
            for name in KEPT_HEADERS & headers.keys()
            if len(str(headers[name])) < MAX_TEXT_CHARACTERS
        }
    why = f"{new.reason} (its message of {size:,} bytes is too large for RabbitMQ)"
    return new._replace(message=b"", reason=why, details=pack_details({**details, "size": size}))


@dataclass(eq=False)
class _Waiting:
    """A dead letter that waits to be stored.

    *channel* and *tag* belong to its message, if the message stays unacknowledged until then.
    """

    dead_letter: NewDeadLetter
    channel: Any
    tag: Any
    died_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    stored: threading.Event = field(default_factory=threading.Event)
    is_late: bool = False

    @property
    def is_requeued(self) -> bool:
        """Whether RabbitMQ has requeued the message, since its channel was closed."""
        return self.channel is not None and self.channel.connection is None


class DeadLetterConnection:
    """Stores dead letters, from any thread.

    Parameters
    ----------
    client : Connection
        Cloned for the connection of this object.
    """

    def __init__(self, client: Connection) -> None:
        # No code would send heartbeats, and RabbitMQ's heartbeats would make a wait endless.
        self._connection = client.clone(heartbeat=0)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._checked = False
        #: Errors that the next dead letter would raise too.
        self._outages = (OperationalError, *self._connection.connection_errors)
        self._waiting: deque[_Waiting] = deque()
        self._waiting_lock = threading.Lock()
        self._is_late = False
        self._retry_now = threading.Event()
        self._thread: threading.Thread | None = None

    def ask(self, question: Callable[[DeadLetterStream], T]) -> T:
        """Call *question* with the stream of dead letters. Repeat it if the connection was lost."""
        return self._run(lambda channel: question(channel.dead_letters))

    def check(self) -> None:
        """Check, once, that dead letters can be stored. A worker calls this when it starts.

        Raises
        ------
        NotAllowed, ConfigError
            The account lacks a right, or a stream is missing and must not be declared.
        """
        if self._checked:
            return
        try:
            self._run(lambda channel: channel.dead_letters.seed(), WORKER_TIMEOUT_SECONDS)
        except NotAllowed:
            raise
        except self._outages as exc:
            # The worker starts: a broker in trouble needs its workers.
            logger.warning("It is not known whether dead letters can be stored: %s", exc)
        self._checked = True

    def read(self, offset: int | None = None, *, first: int = 0) -> Iterator[StoredDeadLetter]:
        """Yield the dead letters from the offset *first* on or, with *offset*, the one there.

        Due messages whose queue was deleted become dead letters first.
        """

        def begin(channel: Any) -> View:
            channel.collect_unroutable()
            return channel.dead_letters.view()  # type: ignore[no-any-return]

        view = self._run(begin)
        if offset is not None:
            first, view = offset, view._replace(last_offset=min(view.last_offset, offset))
        while first <= view.last_offset:
            page, first = self.ask(partial(DeadLetterStream.page, view=view, first=first))
            yield from page

    def send(
        self,
        messages: Sequence[tuple[Any, str, Due]],
        offsets: Sequence[int] = (),
        timeout: float | None = None,
    ) -> dict[int, Exception]:
        """Send messages to queues by their names, and settle the dead letters of these messages.

        Parameters
        ----------
        offsets : Sequence[int]
            The offset of each message's dead letter in its stream.

        Returns
        -------
        dict[int, Exception]
            The error of each refused message, by index in *messages*. Its dead letter stays.

        Raises
        ------
        kombu.exceptions.OperationalError
            The connection was lost, or the broker was silent for *timeout* seconds.
        """

        def sent(channel: Any) -> dict[int, Exception]:
            routed: dict[int, Routed] = {}
            refused: dict[int, Exception] = {}
            for place, (message, queue, due) in enumerate(messages):
                try:
                    routed[place] = channel.routed(message, "", queue, due)
                except (NoQueue, ValueError) as exc:
                    refused[place] = exc
            errors = channel.send([*routed.values()]) if routed else {}
            refused |= {[*routed][n]: error for n, error in errors.items()}
            done = [offset for place, offset in enumerate(offsets) if place not in refused]
            if done:
                channel.dead_letters.settle(done)
            return refused

        return self._run(sent, timeout)

    def close(self) -> None:
        """Close the connection, unless it is in use. The next call connects again."""
        if self._pid == os.getpid() and self._lock.acquire(timeout=WORKER_TIMEOUT_SECONDS):
            try:
                with suppress(*self._connection.connection_errors):
                    self._connection.release()
            finally:
                self._lock.release()

    def _run(self, work: Callable[[Any], T], timeout: float | None = None) -> T:
        def run() -> T:
            if timeout is not None:
                return self._run_once(work, timeout)
            answer: T = self._connection.autoretry(work, max_retries=_CALL_ATTEMPTS)()[0]
            return answer

        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise BrokerTimeout("RabbitMQ has not yet answered what was asked before")
        try:
            found: T = retry_over_time(
                run, _STREAM_START_ERRORS, errback=self._again, **_STREAM_START_RETRIES
            )
            return found
        finally:
            self._lock.release()

    def _run_once(self, work: Callable[[Any], T], timeout: float) -> T:
        """Run *work*; wait at most *timeout* seconds for each reply.

        If a connection that was already open is lost, connect and run *work* again.
        """
        connection = self._connection
        was_connected = connection.connected
        if not was_connected:
            connection.transport.plain.connect_timeout = timeout
            try:
                connection.ensure_connection(max_retries=0)
            except OperationalError:
                connection.maybe_switch_next()
                raise
        try:
            with limit_wait(connection.connection, timeout):
                return work(connection.default_channel)
        except connection.recoverable_connection_errors as exc:
            connection.collect()
            connection.maybe_switch_next()
            if was_connected and not isinstance(exc, BrokerTimeout):
                return self._run_once(work, timeout)
            raise

    def _again(self, _exc: Exception, pauses: Iterator[float], _retries: int) -> float:
        """Drop the connection. Return the seconds until the next attempt."""
        self._connection.collect()
        return next(pauses)

    def add(self, dead_letter: NewDeadLetter, channel: Any = None, tag: Any = None) -> bool:
        """Store a dead letter in a thread. Return whether it is stored already.

        This call waits for at most :data:`WORKER_TIMEOUT_SECONDS`, and not at all while an older
        dead letter is late by that time. A refused dead letter is tried again until RabbitMQ stores
        it. A dead letter that is too large is stored without its message.

        Parameters
        ----------
        channel, tag : Any
            Channel and delivery tag of the message, if it stays unacknowledged until the storing
            of the dead letter. If this call returns False, the worker's event loop calls
            ``channel.ack_stored(tag)`` later. Nothing is stored if RabbitMQ requeues the message.
        """
        waiting = _Waiting(dead_letter, channel, tag)
        with SHUTDOWN_GUARD, self._waiting_lock:
            self._waiting.append(waiting)
            in_time = not self._is_late
            if self._thread is None:
                self._thread = threading.Thread(target=self._go_on, daemon=True)
                self._thread.start()
        if in_time:
            waiting.stored.wait(WORKER_TIMEOUT_SECONDS)
        with SHUTDOWN_GUARD, self._waiting_lock:
            if waiting.stored.is_set():
                return True
            waiting.is_late = self._is_late = True
        logger.warning("Dead letter of task %r is stored later", dead_letter.id)
        return False

    def _store_waiting(self) -> None:
        failure: Exception | None = None
        for _ in range(len(self._waiting)):
            waiting = self._waiting[0]
            if not waiting.is_requeued:
                try:
                    self._store(waiting)
                except Exception as exc:
                    self._waiting.rotate(-1)  # RabbitMQ may take the next one
                    if isinstance(exc, self._outages):
                        raise
                    failure = exc
                    continue
                self._loop.recovered()
            with self._waiting_lock:
                self._waiting.popleft()
                waiting.stored.set()
                self._is_late = False
            if waiting.is_late and waiting.channel is not None:
                worker.call_soon(waiting.channel.ack_stored, waiting.tag)
        if failure is not None:
            raise failure

    def _store(self, waiting: _Waiting) -> None:
        """Store a dead letter; without its message if RabbitMQ refuses the message."""
        new, died_ms = waiting.dead_letter, waiting.died_ms
        try:
            self.ask(lambda stream: stream.add(*new, died_ms=died_ms))
        except InvalidOption as exc:
            logger.error(
                "Dead letter of task %r is stored without its message, which RabbitMQ refuses: %s",
                new.id,
                exc,
            )
            bare = _without_message(new)
            self.ask(lambda stream: stream.add(*bare, died_ms=died_ms))

    def _has_waiting(self) -> bool:
        """Return whether the thread continues. If not, the next :meth:`add` starts a new thread."""
        with self._waiting_lock:
            if not self._waiting:
                self._thread = None
            return bool(self._waiting)

    def _go_on(self) -> None:
        self._loop = ReconnectingLoop(
            "storing of dead letters",
            logger,
            go_on=self._has_waiting,
            wait=self._wait,
            retry=_OUTAGE_RETRY_SECONDS,
            retry_error=_ERROR_RETRY_SECONDS,
            outages={"RabbitMQ takes no dead letter": self._outages},
        )
        self._loop.run(self._store_waiting)

    def _wait(self, seconds: float) -> None:
        self._retry_now.wait(seconds)
        self._retry_now.clear()

    def end(self, until: float) -> None:
        """Wait for the waiting dead letters when the process ends, and log the lost ones.

        A dead letter with an unacknowledged message is not lost: RabbitMQ requeues the message.

        Parameters
        ----------
        until : float
            Monotonic time, in seconds, at which the wait ends.
        """
        self._retry_now.set()
        for waiting in tuple(self._waiting):
            if waiting.channel is None and not waiting.stored.wait(until - time.monotonic()):
                _, id, reason, *_ = waiting.dead_letter
                logger.error(
                    "RabbitMQ took no dead letter before this process ended. Lost: %r: %s",
                    id,
                    reason,
                )
