"""The client for our data: redis-py's, with errors that other rooms can catch without redis-py."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from redis import Redis, SSLConnection
from redis.client import Pipeline, PubSub
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from celery_delayq.errors import (
    BrokerTimeout,
    BrokerUnavailable,
    CommandRefused,
    NotAllowed,
    StoreFull,
)
from celery_delayq.store.scripting.refusals import Refusal, code_of, refusal_of

#: Celery's default of ``broker_connection_timeout``.
HANDSHAKE_SECONDS: Final = 4.0

_LOGIN: Final = (
    "check user and password in the URL of the broker, and those that Redis has (ACL LIST, "
    "requirepass)"
)

_FULL: Final = (
    "Redis has no memory left and refused to store the task (%s); raise maxmemory or let tasks be "
    "consumed, then send it again"
)

# Each is of redis-py's class too: kombu and Celery reconnect and retry by that.


class _Coded(RedisError):
    """An error reply with its code, which redis-py cuts off from some texts."""

    code = ""


class _Unavailable(BrokerUnavailable, ConnectionError):
    __doc__ = BrokerUnavailable.__doc__


class _TimedOut(BrokerTimeout, TimeoutError):
    __doc__ = BrokerTimeout.__doc__


class _Refused(CommandRefused, ResponseError, _Coded):
    __doc__ = CommandRefused.__doc__


class _Full(StoreFull, ResponseError, _Coded):
    __doc__ = StoreFull.__doc__


class ConnectAnew(BrokerUnavailable, _Coded):
    """The server refuses a connection that it had: it is no master any more, say.

    No lost connection to redis-py, which would try the same server again and again.
    """


class _RefusedForNow(BrokerUnavailable, ResponseError, _Coded):
    __doc__ = BrokerUnavailable.__doc__


#: The class of an error reply by what it means; of any other it is :class:`CommandRefused`.
_BY_REFUSAL: dict[Refusal | None, type[_Coded]] = {
    Refusal.RECONNECT: ConnectAnew,
    Refusal.LATER: _RefusedForNow,
    Refusal.FULL: _Full,
}


class _LoginRefused(NotAllowed, BrokerUnavailable, AuthenticationError):
    """Redis refuses user or password: an outage to a worker, which waits for the right ones."""


def error_of(exc: RedisError) -> RedisError:
    """Return one of our errors for one of redis-py's; the same where we have none."""
    # Those of redis-py's that a script call answers by sending the source stay as they are.
    if isinstance(exc, (BrokerUnavailable, CommandRefused, StoreFull, NoScriptError)):
        return exc
    if isinstance(exc, (AuthenticationError, AuthorizationError)):
        return _LoginRefused(f"{str(exc).rstrip('.')}; {_LOGIN}")
    if isinstance(exc, TimeoutError):
        return _TimedOut(*exc.args)
    if isinstance(exc, ConnectionError):
        return _Unavailable(*exc.args)
    if not isinstance(exc, ResponseError):
        return exc
    refusal = refusal_of(exc)
    text = _FULL % exc if refusal is Refusal.FULL else str(exc)
    error = _BY_REFUSAL.get(refusal, _Refused)(text)
    error.code = code_of(exc)
    return error


def unavailable(why: object) -> BrokerUnavailable:
    """Return the error for a server that is to be asked no more, such as a former master."""
    return _Unavailable(str(why))


def dropping_refused(connection_class: type[Any]) -> type[Any]:
    """Return a class of connections that are lost with a reply after which to connect anew.

    So it is for all clients that use them, kombu's too.
    """

    class DroppingConnection(connection_class):
        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().read_response(*args, **kwargs)
            except ResponseError as exc:
                if refusal_of(exc) is not Refusal.RECONNECT:
                    raise
                self.disconnect()
                raise error_of(exc) from exc

    return DroppingConnection


@contextmanager
def translating() -> Iterator[None]:
    """Raise our errors in place of redis-py's, where a connection is used without a client."""
    try:
        yield
    except RedisError as exc:
        error = error_of(exc)
        if error is exc:
            raise
        raise error from exc


class TLSConnection(SSLConnection):
    """A connection over TLS. A server without TLS on that port ends it by a timeout.

    Such a server waits for the end of a command, and the client for the answer to its handshake.
    ``socket_connect_timeout`` limits the wait, in seconds; the default is `HANDSHAKE_SECONDS`.
    """

    socket_timeout: float | None

    def _connect(self) -> Any:
        seconds = self.socket_connect_timeout or HANDSHAKE_SECONDS
        # redis-py shakes hands under the timeout of replies.
        reply_timeout, self.socket_timeout = self.socket_timeout, seconds
        try:
            sock = super()._connect()
        except builtins.TimeoutError as exc:
            raise TimeoutError(
                f"{self.host}:{self.port} did not answer the TLS handshake within {seconds:g} s: "
                "is this its port for TLS (tls-port of Redis)? Without TLS a URL begins with "
                "delayq+redis:// or delayq+rediscluster://"
            ) from exc
        finally:
            self.socket_timeout = reply_timeout
        sock.settimeout(reply_timeout)
        return sock


class Client(Redis):
    """A client that raises :class:`BrokerUnavailable` and :class:`CommandRefused`."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command."""
        try:
            return super().execute_command(*args, **options)
        except RedisError as exc:
            error = error_of(exc)
            if error is exc:
                raise
            raise error from exc

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> _ClientPipeline:
        """Return a pipeline that raises our errors too."""
        return _ClientPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )

    def pubsub(self, **kwargs: Any) -> _ClientPubSub:
        """Return a subscriber that raises our errors too."""
        return _ClientPubSub(self.connection_pool, **kwargs)


class _ClientPubSub(PubSub):
    def has_data(self) -> bool:
        """Return whether a message has come, or the connection has ended."""
        try:
            return bool(self.connection.can_read(timeout=0))
        except (RedisError, OSError):  # get_message() connects again, or raises it
            return True

    def execute_command(self, *args: Any) -> Any:
        """Run a command."""
        with translating():
            return super().execute_command(*args)

    def parse_response(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next reply, if there is one by then."""
        with translating():
            return super().parse_response(*args, **kwargs)


class _ClientPipeline(Pipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run the commands; without *raise_on_error* a refusal is among the replies."""
        with translating():
            replies = super().execute(raise_on_error)
        return [error_of(each) if isinstance(each, RedisError) else each for each in replies]
