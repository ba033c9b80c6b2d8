"""All that a client on a loop has open: threads, connections, and the sync client on both."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from celery_delayq.aio.session import LoopSession
from celery_delayq.errors import ConfigError
from celery_delayq.integration.install import AIO
from celery_delayq.integration.replace import make
from celery_delayq.transport.loop.publisher import LoopPublisher
from celery_delayq.utils.bridge import Bridge

if TYPE_CHECKING:
    from celery_delayq.app import DelayQ

T = TypeVar("T")

#: Threads of one client.
THREADS = 16


class Binding:
    """The sync client, bound to one loop.

    Parameters
    ----------
    delayq : DelayQ
        The sync client.
    connections : int
        Connections that calls on the loop share.

    Attributes
    ----------
    in_threads : DelayQ
        The sync client for threads: the given one.
    on_loop : DelayQ
        The sync client for greenlets; where the broker is RabbitMQ, there is none.
    """

    on_loop: DelayQ

    def __init__(self, delayq: DelayQ, connections: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.in_threads = delayq
        self._connections = connections
        self._bridge = Bridge(THREADS)
        self.publisher: LoopPublisher | None = None

    async def open(self) -> None:
        """Connect, and import what the first call would."""
        await self._bridge.in_thread(self._connect)
        make(AIO, app=self.in_threads.app)
        if self.publisher is not None:
            await self.publisher.open()

    def _connect(self) -> None:
        app = self.in_threads.app
        app.finalize()
        app.backend  # noqa: B018  imports it
        if self.in_threads.session.on_rabbitmq:
            return
        self.in_threads.session.store  # noqa: B018  refuses brokers that are not ours
        self.publisher = LoopPublisher(app, self._bridge, self._connections)
        self.on_loop = copy.copy(self.in_threads)
        self.on_loop.session = LoopSession(app, self.publisher.store)

    async def run(self, call: Callable[[], T]) -> T:
        """Run sync code on the loop."""
        return await self._bridge.run(call)

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run sync code in a thread."""
        return await self._bridge.in_thread(call)

    def check(self) -> None:
        """Raise ConfigError where another loop runs."""
        if asyncio.get_running_loop() is not self.loop:
            raise ConfigError(
                "this AsyncDelayQ belongs to another event loop that still exists; make one for "
                "each loop, or await close() there first"
            )

    def close(self) -> None:
        """Close the connections and let the threads end."""
        if self.publisher is not None:
            self.publisher.close()
        self._bridge.close()
