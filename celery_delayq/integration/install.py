"""The table of every change to Celery, kombu and logging, and when each change is made.

`TRANSPORT` is made where the package is imported, even without ``DelayQ(app)``. `APP` and
`PROCESS` are made by ``DelayQ(app)``, and `TASK` for each task of the app. The other changes are
made only in workers. :func:`~celery_delayq.integration.replace.undo` undoes any change.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import kombu
from celery import Celery

from celery_delayq.dispatch import start_gate
from celery_delayq.errors import ConfigError, InvalidLimit, InvalidRetry
from celery_delayq.integration import broker_urls, context, fast, former_names, send_task
from celery_delayq.integration.replace import (
    Change,
    Connect,
    Promise,
    Register,
    Replace,
    make,
    mixed_into,
)
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.model.names import renames_of
from celery_delayq.utils import lazy, native_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_delayq.integration import (
        app_warnings,
        beat_guard,
        durable_revoke,
        endings,
        flower,
        liveness,
        pool,
        remote_control,
        retries,
        task_messages,
        worker,
    )
    from celery_delayq.integration.endings import request
    from celery_delayq.integration.pool import lost_connection, results
else:  # a process that only sends tasks needs none of these
    app_warnings = lazy.LazyName("celery_delayq.integration.app_warnings")
    beat_guard = lazy.LazyName("celery_delayq.integration.beat_guard")
    durable_revoke = lazy.LazyName("celery_delayq.integration.durable_revoke")
    endings = lazy.LazyName("celery_delayq.integration.endings")
    flower = lazy.LazyName("celery_delayq.integration.flower")
    liveness = lazy.LazyName("celery_delayq.integration.liveness")
    lost_connection = lazy.LazyName("celery_delayq.integration.pool.lost_connection")
    pool = lazy.LazyName("celery_delayq.integration.pool")
    remote_control = lazy.LazyName("celery_delayq.integration.remote_control")
    request = lazy.LazyName("celery_delayq.integration.endings.request")
    results = lazy.LazyName("celery_delayq.integration.pool.results")
    retries = lazy.LazyName("celery_delayq.integration.retries")
    task_messages = lazy.LazyName("celery_delayq.integration.task_messages")
    worker = lazy.LazyName("celery_delayq.integration.worker")


def change_kombu() -> None:
    """Make kombu know our URLs, and change every worker that starts in this process."""
    make(TRANSPORT)


def install(app: Celery) -> None:
    """Make the changes to *app*; a second call changes nothing."""
    make(PROCESS)
    make(APP, app=app)
    former_names.share_with_registry(app)
    if "flower" in sys.modules:
        flower.add_tab()
    if "amqp" in app.__dict__:
        task_messages.recreate(app)
    if "control" in app.__dict__:
        durable_revoke.recreate(app)
    if app.finalized:
        change_tasks(app)


def change_consumer() -> None:
    """Change the worker of this process, if there is one, before it consumes."""
    make(CONSUMER, **worker.changed_objects())


def change_loop(hub: Any) -> None:
    """Change the event loop of this process' worker."""
    make(LOOP, hub=hub)


# -- receivers that make further changes ----------------------------------------------------------


def _check_settings(instance: Any, **_: Any) -> None:
    """Refuse a worker whose broker URL or ``delayq`` settings are wrong. Nothing is connected."""
    connection = instance.app.connection_for_read()
    try:
        if broker_urls.is_ours(connection):
            _ = connection.transport
    except ConfigError as exc:
        raise SystemExit(f"The worker cannot start: {exc}") from exc


def _change_worker(sender: Any, **_: Any) -> None:
    """Change a starting worker and its tasks. All tasks are known at this point.

    Celery's command line imports this package for its commands, even if the app does not use it.
    """
    app = sender.app
    if getattr(app, "_delayq", None) is None and not broker_urls.is_ours(app.connection_for_read()):
        # A receiver of each task: it works also when the package is uninstalled while this runs.
        lazy.resolved(worker.set_request_attributes)
        return
    # Import all before the pool forks. Later children are forked while threads reconnect to Redis,
    # so their locks are renewed.
    lazy.import_all()
    native_threads.renew_property_locks("celery", "kombu", "celery_delayq")
    worker.remember(sender)
    make(GREENLETS)
    liveness.begin(sender)
    make(worker_changes(), **worker.changed_objects())
    for task in app.tasks.values():
        make(REQUEST, task=task)


def _change_extended_worker(sender: Any, **_: Any) -> None:
    """Make the changes to a starting worker that need ``DelayQ(app)``."""
    make(EXTENDED_WORKER)
    app = sender.app
    remote_control.hide_archive_url(app)
    if getattr(app, "_delayq", None) is None:
        return
    tasks = app.tasks
    try:
        change_tasks(app)
        renames_of(app).check_tasks(tasks)
    except (InvalidRetry, InvalidLimit, ConfigError) as exc:
        # Celery would only log this error.
        raise SystemExit(f"The worker cannot start: {exc}") from exc
    retries.warn_of_unmatched("retry", app._delayq.retries, tasks)
    retries.warn_of_unmatched("limits", limits_of(app).by_pattern, tasks)
    if beat_guard.fires(app):
        start_gate.close()


def change_tasks(sender: Any, **_: Any) -> None:
    """Change the tasks of the app *sender*, which has ``DelayQ(app)``."""
    app_warnings.warn_of_misspelled_tasks(sender._tasks.values())
    try:
        retries.prepare(sender, sender._tasks, sender._delayq.retries)
        limits_of(sender).of_tasks(sender._tasks)  # raises an error for an invalid limit
    finally:  # one invalid policy does not disable the others
        for task in sender._tasks.values():
            make(TASK, task=task)


def change_task_of_eager_run(_owner: Any, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``Task.apply``: change a task whose retry options were not read.

    The app is not finalized yet, or the task was defined later. The app is not finalized here, for
    the reason in :func:`.send_task.register`. Invalid options raise an error in each eager run, as
    they keep a worker from starting.
    """

    def apply_changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        app = self.app
        extension = getattr(app, "_delayq", None)
        if extension is not None:
            task = app._tasks.get(self.name, self)
            if retries.is_unread(task):
                retries.prepare(app, {task.name: task}, extension.retries)
                make(TASK, task=task)
        return apply(self, *args, **kwargs)

    return apply_changed


def _change_pool(**_: Any) -> None:
    make(POOL, **worker.changed_objects())


# -- the table ------------------------------------------------------------------------------------

#: Made when the package is imported.
TRANSPORT = (
    Register(
        target="kombu.transport:TRANSPORT_ALIASES",
        keys=("delayq", *(f"delayq+{scheme}" for scheme in broker_urls.SCHEMES)),
        value="celery_delayq.transport:Transport",
        without="kombu does not know the schemes of our URLs.",
        promise=Promise.URL,
        upstream="kombu: look a scheme up in the entry points `kombu.transports`, as it does for "
        "serializers.",
    ),
    Replace(
        target="kombu.connection:Connection.get_transport_cls",
        by=broker_urls.choose_by_url,
        without="kombu reads only `delayq` of `delayq+amqp://`, so all URLs of ours would get one "
        "transport.",
        promise=Promise.URL,
        upstream="kombu: call `Transport.for_url(url)`, if a transport has it, before it splits "
        "the scheme at `+`.",
    ),
    Replace(
        target="celery.app.base:detect_quorum_queues",
        by=broker_urls.exclude_our_transports,
        without="With a quorum queue Celery delays tasks itself, before it calls the transport.",
        promise=Promise.DUE_TIME,
        upstream="celery: ask `transport.implements.native_delay` before it delays tasks by "
        "itself.",
    ),
    Connect(
        target="signals.celeryd_init",
        receiver=_check_settings,
        without="A wrong setting ends a worker with a traceback.",
        promise=Promise.WARNINGS,
    ),
    Connect(
        target="signals.worker_init",
        receiver=_change_worker,
        without="Nothing makes the changes of WORKER and REQUEST.",
        promise=Promise.OTHER_CHANGES,
    ),
    Connect(
        target="signals.worker_ready",
        receiver=_change_pool,
        without="Nothing makes the changes of POOL: the pool exists only when the worker is ready.",
        promise=Promise.OTHER_CHANGES,
    ),
    Connect(
        target="signals.worker_ready",
        receiver=app_warnings.check_worker,
        without="A worker does not warn of a stock transport, of settings that break at-least-once,"
        " of a missing httpcore, or of options and periodic entries that need `DelayQ(app)`.",
        promise=Promise.WARNINGS,
    ),
    Connect(
        target="signals.task_prerun",
        receiver=worker.set_request_attributes,
        without="Our messages have no ETA, because a worker keeps a message with an ETA in memory. "
        "`request.eta` is empty.",
        promise=Promise.DUE_TIME,
        upstream="celery: have the strategy skip its timer, and keep `request.eta`, where "
        "`message.properties` says that the broker has waited.",
    ),
)

#: Made by ``DelayQ(app)``, for all apps of the process.
PROCESS = (
    *fast.PROCESS,
    Replace(
        target="celery.app.registry:TaskRegistry.__missing__",
        by=former_names.find_by_former_name,
        without="A signature inside a message is sent under the former name of its task, without "
        "the route and the options of the task, and an errback gets the arguments of an unknown "
        "task.",
        promise=Promise.RENAMED_TASKS,
        upstream="celery: let a task have several names in the registry.",
    ),
    Connect(
        target="signals.task_prerun",
        receiver=context.bind_context,
        without="The handler of a task runs without the context of its message.",
        promise=Promise.CONTEXT,
    ),
    context.LOG_RECORDS,
    Replace(
        target="celery.app.task:Task.apply",
        by=change_task_of_eager_run,
        without="A task that runs eagerly before the app is finalized, or was defined later, such "
        "as one of a test, is not retried by its policy, and False is a success despite "
        "`false_is_failure`.",
        promise=Promise.LIMITED_RETRIES,
        upstream="celery: a signal when an app has made a task.",
    ),
    Connect(
        target="signals.task_retry",
        receiver=send_task.note_superseded,
        without="A retry that was dropped for its unique key is not reported.",
        promise=Promise.UNIQUE_KEYS,
    ),
    Connect(
        target="signals.worker_init",
        receiver=_change_extended_worker,
        without="Nothing makes the changes of EXTENDED_WORKER and TASK, and a worker starts with "
        "invalid retry options, limits or former names of tasks.",
        promise=Promise.OTHER_CHANGES,
    ),
    Connect(
        target="signals.worker_ready",
        receiver=worker.begin_background,
        without="No worker fires periodic entries or archives dead letters.",
        promise=Promise.PERIODIC,
    ),
    Connect(
        target="signals.worker_shutdown",
        receiver=worker.end_background,
        without="The threads that fire entries and archive dead letters go on while the worker "
        "stops.",
        promise=Promise.PERIODIC,
    ),
    Connect(
        target="signals.beat_init",
        receiver=beat_guard.begin,
        without="Nobody notices a celery beat that runs beside workers: periodic tasks are sent "
        "twice.",
        promise=Promise.PERIODIC,
    ),
    Connect(
        target="signals.beat_embedded_init",
        receiver=beat_guard.begin,
        without="Nobody notices `celery worker --beat`: periodic tasks are sent twice.",
        promise=Promise.PERIODIC,
    ),
)

#: Made by ``DelayQ(app)``, for this app.
APP = (
    Replace(
        target="app.amqp_cls",
        by=partial(mixed_into, "celery_delayq.integration.task_messages:AMQP"),
        without="Celery ignores our options of a call, and turns a countdown into an ETA by the "
        "clock of the client.",
        promise=Promise.DUE_TIME,
        upstream="celery: hand `countdown` to the transport as a property of the message, beside "
        "the ETA that it makes of it.",
    ),
    Replace(
        target="app.control_cls",
        by=partial(mixed_into, "celery_delayq.integration.durable_revoke:Control"),
        without="A worker that starts after a revoke does not know the revoked id.",
        promise=Promise.REVOKES,
    ),
    Replace(
        target="app.send_task",
        by=send_task.return_kept_result,
        without="A caller waits for the result of a task that was dropped for its unique key, and "
        "`send_task` with a former name of a task does not send the task.",
        promise=Promise.UNIQUE_KEYS,
        upstream="celery: let `Producer.publish` return the id under which a message was stored, "
        "and make the `AsyncResult` of it.",
    ),
    Connect(
        target="app.on_after_finalize",
        receiver=change_tasks,
        without="Nothing makes the changes of TASK.",
        promise=Promise.OTHER_CHANGES,
    ),
    Connect(
        target="app.on_after_configure",
        receiver=remote_control.hide_archive_url,
        without="`celery report` and `inspect conf` show the URL of `dead_letters_archive` with its"
        " password.",
        promise=Promise.SECRETS,
        upstream="celery: have `filter_hidden_settings` look into dictionaries.",
    ),
)

_ReplaceOfTask = partial(
    Replace, condition="task whose retry options are valid", when=retries.attempts_of
)

#: Made when the app knows its tasks, for each task that is not Celery's own.
TASK = (
    _ReplaceOfTask(
        target="task._orig_run",
        by=retries.record_failures,
        condition="task with autoretry_for, whose run calls it",
        without="A result False is a success despite `false_is_failure`, and our policy does not "
        "know the exception that `autoretry_for` retries.",
        promise=Promise.LIMITED_RETRIES,
    ),
    _ReplaceOfTask(
        target="task.run",
        by=retries.retry_failures,
        without="A failed task is not retried by its policy.",
        promise=Promise.LIMITED_RETRIES,
    ),
    _ReplaceOfTask(
        target="task.retry",
        by=retries.apply_policy,
        without="`Task.retry` ignores the intervals, limits and budgets of the policy.",
        promise=Promise.LIMITED_RETRIES,
        upstream="celery: a hook `Task.retry_countdown(exc, retries)` that `autoretry_for` and "
        "`retry` ask for the wait, or for the end of the retries.",
    ),
    _ReplaceOfTask(
        target="task.on_retry",
        by=retries.log_handler_errors,
        without="An error in `on_retry` fails a task whose retry is already sent.",
        promise=Promise.LIMITED_RETRIES,
    ),
    _ReplaceOfTask(
        target="task.on_failure",
        by=retries.log_handler_errors,
        without="An error in `on_failure` keeps a failed task from becoming a dead letter.",
        promise=Promise.DEAD_LETTERS,
    ),
)

#: Made when the first task whose message has a context runs.
CONTEXT = (context.CONTEXT_CHANGE,)

#: Made when a client for asyncio connects.
AIO = (
    Replace(
        target="app.backend.on_task_call",
        by=send_task.skip_subscription,
        without="The result backend subscribes to the result of each task that is sent, which "
        "blocks the event loop.",
        promise=Promise.ASYNCIO,
        upstream="celery: subscribe to a result when it is waited for.",
    ),
)

#: Made when a worker starts, or another process begins to consume.
GREENLETS = (
    Replace(
        target="logging:Logger.callHandlers",
        by=native_threads.defer_log_lines,
        condition="gevent or eventlet",
        when=native_threads.has_green_threads,
        without="A native thread and greenlets that log at the same moment may wait for ever.",
        promise=Promise.NO_HANGING,
    ),
    Replace(
        target="logging:_lock",
        by=native_threads.reentrant_lock,
        condition="gevent or eventlet",
        when=native_threads.has_green_threads,
        without="A native thread and greenlets that ask for the level of a logger at the same "
        "moment may wait for ever.",
        promise=Promise.NO_HANGING,
    ),
    Replace(
        target="threading:_active_limbo_lock",
        by=native_threads.reentrant_lock,
        condition="gevent or eventlet",
        when=native_threads.has_green_threads,
        without="A native thread that logs while a greenlet starts a thread may wait for ever.",
        promise=Promise.NO_HANGING,
    ),
)

#: Made when a worker starts.
WORKER = (
    Replace(
        target="celery.worker.consumer.delayed_delivery:detect_quorum_queues",
        by=broker_urls.exclude_our_transports,
        without="With a quorum queue a worker declares 28 queues for Celery's own delays.",
        promise=Promise.DUE_TIME,
        upstream="celery: as for `celery.app.base:detect_quorum_queues`.",
    ),
    Replace(
        target="worker.stop",
        by=worker.note_cause_of_stop,
        without="A worker that an error ends looks like a stopped worker, so its messages are not "
        "counted as failed deliveries.",
        promise=Promise.LIMITED_DELIVERIES,
        upstream="celery: give `worker_shutdown` the exception that ends the worker.",
    ),
    Replace(
        target="celery.platforms:Signals.__setitem__",
        by=worker.postpone_cold_shutdowns,
        without="A cold shutdown in the middle of a call of RabbitMQ waits for ever for the lock "
        "of the connection, or mixes up frames.",
        promise=Promise.NO_HANGING,
        upstream="celery: as for a warm shutdown, set a flag in the handler of the signal, and shut"
        " down in the event loop.",
    ),
    Replace(
        target="worker.startup_info",
        by=app_warnings.show_enabled_parts,
        without="The banner does not show which parts of this package are on.",
        promise=Promise.WARNINGS,
    ),
    Replace(
        target="celery.worker.consumer:Consumer.call_soon",
        by=worker.wake_loop,
        versions="kombu<5.6",
        is_needed=kombu.VERSION < (5, 6),
        without="An acknowledgement from another thread does not wake the event loop.",
        promise=Promise.PROMPT,
        upstream="kombu: done in 5.6.",
    ),
    Replace(
        target="celery.worker.consumer:Consumer.start",
        by=worker.classify_refusals,
        without="A Redis that is full, or refuses writes for a moment, ends the worker. One that "
        "is too old ends the worker with a traceback.",
        promise=Promise.OUTAGES,
        upstream="celery: read `connection_errors` from the transport of the connection, at each "
        "error.",
    ),
    Replace(
        target="celery.worker.consumer:Consumer.on_connection_error_after_connected",
        by=worker.pause_after_refusal,
        without="The worker repeats without a pause a call that Redis refuses.",
        promise=Promise.OUTAGES,
        upstream="celery: wait between two connects, also where the first one has succeeded.",
    ),
    Replace(
        target="celery.worker.consumer:Consumer._restore_prefetch_count_after_connection_restart",
        by=worker.call_in_loop,
        without="The thread of a task and the event loop read each other's replies of RabbitMQ, and"
        " hang.",
        promise=Promise.NO_HANGING,
        upstream="celery: have the pool's callback ask `consumer.call_soon` for it.",
    ),
    Replace(
        target="celery.worker.consumer.consumer:build_tracer",
        by=worker.look_up_tracer,
        without="Our changes import `celery.worker.consumer` early. It then has Celery's tracer, "
        "even if a pool or a handler of `worker_init` replaces the tracer later.",
        promise=Promise.OTHER_HOOKS,
        upstream="celery: call `trace.build_tracer` by its module.",
    ),
)

#: Made when a worker of an app with ``DelayQ(app)`` starts.
EXTENDED_WORKER = (
    Replace(
        target="celery.worker.consumer:Consumer.update_strategies",
        by=former_names.add_strategies,
        without="A message with a former name of a task is an unknown task.",
        promise=Promise.RENAMED_TASKS,
        upstream="celery: let a task have several names in the registry.",
    ),
    Replace(
        target="celery.worker.control:Panel.data[revoke]",
        by=durable_revoke.store_revokes,
        without="Ids that a client without the extension revokes are not stored.",
        promise=Promise.REVOKES,
    ),
    Replace(
        target="celery.worker.control:Panel.data[revoke_by_stamped_headers]",
        by=durable_revoke.store_revokes,
        without="Stamped headers that a client without the extension revokes are not stored.",
        promise=Promise.REVOKES,
    ),
)

#: Made when a worker starts, for each of its tasks.
REQUEST = (
    Replace(
        target="task.Request",
        by=request.add_endings,
        without="A task that has failed for good is acknowledged and gone, and no run is in the "
        "history.",
        promise=Promise.DEAD_LETTERS,
        upstream="celery: a method `Request.settle(outcome)` that is called once for each end of "
        "a task, with its acknowledgement.",
    ),
)

#: Made when a worker is ready.
POOL = (
    Replace(
        target="pool.on_apply",
        by=worker.report_tracing_errors,
        condition="pools of threads and greenlets",
        when=worker.runs_tasks_in_own_process,
        without="If Celery fails to store a result, the message stays leased for ever.",
        promise=Promise.AT_LEAST_ONCE,
        upstream="celery: have `apply_target` report any exception of its target as a failure.",
    ),
    Replace(
        target="pool.on_terminate",
        by=lost_connection.wait_for_threads,
        condition="pools with a queue for their threads",
        when=lost_connection.has_queue,
        without="At a cold shutdown messages of running tasks are requeued although their threads "
        "go on: the tasks run twice.",
        promise=Promise.NO_SECOND_RUN,
        upstream="celery: have `TaskPool.on_terminate` of threads drop what waits, and wait for "
        "what runs.",
    ),
)

#: Made when a worker begins to consume, and again after each lost connection.
CONSUMER = (
    Replace(
        target="pool.flush",
        by=lost_connection.keep_begun_tasks,
        condition="prefork",
        when=lost_connection.has_async_children,
        without="After a lost connection Celery drops tasks that a child has begun. They run "
        "twice.",
        promise=Promise.NO_SECOND_RUN,
        upstream="celery: have `AsynPool.flush` keep jobs whose `_write_to` is set and whose "
        "child lives.",
    ),
    Replace(
        target="pool.flush",
        by=lost_connection.drop_waiting_tasks,
        condition="pools with a queue for their threads",
        when=lost_connection.has_queue,
        without="After a lost connection Celery keeps tasks that wait for a thread: they run "
        "although their messages are requeued.",
        promise=Promise.NO_SECOND_RUN,
        upstream="celery: have `TaskPool.flush` of threads cancel what waits.",
    ),
    Replace(
        target="processes.register_with_event_loop",
        by=results.ignore_closed_pipes,
        condition="prefork",
        when=lost_connection.reads_results,
        without="Celery reads a new connection as if it were the pipe of a killed child.",
        promise=Promise.NO_HANGING,
        upstream="celery: remove a descriptor from `_fileno_to_outq` where its pipe is closed.",
    ),
    Replace(
        target="processes._track_child_process",
        by=lost_connection.watch_living_children,
        condition="prefork",
        when=lost_connection.reads_results,
        without="A worker that reconnects watches a child that has ended, and this error ends the "
        "worker.",
        promise=Promise.OUTAGES,
        upstream="celery: have `_track_child_process` leave out a child whose `_sentinel_poll` is "
        "None.",
    ),
)

#: Made when a worker's event loop starts to read from RabbitMQ, and after each lost connection.
LOOP = (
    Replace(
        target="hub.fire_timers",
        by=worker.poll_without_waiting,
        without="The event loop waits up to ten seconds while acknowledgements are due, and "
        "RabbitMQ sends no more tasks until it has them.",
        promise=Promise.PROMPT,
        upstream="kombu: poll with a timeout of 0 while `hub._ready` is not empty.",
    ),
)


def worker_changes() -> tuple[Change, ...]:
    """Return `WORKER`, and the changes that are listed beside the functions that they name."""
    parts = (liveness.CHANGES, endings.CHANGES, pool.CHANGES, remote_control.CHANGES, fast.WORKER)
    return (*WORKER, *chain(*parts))


def all_changes() -> tuple[Change, ...]:
    """Return every change."""
    return (
        *(*TRANSPORT, *PROCESS, *APP, *TASK, *GREENLETS, *worker_changes(), *EXTENDED_WORKER),
        *(*CONTEXT, *AIO, *REQUEST, *POOL, *CONSUMER, *LOOP, *flower.TAB, *flower.CHANGES),
    )
