"""Script calls, each of which is sent before the answer to the one before it is read."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from redis.exceptions import RedisError

from celery_delayq.calls import Call, pack
from celery_delayq.store import Store
from celery_delayq.transport.batch import checkout


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
        self._unread: Call | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            if self._unread is not None:
                self._connection.disconnect()
            self._pool.release(self._connection)
            self._connection = None

    def send(self, call: Call) -> Any:
        """Send a call, and return the answer to the one before it, None when there was none.

        Raises
        ------
        redis.exceptions.RedisError
            The one before was refused, or Redis is away.
        """
        answer = self.answer()
        self._unread = call
        try:
            if self._connection is None:
                self._pool = self._ask(lambda store: store.client.connection_pool)
                self._connection = checkout(self._pool)
            self._connection.send_packed_command([pack([call.command()])])
        except (RedisError, OSError):
            self._drop()  # and again when it is to be answered
        return answer

    def answer(self) -> Any:
        """Return the answer to the last call, None when there is none; raises what `send` does."""
        call = self._unread
        if call is None:
            return None
        try:
            if self._connection is not None:
                answer = self._connection.read_response()
                self._unread = None
                return answer
        except (RedisError, OSError):
            self._drop()
        # In the usual way, which knows what to do about each error.
        answer = self._ask(lambda store: store.run(call))
        self._unread = None
        return answer

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._pool.release(self._connection)
            self._connection = None
