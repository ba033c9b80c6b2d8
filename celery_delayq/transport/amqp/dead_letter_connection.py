"""A connection of its own for dead letters: that of a worker is busy with deliveries."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from amqp.exceptions import InternalError, PreconditionFailed
from kombu import Connection
from kombu.utils.functional import retry_over_time

from celery_delayq.errors import BrokerBlocked, BrokerTimeout
from celery_delayq.model.envelope import Due
from celery_delayq.transport.amqp.dead_letters import DeadLetterStream, StoredDeadLetter, View
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Times that a call is tried, on a new connection each time.
_TRIES = 2

#: What RabbitMQ raises for a stream that another process has just declared, and when to try again,
#: in seconds.
_STARTING = (InternalError, PreconditionFailed)
_UNTIL_STARTED: dict[str, Any] = {"max_retries": 5, "interval_start": 0.05, "interval_step": 0.1}

#: Seconds between two attempts to store what could not be stored at once.
_RETRY = 1.0

#: Seconds that a worker's start waits for a trial: a blocked broker needs workers more than ever.
_TRIAL = 2.0


class _Lost(NamedTuple):
    """A dead letter whose message is gone already."""

    queue: str
    id: str
    reason: str
    message: bytes
    details: bytes


class DeadLetterConnection:
    """Stores dead letters, from any thread.

    Parameters
    ----------
    client : Connection
        Cloned.
    """

    def __init__(self, client: Connection) -> None:
        # Nobody would send its heartbeats, and those of RabbitMQ make a wait endless.
        self._connection = client.clone(heartbeat=0)
        self._lock = threading.Lock()
        self._waiting: deque[_Lost] = deque()
        self._storing = threading.Lock()
        self._checked = False
        self._thread: threading.Thread | None = None

    def ask(self, question: Callable[[DeadLetterStream], T]) -> T:
        """Ask the stream of dead letters; once more where the connection was lost."""
        return self._run(lambda channel: question(channel.dead_letters))

    def check(self) -> None:
        """Check, once, that dead letters can be stored: better at a worker's start than later.

        Raises
        ------
        NotAllowed, ConfigError
            The account lacks a right, or may not declare what is missing.
        """
        if not self._checked:
            with suppress(BrokerBlocked, BrokerTimeout):
                self.ask(partial(DeadLetterStream.seed, timeout=_TRIAL))
            self._checked = True

    def read(self) -> Iterator[StoredDeadLetter]:
        """Yield all dead letters, with due messages that have no queue any more."""

        def begin(channel: Any) -> View:
            channel.collect_unroutable()
            return channel.dead_letters.view()  # type: ignore[no-any-return]

        view, first = self._run(begin), 0
        while first <= view.last:
            page, first = self.ask(partial(DeadLetterStream.page, view=view, first=first))
            yield from page

    def send(self, messages: Sequence[tuple[Any, str, Due]], settled: Sequence[int] = ()) -> None:
        """Send messages to queues by their names, and settle the dead letters that they were.

        Raises
        ------
        amqp.exceptions.AMQPError
            The broker refused one.
        """

        def sent(channel: Any) -> None:
            routed = [channel.routed(message, "", queue, due) for message, queue, due in messages]
            for error in channel.send(routed).values():
                raise error
            if settled:
                channel.dead_letters.settle(settled)

        self._run(sent)

    def _run(self, work: Callable[[Any], T]) -> T:
        def run() -> T:
            answer: T = self._connection.autoretry(work, max_retries=_TRIES)()[0]
            return answer

        with self._lock:
            found: T = retry_over_time(run, _STARTING, errback=self._again, **_UNTIL_STARTED)
            return found

    def _again(self, _exc: Exception, pauses: Iterator[float], _retries: int) -> float:
        """Forget the connection; return when to connect again."""
        self._connection.collect()
        return next(pauses)

    def add_soon(self, *lost: Any) -> None:
        """Store a dead letter whose message is gone: at once, or when the broker is back."""
        self._waiting.append(_Lost(*lost))
        if self._thread is None:
            try:
                self._store_waiting()
            except Exception as exc:
                logger.warning("Dead letter of task %r is stored a little later: %r", lost[1], exc)
                self._thread = threading.Thread(target=self._go_on, daemon=True)
                self._thread.start()

    def _store_waiting(self) -> None:
        with self._storing:  # threads that end tasks at the same time would store one twice
            while self._waiting:
                self._store(self._waiting[0])
                self._waiting.popleft()

    def _store(self, lost: _Lost) -> None:
        self.ask(lambda stream: stream.add(*lost))

    def _has_waiting(self) -> bool:
        """Return whether the thread goes on; else the next one to add something stores it."""
        if not self._waiting:
            self._thread = None
        return bool(self._waiting)  # what was added just before that counted on the thread

    def _go_on(self) -> None:
        loop = ReconnectingLoop(
            "storing of dead letters",
            logger,
            go_on=self._has_waiting,
            wait=threading.Event().wait,
            retry=_RETRY,
            outages={"RabbitMQ is away": (*self._connection.connection_errors,)},
        )
        loop.run(self._store_waiting)
