"""Runs scripts on one Redis database, and repeats calls after errors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from redis import Redis
from redis.exceptions import NoScriptError

from celery_delayq.errors import BrokerUnavailable, CommandRefused, StoreFull
from celery_delayq.model.envelope import Entry
from celery_delayq.settings import Limits
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.calls import (
    Call,
    Command,
    EntriesCall,
    Steps,
    due_argument,
    keys_of,
    pack,
)
from celery_delayq.store.scripting.client import Client
from celery_delayq.store.scripting.errors import UnusableConnection
from celery_delayq.store.scripting.rounds import Rounds
from celery_delayq.store.scripting.wire import Wire, few_replicas
from celery_delayq.utils.bridge import off_loop
from celery_delayq.utils.portions import batches

T = TypeVar("T")
P = TypeVar("P", bound="StorePart")
Args = ParamSpec("Args")

#: Most queues whose calls are sent together: Redis keeps all their replies until they are read.
MAX_PIPELINED_QUEUES = 1000

#: Texts in Lua's errors about an invalid value.
_LUA_FAULT_TEXTS = ("bad argument", "attempt to", "malformed")


class ScriptRunner:
    """Client, names of keys, layout and limits, which all parts of the store use.

    Parameters
    ----------
    client : redis.Redis
        A client that adds no prefix and does not decode replies. Its connections are used.
    keys : Keys
        Names of the keys.
    layout : Layout
        The ready lists of this connection's queues.
    limits : Callable[[str], Limits]
        Returns the limits of a queue.
    """

    _own_wire: Wire | None = None

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        layout: Layout,
        limits: Callable[[str], Limits] = lambda _queue: Limits(),
    ) -> None:
        # Kept: redis-py closes the pool of a client that is garbage-collected.
        self._given = client
        self.client = (
            client if isinstance(client, Client) else Client(connection_pool=client.connection_pool)
        )
        self.keys = keys
        self.layout = layout
        self.limits = limits
        #: Returns a call of a script. Parameters of :meth:`Call.of`.
        self.new_call = partial(Call.of, keys)

    def keep_connection(self) -> Wire:
        """Run scripts over one connection from now on. Then only one thread may use this runner."""
        self._own_wire = self._own_wire or Wire(self.client.connection_pool, repeats=True)
        return self._own_wire

    def wire(self) -> Wire:
        """Return a wire with a separate connection. Close it after use."""
        return Wire(self.client.connection_pool)

    def of(self, _queue: str) -> ScriptRunner:
        """Return this runner, which serves all queues of a single Redis."""
        return self

    def run(self, call: Call) -> Any:
        """Run a script, and return the reply.

        If the server lacks the script, as after a restart or a failover, the source is sent. If the
        connection is lost, the call is repeated once, at once. On the connection of
        :meth:`keep_connection` this is always done, on others if the connection's ``retry`` has
        retries.

        Raises
        ------
        StoreFull
            Redis has no memory left. Nothing was stored.
        BrokerUnavailable
            The server is gone, or is no master any more.
        CommandRefused
            The server or the script refused the call.
        """
        own_wire = self._own_wire
        wire = own_wire or self.client.wire()
        source = repeated = False
        try:
            while True:
                try:
                    wire.send(call.packed(source=source))
                    return wire.read()
                except NoScriptError:
                    if source:
                        raise
                    source = True
                except BrokerUnavailable as exc:
                    if isinstance(exc, UnusableConnection):
                        # Idle connections go to the same server. Connections in use await a reply.
                        self.client.connection_pool.disconnect(inuse_connections=False)
                    if repeated or not wire.repeats_after(exc):
                        raise
                    repeated = True
        finally:
            if wire is not own_wire:
                wire.close()

    @off_loop
    def run_all(self, calls: Sequence[Call | Command], *, transaction: bool = False) -> list[Any]:
        """Run scripts and commands in one round trip. Return a reply for each; an error is a reply
        too.

        Raises
        ------
        BrokerUnavailable
            The server is gone, or is no master any more.
        """
        if not transaction:
            found = self.ask_packed(pack(with_sources(calls)), len(calls))
        else:
            with self.client.pipeline(transaction=True) as pipe:
                for command in with_sources(calls):
                    pipe.execute_command(*command)
                found = pipe.execute(raise_on_error=False)
        for each in found:
            if isinstance(each, BrokerUnavailable):
                raise each
        return [
            _named(call, each) if isinstance(each, CommandRefused) else each
            for call, each in zip(calls, found, strict=True)
        ]

    def ask_packed(self, commands: bytes, number: int) -> list[Any]:
        """Send packed commands, and return *number* replies. A refusal is a reply too."""
        wire = self.wire()
        try:
            wire.send(commands, number)
            return wire.read_all()
        finally:
            wire.close()

    def run_steps(self, steps: Steps[T]) -> T:
        """Run the calls of *steps*, and return the result. Raises the errors of :meth:`run`."""
        [result] = self.run_each([steps])
        if isinstance(result, Exception):
            raise result
        return result

    def run_each(
        self, steps: Iterable[Steps[T]], together: int = MAX_PIPELINED_QUEUES
    ) -> list[T | Exception]:
        """Run the steps of many queues together. Each round of calls is one round trip.

        Parameters
        ----------
        together : int
            Most queues in a round.

        Returns
        -------
        list[T | Exception]
            The result of each steps, or the error of a refused call.

        Raises
        ------
        BrokerUnavailable
            The server is gone, or is no master any more.
        """
        results: list[T | Exception] = []
        for some in batches(steps, together):
            rounds = Rounds(some)
            while calls := rounds.calls:
                first, *others = calls
                try:
                    if others:
                        replies = self.run_all(calls)
                    elif isinstance(first, Call):  # one call needs no thread on an event loop
                        replies = [self.run(first)]
                    else:
                        replies = [self.client.execute_command(*first.args)]
                except (CommandRefused, StoreFull) as exc:
                    replies = [exc]
                rounds.answer(replies)
            results += rounds.results
        return results

    @off_loop
    def run_replicated(self, call: Call, replicas: int, seconds: float) -> Any:
        """Run a script, and wait at most *seconds* until *replicas* replicas have the changes.

        Raises
        ------
        NotReplicated
            Fewer replicas have the changes.
        StoreFull
            Redis has no memory left. Nothing was stored.
        """
        wire = self.wire()
        try:
            wait = ("WAIT", replicas, int(seconds * 1000))
            wire.send(pack([call.command(source=True), wait]), 2)
            reply, there = wire.read(), wire.read()
        finally:
            wire.close()
        if there < replicas:
            raise few_replicas(there, replicas, seconds)
        return reply

    def entries_call(
        self, name: str, queue: str, *args: Any, layout: Layout | None = None, **given: Hashable
    ) -> EntriesCall:
        """Return an empty call of a script that stores the added entries in *queue*.

        ARGV begin with queue, layout and wake-up channel; *args* follow. *given* as for
        :func:`keys_of`.
        """
        layout, keys = layout or self.layout, self.keys
        named = keys_of(name, keys, queue, **given)
        args = queue, layout.text, keys.wake, *args
        return EntriesCall(name, [*named], [*args], keys, queue, layout)

    def entry_args(self, queue: str, entry: Entry) -> list[Any]:
        """Return the first arguments of a script that stores one entry in *queue*."""
        due = due_argument(entry.due)
        return [queue, self.layout.text, self.keys.wake, entry.id, due, entry.data]

    def schedule_call(self, queue: str, *, retry: bool = False) -> EntriesCall:
        """Return an empty call that schedules the added entries: all or, after an error, none.

        *retry* tells whether the entries are retries, which ``max_scheduled`` does not limit.
        """
        most = -1 if retry else self.limits(queue).max_scheduled
        return self.entries_call("schedule/add", queue, most)

    def layout_of(self, queue: str) -> Layout:
        """Return the layout of a queue, with the queue's limits."""
        return replace(self.layout, limits=self.limits(queue))


class StorePart:
    """One part of the store, with its scripts."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner
        self._keys = runner.keys
        self._new_call = runner.new_call

    def _run(self, name: str, queue: str | None, args: Iterable[Any] = (), **given: Any) -> Any:
        return self._runner.run(self._new_call(name, queue, args, **given))


class Part(Generic[P]):
    """An attribute of the store that returns one of its parts.

    Each access creates the part, so that a part and its store form no cycle: an unused store closes
    its connections at once.
    """

    def __init__(self, kind: type[P]) -> None:
        self.kind = kind

    def __get__(self, store: Any, _owner: type) -> P:
        return self.kind(store)


def ran(steps: Callable[Concatenate[Any, Args], Steps[T]]) -> Callable[Concatenate[Any, Args], T]:
    """Return the method of a part that runs the steps of another method at once."""

    @wraps(steps)
    def run(part: Any, /, *args: Args.args, **kwargs: Args.kwargs) -> T:
        result: T = part._runner.run_steps(steps(part, *args, **kwargs))
        return result

    return run


def _named(call: Call | Command, exc: CommandRefused) -> Exception:
    """Return a refusal; add the key of a command. Scripts name the key themselves."""
    if isinstance(call, Command):
        exc.args = (f"{exc}: {' '.join(map(str, call.args[:2]))}",)
    return exc


def with_sources(calls: Iterable[Call | Command]) -> Iterable[tuple[Any, ...]]:
    """Yield calls as commands for a server that may lack the scripts."""
    known: set[str] = set()
    for call in calls:
        name = call.name if isinstance(call, Call) else ""
        yield call.command(source=name not in known)
        known.add(name)


def is_fault_of_script(exc: BaseException) -> bool:
    """Return whether Lua has failed on a script's arguments: a repeated call would fail too."""
    return "user_script" in str(exc) and any(text in str(exc) for text in _LUA_FAULT_TEXTS)
