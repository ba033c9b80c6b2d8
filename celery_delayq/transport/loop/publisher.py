"""A producer for Celery that publishes to Redis without blocking an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from celery import Celery

from celery_delayq.store.store import Store
from celery_delayq.transport.loop.client import LoopClient, new_loop_client
from celery_delayq.utils import bridge
from celery_delayq.utils.bridge import Bridge

#: Methods of kombu's channel that send commands to Redis.
_BLOCKING_METHODS = ("exchange_declare", "queue_declare", "queue_bind", "get_table", "_put_fanout")


class LoopPublisher:
    """Celery's own producer on our channel, for greenlets of a bridge.

    All replies of Redis are awaited. Messages and scripts use shared connections. kombu's own
    commands (bindings, fanout) run in a thread.

    Parameters
    ----------
    app : Celery
        The app, with ``DelayQ``. The constructor connects: call it in a thread.
    threads : Bridge
        Runs blocking calls in threads.
    size : int
        Number of connections for messages and scripts.
    retries : Mapping[str, Any]
        Number and intervals of attempts to connect, as in ``task_publish_retry_policy``.
    """

    def __init__(self, app: Celery, threads: Bridge, size: int, retries: Mapping[str, Any]) -> None:
        self._connection = app.connection_for_write()
        self._connection.ensure_connection(**retries)
        self._connection.ensure = self._ensure
        channel = self._channel = self._connection.channel()
        _ = channel.stores.only  # raises NotSupported for several
        channel._disconnect_pools()
        channel._pool = channel.new_pool()
        self.client: LoopClient = new_loop_client(channel.pool, threads, size)
        store = channel.store
        channel.store = Store(self.client, store.keys, store.layout, store.limits)
        # Each whole method runs in a thread. If its call is cancelled, the thread still has its
        # connection until the method ends.
        for name in _BLOCKING_METHODS:
            setattr(channel, name, bridge.off_loop(getattr(channel, name)))
        commands = channel._create_client()
        commands.execute_command = bridge.off_loop(commands.execute_command)
        _load(app)
        self.producer = app.amqp.producer_pool.Producer(channel, auto_declare=False)

    @property
    def store(self) -> Store:
        """The store, for greenlets of the bridge."""
        store: Store = self._channel.store
        return store

    async def open(self) -> None:
        """Open the connections for messages and scripts."""
        await self.client.connections.open()

    def close(self) -> None:
        """Close the connections for messages and scripts. Calls without a reply get an error."""
        self.client.connections.close()

    def release(self) -> None:
        """Close kombu's connection. No call may use it any more."""
        self._connection.release()

    def _ensure(
        self,
        _producer: Any,
        publish: Callable[..., Any],
        errback: Callable[[Exception, float], object] | None = None,
        max_retries: int | None = None,
        interval_start: float = 1,
        interval_step: float = 1,
        interval_max: float = 1,
        **_: Any,
    ) -> Callable[..., Any]:
        """Replace ``Connection.ensure``, which blocks while it sleeps and connects.

        The shared connections open again by themselves. So this only waits between two attempts.
        """

        lost = self._connection.recoverable_connection_errors

        def ensured(*args: Any, **kwargs: Any) -> Any:
            for interval in _intervals(max_retries, interval_start, interval_step, interval_max):
                try:
                    return publish(*args, **kwargs)
                except lost as exc:
                    if self.client.connections.is_closed:
                        raise
                    if errback is not None:
                        errback(exc, interval)
                bridge.wait(asyncio.sleep(interval))
            return publish(*args, **kwargs)

        return ensured


def _load(app: Celery) -> None:
    """Import modules and create objects now that the first call would need: that takes long."""
    amqp = app.amqp
    _ = amqp.send_task_message, amqp.router, app.producer_pool.connections.connection.transport


def _intervals(count: int | None, start: float, step: float, most: float) -> Iterator[float]:
    """Yield the seconds before each further attempt."""
    done = 0
    while count is None or done < count:
        yield min(start + done * step, most)
        done += 1
