"""The client for asyncio: the methods of ``DelayQ`` as async methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery, Signature

from celery_delayq.aio.binding import Binding
from celery_delayq.aio.calls import in_thread, iterated, on_loop
from celery_delayq.aio.feed import feed_of
from celery_delayq.aio.limits import AsyncTaskLimits
from celery_delayq.aio.periodic import AsyncPeriodicTasks
from celery_delayq.app import DelayQ
from celery_delayq.deadletters.client import DeadLetters
from celery_delayq.errors import ConfigError, InvalidOption
from celery_delayq.schedule.items import Item, ItemOutcome, ManyReport
from celery_delayq.schedule.schedule_many import SEND_BATCH
from celery_delayq.utils.bridge import read_error
from celery_delayq.utils.delegation import delegate, method_of

if TYPE_CHECKING:
    from celery.result import AsyncResult


class AsyncDelayQ:
    """Delayed tasks of one Celery app, for the coroutines of one event loop.

    The methods are those of :class:`~celery_delayq.DelayQ` as async methods, with the same
    arguments, results and errors. Methods that return iterators return async iterators. The client
    connects with the first call, by :meth:`connect`, or in ``async with``.

    Parameters
    ----------
    delayq : DelayQ | Celery
        The extension object, or the app.
    connections : int
        Number of connections to Redis. Calls share the connections.

    Raises
    ------
    ConfigError
        *connections* is less than 1. All methods raise it if another loop, which is not closed,
        uses this object, or if greenlet is not installed.

    Examples
    --------
    >>> async with AsyncDelayQ(delayq) as client:                          # doctest: +SKIP
    ...     sent = await client.apply_async(remind, (7,), countdown=3600)
    ...     await client.cancel(sent.id)
    """

    def __init__(self, delayq: DelayQ | Celery, *, connections: int = 2) -> None:
        if connections < 1:
            raise ConfigError(f"connections={connections!r}: expected a number from 1")
        self._delayq = DelayQ.of(delayq) if isinstance(delayq, Celery) else delayq
        self._connections = connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._binding: Binding | None = None
        self._opening: asyncio.Task[Binding] | None = None

    def __repr__(self) -> str:
        return f"<AsyncDelayQ of {self._delayq!r}>"

    async def connect(self) -> None:
        """Connect now instead of with the first call."""
        await self._bound()

    async def close(self) -> None:
        """Close the connections; calls that wait for a reply get ``BrokerUnavailable``.

        The client may be used again, also on another loop: it connects again.
        """
        self._check_loop()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        self._forget()

    async def __aenter__(self) -> AsyncDelayQ:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def app(self) -> Celery:
        """The Celery app."""
        return self._delayq.app

    @property
    def periodic(self) -> AsyncPeriodicTasks:
        """The periodic entries."""
        return AsyncPeriodicTasks(self)

    @property
    def limits(self) -> AsyncTaskLimits:
        """The limits of tasks."""
        return AsyncTaskLimits(self)

    # -- sending

    async def apply_async(
        self,
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Send a task, as ``apply_async`` of the task does.

        The message is made on the loop. A canvas is sent in a thread, and so is each task on
        RabbitMQ.

        Parameters
        ----------
        task : Task | Signature | str
            A task, a signature or canvas, or the name of a task.
        args, kwargs : Sequence | None, Mapping | None
            Arguments of the task.
        **options
            Options of ``apply_async``, such as ``countdown``, ``eta`` and ``queue``.

        Raises
        ------
        InvalidOption
            *task* is no task, signature or name of a task, or an option is invalid.
        QueueFull, StoreFull, UniqueConflict
            Nothing was stored.
        BrokerUnavailable
            Redis did not answer within the retries of ``task_publish_retry_policy``.

        Notes
        -----
        A cancelled call has stored the task once or not at all.
        """
        if not isinstance(task, str) and not hasattr(task, "apply_async"):
            raise InvalidOption(f"task={task!r}: expected a task, a signature or a task's name")
        binding = await self._bound()
        publisher = None if _needs_thread(self.app, task) else binding.publisher
        if publisher is not None:
            options.setdefault("producer", publisher.producer)
        if isinstance(task, str):
            send = partial(self.app.send_task, task, args, kwargs, **options)
        else:
            send = partial(task.apply_async, args, kwargs, **options)
        run = binding.bridge.in_thread if publisher is None else binding.bridge.run
        return await run(send)

    async def schedule_many(
        self,
        /,
        items: Iterable[Any] | AsyncIterable[Item | Mapping[str, Any] | Signature],
        *,
        task: Any = None,
        on_outcome: Callable[[ItemOutcome], None] | None = None,
        signals: bool = True,
        batch: int = SEND_BATCH,
        **options: Any,
    ) -> ManyReport:
        """Schedule very many tasks: ``DelayQ.schedule_many`` in a thread.

        Parameters
        ----------
        items : Iterable | AsyncIterable
            Calls. An async iterator runs on the loop, an iterator in the thread.
        on_outcome : Callable[[ItemOutcome], None] | None
            Called in the thread.
        task, signals, batch, **options
            As for ``DelayQ.schedule_many``.

        Notes
        -----
        When the caller is cancelled, the call ends before the next item. The current batch is still
        sent.
        """
        binding = await self._bound()
        async with binding.feeding:
            feed = feed_of(items)
            try:
                return await self._schedule_many(
                    feed, task=task, on_outcome=on_outcome, signals=signals, batch=batch, **options
                )
            finally:
                feed.stop()

    _schedule_many = in_thread(DelayQ.schedule_many)

    # -- results

    async def result(self, id: Any, timeout: float | None = None) -> Any:
        """Wait for a task's result and return it, or raise the task's error.

        With Redis as the result backend the client waits for a notification, without a thread. It
        polls other backends twice a second, in a thread.

        Parameters
        ----------
        id : str | AsyncResult | GroupResult
            The id of a task, or the result of ``apply_async``. A group returns a list.
        timeout : float | None
            Seconds to wait at most; None: no limit.

        Raises
        ------
        celery.exceptions.TimeoutError
            The result was not available in time.
        InvalidFilter, InvalidOption
            *id* is no id, or *timeout* no number of seconds.
        ConfigError
            The app has no result backend.
        NotSupported
            The result backend is ``rpc://``.
        """
        binding = await self._bound()
        return await binding.results.get(id, timeout)

    # -- methods about one task run on the loop

    get = on_loop(DelayQ.get)
    find = on_loop(DelayQ.find)
    cancel = on_loop(DelayQ.cancel)
    reschedule = on_loop(DelayQ.reschedule)
    run_now = on_loop(DelayQ.run_now)
    update = on_loop(DelayQ.update)
    pause = on_loop(DelayQ.pause)
    resume = on_loop(DelayQ.resume)
    paused = on_loop(DelayQ.paused)
    dead_letter = on_loop(DelayQ.dead_letter)
    replay = on_loop(DelayQ.replay)
    purge = on_loop(DelayQ.purge)

    # -- methods that read or change many tasks run in a thread

    list = in_thread(DelayQ.list)
    count = in_thread(DelayQ.count)
    cancel_ids = in_thread(DelayQ.cancel_ids)
    cancel_all = in_thread(DelayQ.cancel_all)
    cancel_canvas = in_thread(DelayQ.cancel_canvas)
    reschedule_all = in_thread(DelayQ.reschedule_all)
    run_all_now = in_thread(DelayQ.run_all_now)
    list_dead = in_thread(DelayQ.list_dead)
    count_dead = in_thread(DelayQ.count_dead)
    replay_all = in_thread(DelayQ.replay_all)
    purge_all = in_thread(DelayQ.purge_all)
    compat = in_thread(DelayQ.compat)
    rename = in_thread(DelayQ.rename)
    rewrite = in_thread(DelayQ.rewrite)
    stats = in_thread(DelayQ.stats)
    why = in_thread(DelayQ.why)
    export_to = in_thread(DelayQ.export_to)
    import_from = in_thread(DelayQ.import_from)
    archive_dead = in_thread(DelayQ.archive_dead)
    export_dead = in_thread(DelayQ.export_dead)
    import_dead = in_thread(DelayQ.import_dead)

    entries = iterated(DelayQ.entries)
    history = iterated(DelayQ.history)
    dead_letters = iterated(method_of("dead_letters", DeadLetters.__call__))

    # -- methods without I/O are not async

    context = delegate("_delayq", DelayQ.context)
    current_context = delegate("_delayq", DelayQ.current_context)
    add_context_provider = delegate("_delayq", DelayQ.add_context_provider)

    # -- the loop

    async def _bound(self) -> Binding:
        """Return the binding to the running loop; connect if there is none."""
        if self._binding is not None and self._loop is asyncio.get_running_loop():
            return self._binding
        self._check_loop()
        if self._opening is None:
            self._loop = asyncio.get_running_loop()
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(read_error)
        # Other callers may wait for it, so a cancelled caller does not cancel it.
        return await asyncio.shield(self._opening)

    async def _open(self) -> Binding:
        binding = Binding(self._delayq, self._connections)
        try:
            await binding.open()
        except BaseException:
            self._forget()
            binding.close()
            raise
        self._binding, self._opening = binding, None
        return binding

    def _check_loop(self) -> None:
        """Forget a closed loop; raise ConfigError for another loop that is not closed."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return
        if not self._loop.is_closed():
            raise ConfigError(
                f"{self!r} belongs to another event loop that still exists; make a client for each "
                "loop, or close this one on its loop first"
            )
        self._forget()

    def _forget(self) -> None:
        binding, self._binding, self._opening, self._loop = self._binding, None, None, None
        if binding is not None:
            binding.close()


def _needs_thread(app: Celery, task: Any) -> bool:
    """Whether sending a task does more than calls to Redis.

    A canvas stores the joins of its parts in the result backend. An eager task runs at once. The
    event ``task-sent`` is sent while the event dispatcher holds a lock.
    """
    conf = app.conf
    is_canvas = isinstance(task, Signature) and type(task) is not Signature
    return is_canvas or conf.task_always_eager or conf.task_send_sent_event
