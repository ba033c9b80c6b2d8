"""Sends script calls before the replies to earlier calls are read.

Without threads: while one thread computes, another waits longer for Python's lock than for Redis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time
from redis.exceptions import (
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from celery_delayq.errors import StoreFull
from celery_delayq.model.envelope import Entry
from celery_delayq.store.scripting.calls import Call, EntriesCall, pack
from celery_delayq.store.scripting.errors import unavailable
from celery_delayq.store.scripting.replies import EntriesReply
from celery_delayq.store.scripting.runner import ScriptRunner
from celery_delayq.store.scripting.wire import Wire


class Runners(Protocol):
    """The stores of all queues."""

    def of(self, queue: str, /) -> ScriptRunner:
        """Return the store of a queue."""
        ...


#: Calls a function with the stores; if a server is gone, again on new connections.
Ask = Callable[[Callable[[Runners], Any]], Any]

#: Errors of a lost connection, and of a server that is no master any more.
LOST_CONNECTION_ERRORS = (ConnectionError, TimeoutError, OSError, OperationalError)


class PipelinedCalls:
    """Sends one call, and lets the caller work while Redis runs the call.

    A call without an answer is sent again, so the call must be repeatable.

    Parameters
    ----------
    ask : Callable
        Calls a function with the stores; if a server is gone, again on new connections.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._wires: dict[ScriptRunner, Wire] = {}
        #: The wire of the last call.
        self._wire: Wire | None = None
        self._unanswered: tuple[str, Call, Callable[[Any], object]] | None = None

    def __enter__(self) -> PipelinedCalls:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Settle the last call, even after an error: Redis may have run the call.

        A closed generator (GeneratorExit) settles nothing: no code needs the answer, and the
        generator may be closed in a forked process.
        """
        try:
            if exc_type is not GeneratorExit:
                self.settle()
        finally:
            for wire in self._wires.values():
                wire.close()

    def send(self, queue: str, call: Call, then: Callable[[Any], object]) -> None:
        """Settle the former call, and send *call*. *then* is called with its answer later.

        Raises
        ------
        BrokerUnavailable, CommandRefused
            Redis is away, or has refused the former call.
        """
        self.settle()
        self._unanswered = queue, call, then
        try:
            runner: ScriptRunner = self._ask(lambda runners: runners.of(queue))
            wire = self._wires.get(runner)
            self._wire = wire = wire or self._wires.setdefault(runner, runner.wire())
            wire.send(call.packed())
        except (RedisError, OSError):
            pass  # `settle` sends the call again

    def settle(self) -> bool:
        """Wait for the answer to the last call. Return whether a call was unanswered.

        Raises the errors of :meth:`send`.
        """
        if self._unanswered is None:
            return False
        queue, call, then = self._unanswered
        answer = self._answer(queue, call)
        self._unanswered = None
        then(answer)
        return True

    def _answer(self, queue: str, call: Call) -> Any:
        if self._wire is not None and self._wire.unread:
            with suppress(RedisError, OSError):
                return self._wire.read()
        # The usual call handles each kind of error.
        return self._ask(lambda runners: runners.of(queue).run(call))


class Sent(NamedTuple):
    """A script call and, for each of its entries, the index of its item."""

    call: EntriesCall
    indexes: list[int]


class EntryPipeline:
    """Sends entries in batches: while Redis works on one batch, the next batch fills.

    If a connection is lost, calls without an answer are sent again. A repeated call stores no entry
    twice.

    Parameters
    ----------
    ask : Callable
        Calls a function with the stores; if a server is gone, again on new connections.
    on_answer : Callable
        Called with a call, the indexes of its entries, and the reply.
    retry : Mapping[str, Any] | None
        Number and intervals of retries, in the form of Celery's ``task_publish_retry_policy``; None
        for no retries.
    """

    def __init__(
        self,
        ask: Ask,
        on_answer: Callable[[EntriesCall, list[int], EntriesReply], None],
        retry: Mapping[str, Any] | None,
    ) -> None:
        self._ask = ask
        self._on_answer = on_answer
        self._retry = retry
        self._runners: Runners = ask(lambda runners: runners)
        #: The open connections. The server of each knows the script.
        self._wires: dict[ScriptRunner, Wire] = {}
        self._open: dict[str, Sent] = {}
        self._filling: list[Sent] = []
        self._unread: deque[Sent] = deque()
        self._answered: deque[tuple[Sent, EntriesReply]] = deque()
        #: Number of entries that wait to be sent.
        self.buffered = 0

    def add(self, queue: str, entry: Entry, index: int) -> None:
        """Add an entry of the item *index*."""
        sent = self._open.get(queue)
        if sent is None or sent.call.is_full:
            sent = self._open[queue] = Sent(self._runners.of(queue).schedule_call(queue), [])
            self._filling.append(sent)
        sent.call.add(entry)
        sent.indexes.append(index)
        self.buffered += 1

    def send(self) -> None:
        """Send the added entries, after reading the answers to earlier entries.

        Raises
        ------
        BrokerUnavailable, CommandRefused, OSError
            Redis is away for longer than the retries take, or refused a call.
        StoreFull
            Redis has no memory left.
        """
        try:
            self._with_repeats(self._read)
            filled, self._filling = self._filling, []
            self._open.clear()
            self.buffered = 0
            if filled:
                self._unread.extend(filled)
                self._with_repeats(lambda: self._write(filled))
        finally:
            self._deliver()

    def flush(self) -> None:
        """Send the added entries, and wait for all answers; raises the errors of `send`."""
        self.send()
        self.send()

    def wait(self, replicas: int, seconds: float) -> None:
        """Wait until *replicas* have stored the sent entries. Parameters of :meth:`Wire.wait`."""
        for wire in self._wires.values():
            wire.wait(replicas, seconds)

    def unanswered(self) -> Iterator[int]:
        """Yield the indexes of the items without a known outcome."""
        for sent in (*(sent for sent, _ in self._answered), *self._unread, *self._filling):
            yield from sent.indexes

    def close(self) -> None:
        """Release the connections. A connection with unread replies is closed."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    def _write(self, sents: list[Sent]) -> None:
        commands: dict[ScriptRunner, list[tuple[Any, ...]]] = {}
        for sent in sents:
            runner = self._runners.of(sent.call.queue)
            its = commands.setdefault(runner, [])
            # The first call on a connection sends the source.
            its.append(sent.call.command(source=runner not in self._wires and not its))
        for runner, its in commands.items():
            if runner not in self._wires:
                self._wires[runner] = runner.wire()
            self._wires[runner].send(pack(its), len(its))

    def _read(self) -> None:
        """Read all outstanding answers. Refused calls stay in ``_unread``."""
        refused: list[tuple[Sent, ResponseError]] = []
        try:
            while self._unread:
                try:
                    runner = self._runners.of(self._unread[0].call.queue)
                    reply = self._wires[runner].read()
                except ResponseError as exc:
                    if isinstance(exc, NoScriptError):
                        raise unavailable(exc) from exc
                    refused.append((self._unread.popleft(), exc))
                else:
                    self._answered.append((self._unread.popleft(), EntriesReply.read(reply)))
        finally:
            self._unread.extendleft(sent for sent, _ in reversed(refused))
        if refused:
            raise refused[0][1]

    def _with_repeats(self, step: Callable[[], None]) -> None:
        """Run *step*. If the connection is lost, send all calls without an answer again."""
        try:
            step()
        except LOST_CONNECTION_ERRORS as exc:
            if self._retry is None or isinstance(exc, StoreFull):
                raise
            retry_over_time(lambda: self._ask(self._resend), LOST_CONNECTION_ERRORS, **self._retry)

    def _resend(self, runners: Runners) -> None:
        """Send calls without an answer over new connections, and read the answers."""
        self.close()
        self._runners = runners
        if self._unread:
            self._write(list(self._unread))
            self._read()

    def _deliver(self) -> None:
        while self._answered:
            sent, reply = self._answered[0]
            self._on_answer(sent.call, sent.indexes, reply)
            self._answered.popleft()
