"""Runs the tasks of an app in the caller's thread, by Celery's own request and trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from socket import gethostname
from types import SimpleNamespace
from typing import Any, Final

from celery import Celery, _state, bootsteps, signals
from celery.concurrency.base import BasePool, apply_target
from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.control import Panel

from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.integration import install, worker
from celery_delayq.integration.pauses_and_revokes import REVOKED_CANVASES
from celery_delayq.integration.replace import make, undo
from celery_delayq.store.store import Store
from celery_delayq.testing.travel.eta_timer import EtaTimer
from celery_delayq.testing.travel.refusals import WORKER_TEXT, check_no_worker_here

#: The commands of remote control by which tasks are revoked.
_REVOKES: Final = ("revoke", "revoke_by_stamped_headers")


class InlineWorker:
    """What a Celery worker does with a message, without its threads and processes.

    Celery's own signals for workers, such as ``worker_init``, are not sent: Django's would close
    the database connection of the test.

    Parameters
    ----------
    app : Celery
        The app. Its broker is the private server.
    note_run : Callable[[Any], None]
        Called with the request of each task before the task runs.

    Raises
    ------
    TravelError
        Another worker runs in this process.
    InvalidLimit
        A task of the app has an invalid limit.
    """

    def __init__(self, app: Celery, note_run: Callable[[Any], None]) -> None:
        check_no_worker_here()
        self._app = app
        self._note_run = note_run
        self._known_tasks = 0
        self._learned: list[str] = []
        self._timer = EtaTimer()
        with ExitStack() as block:
            self._connection: Any = app.connection_for_read()
            block.callback(self._close_connection)
            self._channel: Any = self._connection.default_channel
            self.store: Store = self._channel.store
            self._keeper = LeaseKeeper(
                self.store, self.store.leases.claim, self._channel.settings, start=_start_no_thread
            )
            block.callback(self._disclaim)
            self._channel.settle_by(self._keeper)
            self._channel.consumer.serves_worker = True
            hostname = f"delayq-time@{gethostname()}"
            self._pool = _Pool(limit=1, app=app)
            self._controller = _Controller(app, hostname, self._pool)
            block.callback(worker.forget)
            worker.remember(self._controller)
            signals.worker_init.connect(self._refuse_worker, weak=False)
            block.callback(signals.worker_init.disconnect, self._refuse_worker)
            block.callback(self._undo_changes)
            make(install.WORKER, **worker.changed_objects())
            make(install.EXTENDED_WORKER)
            self._consumer = self._new_consumer(hostname)
            make(install.POOL, **worker.changed_objects())
            if getattr(app, "_delayq", None) is None:  # the extension stores revokes in Redis
                app.control.broadcast = self._obeying(app.control.broadcast)
                block.callback(vars(app.control).pop, "broadcast")
            self.prepare()
            self._block = block.pop_all()

    def _new_consumer(self, hostname: str) -> _InlineConsumer:
        """Return Celery's consumer of this worker, which consumes no queue."""
        app = self._app
        consumer = self._controller.consumer = _InlineConsumer(
            self._run,
            hostname=hostname,
            pool=self._pool,
            app=app,
            timer=self._timer,
            controller=self._controller,
            disable_rate_limits=True,
        )
        consumer.connection = self._connection
        consumer.qos = _Qos()
        consumer.event_dispatcher = app.events.Dispatcher(
            self._connection, hostname=hostname, enabled=False
        )
        task_consumer = app.amqp.TaskConsumer(
            self._channel, on_decode_error=consumer.on_decode_error
        )
        task_consumer.on_message = consumer.create_task_handler()
        consumer.task_consumer = task_consumer
        self._receive = task_consumer._receive_callback
        return consumer

    def _obeying(self, broadcast: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method that sends remote control, and has this worker obey a revoke."""

        def broadcast_and_obey(
            command: str, arguments: Any = None, destination: Any = None, **options: Any
        ) -> Any:
            if command in _REVOKES and destination is None:
                Panel.data[command](self._controller, **arguments)
            return broadcast(command, arguments, destination, **options)

        return broadcast_and_obey

    def prepare(self) -> None:
        """Learn tasks that the test has defined, and store the limits of all tasks.

        Raises
        ------
        InvalidLimit
            A task has an invalid limit.
        """
        self._update_strategies()
        self.store.task_limits.announce(worker.limit_definitions())

    def queues(self) -> list[str]:
        """Return the queues that this app uses, and the learned ones. Broadcast queues are left
        out.
        """
        declared = [
            name
            for name, queue in self._app.amqp.queues.items()
            if getattr(queue.exchange, "type", "") != "fanout"
        ]
        return [*dict.fromkeys([*declared, *self._learned])]

    def learn_queues(self, names: Iterable[str]) -> bool:
        """Note queues that other apps use too; return whether some are new."""
        new = {*names} - {*self._learned} - {*self._app.amqp.queues}
        self._learned += sorted(new)
        return bool(new)

    def run_next(self, queue: str) -> bool:
        """Run the next ready task of a queue; return whether there was a message."""
        self._update_strategies()
        with self._run_of_task():
            found: bool = self._channel.handle_one(queue, self._receive)
        return found

    @property
    def next_kept_ms(self) -> int | None:
        """When the next task is due that is kept in memory, in ms since 1970; None for no task."""
        return self._timer.next_ms

    def run_kept(self, now_ms: int, only: str | None = None) -> int:
        """Run what is kept in memory and due, perhaps of one queue *only*; return the number."""
        leased, number = self._keeper.leased, 0

        def is_wanted(request: Any) -> bool:
            return only in (None, leased[request.message.delivery_tag].queue)

        while (call := self._timer.pop_due(now_ms, is_wanted)) is not None:
            with self._run_of_task():
                call()
            number += 1
        return number

    @contextmanager
    def _run_of_task(self) -> Iterator[None]:
        """Send the acknowledgements of a task that the block runs.

        If the task ends the test, leased messages are ready again.
        """
        try:
            with _blocking_joins():
                yield
        except BaseException:  # such as pytest.fail() in a task that is acknowledged late
            with suppress(Exception):  # the task may have ended the server too
                self._send_acknowledgements()
                self._requeue_leased()
            raise
        self._send_acknowledgements()

    def close(self) -> None:
        """Forget the worker, undo its changes, and close the connection."""
        self._block.close()

    def _send_acknowledgements(self) -> None:
        self._consumer.perform_pending_operations()
        self._keeper.send_all(self.store)

    def _requeue_leased(self) -> None:
        self._timer.clear()
        tags = [*self._keeper.leased]
        self._channel.deliveries.requeue(tags, counted="nothing")
        for tag in tags:
            self._channel.qos.forget(tag)
        self._keeper.send_all(self.store)

    def _refuse_worker(self, **_: Any) -> None:
        """End a worker that starts in this process meanwhile."""
        worker.remember(self._controller)
        raise SystemExit(WORKER_TEXT)  # Celery would only log another error

    def _undo_changes(self) -> None:
        self._controller.blueprint.state = bootsteps.TERMINATE  # it does not come back
        for task in self._app.tasks.values():
            task.__trace__ = None
            undo(install.REQUEST, task=task)
        undo(install.EXTENDED_WORKER)
        undo(install.WORKER, **worker.changed_objects())
        state.reset_state()
        for revoked in (state.revoked_stamps, REVOKED_CANVASES):
            revoked.clear()

    def _disclaim(self) -> None:
        with suppress(Exception):  # a test may have ended the server
            self.store.leases.disclaim(self._keeper.worker_id)

    def _close_connection(self) -> None:
        with suppress(Exception):
            self._connection.close()

    def _update_strategies(self) -> None:
        """Learn tasks that a test has defined since the last run."""
        tasks = self._app.tasks
        if len(tasks) != self._known_tasks:
            if getattr(self._app, "_delayq", None) is not None:
                install.change_tasks(self._app)
            for task in tasks.values():
                make(install.REQUEST, task=task)
            self._consumer.update_strategies()
            self._known_tasks = len(tasks)

    def _run(self, request: Any) -> None:
        self._note_run(request)
        # Built for each run, so that a test may have replaced the function of the task.
        request.task.__trace__ = None
        with suppress(TaskRevokedError):
            request.execute_using_pool(self._pool)


class _Controller:
    """The worker as Celery's consumer and this package ask for it."""

    def __init__(self, app: Celery, hostname: str, pool: BasePool) -> None:
        self.app, self.hostname, self.pool = app, hostname, pool
        self.consumer: Any = None
        self.semaphore = None
        self.state = state
        self.blueprint = SimpleNamespace(state=bootsteps.RUN)


class _Qos:
    """Celery's prefetch count, which tasks in memory raise: messages are taken one by one here."""

    def increment_eventually(self) -> None:
        """Do nothing."""

    decrement_eventually = increment_eventually


class _InlineConsumer(Consumer):
    """Celery's consumer without the steps that connect, listen and wait."""

    class Blueprint(Consumer.Blueprint):
        """No steps."""

        def apply(self, _parent: Any, **_kwargs: Any) -> Any:
            """Make no step."""
            return self


class _Pool(BasePool):
    """Runs each task at once, in the caller's thread."""

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        """Run a task. A failed assertion of pytest, and Ctrl-C, end the test."""
        return apply_target(*args, **{**kwargs, "propagate": _ends_of_test()})


def _ends_of_test() -> tuple[type[BaseException], ...]:
    pytest = sys.modules.get("pytest")
    outcomes = () if pytest is None else (pytest.fail.Exception, pytest.skip.Exception)
    return KeyboardInterrupt, *outcomes


def _start_no_thread(_run: Callable[[], None]) -> None:
    """Start nothing: :meth:`InlineWorker.run_next` sends what the thread would send."""


@contextmanager
def _blocking_joins() -> Iterator[None]:
    """Have ``result.get()`` inside a task raise Celery's error, as in a worker."""
    before = _state.task_join_will_block()
    _state._set_task_join_will_block(True)
    try:
        yield
    finally:
        _state._set_task_join_will_block(before)
