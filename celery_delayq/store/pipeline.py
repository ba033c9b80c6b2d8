"""Entries on their way to Redis: while it works on one batch, the next one fills."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError

from celery_delayq.errors import StoreFull
from celery_delayq.model.envelope import Entry
from celery_delayq.model.publish_outcome import Put
from celery_delayq.store.schedule import Store, few_replicas, is_demoted
from celery_delayq.store.scripting.calls import Puts, pack
from celery_delayq.store.scripting.pipelining import checkout
from celery_delayq.store.scripting.replies import Puts as Reply

T = TypeVar("T")

#: What is met when the connection is lost, or the server is another one now.
LOST = (ConnectionError, TimeoutError, OSError, OperationalError)


class Sent(NamedTuple):
    """A script call and, for each of its entries, the index of the item that it is of."""

    call: Puts
    indexes: list[int]


class Pipeline:
    """Sends entries in batches, and again when the connection is lost: a script call that is
    repeated stores nothing twice.

    Parameters
    ----------
    ask : Callable
        Calls a function with the store, once more on a new connection when the server is gone.
    on_answer : Callable
        Gets a call, the indexes of its entries, and what became of each.
    retry : Mapping[str, Any] | None
        How often and when to try again, by the names of Celery's ``task_publish_retry_policy``;
        None for not at all.
    """

    def __init__(
        self,
        ask: Callable[[Callable[[Store], Any]], Any],
        on_answer: Callable[[Puts, list[int], list[Put]], None],
        retry: Mapping[str, Any] | None,
    ) -> None:
        self._ask = ask
        self._on_answer = on_answer
        self._retry = retry
        self._store: Store = ask(lambda store: store)
        self._connection: Any = None
        self._knows_script = False
        self._open: dict[str, Sent] = {}
        self._filling: list[Sent] = []
        self._unread: deque[Sent] = deque()
        self._answered: deque[tuple[Sent, list[Put]]] = deque()
        #: How many entries wait to be sent.
        self.buffered = 0

    def add(self, queue: str, entry: Entry, index: int) -> None:
        """Add an entry of the item *index*."""
        sent = self._open.get(queue)
        if sent is None or sent.call.is_full:
            sent = self._open[queue] = Sent(self._store.puts(queue), [])
            self._filling.append(sent)
        sent.call.add(entry)
        sent.indexes.append(index)
        self.buffered += 1

    def send(self) -> None:
        """Send what was added, once Redis has answered what was sent before.

        Raises
        ------
        redis.exceptions.RedisError, OSError
            Redis is away for longer than the retries take, or refused something.
        StoreFull
            It has no memory left.
        """
        try:
            self._with_repeats(self._read)
            filled, self._filling = self._filling, []
            self._open.clear()
            self.buffered = 0
            if filled:
                self._unread.extend(filled)
                self._with_repeats(lambda: self._write(self._store, filled))
        except ResponseError as exc:
            raise _error_of(exc) from exc
        finally:
            self._deliver()

    def flush(self) -> None:
        """Send what was added, and wait until Redis has answered all; raises what `send` does."""
        self.send()
        self.send()

    def wait(self, replicas: int, seconds: float) -> None:
        """Wait at most so many *seconds* until so many *replicas* have what was sent.

        Raises
        ------
        NotReplicated
            Fewer have it.
        """
        if self._connection is None:
            return
        self._connection.send_command("WAIT", replicas, int(seconds * 1000))
        there = self._connection.read_response()
        if there < replicas:
            raise few_replicas(there, replicas, seconds)

    def unanswered(self) -> Iterator[int]:
        """Yield the indexes of the items whose outcome was not told."""
        for sent in (*(sent for sent, _ in self._answered), *self._unread, *self._filling):
            yield from sent.indexes

    def close(self) -> None:
        """Give the connection back; one with unread replies is closed."""
        if self._connection is not None:
            if self._unread:
                self._connection.disconnect()
            self._store.client.connection_pool.release(self._connection)
            self._connection = None

    def _write(self, store: Store, sents: list[Sent]) -> None:
        if self._connection is None:
            self._connection = checkout(store.client.connection_pool)
            self._store, self._knows_script = store, False
        commands = []
        for sent in sents:
            # The first one on a connection carries the source.
            commands.append(sent.call.command(source=not self._knows_script))
            self._knows_script = True
        self._connection.send_packed_command([pack(commands)])

    def _read(self) -> None:
        """Read the answers to what was sent; one that is an error stays among the unread."""
        refused: list[tuple[Sent, ResponseError]] = []
        try:
            while self._unread:
                try:
                    reply = self._connection.read_response()
                except ResponseError as exc:
                    if isinstance(exc, NoScriptError) or is_demoted(exc):
                        raise ConnectionError(str(exc)) from exc
                    refused.append((self._unread.popleft(), exc))
                else:
                    self._answered.append((self._unread.popleft(), Reply.read(reply).puts))
        finally:
            self._unread.extendleft(sent for sent, _ in reversed(refused))
        if refused:
            raise refused[0][1]

    def _with_repeats(self, step: Callable[[], None]) -> None:
        """Do something; when the connection is lost, send all that has no answer yet again."""
        try:
            step()
        except LOST:
            if self._retry is None:
                raise
            retry_over_time(lambda: self._ask(self._resend), LOST, **self._retry)

    def _resend(self, store: Store) -> None:
        """Send what has no answer yet over a new connection, and read the answers."""
        if self._connection is not None:
            self._connection.disconnect()
            self._store.client.connection_pool.release(self._connection)
            self._connection = None
        if self._unread:
            self._write(store, list(self._unread))
            self._read()

    def _deliver(self) -> None:
        while self._answered:
            sent, puts = self._answered[0]
            self._on_answer(sent.call, sent.indexes, puts)
            self._answered.popleft()


def _error_of(exc: ResponseError) -> Exception:
    """Return what to raise for an answer that is an error."""
    if "maxmemory" in str(exc):
        return StoreFull(
            f"Redis has no memory left and refused to store tasks ({exc}); "
            "raise maxmemory or let tasks be consumed, then go on"
        )
    error: Exception = exc
    return error
