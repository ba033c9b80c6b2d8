"""The extension object: hooks into a Celery app, and the client for what is scheduled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from celery import Celery
from redis.exceptions import ConnectionError

from celery_delayq import hooks, stats
from celery_delayq.errors import ConfigError
from celery_delayq.stats import Stats
from celery_delayq.store import Store

T = TypeVar("T")


class DelayQ:
    """Delayed tasks of one Celery app.

    Parameters
    ----------
    app : Celery | None
        The app; without one, call :meth:`init_app` later.
    at_least_once : bool
        Acknowledge a task after it has run instead of before, and run it again when its
        process is killed: sets ``task_acks_late`` and ``task_reject_on_worker_lost``.

    Examples
    --------
    >>> app = Celery("shop", broker="delayq+redis://localhost:6379/0")
    >>> delayq = DelayQ(app, at_least_once=True)
    """

    def __init__(self, app: Celery | None = None, *, at_least_once: bool = False) -> None:
        self.app: Celery | None = None
        self.at_least_once = at_least_once
        self._store: Store | None = None
        self._lock = threading.Lock()
        if app is not None:
            self.init_app(app)

    def __repr__(self) -> str:
        return f"<DelayQ of {self.app.main if self.app else 'no app yet'}>"

    def init_app(self, app: Celery) -> None:
        """Hook into *app*; reads no configuration and makes no connection.

        Raises
        ------
        ConfigError
            This object belongs to another app already, or is no Celery app.
        """
        if not isinstance(app, Celery):
            raise ConfigError(f"DelayQ(app): expected a Celery app, got {app!r}")
        if self.app is not None and self.app is not app:
            raise ConfigError(f"{self!r} cannot serve a second app; make a DelayQ for each")
        self.app = app
        app._delayq = self
        hooks.install(app)
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
                        raise ConfigError(
                            f"the broker is {connection.as_uri()}; DelayQ needs a URL that begins "
                            "with delayq+, such as delayq+redis://localhost:6379/0, or "
                            "broker_transport='celery_delayq.transport:Transport'"
                        )
                    self._store = channel.new_store()
            return self._store

    def count(self, *, queue: str | None = None, task: str | None = None) -> int:
        """Return how many entries are scheduled.

        A task that is routed to two queues is two entries.

        Parameters
        ----------
        queue, task : str | None
            Count only those of this queue, of this task name.
        """

        def ask(store: Store) -> int:
            queues = [queue] if queue is not None else store.registry()
            return sum(store.scheduled(name, task) for name in queues)

        return self._ask(ask)

    def stats(self, *, ready_limit: int = 100_000) -> Stats:
        """Return what waits, by queue and task, and what it costs.

        Parameters
        ----------
        ready_limit : int
            Ready messages of a queue are read to tell their tasks, at most this many.
        """
        consumed = self._required_app().amqp.queues.consume_from
        return self._ask(lambda store: stats.gather(store, consumed, ready_limit))

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
