"""The Celery worker of this process: queries for the transport, and changes to the worker."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any
from weakref import ReferenceType, ref

from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.app import trace
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.worker import state
from kombu.asynchronous.hub import Hub

from celery_delayq.errors import (
    CommandRefused,
    ConfigError,
    EarlierLayout,
    NotAllowed,
    StoreFull,
    UnsupportedServer,
)
from celery_delayq.integration import interrupts, not_run
from celery_delayq.model.envelope import own_of
from celery_delayq.model.limits.of_app import LimitedTask, limits_of
from celery_delayq.model.names import renames_of
from celery_delayq.model.payload import TaskMessage, request_of
from celery_delayq.store.scripting.errors import OUTAGE_ERRORS

logger = logging.getLogger(__name__)

#: Whether an acknowledgement from another thread wakes Celery's event loop (from kombu 5.6).
KOMBU_WAKES_LOOP = hasattr(Hub, "_create_waker")

#: Our errors for a call that Redis refuses.
REFUSAL_ERRORS = (CommandRefused, StoreFull, NotAllowed)
#: Our errors for a broker or settings with which no worker can run.
FINAL_ERRORS = (ConfigError, EarlierLayout, NotAllowed, UnsupportedServer)
#: Seconds until a worker repeats a refused call.
REFUSAL_RETRY_SECONDS = 1.0

_controller: ReferenceType[Any] | None = None


def remember(controller: Any) -> None:
    """Remember the worker of this process."""
    global _controller
    _controller = ref(controller)


def forget() -> None:
    """Forget the worker: it has stopped, and this process continues."""
    global _controller
    _controller = None


def changed_objects() -> dict[str, Any]:
    """Return the changed objects of this process' worker by name; None for missing objects."""
    controller = _worker()
    pool = getattr(controller, "pool", None)
    return {
        "worker": controller,
        "pool": pool,
        "hub": getattr(controller, "hub", None),
        "processes": getattr(pool, "_pool", None),
    }


def note_cause_of_stop(controller: Any, stop: Callable[..., Any]) -> Callable[..., None]:
    """Have a stopping worker record whether an unhandled error is the cause."""

    def stop_and_note(*args: Any, **kwargs: Any) -> None:
        # Celery calls `stop` while it handles the exception that ended its loop.
        exc = sys.exc_info()[1]
        if isinstance(exc, SystemExit):
            exc = exc.__cause__
        controller.delayq_failed = isinstance(exc, Exception) and not isinstance(exc, OUTAGE_ERRORS)
        stop(*args, **kwargs)

    return stop_and_note


def shut_down_always(handler: Callable[..., None]) -> Callable[..., None]:
    """Have a cold shutdown follow also if its handler fails, as Celery 5.7 does.

    It fails where the pool cannot end the tasks that it runs.
    """

    @wraps(handler)
    def shut_down(*args: Any) -> None:
        try:
            handler(*args)
        finally:
            if state.should_terminate is None:
                state.should_terminate = EX_FAILURE

    return shut_down


def postpone_cold_shutdowns(_owner: type, set_handler: Callable[..., None]) -> Callable[..., None]:
    """Have the handlers of a cold shutdown wait for the end of a call of RabbitMQ."""

    def set_postponed(signals: Any, name: str, handler: Any) -> None:
        if getattr(handler, "__name__", "") == "worker_Cold":
            handler = interrupts.postpone_in_blocks(shut_down_always(handler))
        set_handler(signals, name, handler)

    return set_postponed


def _worker() -> Any:
    """Return the worker of this process, or None."""
    return _controller() if _controller else None


def is_here() -> bool:
    """Return whether this process is a worker."""
    return _worker() is not None


def is_running() -> bool:
    """Return whether this process is a worker that has not ended."""
    blueprint = getattr(_worker(), "blueprint", None)  # a worker that starts has none yet
    return is_here() and getattr(blueprint, "state", None) != bootsteps.TERMINATE


def slots() -> int:
    """Return how many tasks this process can run at a time; 1 if it is no worker.

    A pool that grows with its tasks (``--autoscale``) counts with its largest size: without more
    tasks than processes it would not grow.
    """
    controller = _worker()
    pool = getattr(controller, "pool", None)
    if pool is None:
        return 1
    most = getattr(getattr(controller, "autoscaler", None), "max_concurrency", None)
    return max(_pool_size(pool), most or 0)


def _pool_size(pool: Any) -> int:
    """Return how many tasks a pool runs at a time."""
    if getattr(pool, "is_green", False):
        # Before Celery 5.7, the processes of a gevent pool are the greenlets that run; and `grow`
        # leaves its limit as it was.
        size = getattr(pool._pool, "size", pool.limit)
    else:
        size = pool.num_processes
    return max(1, int(size))


def begun() -> int:
    """Return how many tasks this process' worker has received and not ended; 0 without a worker."""
    if _worker() is None:
        return 0
    # After a lost connection a task may be active although Celery no longer lists it as reserved.
    return max(len(state.reserved_requests), len(state.active_requests))


def ends_by_error() -> bool:
    """Return whether the worker ends by an error other than a lost connection.

    One of its messages may be the cause.
    """
    return getattr(_worker(), "delayq_failed", False)


def wake_loop(_owner: type, call_soon: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``call_soon``: wake the event loop."""

    def call_soon_and_wake(consumer: Any, *args: Any, **kwargs: Any) -> Any:
        result = call_soon(consumer, *args, **kwargs)
        cycle: Any = getattr(getattr(consumer.connection, "transport", None), "cycle", None)
        wakeup = getattr(cycle, "wakeup", None)  # only our poller has one
        if wakeup is not None:
            wakeup.set()
        return result

    return call_soon_and_wake


def look_up_tracer(_owner: Any, _stock: Callable[..., Any]) -> Callable[..., Any]:
    """Have a consumer look up ``build_tracer`` at each call, so that replacements take effect."""

    def build_tracer(*args: Any, **kwargs: Any) -> Any:
        return trace.build_tracer(*args, **kwargs)

    return build_tracer


def classify_refusals(_owner: type, start: Callable[..., Any]) -> Callable[..., None]:
    """Wrap ``start``: the worker handles a refusal by Redis like a lost connection. A broker or
    settings with which it cannot run end it with one line in the log, without a traceback.
    """

    def start_with_refusals(consumer: Any, *args: Any) -> None:
        if consumer.conninfo.transport.driver_type == "redis":
            consumer.connection_errors += REFUSAL_ERRORS + consumer.channel_errors
        try:
            start(consumer, *args)
        except FINAL_ERRORS as exc:
            logger.critical("the worker cannot run: %s", exc)
            raise SystemExit(EX_FAILURE) from exc

    return start_with_refusals


def pause_after_refusal(_owner: type, connect: Callable[..., Any]) -> Callable[..., None]:
    """Wrap the reconnection of a worker: pause after a refusal."""

    def connect_and_pause(consumer: Any, exc: Exception) -> None:
        connect(consumer, exc)
        if isinstance(exc, REFUSAL_ERRORS + consumer.channel_errors):
            logger.error(
                "the broker refused a call, next try in %g s: %s", REFUSAL_RETRY_SECONDS, exc
            )
            time.sleep(REFUSAL_RETRY_SECONDS)

    return connect_and_pause


def call_in_loop(_owner: type, method: Callable[..., Any]) -> Callable[..., None]:
    """Have a worker's event loop call a method, regardless of the calling thread."""

    def call_soon(consumer: Any, *args: Any) -> None:
        consumer.call_soon(method, consumer, *args)

    return call_soon


def set_request_attributes(task: Any, **_: Any) -> None:
    """Set attributes of the running task's request that Celery does not set.

    ``self.request.eta`` is the original ETA in ISO 8601. The message comes without an ETA, because
    a worker keeps a message with an ETA in its memory. ``self.request.deliveries`` is the number of
    deliveries, this one included. ``self.request.started`` is the start in seconds since 1970.
    """
    request = task.request
    own = own_of(request.get("properties"))
    if request.eta is None:
        request.eta = own.get("eta")
    request.deliveries = own.get("deliveries", 1)
    request.started = time.time()


def runs_tasks_in_own_process(pool: Any) -> bool:
    """Return whether tasks run in threads or greenlets of the worker's own process."""
    return not isinstance(pool, PreforkPool)


def report_tracing_errors(_pool: Any, on_apply: Callable[..., Any]) -> Callable[..., Any]:
    """Have a pool report a task as failed when Celery's tracing of the task raises an error.

    An example is a result that cannot be stored. A prefork pool reports such tasks itself. In other
    pools the message would stay leased, and keep its place in the worker, until the worker ends.
    """

    @cache  # Celery has two targets
    def guarded(target: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(target)
        def traced(*args: Any, **kwargs: Any) -> Any:
            try:
                return target(*args, **kwargs)
            except (Exception, WorkerShutdown, WorkerTerminate):
                logger.exception("Celery could not report how a task ended: it counts as failed")
                return 1, ExceptionInfo(), 0.0  # the form in which Celery reports a failure

        return traced

    def apply(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return on_apply(guarded(target), *args, **kwargs)

    return apply


def poll_without_waiting(hub: Any, fire_timers: Callable[..., float]) -> Callable[..., float]:
    """Have an event loop poll without waiting while it has callbacks to run.

    ``Hub.create_loop`` waits for its next timer, up to ten seconds, even if a callback has just
    scheduled another. That callback may be an acknowledgement that RabbitMQ waits for.
    """

    def timeout(*args: Any, **kwargs: Any) -> float:
        seconds = fire_timers(*args, **kwargs)
        return 0 if hub._ready else seconds

    return timeout


def consumes_tasks(channel: Any) -> bool:
    """Return whether the worker receives its tasks through *channel*."""
    controller = _worker()
    consumer = getattr(getattr(controller, "consumer", None), "task_consumer", None)
    return consumer is not None and consumer.channel is channel


def limited_tasks() -> Mapping[str, LimitedTask]:
    """Return the tasks with limits of this process' worker, by name and by former name."""
    app: Any = getattr(_worker(), "app", None)
    if getattr(app, "_delayq", None) is None:
        return {}
    return renames_of(app).with_former_names(limits_of(app).of_tasks(app.tasks))


def limit_definitions() -> dict[str, str]:
    """Return the definitions of the limits of this process' worker, for Redis, by name."""
    app: Any = getattr(_worker(), "app", None)
    if getattr(app, "_delayq", None) is None:
        return {}
    return limits_of(app).definitions(app.tasks)


def report_not_run(message: dict[str, Any], reason: str, *, may_be_replayed: bool) -> None:
    """Report a task that this process' worker has received and does not run."""
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
    """Have the event loop call a method after *seconds*, like :func:`call_soon`."""
    consumer = getattr(_worker(), "consumer", None)
    if consumer is not None:
        consumer.timer.call_after(seconds, consumer.call_soon, (method, *args))


def do_nothing() -> None:
    """Only let the event loop turn."""


def backlog() -> int:
    """Return the number of tasks that wait in the worker, per process of its pool."""
    controller = _worker()
    if controller is None or controller.pool is None:
        return 0
    if not (KOMBU_WAKES_LOOP or getattr(controller.pool, "uses_semaphore", False)):
        return 0  # nothing would wake the loop when the backlog is empty
    # After a lost connection a task may be active although Celery no longer lists it as reserved.
    waiting = max(0, len(state.reserved_requests) - len(state.active_requests))
    return waiting // _pool_size(controller.pool)


def is_reconnecting(channel: Any) -> bool:
    """Return whether a worker closes *channel* only to reconnect, while its tasks continue."""
    return consumes_tasks(channel) and _worker().blueprint.state == bootsteps.RUN


_stops: list[Callable[[], object]] = []


def begin_background(sender: Any, **_: Any) -> None:
    """Start the background services of a worker."""
    for begin in getattr(getattr(sender.app, "_delayq", None), "_background", ()):
        stop = begin(sender.app)
        if stop is not None:
            _stops.append(stop)


def end_background(**_: Any) -> None:
    """Stop the background services of a worker."""
    while _stops:
        _stops.pop()()
