"""Write a task to a free child of a prefork worker at once.

For each task Celery registers the pipe of a child with the poller, and writes only after the
poller reports room. Celery writes the length of a task first, which wakes the child twice.
Benchmark row: ``fast-writes``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from select import PIPE_BUF
from typing import TYPE_CHECKING, Any

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace
from celery_delayq.utils.lazy import LazyName, resolved

if TYPE_CHECKING:
    from celery.concurrency import asynpool
    from kombu.asynchronous.hub import Hub
else:
    asynpool = LazyName("celery.concurrency.asynpool")

logger = logging.getLogger(__name__)


class LenientHub:
    """Forwards to an event loop. To remove a writer that is not registered is no error."""

    consolidate_callback: Callable[[list[int]], None]

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    def remove_writer(self, fd: int) -> None:
        """Remove a writer, if it is registered."""
        if fd in self._hub.writers:
            self._hub.remove_writer(fd)


def join_length_and_body(job: Any) -> None:
    """Have a pool write the length of a task and the task in one write, if that is atomic."""
    length, body, size = job._payload
    if len(length) + size <= PIPE_BUF:
        job._payload = memoryview(b"".join((length, body))), memoryview(b""), 0


def _terminate_child(pool: Any, fd: int) -> None:
    """End a child whose pipe is broken; Celery gives its task to another one."""
    pool._active_writes.discard(fd)
    child = pool._fileno_to_inq.get(fd)
    if child is not None and child._is_alive():
        child.terminate()


def write_at_once(_owner: type, create: Callable[..., None]) -> Callable[..., None]:
    """Have a pool write a task to a free child at once.

    If a pipe is full, the rest is written when the poller reports room. With ``-O fair`` (the
    default) a child gets a second task only when every child has one, so a free child has an
    empty pipe.
    """

    fair = resolved(asynpool).SCHED_STRATEGY_FAIR

    def create_write_handlers(pool: Any, hub: Hub, *args: Any, **kwargs: Any) -> None:
        loop = LenientHub(hub)
        create(pool, loop, *args, **kwargs)
        # Celery stores the function that writes to children as the loop's `consolidate_callback`.
        write = loop.consolidate_callback
        hub.consolidate_callback = write
        if pool.sched_strategy != fair:
            return
        busy, children, waiting = pool._busy_workers, pool._all_inqueues, pool.outbound_buffer

        put = pool._quick_put

        def write_to_free() -> None:
            if not waiting or len(busy) >= len(children):
                return
            for fd in [fd for fd in children if fd not in busy]:
                if not waiting:
                    break
                try:
                    write([fd])
                except Exception:
                    logger.exception("A task cannot be written to a child, which is replaced")
                    _terminate_child(pool, fd)

        def put_and_write(job: tuple[Any, ...]) -> None:
            put(job)
            join_length_and_body(waiting[-1])
            write_to_free()

        pool._quick_put = put_and_write
        # For tasks that wait until a child starts or ends.
        pool.on_poll_start = write_to_free

    return create_write_handlers


GROUP = Group(
    name="writes",
    worker=(
        Replace(
            target="celery.concurrency.asynpool:AsynPool._create_write_handlers",
            by=write_at_once,
            without="Celery writes a task to a free child only after the poller has reported that "
            "its pipe is writable.",
        ),
    ),
    upstream="celery: in `AsynPool._create_write_handlers` have `_put_back` and `_quick_put` call "
    "`schedule_writes` for a child that is not busy, and join length and body of a job that is "
    "shorter than `PIPE_BUF`.",
)
