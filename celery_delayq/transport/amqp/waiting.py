"""How long to wait for RabbitMQ, which may hang or block those who publish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp import spec
from amqp.exceptions import AMQPError, RecoverableConnectionError
from kombu.transport import pyamqp

from celery_delayq.errors import BrokerBlocked, BrokerTimeout

#: Seconds of silence after which a connection is given up.
PATIENCE = 30.0


class WaitingConnection(pyamqp.Connection):
    """A connection that knows whether RabbitMQ blocks it, and waits for no reply for ever."""

    #: Why RabbitMQ reads nothing from it, in its words, such as "low on memory".
    blocked: str | None = None

    # py-amqp leaves the reason unread.
    _METHODS = pyamqp.Connection._METHODS | {
        spec.Connection.Blocked: spec.method(spec.Connection.Blocked, "s")
    }

    def wait(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """Wait for a reply."""
        return super().wait(*args, timeout=timeout or PATIENCE, **options)

    def close(self, *args: Any, **options: Any) -> Any:
        """Close; without a farewell where RabbitMQ would not read it."""
        return self.collect() if self.why_blocked() else super().close(*args, **options)

    def why_blocked(self) -> str | None:
        """Return :attr:`blocked` by what RabbitMQ has said until now."""
        if self.connected:
            with suppress(OSError, AMQPError):
                self.drain_events(timeout=0.001)  # with 0, py-amqp spins in half a frame
        return self.blocked

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason

    def _on_unblocked(self) -> None:
        self.blocked = None


@contextmanager
def given_up(connection: WaitingConnection | None, seconds: float) -> Iterator[None]:
    """Close a connection that is lost or silent for so many seconds: publishes on it are uncertain.

    Raises
    ------
    BrokerBlocked
        RabbitMQ has blocked it. kombu does not repeat the publish: RabbitMQ may still read it.
    BrokerTimeout
        RabbitMQ did not answer.
    """
    try:
        yield
    except (OSError, RecoverableConnectionError) as exc:
        if connection is None or not connection.connected:
            raise
        reason = connection.why_blocked()  # it may have said so while a large message was written
        connection.collect()
        if reason:
            raise BrokerBlocked(
                f"RabbitMQ has blocked this connection ({reason}) and did not confirm in "
                f"{seconds:g} s; it may still run the task later. Free memory or disk space of "
                "the broker, or raise vm_memory_high_watermark or lower disk_free_limit"
            ) from exc
        if "timed out" in str(exc):
            raise BrokerTimeout(
                f"RabbitMQ did not confirm in {seconds:g} s; whether it has the task is not known"
            ) from exc
        raise
