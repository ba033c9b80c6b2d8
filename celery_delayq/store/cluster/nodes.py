"""Connections to the master of a slot of a Redis Cluster.

For all code above, a slot is a single Redis whose address may change, as with Sentinel. A moved
slot is a lost connection. The next connection goes to the slot's new master.
"""

from __future__ import annotations

import builtins
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from redis import Connection, ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError, TimeoutError
from redis.retry import Retry

from celery_delayq.errors import ConfigError
from celery_delayq.store.cluster.slots import Address, SlotRange, SlotTable
from celery_delayq.store.scripting.client import TLSConnection
from celery_delayq.store.scripting.refusals import Refusal, code_of, refusal_of
from celery_delayq.utils import native_threads

#: Most seconds to wait for one node when another node may answer too.
NODE_TIMEOUT_SECONDS = 2.0

#: The same timeout as options of a connection.
NODE_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": NODE_TIMEOUT_SECONDS,
    "socket_timeout": NODE_TIMEOUT_SECONDS,
}


def quick(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return :data:`NODE_OPTIONS`, with the shorter timeouts of *options*, if any."""
    return {
        name: min(options.get(name) or NODE_TIMEOUT_SECONDS, NODE_TIMEOUT_SECONDS)
        for name in NODE_OPTIONS
    }


#: Options for callers that delay other work while they wait: a silent node is asked once.
HURRIED_OPTIONS: dict[str, Any] = {
    **NODE_OPTIONS,
    "hurried": True,
    "retry": Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
}

#: Seconds for which a node that did not answer is asked after all other nodes.
SILENT_NODE_SECONDS = 10.0

#: Error codes of a node that does not serve the slot, or not now. ASK is not followed: while a slot
#: moves, both nodes refuse a script if they lack some of its keys.
_WAIT_CODES = {"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"}
#: Error codes of a node that is no longer the master.
_MOVED_CODES = {"MOVED", "READONLY"}

#: Name and version of the client, read once. redis-py would read its version from disk for each
#: connection, and many connections are tried while a shard is away.
_DRIVER_INFO: dict[str, Any] = {}
with suppress(ImportError):  # older versions of redis-py read their version once
    from redis.driver_info import DriverInfo

    _DRIVER_INFO["driver_info"] = DriverInfo()


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Return connection options with name and version of the client, unless they have these."""
    return options if options.keys() & {"lib_name", "lib_version"} else {**_DRIVER_INFO, **options}


#: By seeds, for all connections of a process. So a new connection need not read the table, and
#: finds a cluster whose seeds are all gone.
_SLOT_TABLES: dict[frozenset[Address], SlotTable] = {}

#: By silent node: the monotonic time until which it is asked after all others.
_SILENT_UNTIL: dict[Address, float] = {}


class Nodes:
    """The masters of a cluster's slots, read from any node, and again after changes.

    Parameters
    ----------
    seeds : Sequence[Address]
        Nodes to ask at first. Later, all masters and replicas are asked too.
    tls : bool
        Whether all connections are over TLS.
    options : Any
        Options of all connections, such as a password or timeouts.
    """

    def __init__(self, seeds: Sequence[Address], *, tls: bool = False, **options: Any) -> None:
        self._seeds = seeds
        self._tls = tls
        self._options = options
        #: The slots, read on first use.
        self.table = _SLOT_TABLES.setdefault(frozenset(seeds), SlotTable())

    def master_of(self, slot: int) -> Address:
        """Return the master of a slot.

        Raises
        ------
        redis.exceptions.ConnectionError
            No node answers, or none has the slot. A later call may succeed.
        ConfigError
            A node is not part of a cluster.
        """
        table = self._fresh()
        if master := table.master_of(slot):
            return master
        table.note_missing(slot)
        raise ConnectionError(f"no node of the Redis Cluster has slot {slot}")

    def masters(self) -> list[Address]:
        """Return all masters: first the silent ones, then the others in random order.

        Raises the errors of :meth:`master_of`.
        """
        return self._in_turn(self._fresh().masters())[::-1]

    def _in_turn(self, nodes: Iterable[Address]) -> list[Address]:
        """Return nodes in the order in which to ask them: random, but silent nodes last."""
        found = [*nodes]
        return sorted(random.sample(found, len(found)), key=self.is_silent)

    def is_silent(self, address: Address) -> bool:
        """Return whether a node did not answer in the last :data:`SILENT_NODE_SECONDS`."""
        return _SILENT_UNTIL.get(address, 0.0) > time.monotonic()

    def note_silent(self, address: Address) -> None:
        """Note that a node does not answer: other nodes are then asked first."""
        _SILENT_UNTIL[address] = time.monotonic() + SILENT_NODE_SECONDS

    def note_heard(self, address: Address) -> None:
        """Note that a node has answered."""
        _SILENT_UNTIL.pop(address, None)

    @property
    def seeds(self) -> tuple[Address, ...]:
        """The seeds, sorted."""
        return tuple(sorted(self._seeds))

    def client(self, slot: int | None, **options: Any) -> Redis:
        """Return a client with separate connections to the master of a slot; None: to any master.

        Parameters
        ----------
        options : Any
            Override the options of all connections.
        """
        kind = SlotSSLConnection if self._tls else SlotConnection
        # Without a slot another master may answer.
        shorter = {} if slot is not None else quick(self._options)
        options = {**self._options, **shorter, **options}
        pool = ConnectionPool(kind, nodes=self, slot=slot, **options)
        native_threads.renew_locks(pool, "_fork_lock", "_lock")
        return Redis(connection_pool=pool)

    @contextmanager
    def briefly(self, slot: int | None, **options: Any) -> Iterator[Redis]:
        """Yield a client of :meth:`client`, and close its connections afterwards."""
        client = self.client(slot, **options)
        try:
            yield client
        finally:
            client.connection_pool.disconnect()  # `close` does not close a given pool

    def _fresh(self) -> SlotTable:
        """Return the slots, read again if they may have changed."""
        table = self.table
        if table.is_stale or not table.ranges:
            table.is_stale = False  # before reading: the table may become stale meanwhile
            try:
                table.ranges = self._read()
            except BaseException:
                table.is_stale = True
                raise
        return table

    def _read(self) -> list[SlotRange]:
        """Ask one node after the other."""
        problems = []
        # In random order: a node that is cut off from the others returns former masters.
        for address in self._in_turn(self.table.nodes().union(self._seeds)):
            try:
                found = [*self._ask(address)]
                self.note_heard(address)
                if found:
                    return found
                problems.append(f"{address.host}:{address.port}: knows of no slots")
            except (AuthenticationError, ConnectionError, TimeoutError) as exc:
                if isinstance(exc, TimeoutError):
                    self.note_silent(address)
                problems.append(f"{address.host}:{address.port}: {exc}")
        raise ConnectionError(f"no node of the Redis Cluster answers: {'; '.join(problems)}")

    def _ask(self, address: Address) -> Iterator[SlotRange]:
        options = {**_named(self._options), **NODE_OPTIONS, "retry": Retry(NoBackoff(), 0)}
        kind = TLSConnection if self._tls else Connection
        pool = ConnectionPool(kind, host=address.host, port=address.port, **options)
        try:
            # Two arguments: for a single one, redis-py's version decides the form of the reply.
            reply = Redis(connection_pool=pool).execute_command("CLUSTER", "SLOTS")
            found = cast("list[Any]", reply)
        except ResponseError as exc:
            if "cluster support disabled" not in str(exc):
                raise
            raise ConfigError(
                f"the Redis at {address.host}:{address.port} is no part of a cluster: use a "
                "delayq+redis:// URL for it"
            ) from exc
        finally:
            pool.disconnect()
        for first, last, *nodes in found:
            # A node that does not know its own address returns none.
            master, *replicas = (
                Address(host.decode() if host else address.host, port) for host, port, *_ in nodes
            )
            yield SlotRange(first, last, master, tuple(replicas))


class SlotConnection(Connection):
    """A connection to the master of one slot or, without a slot, to any master.

    A moved slot is a lost connection.

    Parameters
    ----------
    nodes : Nodes
        The cluster.
    slot : int | None
        The slot.
    hurried : bool
        Whether to fail at once if the master is silent.
    """

    def __init__(
        self, *, nodes: Nodes, slot: int | None, hurried: bool = False, **options: Any
    ) -> None:
        # redis-py's own pauses would delay callers that wait for other nodes.
        options.setdefault("retry", Retry(NoBackoff(), 1))
        super().__init__(**_named(options))
        self._nodes, self._slot, self._hurried = nodes, slot, hurried

    @property
    def address(self) -> Address:
        """The node of the current or last connection."""
        return Address(self.host, self.port)

    def note_silent(self) -> None:
        """Note that the node does not answer."""
        self._nodes.note_silent(self.address)

    def _error_message(self, exception: BaseException) -> str:
        told: str = super()._error_message(exception)
        return (
            f"{told} This is the address that the Redis Cluster announces; it must be reachable "
            "from here (cluster-announce-ip, -hostname, -port)"
        )

    def _connect(self) -> Any:
        if self._slot is None:
            masters = self._nodes.masters()
        else:
            master = self._nodes.master_of(self._slot)
            if self._hurried and self._nodes.is_silent(master):
                raise TimeoutError(f"{master.host}:{master.port}: no answer a moment ago")
            masters = [master]
        while True:
            self.host, self.port = masters.pop()
            try:
                return super()._connect()
            except OSError as exc:
                is_silent = isinstance(exc, builtins.TimeoutError)
                if is_silent:
                    self.note_silent()
                self._nodes.table.note_away(self.address, self._slot)
                if masters:
                    continue
                if is_silent:  # redis-py's error does not name the node
                    raise TimeoutError(self._error_message(exc)) from exc
                raise

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Return the next reply."""
        table = self._nodes.table
        try:
            reply = super().read_response(*args, **options)
        except AuthenticationError as exc:  # nodes may have different passwords
            raise type(exc)(f"{self.host}:{self.port}: {exc}") from exc
        except TimeoutError as exc:
            self.note_silent()
            table.note_away(self.address, self._slot)
            raise type(exc)(f"{self.host}:{self.port}: {exc}") from exc
        except ConnectionError as exc:
            table.note_away(self.address, self._slot)
            raise type(exc)(f"{self.host}:{self.port}: {exc}") from exc
        except ResponseError as exc:
            code = code_of(exc)
            if code not in _WAIT_CODES and refusal_of(exc) is not Refusal.RECONNECT:
                raise
            if code in _MOVED_CODES:
                table.note_moved(self.address, self._slot)
            else:
                table.note_away(self.address, self._slot)
            self.disconnect()
            raise ConnectionError(
                f"slot {self._slot} is not served by {self.host}:{self.port}: {exc}"
            ) from exc
        if _SILENT_UNTIL:  # rarely
            self._nodes.note_heard(self.address)
        return reply


class SlotSSLConnection(SlotConnection, TLSConnection):
    """A :class:`SlotConnection` over TLS."""
