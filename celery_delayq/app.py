"""The extension object: one session, and the parts of the API that use the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_delayq.admin.web_rights import WebRights
from celery_delayq.errors import ConfigError
from celery_delayq.integration.context import ContextValues
from celery_delayq.integration.install import install
from celery_delayq.model.limits.of_app import AppLimits
from celery_delayq.model.names import Renames
from celery_delayq.model.retries.options import policies_by_pattern
from celery_delayq.store.session import Session
from celery_delayq.utils.delegation import delegate
from celery_delayq.utils.lazy import LazyName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_delayq.admin.client import Admin
    from celery_delayq.deadletters.client import DeadLetters
    from celery_delayq.deadletters.stream import StreamDeadLetters
    from celery_delayq.limits.client import TaskLimits
    from celery_delayq.model.limits import Limit
    from celery_delayq.periodic import runner
    from celery_delayq.periodic.client import PeriodicTasks
    from celery_delayq.schedule.client import Schedule
    from celery_delayq.schedule.revocation import Revocation
    from celery_delayq.schedule.runs import Runs
    from celery_delayq.schedule.update import Updates
    from celery_delayq.store.store import Store
    from celery_delayq.transfer import archiver
    from celery_delayq.transfer.client import Transfer
    from celery_delayq.webhook import Webhook
else:  # each part is imported when it is used
    Admin = LazyName("celery_delayq.admin.client:Admin")
    DeadLetters = LazyName("celery_delayq.deadletters.client:DeadLetters")
    PeriodicTasks = LazyName("celery_delayq.periodic.client:PeriodicTasks")
    Revocation = LazyName("celery_delayq.schedule.revocation:Revocation")
    Runs = LazyName("celery_delayq.schedule.runs:Runs")
    Schedule = LazyName("celery_delayq.schedule.client:Schedule")
    StreamDeadLetters = LazyName("celery_delayq.deadletters.stream:StreamDeadLetters")
    TaskLimits = LazyName("celery_delayq.limits.client:TaskLimits")
    Updates = LazyName("celery_delayq.schedule.update:Updates")
    Transfer = LazyName("celery_delayq.transfer.client:Transfer")
    archiver = LazyName("celery_delayq.transfer.archiver")
    runner = LazyName("celery_delayq.periodic.runner")


class DelayQ:
    """Delayed tasks of one Celery app.

    Parameters
    ----------
    app : Celery | None
        The app. Without an app, call :meth:`init_app` later.
    at_least_once : bool
        Acknowledge a task after its run instead of before, and run the task again if its process is
        killed. Sets ``task_acks_late`` and ``task_reject_on_worker_lost``.
    retry : None | RetryPolicy | Intervals | Mapping[str, RetryPolicy | Intervals]
        The retry policy of failed tasks that have no retry options of their own. Either one policy
        for all tasks, or policies by pattern of task names. The first pattern that matches counts.
        ``TEN_RETRIES`` is a ready policy. See
        :class:`~celery_delayq.model.retries.policy.RetryPolicy`.
    limits : Mapping[str, Limit] | None
        Limits of tasks that have no limit of their own, by pattern of task names. The first pattern
        that matches counts. See :class:`~celery_delayq.model.limits.Limit`.
    renamed : Mapping[str, str] | None
        Names of tasks by their former names, such as ``{"shop.old": "shop.new"}``. Messages of a
        former name run as the task. ``docs/deploys.md`` tells when to set and remove it.
    webhook : Webhook | None
        Allowed receivers and other settings of the task ``celery_delayq.webhook``.
    web_changes : Callable[[str, Any], bool] | None
        Who may change tasks on the pages of the web. Called with the name of a user and the request
        of Tornado for each change and each page; None: nobody may. A user needs a login of Flower
        or of ``delayq web``, or *web_user_header*.
    web_user_header : str | None
        The header in which a proxy with a login gives the name of the user, such as
        ``X-Forwarded-User``. Only for pages that nobody can reach without the proxy.

    Raises
    ------
    InvalidRetry
        *retry* is not a policy.
    InvalidLimit
        *limits* are no limits by pattern, or two of them have one name and differ.
    ConfigError
        *app* is not a Celery app, *at_least_once* is not a bool, *webhook* is not a ``Webhook``,
        *renamed* has no names of tasks or leads in a circle, *web_changes* cannot be called, or
        *web_user_header* is not the name of a header.

    Notes
    -----
    All methods that call Redis raise ``ConfigError`` before :meth:`init_app`, ``NotSupported`` if
    the app's broker is not of this package, ``BrokerUnavailable`` if Redis cannot be reached, and
    ``CommandRefused`` if Redis refuses a command. After a lost connection, a method tries once
    more. Each method lists its other errors.

    Examples
    --------
    >>> app = Celery("shop", broker="delayq+redis://localhost:6379/0")
    >>> delayq = DelayQ(app, at_least_once=True)
    """

    #: Each function starts a background service of a worker, and returns a function to stop it, or
    #: None.
    _background = (archiver.begin, runner.begin)

    def __init__(
        self,
        app: Celery | None = None,
        *,
        at_least_once: bool = False,
        retry: Any = None,
        limits: Mapping[str, Limit] | None = None,
        renamed: Mapping[str, str] | None = None,
        webhook: Webhook | None = None,
        web_changes: Callable[[str, Any], bool] | None = None,
        web_user_header: str | None = None,
    ) -> None:
        if not isinstance(at_least_once, bool):
            raise ConfigError(f"at_least_once={at_least_once!r}: expected True or False")
        self.at_least_once = at_least_once
        self.retries = policies_by_pattern(retry)
        self._limits = AppLimits(limits)
        self._renames = Renames(renamed)
        self.webhook = webhook
        self.web_rights = WebRights(web_changes, web_user_header)
        self.session = Session()
        self._context = ContextValues()
        if app is not None:
            self.init_app(app)

    def __repr__(self) -> str:
        return f"<DelayQ of {self.app.main if self.session.has_app else 'no app yet'}>"

    def init_app(self, app: Celery) -> None:
        """Hook into *app*. Reads no configuration and opens no connection.

        Raises
        ------
        ConfigError
            This object belongs to another app already, *app* is not a Celery app, or *webhook* is
            not a ``Webhook``.
        """
        if not isinstance(app, Celery):
            raise ConfigError(f"DelayQ(app): expected a Celery app, got {type(app).__name__}")
        if self.session.has_app and self.app is not app:
            raise ConfigError(f"{self!r} cannot serve a second app; make a DelayQ for each")
        self.session.bind(app)
        app._delayq = self
        self._context.share(app)
        self._limits.share(app)
        self._renames.share(app)
        install(app)
        if self.webhook is not None:
            # No lazy name: this import registers a task, and only in apps with webhooks.
            from celery_delayq.webhook import settings_of

            settings_of(app)
        if self.at_least_once:
            app.conf.task_acks_late = True
            app.conf.task_reject_on_worker_lost = True

    @classmethod
    def of(cls, app: Celery) -> DelayQ:
        """Return the extension object of *app*. If *app* has none, make one."""
        known: DelayQ | None = getattr(app, "_delayq", None)
        return known or cls(app)

    @property
    def app(self) -> Celery:
        """The Celery app.

        Raises
        ------
        ConfigError
            There is no app yet.
        """
        return self.session.app

    @property
    def store(self) -> Store:
        """The data of this package in the app's broker, on its own connections.

        Raises
        ------
        NotSupported
            The app's broker is not of this package.
        ConfigError
            There is no app yet.
        """
        return self.session.store

    @property
    def has_store(self) -> bool:
        """Whether the app's broker is of this package."""
        return self.session.has_store

    @property
    def schedule(self) -> Schedule:
        """The schedule: read, cancel, move, run and pause tasks, and schedule many at once."""
        return Schedule(self.session)

    @property
    def updates(self) -> Updates:
        """Changes of what scheduled tasks are: their arguments, priority, expiry and headers."""
        return Updates(self.session)

    @property
    def dead_letters(self) -> DeadLetters:
        """The dead letters: read, replay, purge. ``delayq.dead_letters()`` iterates over them."""
        kind = StreamDeadLetters if self.session.on_rabbitmq else DeadLetters
        return kind(self.session)

    @property
    def periodic(self) -> PeriodicTasks:
        """The periodic entries, which workers fire without ``celery beat``."""
        return PeriodicTasks(self.session)

    @property
    def limits(self) -> TaskLimits:
        """The limits of tasks: look at them, and change them for all workers."""
        return TaskLimits(self.session)

    @property
    def runs(self) -> Runs:
        """The history of runs. Requires a ``history`` setting above 0."""
        return Runs(self.session)

    @property
    def transfer(self) -> Transfer:
        """Move or copy the schedule and dead letters to files and databases, and back."""
        return Transfer(self.session)

    @property
    def admin(self) -> Admin:
        """Statistics, checks of what waits, and why a task has not run. Others are commands."""
        return Admin(self.session)

    @property
    def revocation(self) -> Revocation:
        """Lasting revocation of ids, stamped headers and canvases.

        :meth:`cancel` is for a task that no worker has yet.
        """
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
    update = delegate("updates", Updates.update)
    schedule_many = delegate("schedule", Schedule.schedule_many)
    pause = delegate("schedule", Schedule.pause)
    resume = delegate("schedule", Schedule.resume)
    paused = delegate("schedule", Schedule.paused)
    dead_letter = delegate("dead_letters", DeadLetters.get)
    list_dead = delegate("dead_letters", DeadLetters.list)
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
    compat = delegate("admin", Admin.compat)
    rename = delegate("admin", Admin.rename)
    rewrite = delegate("admin", Admin.rewrite)
    stats = delegate("admin", Admin.stats)
    why = delegate("admin", Admin.why)
    context = delegate("_context", ContextValues.context)
    current_context = delegate("_context", ContextValues.current_context)
    add_context_provider = delegate("_context", ContextValues.add_context_provider)

    def close(self) -> None:
        """Close the connections of this object to the broker. The next use opens new ones."""
        self.session.close()

    def __enter__(self) -> DelayQ:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
