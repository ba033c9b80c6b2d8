"""Waits for results of tasks: in Redis without a thread, in other backends by polling in one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.backends.redis import RedisBackend
from celery.backends.rpc import RPCBackend
from celery.exceptions import TimeoutError
from celery.result import AsyncResult, ResultSet

from celery_delayq.errors import ConfigError, InvalidOption, NotSupported
from celery_delayq.schedule.client import id_of
from celery_delayq.transport.loop.subscription import Subscription
from celery_delayq.utils.bridge import Bridge
from celery_delayq.utils.numbers import is_finite

#: Seconds after which a result is read again, in case a notification was lost.
POLL_SECONDS = 1.0

#: Seconds between two reads of a backend without notifications, as in ``AsyncResult.get``.
LOOK_SECONDS = 0.5

#: Size of a result in bytes from which a thread decodes the result.
LARGE_RESULT_BYTES = 65536


class Results:
    """Results of one app's tasks, for the coroutines of one loop."""

    def __init__(self, app: Celery, bridge: Bridge) -> None:
        self._app = app
        self._bridge = bridge
        self._subscription: Subscription | None = None

    def load(self) -> None:
        """Import the result backend."""
        backend = self._app.backend
        if isinstance(backend, RedisBackend):
            self._subscription = Subscription(backend.client.connection_pool, self._bridge)

    def close(self) -> None:
        """Close the connections; waiting callers get ``BrokerUnavailable``."""
        if self._subscription is not None:
            self._subscription.close()

    async def get(self, given: Any, timeout: float | None) -> Any:
        """Return a result, or raise its error, as ``AsyncResult.get`` does."""
        if isinstance(given, ResultSet):
            waits = [asyncio.ensure_future(self.get(each, timeout)) for each in given.results]
            try:
                return await asyncio.gather(*waits)
            finally:
                for each in waits:
                    each.cancel()
        if timeout is not None and not is_finite(timeout):
            raise InvalidOption(f"timeout={timeout!r}: expected seconds, or None")
        result = given if isinstance(given, AsyncResult) else self._app.AsyncResult(id_of(given))
        if result.ignored:
            return None
        waiting = asyncio.ensure_future(self._wait_for_end(result))
        try:
            done, _ = await asyncio.wait([waiting], timeout=timeout)
        finally:
            waiting.cancel()
        if not done:
            raise TimeoutError("The operation timed out.")
        meta = waiting.result()
        found = self._app.AsyncResult(meta["task_id"])
        found._set_cache(meta)
        return found.get(disable_sync_subtasks=False)

    async def _wait_for_end(self, result: Any) -> dict[str, Any]:
        """Wait until a task ends, or until an earlier task of its chain fails."""
        ids = [result.id]
        while (result := result.parent) is not None:
            ids += [each.id for each in getattr(result, "results", [result])]
        if self._subscription is None:
            return await self._poll_backend(ids)
        backend = self._app.backend
        keys = [backend.get_key_for_task(id) for id in ids]
        async with self._subscription.to(keys[0]) as notified:
            while True:
                for number, data in enumerate(await self._subscription.read(keys)):
                    meta = {} if data is None else await self._decode_result(data)
                    if _is_end(meta, first=number == 0):
                        return meta
                await notified.wait(POLL_SECONDS)

    async def _decode_result(self, data: bytes) -> dict[str, Any]:
        decode = partial(self._app.backend.decode_result, data)
        found: dict[str, Any]
        found = decode() if len(data) < LARGE_RESULT_BYTES else await self._bridge.in_thread(decode)
        return found

    async def _poll_backend(self, ids: list[str]) -> dict[str, Any]:
        backend = self._app.backend
        if isinstance(backend, DisabledBackend):
            raise ConfigError(
                "result_backend is not set: expected a store of results, such as "
                "'redis://localhost:6379/1'; without a store no result can be awaited"
            )
        if isinstance(backend, RPCBackend):
            raise NotSupported(
                "result_backend='rpc://': its results go to the thread that sent the task; "
                "expected Redis or another store, from which results can be awaited"
            )
        while True:
            for number, id in enumerate(ids):
                meta = await self._bridge.in_thread(partial(backend.get_task_meta, id))
                if _is_end(meta, first=number == 0):
                    return {"task_id": id, **meta}
            await asyncio.sleep(LOOK_SECONDS)


def _is_end(meta: dict[str, Any], *, first: bool) -> bool:
    """Whether a task has ended; of an earlier task of a chain, whether it has ended the chain."""
    return meta.get("status") in (states.READY_STATES if first else states.PROPAGATE_STATES)
