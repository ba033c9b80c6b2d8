"""The connections and threads of a client for asyncio on one loop."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery import Celery

from celery_delayq.aio.results import Results
from celery_delayq.app import DelayQ
from celery_delayq.integration.install import AIO
from celery_delayq.integration.replace import make
from celery_delayq.schedule.schedule_many import publish_retries
from celery_delayq.store.scripting import scripts
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.transport.cluster.transport import ClusterTransport
from celery_delayq.transport.loop.publisher import LoopPublisher
from celery_delayq.utils.bridge import Bridge

T = TypeVar("T")
P = ParamSpec("P")

#: Most threads of one client.
MAX_THREADS = 16

#: Most calls that one client runs on the loop at a time: enough to keep Redis busy, and few enough
#: to stay in the caches of the processor.
MAX_LOOP_CALLS = 64


class Binding:
    """The sync client, used by the coroutines of the running loop.

    With RabbitMQ or a Redis Cluster as broker, all calls run in threads.

    Parameters
    ----------
    delayq : DelayQ
        The sync client. Threads use this object itself.
    connections : int
        Number of connections that calls on the loop share.
    """

    def __init__(self, delayq: DelayQ, connections: int) -> None:
        self._delayq = delayq
        self._connections = connections
        self.bridge = Bridge(MAX_THREADS, MAX_LOOP_CALLS)
        #: Limits calls of ``schedule_many``: calls that async iterators make need threads, too.
        self.feeding = asyncio.Semaphore(MAX_THREADS // 2)
        self.results = Results(delayq.app, self.bridge)
        self.publisher: LoopPublisher | None = None
        #: The same client, on connections of the loop.
        self._loop_delayq = delayq

    async def open(self) -> None:
        """Connect, and import the modules that the first call would import."""
        await self.bridge.in_thread(self._connect)
        make(AIO, app=self._delayq.app)
        if self.publisher is not None:
            await self.publisher.open()

    def _connect(self) -> None:
        app, session = self._delayq.app, self._delayq.session
        app.finalize()
        self.results.load()
        if session.on_rabbitmq:
            return
        session.check_broker()
        with app.connection_for_write() as connection:
            if isinstance(connection.transport, ClusterTransport):
                return
        for name in scripts.names_with_variants():
            scripts.load(name)
        retries = publish_retries(app) or {"max_retries": 0}
        self.publisher = LoopPublisher(app, self.bridge, self._connections, retries)
        _ = session.store  # connects for the threads, and checks the layout
        self._loop_delayq = copy.copy(self._delayq)
        self._loop_delayq.session = _LoopSession(app, self.publisher.store)

    async def on_loop(
        self, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the sync client on the loop."""
        if self.publisher is None:
            return await self.in_thread(method, *args, **kwargs)
        return await self.bridge.run(partial(method, self._loop_delayq, *args, **kwargs))

    async def in_thread(
        self, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a method of the sync client in a thread."""
        return await self.bridge.in_thread(partial(method, self._delayq, *args, **kwargs))

    def close(self) -> None:
        """Close the connections and let the threads end.

        Calls that wait for a reply get an error. They still use the producer until they end.
        """
        release = None
        if self.publisher is not None:
            self.publisher.close()
            release = self.publisher.release
        self.results.close()
        self.bridge.close(release)


class _LoopSession(Session):
    """The session of calls on a loop: its store reconnects by itself.

    Parameters
    ----------
    app : Celery
        The app.
    store : Store
        Our data, on connections of a loop.
    """

    def __init__(self, app: Celery, store: Store) -> None:
        super().__init__(app)
        self._loop_stores = Stores.single(store)

    @property
    def stores(self) -> Stores:
        """Our data in the app's broker."""
        return self._loop_stores

    @property
    def on_rabbitmq(self) -> bool:
        """Always False: with RabbitMQ the sync client runs in threads."""
        return False
