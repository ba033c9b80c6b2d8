"""The extension object: hooks into a Celery app, and the client for what is scheduled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from celery import Celery
from redis.exceptions import ConnectionError

from celery_delayq.admin import stats
from celery_delayq.admin.stats import Stats
from celery_delayq.deadletters.client import DeadMixin
from celery_delayq.errors import ConfigError, NoStore
from celery_delayq.integration import amqp, context
from celery_delayq.integration.context import ContextMixin, Provider
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.names import check_name
from celery_delayq.model.retry_options import defaults_of
from celery_delayq.model.scheduled import Bulk, Filter
from celery_delayq.periodic.client import PeriodicTasks
from celery_delayq.schedule import revocation
from celery_delayq.schedule.client import Client
from celery_delayq.schedule.runs import HistoryMixin
from celery_delayq.schedule.schedule_many import ManyMixin
from celery_delayq.store.schedule import Store
from celery_delayq.transfer import dead_letter_archive, dead_letter_restore, schedule
from celery_delayq.transfer.jsonl import Place
from celery_delayq.transfer.results import Archived, Exported, Imported
from celery_delayq.utils import native_threads

if TYPE_CHECKING:
    from celery_delayq.webhook import Webhook

T = TypeVar("T")


class DelayQ(Client, ContextMixin, DeadMixin, HistoryMixin, ManyMixin):
    """Delayed tasks of one Celery app.

    Parameters
    ----------
    app : Celery | None
        The app; without one, call :meth:`init_app` later.
    at_least_once : bool
        Acknowledge a task after it has run instead of before, and run it again when its
        process is killed: sets ``task_acks_late`` and ``task_reject_on_worker_lost``.
    retry : None | RetryPolicy | Intervals | Mapping[str, RetryPolicy | Intervals]
        How failed tasks are tried again that do not say it themselves: one policy for all, or by
        pattern of task names, of which the first that matches counts. ``TEN_RETRIES`` is offered.
        See :class:`~celery_delayq.model.retry_policy.RetryPolicy`.
    webhook : Webhook | None
        Where the task ``celery_delayq.webhook`` may send to, and how.

    Raises
    ------
    InvalidRetry
        *retry* is no policy.

    Examples
    --------
    >>> app = Celery("shop", broker="delayq+redis://localhost:6379/0")
    >>> delayq = DelayQ(app, at_least_once=True)
    """

    def __init__(
        self,
        app: Celery | None = None,
        *,
        at_least_once: bool = False,
        retry: Any = None,
        webhook: Webhook | None = None,
    ) -> None:
        self.app: Celery | None = None
        self.at_least_once = at_least_once
        self.retries = defaults_of(retry)
        self.webhook = webhook
        self._providers: dict[str, Provider] = {}
        self._store: Store | None = None
        self._lock = threading.Lock()
        native_threads.renew_locks(self, "_lock")
        if app is not None:
            self.init_app(app)

    def __repr__(self) -> str:
        return f"<DelayQ of {self.app.main if self.app else 'no app yet'}>"

    def init_app(self, app: Celery) -> None:
        """Hook into *app*; reads no configuration and makes no connection.

        Raises
        ------
        ConfigError
            This object belongs to another app already, is no Celery app, or *webhook* is no
            ``Webhook``.
        """
        if not isinstance(app, Celery):
            raise ConfigError(f"DelayQ(app): expected a Celery app, got {type(app).__name__}")
        if self.app is not None and self.app is not app:
            raise ConfigError(f"{self!r} cannot serve a second app; make a DelayQ for each")
        self.app = app
        app._delayq = self
        self._providers = context.share(app, self._providers)
        amqp.install(app)
        if self.webhook is not None:
            from celery_delayq.webhook import settings_of

            settings_of(app)
        if self.at_least_once:
            app.conf.task_acks_late = True
            app.conf.task_reject_on_worker_lost = True

    @classmethod
    def of(cls, app: Celery) -> DelayQ:
        """Return the extension object of *app*, a new one where it has none."""
        known: DelayQ | None = getattr(app, "_delayq", None)
        return known or cls(app)

    @property
    def store(self) -> Store:
        """Our data in the app's broker, on connections of its own.

        Raises
        ------
        ConfigError
            The app's broker is not one of ours.
        """
        with self._lock:
            if self._store is None:
                with self._required_app().connection_for_write() as connection:
                    channel = connection.default_channel
                    if not hasattr(channel, "new_store"):
                        raise NoStore(
                            f"the broker is {connection.as_uri()}; DelayQ needs a URL that begins "
                            "with delayq+, such as delayq+redis://localhost:6379/0, or "
                            "broker_transport='celery_delayq.transport:Transport'"
                        )
                    self._store = channel.new_store()
            return self._store

    @property
    def periodic(self) -> PeriodicTasks:
        """The periodic entries, which workers fire without ``celery beat``."""
        return PeriodicTasks(self)

    @property
    def has_store(self) -> bool:
        """Whether the app's broker is one of ours."""
        try:
            return self.store is not None
        except NoStore:
            return False

    def cancel_canvas(
        self,
        *,
        root_id: str | None = None,
        group_id: str | None = None,
        progress: Callable[[Bulk], object] | None = None,
    ) -> Bulk:
        """Cancel all tasks of a chain, chord or tree by the id of its first one, or of a group.

        What is scheduled of it is cancelled now, for which the whole schedule is looked at. What is
        ready, and what its running tasks send, is refused by workers for ``revoke_expires``.

        Returns
        -------
        Bulk
            What became of those that were scheduled.
        """
        check_name("root_id", root_id)
        check_name("group_id", group_id)
        if (root_id is None) == (group_id is None):
            raise ConfigError(f"root_id={root_id!r}, group_id={group_id!r}: give one of them")
        canvas = Canvas("r", root_id) if root_id is not None else Canvas("g", group_id or "")
        return revocation.cancel_canvas(self, canvas, progress)

    def stats(self, *, ready_limit: int = 100_000) -> Stats:
        """Return what waits, by queue and task, and what it costs.

        Parameters
        ----------
        ready_limit : int
            Ready messages of a queue are read to tell their tasks, at most this many.
        """
        consumed = self._required_app().amqp.queues.consume_from
        return self._ask(lambda store: stats.gather(store, consumed, ready_limit))

    def export_to(
        self,
        target: Place,
        filter: Filter | None = None,
        *,
        prune: bool = False,
        progress: Callable[[Exported], object] | None = None,
    ) -> Exported:
        """Write what is scheduled to a file or database: :func:`.transfer.schedule.export_to`."""
        return schedule.export_to(self, target, filter, prune=prune, progress=progress)

    def import_from(
        self,
        source: Place,
        filter: Filter | None = None,
        *,
        overdue: Literal["run", "skip"] = "run",
        dry_run: bool = False,
        progress: Callable[[Imported], object] | None = None,
    ) -> Imported:
        """Schedule what was exported: :func:`.transfer.schedule.import_from`."""
        return schedule.import_from(
            self, source, filter, overdue=overdue, dry_run=dry_run, progress=progress
        )

    def archive_dead(
        self,
        url: str | None = None,
        filter: DeadFilter | None = None,
        *,
        older_than: float = 0.0,
        progress: Callable[[Archived], object] | None = None,
    ) -> Archived:
        """Move dead letters to a database: :func:`.dead_letter_archive.archive_to`."""
        return dead_letter_archive.archive_to(
            self, url, filter, older_than=older_than, progress=progress
        )

    def export_dead(
        self,
        target: Place,
        filter: DeadFilter | None = None,
        *,
        progress: Callable[[Archived], object] | None = None,
    ) -> Archived:
        """Write dead letters to a file or database:
        :func:`.dead_letter_archive.export_dead_letters`."""
        return dead_letter_archive.export_dead_letters(self, target, filter, progress=progress)

    def import_dead(
        self,
        source: Place | None = None,
        filter: DeadFilter | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[Imported], object] | None = None,
    ) -> Imported:
        """Put back dead letters that were archived or exported:
        :func:`.dead_letter_restore.restore_from`."""
        return dead_letter_restore.restore_from(
            self, source, filter, dry_run=dry_run, progress=progress
        )

    def _ask(self, question: Callable[[Store], T]) -> T:
        """Ask the store; once more, on a new connection, when another server has taken over."""
        store = self.store
        try:
            return question(store)
        except ConnectionError:
            with self._lock:
                if self._store is store:
                    self._store = None
            # Other threads may still be reading; theirs end by themselves.
            store.client.connection_pool.disconnect(inuse_connections=False)
            return question(self.store)

    def close(self) -> None:
        """Close this object's connections to Redis. It connects again when used again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.client.connection_pool.disconnect()

    def __enter__(self) -> DelayQ:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _required_app(self) -> Celery:
        if self.app is None:
            raise ConfigError("DelayQ() has no app yet; call init_app(app) first")
        return self.app
