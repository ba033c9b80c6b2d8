"""The extension object: builds one session, and hangs up what works on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_delayq.admin.client import Admin
from celery_delayq.deadletters.client import DeadLetters
from celery_delayq.deadletters.stream import StreamDeadLetters
from celery_delayq.errors import ConfigError
from celery_delayq.integration.context import ContextValues
from celery_delayq.integration.install import install
from celery_delayq.model.retry_options import policies_by_pattern
from celery_delayq.periodic import runner
from celery_delayq.periodic.client import PeriodicTasks
from celery_delayq.schedule.client import Schedule
from celery_delayq.schedule.revocation import Revocation
from celery_delayq.schedule.runs import Runs
from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session
from celery_delayq.transfer import archiver
from celery_delayq.transfer.client import Transfer
from celery_delayq.utils.delegation import delegate

if TYPE_CHECKING:
    from celery_delayq.webhook import Webhook


class DelayQ:
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
    ConfigError
        *app* is no Celery app, or *webhook* is no ``Webhook``.

    Notes
    -----
    All methods that ask Redis raise ``ConfigError`` before :meth:`init_app`, ``NotSupported`` where
    the app's broker is not one of ours, ``BrokerUnavailable`` where Redis is away, and
    ``CommandRefused`` where it refuses something. A lost connection is tried once more. What else
    they raise, they say.

    Examples
    --------
    >>> app = Celery("shop", broker="delayq+redis://localhost:6379/0")
    >>> delayq = DelayQ(app, at_least_once=True)
    """

    #: Begin a background service of a worker; return what ends it, or None.
    _background = (archiver.begin, runner.begin)

    def __init__(
        self,
        app: Celery | None = None,
        *,
        at_least_once: bool = False,
        retry: Any = None,
        webhook: Webhook | None = None,
    ) -> None:
        self.at_least_once = at_least_once
        self.retries = policies_by_pattern(retry)
        self.webhook = webhook
        self.session = Session()
        self._context = ContextValues()
        if app is not None:
            self.init_app(app)

    def __repr__(self) -> str:
        return f"<DelayQ of {self.app.main if self.session.has_app else 'no app yet'}>"

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
        if self.session.has_app and self.app is not app:
            raise ConfigError(f"{self!r} cannot serve a second app; make a DelayQ for each")
        self.session.bind(app)
        app._delayq = self
        self._context.share(app)
        install(app)
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
    def app(self) -> Celery:
        """The Celery app.

        Raises
        ------
        ConfigError
            There is none yet.
        """
        return self.session.app

    @property
    def store(self) -> Store:
        """Our data in the app's broker, on connections of its own.

        Raises
        ------
        NotSupported
            The app's broker is not one of ours.
        ConfigError
            There is no app yet.
        """
        return self.session.store

    @property
    def has_store(self) -> bool:
        """Whether the app's broker is one of ours."""
        return self.session.has_store

    @property
    def schedule(self) -> Schedule:
        """What is scheduled: read, cancel, move, run, pause, and schedule very many."""
        return Schedule(self.session)

    @property
    def dead_letters(self) -> DeadLetters:
        """Dead letters: read, replay, purge; called, it iterates over them."""
        kind = StreamDeadLetters if self.session.on_rabbitmq else DeadLetters
        return kind(self.session)

    @property
    def periodic(self) -> PeriodicTasks:
        """The periodic entries, which workers fire without ``celery beat``."""
        return PeriodicTasks(self.session)

    @property
    def runs(self) -> Runs:
        """The history of runs, where the setting ``history`` is more than 0."""
        return Runs(self.session)

    @property
    def transfer(self) -> Transfer:
        """The schedule and dead letters to files and databases, and back."""
        return Transfer(self.session)

    @property
    def admin(self) -> Admin:
        """Numbers about all queues."""
        return Admin(self.session)

    @property
    def revocation(self) -> Revocation:
        """Revoking that lasts, of ids, stamped headers and canvases."""
        return Revocation(self.session)

    # Methods of the parts, with their signatures and docstrings.
    get = delegate("schedule", Schedule.get)
    find = delegate("schedule", Schedule.find)
    list = delegate("schedule", Schedule.list)
    entries = delegate("schedule", Schedule.entries)
    count = delegate("schedule", Schedule.count)
    cancel = delegate("schedule", Schedule.cancel)
    cancel_ids = delegate("schedule", Schedule.cancel_ids)
    cancel_all = delegate("schedule", Schedule.cancel_all)
    cancel_canvas = delegate("revocation", Revocation.cancel_canvas)
    reschedule = delegate("schedule", Schedule.reschedule)
    reschedule_all = delegate("schedule", Schedule.reschedule_all)
    run_now = delegate("schedule", Schedule.run_now)
    run_all_now = delegate("schedule", Schedule.run_all_now)
    schedule_many = delegate("schedule", Schedule.schedule_many)
    pause = delegate("schedule", Schedule.pause)
    resume = delegate("schedule", Schedule.resume)
    paused = delegate("schedule", Schedule.paused)
    dead_letter = delegate("dead_letters", DeadLetters.get)
    count_dead = delegate("dead_letters", DeadLetters.count)
    replay = delegate("dead_letters", DeadLetters.replay)
    replay_all = delegate("dead_letters", DeadLetters.replay_all)
    purge = delegate("dead_letters", DeadLetters.purge)
    purge_all = delegate("dead_letters", DeadLetters.purge_all)
    history = delegate("runs", Runs.history)
    export_to = delegate("transfer", Transfer.export_to)
    import_from = delegate("transfer", Transfer.import_from)
    archive_dead = delegate("transfer", Transfer.archive_dead)
    export_dead = delegate("transfer", Transfer.export_dead)
    import_dead = delegate("transfer", Transfer.import_dead)
    stats = delegate("admin", Admin.stats)
    context = delegate("_context", ContextValues.context)
    current_context = delegate("_context", ContextValues.current_context)
    add_context_provider = delegate("_context", ContextValues.add_context_provider)

    def close(self) -> None:
        """Close this object's connections to the broker. It connects again when used again."""
        self.session.close()

    def __enter__(self) -> DelayQ:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
