"""The Celery worker of this process: questions of the transport, and changes to the worker."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, wraps
from queue import Empty, SimpleQueue
from typing import Any
from weakref import ReferenceType, ref

from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.app import trace
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker import state
from kombu.asynchronous.hub import Hub

from celery_delayq.errors import CommandRefused, NotAllowed, StoreFull
from celery_delayq.integration import not_run
from celery_delayq.model.envelope import own_of
from celery_delayq.model.payload import TaskMessage, request_of
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS

logger = logging.getLogger(__name__)

#: Whether an acknowledgement from another thread wakes Celery's event loop: kombu 5.6 and newer.
KOMBU_WAKES_LOOP = hasattr(Hub, "_create_waker")
#: Whether a lost connection makes Celery forget the requests that it drops: 5.7 and newer. Older
#: ones seek them by a wrong key: each stays, with its message, for as long as the worker lives.
CELERY_FORGETS_REQUESTS = hasattr(state, "scheduled_requests")

#: Errors of ours for a call that Redis refuses, and seconds until a worker tries it again.
REFUSAL_ERRORS = (CommandRefused, StoreFull, NotAllowed)
REFUSAL_RETRY_SECONDS = 1.0

_controller: ReferenceType[Any] | None = None


def remember(controller: Any) -> None:
    """Take note of the worker of this process."""
    global _controller
    _controller = ref(controller)


def objects() -> dict[str, Any]:
    """Return the changed objects of this process' worker by name; None for missing ones."""
    controller = _worker()
    pool = getattr(controller, "pool", None)
    return {
        "worker": controller,
        "pool": pool,
        "hub": getattr(controller, "hub", None),
        "processes": getattr(pool, "_pool", None),
    }


def noting_failure(controller: Any, stop: Callable[..., Any]) -> Callable[..., None]:
    """Have a worker that stops note whether an unhandled error is the cause."""

    def stop_and_note(*args: Any, **kwargs: Any) -> None:
        # Celery calls this while it handles what has ended its loop.
        exc = sys.exc_info()[1]
        controller.delayq_failed = isinstance(exc, Exception) and not isinstance(exc, OUTAGE_ERRORS)
        stop(*args, **kwargs)

    return stop_and_note


def _worker() -> Any:
    """Return the worker of this process, or None."""
    return _controller() if _controller else None


def is_here() -> bool:
    """Return whether this process is a worker."""
    return _worker() is not None


def failed() -> bool:
    """Return whether the worker ends by an error other than a lost connection, which one of its
    messages may have caused.
    """
    return getattr(_worker(), "delayq_failed", False)


def waking(_owner: type, call_soon: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``call_soon``: wake the event loop."""

    def call_soon_and_wake(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        result = call_soon(consumer, *args, **kwargs)
        cycle: Any = getattr(getattr(consumer.connection, "transport", None), "cycle", None)
        wakeup = getattr(cycle, "wakeup", None)  # only our poller has one
        if wakeup is not None:
            wakeup.give()
        return result

    return call_soon_and_wake


def looking_up_tracer(_owner: Any, _stock: Callable[..., Any]) -> Callable[..., Any]:
    """Have a consumer build the tracers of tasks by the function that there is at that moment."""

    def build_tracer(*args: Any, **kwargs: Any) -> Any:
        return trace.build_tracer(*args, **kwargs)

    return build_tracer


def outliving_refusals(_owner: type, start: Callable[..., Any]) -> Callable[..., None]:
    """Wrap ``start``: what Redis refuses is waited for as a lost connection is."""

    def start_and_wait(consumer: Any, *args: Any) -> None:
        if consumer.conninfo.transport.driver_type == "redis":
            consumer.connection_errors += REFUSAL_ERRORS + consumer.channel_errors
        start(consumer, *args)

    return start_and_wait


def pausing_when_refused(_owner: type, connect: Callable[..., Any]) -> Callable[..., None]:
    """Wrap what a worker does when it has lost its connection: not in a hurry after a refusal."""

    def connect_and_pause(consumer: Any, exc: Exception) -> None:
        connect(consumer, exc)
        if isinstance(exc, REFUSAL_ERRORS + consumer.channel_errors):
            logger.error(
                "the broker refused a call, next try in %g s: %s", REFUSAL_RETRY_SECONDS, exc
            )
            time.sleep(REFUSAL_RETRY_SECONDS)

    return connect_and_pause


def in_its_loop(_owner: type, method: Callable[..., Any]) -> Callable[..., None]:
    """Have a worker's event loop call a method, whichever thread asks for it."""

    def call_soon(consumer: Any, *args: Any) -> None:
        consumer.call_soon(method, consumer, *args)

    return call_soon


def restore_eta(task: Any, **_: Any) -> None:
    """Set attributes of the running task's request that Celery does not set.

    ``self.request.eta`` is the original ETA in ISO 8601: the message came without one, since a
    worker keeps a message with an ETA in its memory. ``self.request.deliveries`` counts deliveries,
    this one included; ``self.request.started`` is when it began, in seconds since 1970.
    """
    request = task.request
    own = own_of(request.get("properties"))
    if request.eta is None:
        request.eta = own.get("eta")
    request.deliveries = own.get("deliveries", 1)
    request.started = time.time()


def is_thread_pool(pool: Any) -> bool:
    """Return whether tasks run in threads or greenlets of the worker's own process."""
    return not isinstance(pool, PreforkPool)


def surviving(_pool: Any, on_apply: Callable[..., Any]) -> Callable[..., Any]:
    """Have a pool report a task as failed when Celery fails to trace it, as when it cannot store
    the result.

    A prefork pool reports that itself. In the others the message would be held, and keep its place
    in the worker, for as long as the worker lives.
    """

    @cache  # Celery has two
    def guarded(target: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(target)
        def traced(*args: Any, **kwargs: Any) -> Any:
            try:
                return target(*args, **kwargs)
            except (Exception, WorkerShutdown, WorkerTerminate):
                logger.exception("Celery could not report how a task ended: it counts as failed")
                return 1, ExceptionInfo(), 0.0  # as Celery's trace reports a failure

        return traced

    def apply(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return on_apply(guarded(target), *args, **kwargs)

    return apply


def is_prefork(pool: Any) -> bool:
    """Return whether a pool writes to its children by an event loop."""
    return hasattr(getattr(pool, "_pool", None), "_busy_workers")


def keeping_begun(pool: Any, flush: Callable[[], Any]) -> Callable[[], None]:
    """Let a lost connection drop only those tasks of a prefork worker that no child has.

    Celery drops tasks that it does not know to run: they are redelivered. But a child may have
    started one and not reported it yet, which would then run twice. Celery before 5.6 also drops
    running tasks.

    Where children end after some tasks, nothing is kept: one that is about to end reads no more,
    its successor has its descriptors, and the task would wait for ever and keep a place in the
    pool.
    """
    processes = pool._pool
    children_end = processes._maxtasksperchild or processes._max_memory_per_child

    def flush_and_keep() -> None:
        jobs = list(processes._cache.values())
        flush()
        for job in jobs:
            child = job._write_to  # None until writing has begun; a flush ends what has begun
            if child is None:
                job.discard()  # Celery 5.5 leaves some that it will never write
            elif not children_end and child._is_alive() and not (job.ready() or job._cancelled):
                processes._cache[job._job] = job
                processes._busy_workers.add(child.inqW_fd)
        if not CELERY_FORGETS_REQUESTS:
            for id, each in tuple(state.requests.items()):
                if each not in state.active_requests:
                    del state.requests[id]

    return flush_and_keep


def not_waiting(hub: Any, fire_timers: Callable[..., float]) -> Callable[..., float]:
    """Have an event loop wait for nothing while it has something to do.

    ``Hub.create_loop`` waits for its next timer, up to ten seconds, also when what it has just run
    has asked for more: an acknowledgement without which RabbitMQ sends nothing.
    """

    def timeout(*args: Any, **kwargs: Any) -> float:
        seconds = fire_timers(*args, **kwargs)
        return 0 if hub._ready else seconds

    return timeout


def reads_results(_owner: Any) -> bool:
    """Return whether the event loop reads the results of the pool's children."""
    return hasattr(objects()["processes"], "_fileno_to_outq")


def watching_living(_processes: Any, watch: Callable[..., None]) -> Callable[..., None]:
    """Have a prefork worker that connects again watch no child that has ended.

    A child's pipe ends a moment before the child does. In between Celery has closed its descriptor
    but still lists the child; watching it again would end the worker.
    """

    def watch_living(child: Any, hub: Hub) -> None:
        if getattr(child, "_sentinel_poll", 0) is not None:
            watch(child, hub)

    return watch_living


def has_queue(pool: Any) -> bool:
    """Return whether tasks wait for a thread of a pool."""
    return getattr(getattr(pool, "executor", None), "_work_queue", None) is not None


def dropping_waiting(pool: Any, _flush: Callable[..., Any]) -> Callable[[], None]:
    """Let a lost connection drop the tasks that no thread of a pool has begun.

    Celery drops them only in a prefork pool. In other pools they would run although their messages
    go back, or run elsewhere after the lease has ended.
    """
    waiting: SimpleQueue[Any] = pool.executor._work_queue

    def flush() -> None:
        # As `ThreadPoolExecutor.shutdown` cancels waiting items.
        with suppress(Empty):
            while True:
                item = waiting.get_nowait()
                if item is None:  # makes the threads end
                    waiting.put(None)
                    return
                item.future.cancel()

    return flush


def waiting_for_threads(pool: Any, _on_terminate: Callable[..., Any]) -> Callable[[], None]:
    """Have a cold shutdown wait for the threads of a pool, before the messages go back.

    Nobody can end a thread, and Python waits for it: a message that goes back before runs twice.
    """

    def on_terminate() -> None:
        pool.flush()
        pool.on_stop()

    return on_terminate


def consumes_tasks(channel: Any) -> bool:
    """Return whether the tasks of a worker come through *channel*."""
    controller = _worker()
    consumer = getattr(getattr(controller, "consumer", None), "task_consumer", None)
    return consumer is not None and consumer.channel is channel


def report_not_run(message: dict[str, Any], reason: str, *, may_be_replayed: bool) -> None:
    """Report a task that this process' worker has taken and that does not run."""
    controller = _worker()
    task = not_run.NotRun(request_of(TaskMessage(message)), reason)
    dispatcher = controller.consumer.event_dispatcher
    not_run.note_revoked(
        controller.app, [task], dispatcher=dispatcher, may_be_replayed=may_be_replayed
    )


def call_soon(method: Callable[..., object], *args: Any) -> None:
    """Have the event loop of this process' worker call a method; without a worker do nothing."""
    consumer = getattr(_worker(), "consumer", None)
    if consumer is not None:
        consumer.call_soon(method, *args)


def call_later(seconds: float, method: Callable[..., object], *args: Any) -> None:
    """Have the event loop call a method in so many seconds; as :func:`call_soon`."""
    consumer = getattr(_worker(), "consumer", None)
    if consumer is not None:
        consumer.timer.call_after(seconds, consumer.call_soon, (method, *args))


def backlog() -> int:
    """Return how many tasks wait in the worker for each process of its pool that may take one."""
    controller = _worker()
    if controller is None or controller.pool is None:
        return 0
    if not (KOMBU_WAKES_LOOP or getattr(controller.pool, "uses_semaphore", False)):
        return 0  # nothing would tell when there is none any more
    # What a lost connection made Celery forget may be active, and not reserved.
    waiting = max(0, len(state.reserved_requests) - len(state.active_requests))
    return waiting // max(1, int(controller.pool.num_processes))


def lost_connection(channel: Any) -> bool:
    """Return whether a worker closes *channel* only to connect again, while its tasks run on."""
    return consumes_tasks(channel) and _worker().blueprint.state == bootsteps.RUN


_stops: list[Callable[[], object]] = []


def begin_background(sender: Any, **_: Any) -> None:
    """Start the background services of a worker."""
    for begin in getattr(getattr(sender.app, "_delayq", None), "_background", ()):
        stop = begin(sender.app)
        if stop is not None:
            _stops.append(stop)


def end_background(**_: Any) -> None:
    """Stop them."""
    while _stops:
        _stops.pop()()
