"""redis-py's client, with errors that other rooms can catch without redis-py."""

from __future__ import annotations

import builtins
from typing import Any, Final

from redis import Redis, SSLConnection
from redis.client import Pipeline, PubSub
from redis.exceptions import RedisError, ResponseError, TimeoutError

from celery_delayq.store.scripting.errors import error_of, raise_ours, translate_errors
from celery_delayq.store.scripting.refusals import Refusal, refusal_of
from celery_delayq.store.scripting.wire import Wire

#: Celery's default of ``broker_connection_timeout``.
HANDSHAKE_SECONDS: Final = 4.0


def drop_refused_connections(connection_class: type[Any]) -> type[Any]:
    """Return a class of connections that are closed by a reply of ``Refusal.RECONNECT``.

    This holds for all clients that use the connections, including kombu's.
    """

    class DroppingConnection(connection_class):
        def read_response(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().read_response(*args, **kwargs)
            except ResponseError as exc:
                if refusal_of(exc) is not Refusal.RECONNECT:
                    raise
                self.disconnect()
                raise_ours(exc)

    return DroppingConnection


class TLSConnection(SSLConnection):
    """A connection over TLS, with a time limit for the handshake.

    A server without TLS waits for the end of a command, while the client waits for the answer to
    its handshake. ``socket_connect_timeout`` limits the wait, in seconds; the default is
    `HANDSHAKE_SECONDS`.
    """

    socket_timeout: float | None

    def _connect(self) -> Any:
        seconds = self.socket_connect_timeout or HANDSHAKE_SECONDS
        # redis-py applies the timeout of replies to the handshake.
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
    """A client that raises the errors of :mod:`~celery_delayq.store.scripting.errors`."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command."""
        try:
            return super().execute_command(*args, **options)
        except RedisError as exc:
            raise_ours(exc)

    def wire(self) -> Wire:
        """Return a wire for one command at a time. Close it after use."""
        return Wire(self.connection_pool)

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
        except (RedisError, OSError):  # get_message() connects again, or raises the error
            return True

    def execute_command(self, *args: Any) -> Any:
        """Run a command."""
        with translate_errors():
            return super().execute_command(*args)

    def parse_response(self, *args: Any, **kwargs: Any) -> Any:
        """Return the next reply; None if none came within the timeout."""
        with translate_errors():
            return super().parse_response(*args, **kwargs)


class _ClientPipeline(Pipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run the commands. Without *raise_on_error*, a refusal is one of the replies."""
        with translate_errors():
            replies = super().execute(raise_on_error)
        return [error_of(each) if isinstance(each, RedisError) else each for each in replies]
