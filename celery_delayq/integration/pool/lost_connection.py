"""Which tasks stay in a pool after a lost connection or a cold shutdown. No task runs twice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from celery.worker import state
from kombu.asynchronous.hub import Hub

from celery_delayq.integration import worker

#: Whether Celery forgets the requests that it drops after a lost connection (from 5.7). Older
#: releases look them up by a wrong key: each request and its message stay until the worker ends.
CELERY_FORGETS_REQUESTS = hasattr(state, "scheduled_requests")


def has_async_children(pool: Any) -> bool:
    """Return whether a pool writes to its children from an event loop."""
    return hasattr(getattr(pool, "_pool", None), "_busy_workers")


def keep_begun_tasks(pool: Any, flush: Callable[[], Any]) -> Callable[[], None]:
    """After a lost connection, have a prefork worker drop only tasks that no child has.

    Celery drops each task whose start it does not know, and the task is redelivered. A child may
    have started a task without having reported it yet: that task would run twice. Celery before
    5.6 also drops running tasks.

    With ``worker_max_tasks_per_child`` or ``worker_max_memory_per_child`` no task is kept. A child
    that is about to end does not read its pipe any more. The job would stay bound to that pipe,
    wait for ever and keep a place in the pool.
    """
    processes = pool._pool
    children_end = processes._maxtasksperchild or processes._max_memory_per_child

    def flush_and_keep() -> None:
        jobs = list(processes._cache.values())
        flush()
        for job in jobs:
            child = job._write_to  # None until writing begins; a flush ends writes in progress
            if child is None:
                job.discard()  # Celery 5.5 keeps some jobs that it never writes
            elif not children_end and child._is_alive() and not (job.ready() or job._cancelled):
                processes._cache[job._job] = job
                processes._busy_workers.add(child.inqW_fd)
        if not CELERY_FORGETS_REQUESTS:
            for id, each in tuple(state.requests.items()):
                if each not in state.active_requests:
                    del state.requests[id]

    return flush_and_keep


def reads_results(_owner: Any) -> bool:
    """Return whether the event loop reads the results of the pool's children."""
    return hasattr(worker.changed_objects()["processes"], "_fileno_to_outq")


def watch_living_children(_processes: Any, watch: Callable[..., None]) -> Callable[..., None]:
    """Have a prefork worker that reconnects ignore children that have ended.

    The pipe of a child closes a moment before the child ends. In between Celery has closed the
    descriptor but still lists the child. Watching that child again would end the worker.
    """

    def watch_living(child: Any, hub: Hub) -> None:
        if getattr(child, "_sentinel_poll", 0) is not None:
            watch(child, hub)

    return watch_living


def has_queue(pool: Any) -> bool:
    """Return whether a pool has a queue of tasks that wait for a thread."""
    return getattr(getattr(pool, "executor", None), "_work_queue", None) is not None


def drop_waiting_tasks(pool: Any, _flush: Callable[..., Any]) -> Callable[[], None]:
    """After a lost connection, drop the tasks that no thread of a pool has begun.

    Celery drops them only in a prefork pool. In other pools they would run although their messages
    are requeued, or run elsewhere after the end of the lease.
    """
    waiting: SimpleQueue[Any] = pool.executor._work_queue

    def flush() -> None:
        # The same way as `ThreadPoolExecutor.shutdown` cancels waiting items.
        with suppress(Empty):
            while True:
                item = waiting.get_nowait()
                if item is None:  # tells the threads to end
                    waiting.put(None)
                    return
                item.future.cancel()

    return flush


def wait_for_threads(pool: Any, _on_terminate: Callable[..., Any]) -> Callable[[], None]:
    """Have a cold shutdown wait for the threads of a pool before the messages are requeued.

    A thread cannot be ended, and Python waits for it at exit: a message that is requeued before
    the end of its thread runs twice.
    """

    def on_terminate() -> None:
        pool.flush()
        pool.on_stop()

    return on_terminate
