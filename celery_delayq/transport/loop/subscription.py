"""Waits on an event loop for messages of Redis channels, and reads keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis import ConnectionPool

from celery_delayq.store.scripting.calls import pack
from celery_delayq.transport.loop.client import LoopConnections
from celery_delayq.transport.loop.loop_socket import LoopSocket
from celery_delayq.utils.bridge import Bridge


class Notice:
    """Wakes one waiting coroutine."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Return when a message was published, or after *seconds*."""
        timer = asyncio.get_running_loop().call_later(seconds, self.give)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
        self._event.clear()

    def give(self) -> None:
        """Wake the coroutine, or let its next wait return at once."""
        self._event.set()


class _SubscribedSocket(LoopSocket):
    """A connection whose messages wake the coroutines that wait for their channel."""

    waiting: Mapping[bytes, set[Notice]]

    def _answer(self, reply: Any) -> None:
        if isinstance(reply, list) and reply[0] == b"message":
            for each in self.waiting.get(reply[1], ()):
                each.give()
        else:
            super()._answer(reply)


class Subscription:
    """One connection subscribed to all channels that an event loop waits for, and one for reading.

    A notification is a hint and may be lost: a waiting coroutine also reads at intervals.

    Parameters
    ----------
    pool : redis.ConnectionPool
        Its class and options are used for new connections. No connection is taken from the pool.
    bridge : Bridge
        Connects in a thread, since connecting blocks.
    """

    def __init__(self, pool: ConnectionPool, bridge: Bridge) -> None:
        self._waiting: dict[bytes, set[Notice]] = {}
        self._reading = LoopConnections(pool, bridge, 1)
        self._subscribed = LoopConnections(pool, bridge, 1, self._new_socket)

    def _new_socket(self, connection: Any, loop: asyncio.AbstractEventLoop) -> LoopSocket:
        found = _SubscribedSocket(connection, loop)
        found.waiting = self._waiting
        for channel in self._waiting:  # the channels of a lost connection
            found.send_without_reply(pack([("SUBSCRIBE", channel)]))
        return found

    @asynccontextmanager
    async def to(self, channel: bytes) -> AsyncIterator[Notice]:
        """Subscribe to a channel.

        Raises
        ------
        BrokerUnavailable, CommandRefused
            Redis is away, or refuses the subscription.
        """
        notice = Notice()
        others = self._waiting.setdefault(channel, set())
        others.add(notice)
        try:
            if len(others) == 1:
                await self._subscribed.fetch(pack([("SUBSCRIBE", channel)]))
            yield notice
        finally:
            others.discard(notice)
            if not others:
                del self._waiting[channel]
                for each in self._subscribed.open_sockets():
                    each.send_without_reply(pack([("UNSUBSCRIBE", channel)]))

    async def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys. Raises the errors of :meth:`to`."""
        await self._subscribed.open()
        values: list[bytes | None] = await self._reading.fetch(pack([("MGET", *keys)]))
        return values

    def close(self) -> None:
        """Close the connections."""
        self._reading.close()
        self._subscribed.close()
