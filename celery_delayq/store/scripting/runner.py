"""Runs scripts on one Redis database: client, names of keys, layout, and what errors mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from redis import VERSION, ConnectionPool, Redis
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError

from celery_delayq.errors import BrokerUnavailable, NotReplicated, StoreFull
from celery_delayq.settings import Limits
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.calls import Call, Puts, pack
from celery_delayq.store.scripting.client import Client, ConnectAnew, translating
from celery_delayq.store.scripting.refusals import is_full
from celery_delayq.utils.bridge import off_loop

#: Texts of Lua's errors about a value that it cannot work with.
_LUA_FAULTS = ("bad argument", "attempt to", "malformed")


class ScriptRunner:
    """What all parts of the store work with.

    Parameters
    ----------
    client : redis.Redis
        A client that adds no prefix and does not decode replies; its connections are used.
    keys : Keys
        Names of the keys.
    layout : Layout
        How this connection lays out the ready lists of its queues.
    limits : Callable[[str], Limits]
        Returns the limits of a queue.
    """

    _held: HeldConnection | None = None

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        layout: Layout,
        limits: Callable[[str], Limits] = lambda _queue: Limits(),
    ) -> None:
        # Kept alive: redis-py closes the pool of a client that is collected.
        self._given = client
        plain = type(client) is Redis
        self.client = Client(connection_pool=client.connection_pool) if plain else client
        self.keys = keys
        self.layout = layout
        self.limits = limits

    def hold_connection(self) -> HeldConnection:
        """Run scripts over one connection from now on, for a runner that one thread uses at a time.

        redis-py takes twice as long, as it takes a connection out of the pool for each command.
        """
        self._held = self._held or HeldConnection(self.client)
        return self._held

    def of(self, _queue: str) -> ScriptRunner:
        """Return this: on a single Redis it is that of any queue."""
        return self

    def run(self, call: Call) -> Any:
        """Run a script.

        Raises
        ------
        StoreFull
            Redis has no memory left; nothing was stored.
        BrokerUnavailable
            The server is gone, or is no master any more.
        CommandRefused
            The server or the script refused.
        """
        try:
            if self._held is not None:
                return self._held.run(call)
            return call.script(self.client, call.keys, call.args)
        except ConnectAnew:
            self.client.connection_pool.disconnect()  # the others go to that server too
            raise
        except ResponseError as exc:
            error = full(exc) if is_full(exc) else exc
            raise error from (None if error is exc else exc)

    @off_loop
    def run_all(self, calls: Sequence[Call], *, transaction: bool = False) -> list[Any]:
        """Run scripts in one round trip, and return the reply to each; an error is a reply too.

        Raises
        ------
        BrokerUnavailable
            The server is gone, or is no master any more.
        """
        known: set[str] = set()
        with self.client.pipeline(transaction=transaction) as pipe:
            for call in calls:
                pipe.execute_command(*call.command(source=call.name not in known))
                known.add(call.name)
            found = pipe.execute(raise_on_error=False)
        for each in found:
            if isinstance(each, BrokerUnavailable):
                raise each
        return [full(each) if is_full(each) else each for each in found]

    @off_loop
    def run_replicated(self, call: Call, replicas: int, seconds: float) -> Any:
        """Run a script, and wait at most so many *seconds* until so many *replicas* have it.

        Raises
        ------
        NotReplicated
            Fewer have it.
        StoreFull
            Redis has no memory left; nothing was stored.
        """
        with self.client.pipeline(transaction=False) as pipe:
            pipe.execute_command(*call.command(source=True))
            pipe.execute_command("WAIT", replicas, int(seconds * 1000))
            try:
                reply, there = pipe.execute()
            except ResponseError as exc:
                raise full(exc) if is_full(exc) else exc from exc
        if there < replicas:
            raise few_replicas(there, replicas, seconds)
        return reply

    def puts(self, queue: str, *, retry: bool = False, alone: bool = False) -> Puts:
        """Return an empty call that schedules the added entries: all or, after an error, none.

        Parameters
        ----------
        retry : bool
            For retries, which are no new work: ``max_scheduled`` does not count.
        alone : bool
            For one message of a script that takes more keys behind its ready list.
        """
        key = self.keys.queue(queue)
        most = -1 if retry else self.limits(queue).max_scheduled
        return Puts(
            "schedule/add",
            [*key.state, self.keys.next_due, self.keys.queues, key.wake],
            [queue, self.layout.text, self.keys.wake, most],
            lambda step: self.keys.ready(queue, step, self.layout),
            lists=() if alone else (key.quarantined, *self.keys.ready_lists(queue, self.layout)),
        )

    def layout_of(self, queue: str) -> Layout:
        """Return the layout of a queue that this connection consumes, with its limits."""
        return replace(self.layout, limits=self.limits(queue))


class HeldConnection:
    """One connection, on which scripts run; a lost one is replaced once for each call."""

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None

    def run(self, call: Call) -> Any:
        """Run a script, which may be repeated."""
        with translating():
            try:
                return self._run(call)
            except (ConnectionError, TimeoutError, OSError):
                return self._run(call)

    def _run(self, call: Call) -> Any:
        if self._connection is None:
            self._connection = get_connection(self._pool)
        try:
            self.send(call)
            return self.read()
        except NoScriptError:
            self.send(call, source=True)
            return self.read()

    @property
    def socket(self) -> Any:
        """The socket, None where there is no connection."""
        return socket_of(self._connection)

    def send(self, call: Call, *, source: bool = False) -> None:
        """Send a call, to which :meth:`read` returns the reply; where that fails, drop it."""
        command = pack([call.command(source=True)]) if source else call.packed()
        self._or_drop(self._connection.send_packed_command, [command])

    def read(self) -> Any:
        """Return the reply to a call that was sent; where the connection is lost, drop it."""
        return self._or_drop(self._connection.read_response)

    def _or_drop(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except ResponseError:
            raise  # a reply, so the connection is in step
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Close the connection: it may be out of step."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)


def socket_of(connection: Any) -> Any:
    """Return the socket of a connection of redis-py; None before it connects, and after."""
    return getattr(connection, "_sock", None)


def get_connection(pool: ConnectionPool) -> Any:
    """Take a connection out of a pool."""
    # Before redis-py 5.3 this wants the name of a command.
    return pool.get_connection() if VERSION >= (5, 3) else pool.get_connection("_")


class StorePart:
    """One part of the store: runs its scripts."""

    def __init__(self, runner: ScriptRunner) -> None:
        self._runner = runner
        self._keys = runner.keys

    def _run(self, name: str, keys: list[str], args: list[Any]) -> Any:
        return self._runner.run(Call(name, keys, args))


def is_fault_of_script(exc: BaseException) -> bool:
    """Return whether a script has failed in Lua on its arguments: a repeat would fail too."""
    return "user_script" in str(exc) and any(text in str(exc) for text in _LUA_FAULTS)


def few_replicas(replicas: int, wanted: int, seconds: float) -> NotReplicated:
    """Return the error for *replicas* that have a task where more are *wanted*."""
    return NotReplicated(
        f"the task is stored, but {replicas} of {wanted} replicas have it after {seconds:g} s; "
        "it may be lost in a failover. Sending it again may run it twice"
    )


def full(exc: BaseException) -> StoreFull:
    """Return the error for a server that has no memory left."""
    return StoreFull(
        f"Redis has no memory left and refused to store the task ({exc}); "
        "raise maxmemory or let tasks be consumed, then send it again"
    )
