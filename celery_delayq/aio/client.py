"""The client for asyncio: the methods of ``DelayQ``, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery, Signature

from celery_delayq.aio.binding import Binding
from celery_delayq.aio.calls import on_loop
from celery_delayq.app import DelayQ

if TYPE_CHECKING:
    from celery.result import AsyncResult


class AsyncDelayQ:
    """Delayed tasks of one Celery app, for the coroutines of one event loop.

    Parameters
    ----------
    delayq : DelayQ | Celery
        The extension object, or the app.
    connections : int
        Connections to Redis that all calls share: each takes many calls at once.
    """

    def __init__(self, delayq: DelayQ | Celery, *, connections: int = 2) -> None:
        self._delayq = DelayQ.of(delayq) if isinstance(delayq, Celery) else delayq
        self._connections = connections
        self._binding: Binding | None = None
        self._opening: asyncio.Task[Binding] | None = None

    def __repr__(self) -> str:
        return f"<AsyncDelayQ of {self._delayq!r}>"

    async def connect(self) -> None:
        """Connect now, not with the first call."""
        await self._bound()

    async def close(self) -> None:
        """Close the connections; calls that wait for a reply get ``BrokerUnavailable``.

        Used again, it connects again.
        """
        binding, self._binding, self._opening = self._binding, None, None
        if binding is not None:
            binding.close()

    async def __aenter__(self) -> AsyncDelayQ:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _bound(self) -> Binding:
        """Return what is open on the running loop; connect where nothing is."""
        if self._binding is not None:
            if not self._binding.loop.is_closed():
                self._binding.check()
                return self._binding
            await self.close()
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Binding:
        binding = Binding(self._delayq, self._connections)
        try:
            await binding.open()
        except BaseException:
            binding.close()
            raise
        self._binding = binding
        return binding

    async def apply_async(
        self,
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Send a task, as its ``apply_async`` does.

        Parameters
        ----------
        task : Task | Signature | str
            A task, a signature or canvas, or the name of a task.
        args, kwargs
            Arguments of the task.
        **options
            Options of ``apply_async``, such as ``countdown``.
        """
        binding = await self._bound()
        send = _sender(self._delayq.app, task, args, kwargs, options)
        if binding.publisher is None or _needs_thread(self._delayq.app, task):
            return await binding.in_thread(send)
        return await binding.run(partial(send, producer=binding.publisher.producer))

    get = on_loop(DelayQ.get)
    find = on_loop(DelayQ.find)
    cancel = on_loop(DelayQ.cancel)


def _sender(app: Celery, task: Any, args: Any, kwargs: Any, options: Any) -> partial[Any]:
    if isinstance(task, str):
        return partial(app.send_task, task, args, kwargs, **options)
    return partial(task.apply_async, args, kwargs, **options)


def _needs_thread(app: Celery, task: Any) -> bool:
    """Whether sending asks more than Redis: a canvas stores what joins its parts in the result
    backend, and an eager task runs at once.
    """
    if app.conf.task_always_eager:
        return True
    return isinstance(task, Signature) and type(task) is not Signature
