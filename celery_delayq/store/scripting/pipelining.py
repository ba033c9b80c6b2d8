"""Script calls, each of which is sent before the answer to the one before it is read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redis import VERSION, ConnectionPool
from redis.exceptions import RedisError

from celery_delayq.store.scripting.calls import Call, pack

if TYPE_CHECKING:
    from celery_delayq.store.schedule import Store


def checkout(pool: ConnectionPool) -> Any:
    """Take a connection out of *pool*; before redis-py 5.3 that wanted the name of a command."""
    return pool.get_connection() if VERSION >= (5, 3) else pool.get_connection("_")


class Ahead:
    """While Redis works on one call, the next one is made.

    A call whose answer does not come is made once more, so it must be one that may be repeated. No
    threads: where one computes, another waits for Python's lock longer than for Redis.

    Parameters
    ----------
    ask : Callable
        Calls a function with the store, once more on a new connection when the server is gone.
    """

    def __init__(self, ask: Callable[[Callable[[Store], Any]], Any]) -> None:
        self._ask = ask
        self._pool: Any = None
        self._connection: Any = None
        self._unanswered: tuple[Call, Callable[[Any], object]] | None = None
        #: Whether the next that the connection says is the answer.
        self._sent = False

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Settle the last call, also after an error: it may have been made.

        Not where a generator is closed: nobody wants its answer, and it may be in another process.
        """
        try:
            if exc_type is not GeneratorExit:
                self.settle()
        finally:
            if self._unanswered is not None:
                self._drop()
            elif self._connection is not None:
                self._pool.release(self._connection)
                self._connection = None

    def send(self, call: Call, then: Callable[[Any], object]) -> None:
        """Settle the call before this one, and send this one; *then* will be given its answer.

        Raises
        ------
        redis.exceptions.RedisError
            The one before was refused, or Redis is away.
        """
        self.settle()
        self._unanswered = call, then
        try:
            if self._connection is None:
                self._pool = self._ask(lambda store: store.client.connection_pool)
                self._connection = checkout(self._pool)
            self._connection.send_packed_command([pack([call.command()])])
            self._sent = True
        except (RedisError, OSError):
            pass  # again when it is to be answered

    def settle(self) -> bool:
        """Wait for the answer to the last call, and return whether it had none yet; raises what
        `send` does.
        """
        if self._unanswered is None:
            return False
        call, then = self._unanswered
        answer = self._answer(call)
        self._unanswered = None
        then(answer)
        return True

    def _answer(self, call: Call) -> Any:
        # An interrupt may have come while it was sent, or comes while the answer is read: then
        # nobody knows what the connection will say next, if anything.
        sent, self._sent = self._sent, False
        if sent:
            with suppress(RedisError, OSError):
                return self._connection.read_response()
        self._drop()
        # In the usual way, which knows what to do about each error.
        return self._ask(lambda store: store.run(call))

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._pool.release(self._connection)
            self._connection = None
