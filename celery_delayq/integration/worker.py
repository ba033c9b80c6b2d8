"""What the transport has to know of the Celery worker in whose process it is, if there is one."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from inspect import isgenerator
from queue import Empty, SimpleQueue
from typing import Any
from weakref import ReferenceType, ref

from billiard.einfo import ExceptionInfo
from celery import bootsteps, signals
from celery.concurrency.asynpool import ResultHandler
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu.asynchronous.hub import Hub

from celery_delayq.dispatch.acks import LOST
from celery_delayq.integration import remote_control, request
from celery_delayq.model.envelope import own_of
from celery_delayq.transport.poller import Poller

logger = logging.getLogger(__name__)

#: Whether an acknowledgement from another thread wakes Celery's event loop: kombu 5.6 and newer.
LOOP_WAKES = hasattr(Hub, "_create_waker")
#: Whether a lost connection makes Celery forget the requests that it drops: 5.7 and newer. Older
#: ones seek them by a wrong key: each stays, with its message, for as long as the worker lives.
FORGETS_REQUESTS = hasattr(state, "scheduled_requests")

_controller: ReferenceType[Any] | None = None


def _note(sender: Any, **_: Any) -> None:
    global _controller
    _controller = ref(sender)
    own = (sender.app.conf.broker_transport_options or {}).get("delayq")
    history = isinstance(own, Mapping) and bool(own.get("history"))  # it is checked elsewhere
    request.hook(sender.app.tasks, history=history)
    remote_control.install()
    if not hasattr(sender.stop, "notes"):
        sender.stop = _noting(sender)
    if not (LOOP_WAKES or hasattr(Consumer.call_soon, "wakes")):
        Consumer.call_soon = _waking(Consumer.call_soon)
    if not hasattr(ResultHandler._flush_outqueue, "ends"):
        ResultHandler._flush_outqueue = _flush_that_ends(ResultHandler._flush_outqueue)


def _noting(controller: Any) -> Callable[..., None]:
    """Have a worker that stops note whether it does for an error that nothing has handled."""
    stop = controller.stop

    def stop_and_note(*args: Any, **kwargs: Any) -> None:
        # Celery calls this while it handles what has ended its loop.
        exc = sys.exc_info()[1]
        controller.delayq_failed = isinstance(exc, Exception) and not isinstance(exc, LOST)
        stop(*args, **kwargs)

    stop_and_note.notes = True  # type: ignore[attr-defined]
    return stop_and_note


def _worker() -> Any:
    """Return the worker of this process, or None."""
    return _controller() if _controller else None


def _pool() -> Any:
    return getattr(_worker(), "pool", None)


def failed() -> bool:
    """Return whether the worker ends by an error, but for that of a connection: what it holds may
    be the cause.
    """
    return getattr(_worker(), "delayq_failed", False)


def _waking(call_soon: Callable[..., Any]) -> Callable[..., Any]:
    """Have the event loop turn for what is to be called soon."""

    def call_soon_and_wake(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        result = call_soon(consumer, *args, **kwargs)
        cycle: Any = getattr(getattr(consumer.connection, "transport", None), "cycle", None)
        if isinstance(cycle, Poller):
            cycle.bell.ring()
        return result

    call_soon_and_wake.wakes = True  # type: ignore[attr-defined]
    return call_soon_and_wake


def _flush_that_ends(flush: Callable[..., Any]) -> Callable[..., Any]:
    """Let a worker that stops read half a result without waiting for the other half for ever.

    A process that was killed while it sent a result leaves half of it in its pipe. Celery waits for
    the rest in ``ResultHandler._flush_outqueue``, and the worker itself holds the other end of the
    pipe open. When that is closed, Celery reads the end of the file and goes on.
    """

    @wraps(flush)
    def flush_that_ends(handler: Any, fd: int, remove: Any, processes: Any, *args: Any) -> Any:
        process = processes.get(fd)
        if process is not None and not process.outq._writer.closed:
            process.outq._writer.close()
        return flush(handler, fd, remove, processes, *args)

    flush_that_ends.ends = True  # type: ignore[attr-defined]
    return flush_that_ends


signals.worker_init.connect(_note)


def _restore_eta(task: Any, **_: Any) -> None:
    """Let the running task read what its message could not say.

    ``self.request.eta`` is the original ETA in ISO 8601: the message came without one, since a
    worker sets aside every message that has an ETA. ``self.request.deliveries`` is how often the
    message
    was delivered, this time included; ``self.request.started`` is when it began, in seconds since
    1970.
    """
    request = task.request
    own = own_of(request.get("properties"))
    if request.eta is None:
        request.eta = own.get("eta")
    request.deliveries = own.get("deliveries", 1)
    request.started = time.time()


signals.task_prerun.connect(_restore_eta)


def _hear_of_all(**_: Any) -> None:
    """Have a pool tell when Celery cannot tell how a task has ended, as when it fails to store the
    result.

    A prefork pool tells of it as of a failure. In the others nobody would hear of it: the message
    was held, and had its place in the worker, for as long as that lives.
    """
    pool = _pool()
    if pool is not None and not isinstance(pool, PreforkPool) and not hasattr(pool, "delayq"):
        pool.on_apply, pool.delayq = _surviving(pool.on_apply), True


signals.worker_ready.connect(_hear_of_all)


def _tell_of_beat(sender: Any, **_: Any) -> None:
    """Tell that periodic entries wait for beat where there is the URL alone."""
    app = sender.app
    ours = hasattr(getattr(sender.connection, "transport", None), "settings")
    if ours and getattr(app, "_delayq", None) is None and app.conf.beat_schedule:
        logger.warning(
            "beat_schedule has entries (%d): workers fire them only where there is DelayQ(app), "
            "without it that is left to celery beat",
            len(app.conf.beat_schedule),
        )


signals.worker_ready.connect(_tell_of_beat)


def _surviving(on_apply: Callable[..., Any]) -> Callable[..., Any]:
    def apply(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        @wraps(target)
        def traced(*its: Any, **more: Any) -> Any:
            try:
                return target(*its, **more)
            except Exception:
                logger.exception("Celery could not tell how a task has ended: it counts as failed")
                return 1, ExceptionInfo(), 0.0  # as Celery's trace tells of a failure

        return on_apply(traced, *args, **kwargs)

    return apply


def keep_begun() -> None:
    """Let a lost connection drop only those tasks of a prefork worker that no child has.

    Celery drops what is not known to run: it will come again. But a child may have begun with it
    and not told yet, and then it would run twice. Celery before 5.6 also drops what does run.

    Where children end after some tasks, nothing is kept: one that is about to end reads no more,
    its successor has its descriptors, and the task would wait for ever and keep a place in the
    pool.
    """
    pool = _pool()
    processes = getattr(pool, "_pool", None)
    if hasattr(processes, "_busy_workers") and not hasattr(pool.flush, "keeps"):
        pool.flush = _keeping(processes, pool.flush)


def keep_reading() -> None:
    """Let a prefork worker keep half-read results of its children across a lost connection.

    Celery makes its event loop anew and forgets the half-read result. It would read the rest as
    other results, of any length: the worker would never hear of that child again, and never end.
    """
    controller = _worker()
    processes: Any = getattr(_pool(), "_pool", None)
    hub: Any = getattr(controller, "hub", None)
    if hub is None or not hasattr(processes, "_fileno_to_outq") or hasattr(hub.reset, "goes_on"):
        return
    reset, register = hub.reset, processes.register_with_event_loop
    begun: dict[int, tuple[Any, Any]] = {}

    def note_begun() -> None:
        for fd, child in processes._fileno_to_outq.items():
            reader, _ = hub.readers.get(fd) or (None, ())
            if isgenerator(reader) and reader.gi_frame is not None:  # it has not come to its end
                begun[fd] = child, reader

    def reset_and_note() -> None:
        note_begun()
        reset()

    def register_and_go_on(loop: Hub) -> None:
        note_begun()
        register(loop)
        # Not before: while a worker connects, kombu before 5.7 takes all readers for its own.
        for fd, (child, reader) in begun.items():
            if processes._fileno_to_outq.get(fd) is child:  # else it has ended meanwhile
                loop.add_reader(fd, reader)
        begun.clear()

    reset_and_note.goes_on = True  # type: ignore[attr-defined]
    hub.reset = reset_and_note
    processes.register_with_event_loop = register_and_go_on


def watch_living() -> None:
    """Have a prefork worker that connects again watch no child that has ended.

    A child's pipe ends a moment before the child does. In between Celery has closed its descriptor
    but still lists the child; watching it again would end the worker.
    """
    processes: Any = getattr(_pool(), "_pool", None)
    watch = getattr(processes, "_track_child_process", None)
    if watch is None or hasattr(watch, "skips"):
        return

    def watch_others(child: Any, hub: Hub) -> None:
        if getattr(child, "_sentinel_poll", 0) is not None:
            watch(child, hub)

    watch_others.skips = True  # type: ignore[attr-defined]
    processes._track_child_process = watch_others


def drop_waiting() -> None:
    """Let a lost connection drop the tasks that no thread of a pool has begun.

    Celery drops them only in a prefork pool. In other pools they would run although their messages
    go back, or run elsewhere after the lease has ended.
    """
    pool = _pool()
    waiting = getattr(getattr(pool, "executor", None), "_work_queue", None)
    if waiting is not None and not hasattr(pool.flush, "drops"):
        pool.flush = _dropping(waiting)


def _dropping(waiting: SimpleQueue[Any]) -> Callable[[], None]:
    def flush() -> None:
        # As `ThreadPoolExecutor.shutdown` does to cancel what waits.
        with suppress(Empty):
            while True:
                item = waiting.get_nowait()
                if item is None:  # tells the threads to end
                    waiting.put(None)
                    return
                item.future.cancel()

    flush.drops = True  # type: ignore[attr-defined]
    return flush


def _keeping(processes: Any, flush: Callable[[], Any]) -> Callable[[], Any]:
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
        if not FORGETS_REQUESTS:
            for id, each in tuple(state.requests.items()):
                if each not in state.active_requests:
                    del state.requests[id]

    flush_and_keep.keeps = True  # type: ignore[attr-defined]
    return flush_and_keep


def consumes_tasks(channel: Any) -> bool:
    """Return whether the tasks of a worker come through *channel*."""
    controller = _worker()
    consumer = getattr(getattr(controller, "consumer", None), "task_consumer", None)
    return consumer is not None and consumer.channel is channel


def backlog() -> int:
    """Return how many tasks wait in the worker for each process of its pool that may take one."""
    controller = _worker()
    if controller is None or controller.pool is None:
        return 0
    if not (LOOP_WAKES or getattr(controller.pool, "uses_semaphore", False)):
        return 0  # nothing would tell when there is none any more
    # What a lost connection made Celery forget may be active, and not reserved.
    waiting = max(0, len(state.reserved_requests) - len(state.active_requests))
    return waiting // max(1, int(controller.pool.num_processes))


def lost_connection(channel: Any) -> bool:
    """Return whether a worker closes *channel* only to connect again, while its tasks run on."""
    controller = _worker()
    return (
        consumes_tasks(channel)
        and controller is not None
        and controller.blueprint.state == bootsteps.RUN
    )
