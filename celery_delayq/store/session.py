"""A Celery app and its stores: the object that all parts of ``DelayQ`` share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from celery_delayq.errors import BrokerTimeout, BrokerUnavailable, ConfigError, NotSupported
from celery_delayq.model.names import Renames, renames_of
from celery_delayq.utils import native_threads
from celery_delayq.utils.lazy import LazyName

if TYPE_CHECKING:
    from celery import Celery
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from celery_delayq.settings import Settings
    from celery_delayq.store.server.checks import check_layout
    from celery_delayq.store.store import Store
    from celery_delayq.store.stores import Stores
else:
    NoBackoff = LazyName("redis.backoff:NoBackoff")
    Retry = LazyName("redis.retry:Retry")
    Settings = LazyName("celery_delayq.settings:Settings")
    check_layout = LazyName("celery_delayq.store.server.checks:check_layout")

T = TypeVar("T")

#: Most seconds to wait for a connection where there is a timeout. A running Redis accepts a
#: connection at once, even under load.
CONNECT_TIMEOUT_SECONDS = 2.0


class Session:
    """The app, and separate connections to the app's broker.

    The session connects on first use, and again on first use after :meth:`close`. Threads may share
    a session. A native thread and greenlets must not share one.

    Parameters
    ----------
    app : Celery | None
        The app. If None, call :meth:`bind` later.
    redis_timeout : float | None
        See :attr:`redis_timeout`.

    Attributes
    ----------
    redis_timeout : float | None
        Seconds to wait for a reply of Redis, and for a connection at most
        :data:`CONNECT_TIMEOUT_SECONDS`, unless the app has its own timeouts. Each server of the
        URL is then tried once. None for the timeouts of the app alone: kombu waits for ever for
        a reply, and tries for six seconds to connect.
    """

    def __init__(self, app: Celery | None = None, *, redis_timeout: float | None = None) -> None:
        self._app = app
        self.redis_timeout = redis_timeout
        self._stores: Stores | None = None
        self._dead_letter_connection: Any = None
        self._lock = threading.Lock()
        native_threads.renew_locks(self, "_lock")

    def bind(self, app: Celery) -> None:
        """Set the app."""
        self._app = app

    @property
    def app(self) -> Celery:
        """The app.

        Raises
        ------
        ConfigError
            The session has no app yet.
        """
        if self._app is None:
            raise ConfigError("DelayQ() has no app yet; call init_app(app) first")
        return self._app

    @property
    def has_app(self) -> bool:
        """Whether the session has an app."""
        return self._app is not None

    @property
    def renames(self) -> Renames:
        """The former names of the app's tasks."""
        return renames_of(self.app)

    @property
    def stores(self) -> Stores:
        """The stores of the app's broker: one, or several on a Redis Cluster.

        Raises
        ------
        NotSupported
            The app's broker URL is not one for this package, or is one for RabbitMQ.
        ConfigError
            The session has no app yet.
        """
        with self._lock:
            if self._stores is None:
                self._stores = self.new_stores()
            return self._stores

    def connection(self) -> Any:
        """Return a new connection of kombu to the app's broker, with :attr:`redis_timeout`."""
        connection = self.app.connection_for_write()
        seconds = self.redis_timeout
        if seconds is not None and connection.transport.driver_type == "redis":
            options = connection.transport_options
            timeouts = {
                "socket_timeout": seconds,
                "socket_connect_timeout": min(seconds, CONNECT_TIMEOUT_SECONDS),
            }
            tries = {"max_retries": max(0, len(connection.alt or ()) - 1)}
            sleeps = {"interval_start": 0, "interval_step": 0}
            for name, value in {**timeouts, **tries, **sleeps}.items():
                options.setdefault(name, value)
            # redis-py would ask each Sentinel eleven times, in five seconds.
            no_retry = Retry(NoBackoff(), 0)
            asked = {name: options[name] for name in timeouts}
            own = options.get("sentinel_kwargs") or {}
            options["sentinel_kwargs"] = {**asked, "retry": no_retry, **own}
        return connection

    def new_stores(self) -> Stores:
        """Return stores with separate connections. Raises the errors of :attr:`stores`."""
        with self.connection() as connection:
            _check_broker(connection)
            stores: Stores = connection.default_channel.new_stores()
        if stores.has_one:  # earlier versions did not support a Redis Cluster
            check_layout(stores.only.client, stores.only.keys)
        return stores

    @property
    def store(self) -> Store:
        """The store of the app's single Redis. Raises NotSupported also on a Redis Cluster."""
        return self.stores.only

    def check_broker(self) -> None:
        """Raise NotSupported if the app's broker has no stores. Opens no connection."""
        with self.app.connection_for_write() as connection:
            _check_broker(connection)

    @property
    def dead_letter_connection(self) -> Any:
        """The connection for dead letters if the broker is RabbitMQ, else None."""
        with self.app.connection_for_write() as connection:
            found = getattr(connection.transport, "dead_letter_connection", None)
        self._dead_letter_connection = found
        return found

    @property
    def on_rabbitmq(self) -> bool:
        """Whether the app's broker is RabbitMQ."""
        return self.dead_letter_connection is not None

    @property
    def keeps_history(self) -> bool:
        """Whether the setting ``history`` of the app is more than 0."""
        if self.on_rabbitmq:
            return False
        return Settings.from_options(self.app.conf.broker_transport_options).history > 0

    def now_ms(self) -> int:
        """Return the time of the clock that decides what is due, in ms since 1970.

        This is Redis' clock or, with RabbitMQ, the clock of this machine.
        """
        if self.on_rabbitmq:
            return int(time.time() * 1000)
        return self.ask(lambda stores: stores.now_ms())

    @property
    def has_store(self) -> bool:
        """Whether the app's broker has stores: a Redis with a URL for this package."""
        try:
            return self.stores is not None
        except NotSupported:
            return False

    def ask(self, question: Callable[[Stores], T]) -> T:
        """Call *question* with the stores.

        If a connection is lost, *question* is called again on new connections, so it must be
        repeatable.
        """
        stores = self.stores
        try:
            return question(stores)
        except BrokerTimeout:
            raise
        except BrokerUnavailable:
            with self._lock:
                if self._stores is stores:
                    self._stores = None
            # Other threads may still use their connections, and close them.
            stores.disconnect(inuse=False)
            return question(self.stores)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            stores, self._stores = self._stores, None
        if stores is not None:
            stores.disconnect()
        if self._dead_letter_connection is not None:
            self._dead_letter_connection.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_broker(connection: Any) -> None:
    if hasattr(connection.transport, "dead_letter_connection"):
        raise NotSupported(
            "RabbitMQ can neither list, count, cancel, move nor pause scheduled "
            "tasks, nor keep periodic entries and a history (what it has: delayq "
            f"stats, revoke, celery beat); the broker is {connection.as_uri()}, "
            "a broker delayq+redis:// can"
        )
    channel = getattr(connection.transport, "Channel", None)
    if not hasattr(channel, "new_stores"):
        kind = connection.transport.driver_type
        example = "amqp://localhost//" if kind == "amqp" else "redis://localhost/0"
        raise NotSupported(
            f"the broker is {connection.as_uri()}; DelayQ needs a URL that begins "
            f"with delayq+, such as delayq+{example}, or "
            "broker_transport='celery_delayq.transport:Transport'"
        )
