"""Sends script calls before the replies to earlier calls are read.

Without threads: while one thread computes, another waits longer for Python's lock than for Redis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time
from redis.exceptions import (
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from celery_delayq.errors import CommandRefused, StoreFull
from celery_delayq.model.envelope import Entry
from celery_delayq.store.scripting.calls import Call, EntriesCall, Steps, pack
from celery_delayq.store.scripting.errors import unavailable
from celery_delayq.store.scripting.replies import EntriesReply, answered
from celery_delayq.store.scripting.runner import ScriptRunner
from celery_delayq.store.scripting.wire import Wire

T = TypeVar("T")


class Runners(Protocol):
    """The stores of all queues."""

    def of(self, queue: str, /) -> ScriptRunner:
        """Return the store of a queue."""
        ...


#: Calls a function with the stores; if a server is gone, again on new connections.
Ask = Callable[[Callable[[Runners], Any]], Any]

#: Errors of a lost connection, and of a server that is no master any more.
LOST_CONNECTION_ERRORS = (ConnectionError, TimeoutError, OSError, OperationalError)


class _Unanswered(NamedTuple):
    """Calls that were sent together, and the wire of each; None if a call could not be sent."""

    calls: Sequence[tuple[str, Call]]
    wires: Sequence[Wire | None]
    then: Callable[[list[Any]], object]


class PipelinedCalls:
    """Sends calls, and lets the caller work while Redis runs them.

    A call without an answer is sent again, so the call must be repeatable.

    Parameters
    ----------
    ask : Callable
        Calls a function with the stores; if a server is gone, again on new connections.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._wires: dict[ScriptRunner, Wire] = {}
        self._unanswered: _Unanswered | None = None

    def __enter__(self) -> PipelinedCalls:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Settle the last calls, even after an error: Redis may have run them.

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
        """Send *call* once the former calls are answered. *then* is called with its answer later.

        Raises
        ------
        BrokerUnavailable, CommandRefused
            Redis is away, or has refused a former call.
        """
        self.send_all([(queue, call)], lambda answers: then(answered(answers)[0]))

    def send_steps(self, queue: str, steps: Steps[T], then: Callable[[T], object]) -> None:
        """Send the first call of *steps*, each of which is one call, as :meth:`send` does.

        The other calls follow when the first one is settled, so Redis may run them after the next
        steps' first call. *then* is called with the result.
        """

        def go_on(answer: Any) -> None:
            then(self._rest(queue, steps, answer))

        self.send(queue, cast(Call, next(steps)), go_on)

    def _rest(self, queue: str, steps: Steps[T], answer: Any) -> T:
        """Make the further calls of *steps*, and return the result."""
        while True:
            try:
                call = steps.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = self._run(queue, call)

    def send_all(
        self, calls: Sequence[tuple[str, Call]], then: Callable[[list[Any]], object]
    ) -> None:
        """Send *calls* together, each with its queue, once the former calls are answered.

        The former calls are settled while Redis runs these. *then* is called with an answer for
        each later; a refusal is an answer too. Raises the errors of :meth:`send`.
        """
        settle_former = self._read_answers()
        self._unanswered = _Unanswered(calls, [None] * len(calls), then)
        together: dict[Wire, list[bytes]] = {}
        wires: list[Wire | None] = []
        try:
            runners: Runners = self._ask(lambda found: found)
            for queue, call in calls:
                runner = runners.of(queue)
                wire = self._wires.get(runner) or self._wires.setdefault(runner, runner.wire())
                wires.append(wire)
                together.setdefault(wire, []).append(call.packed())
            self._unanswered = _Unanswered(calls, wires, then)
            for wire, packed in together.items():
                wire.send(b"".join(packed), len(packed))
        except (RedisError, OSError):
            pass  # `settle` sends the calls again
        finally:
            if settle_former is not None:
                settle_former()

    def settle(self) -> bool:
        """Wait for the answers to the last calls. Return whether any calls were unanswered.

        Raises the errors of :meth:`send`.
        """
        settle = self._read_answers()
        if settle is None:
            return False
        settle()
        return True

    def _read_answers(self) -> Callable[[], object] | None:
        """Wait for the answers to the last calls, and return what settles them; None without
        unanswered calls.
        """
        if self._unanswered is None:
            return None
        calls, wires, then = self._unanswered
        answers: list[Any] = []
        for (queue, call), wire in zip(calls, wires, strict=True):
            try:
                answers.append(self._answer(queue, call, wire))
            except (CommandRefused, StoreFull) as exc:
                answers.append(exc)
            except BaseException:
                # The calls may be settled once more: no reply may be read for another call.
                for each in self._wires.values():
                    each.drop()
                raise
        self._unanswered = None
        return partial(then, answers)

    def _answer(self, queue: str, call: Call, wire: Wire | None) -> Any:
        if wire is not None and wire.unread:
            with suppress(RedisError, OSError):
                return wire.read()
        # The usual call handles each kind of error.
        return self._run(queue, call)

    def _run(self, queue: str, call: Any) -> Any:
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
        self._wires: dict[ScriptRunner, Wire] = {}
        #: The scripts that were sent over each of these connections with their sources.
        self._sources: dict[ScriptRunner, set[str]] = {}
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

        After an error, the next call sends all entries without an answer again.

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
        except BaseException:
            self.close()  # the answers to these calls were errors, or will not come
            self._filling[:0] = self._unread
            self._unread.clear()
            self.buffered = sum(len(sent.indexes) for sent in self._filling)
            raise
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
        self._sources.clear()

    def _write(self, sents: list[Sent]) -> None:
        commands: dict[ScriptRunner, list[tuple[Any, ...]]] = {}
        for sent in sents:
            runner = self._runners.of(sent.call.queue)
            sources, name = self._sources.setdefault(runner, set()), sent.call.name
            commands.setdefault(runner, []).append(sent.call.command(source=name not in sources))
            sources.add(name)
        for runner, its in commands.items():
            if runner not in self._wires:
                self._wires[runner] = runner.wire()
            self._wires[runner].send(pack(its), len(its))

    def _read(self) -> None:
        """Read all outstanding answers. Refused calls stay in ``_unread``.

        A server that lacks a script, as after a restart, has run the other calls. Only the calls of
        this script are sent again, with its source.

        Raises
        ------
        BrokerUnavailable
            The server lacks a script whose source was sent just before.
        """
        if not self._read_answers():
            self._sources.clear()
            self._write(list(self._unread))
            if not self._read_answers():
                raise unavailable("Redis has no script that was sent just before")

    def _read_answers(self) -> bool:
        """Read all outstanding answers. Return False if the server lacks scripts.

        Refused calls, and calls whose script the server lacks, stay in ``_unread``.
        """
        remaining: list[Sent] = []
        refusal: ResponseError | None = None
        try:
            while self._unread:
                runner = self._runners.of(self._unread[0].call.queue)
                try:
                    reply = self._wires[runner].read()
                except ResponseError as exc:
                    remaining.append(self._unread.popleft())
                    if refusal is None and not isinstance(exc, NoScriptError):
                        refusal = exc
                else:
                    self._answered.append((self._unread.popleft(), EntriesReply.read(reply)))
        finally:
            self._unread.extendleft(reversed(remaining))
        if refusal is not None:
            raise refusal
        return not remaining

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
