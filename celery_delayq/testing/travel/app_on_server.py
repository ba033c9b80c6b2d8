"""An app whose broker and result backend are the private server of a test for a while."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from celery import Celery, _state
from kombu import pools

from celery_delayq.settings import ON_RABBITMQ
from celery_delayq.testing.travel.refusals import check_broker

#: They take precedence over an app's settings.
_VARIABLES: Final = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
)
#: Result backends that a private Redis replaces. Others stay, such as ``cache+memory://``.
_REDIS_BACKENDS: Final = ("redis", "rediss", "redis+socket", "sentinel")
#: Parts of the address of a broker or result backend: the private server needs none of them.
_ADDRESS_PARTS: Final = (
    *("broker_transport", "broker_use_ssl", "broker_port", "broker_vhost"),
    *("broker_user", "broker_password", "redis_backend_use_ssl"),
    *("redis_username", "redis_password", "redis_backend_credential_provider"),
)
#: Settings of a fleet do not hold. With `min_delay` a worker would wait for short delays itself,
#: with `dispatch` off it would fire no ticks, and the private server has no replicas.
_TRAVEL_SETTINGS: Final = {"min_delay": 0, "dispatch": True, "wait_replicas": 0}
_MISSING: Final = object()


@contextmanager
def app_on_server(app: Celery, broker_url: str, redis_url: str) -> Iterator[None]:
    """Point an app to a private server, and back at the end of the block.

    Connections that the app keeps are set aside. Tasks run later, not at once, also with
    ``task_always_eager``.

    Raises
    ------
    TravelError
        The app's settings lead to another broker all the same.
    """
    app.loader.import_default_modules()
    app.finalize()
    _ = app.conf["timezone"]  # loads the settings
    with (
        _without(os.environ, _VARIABLES),
        _with_settings(app, broker_url, redis_url),
        _without_connections(app),
    ):
        check_broker(app, broker_url)
        yield


@contextmanager
def _with_settings(app: Celery, broker_url: str, redis_url: str) -> Iterator[None]:
    changes = app.conf.changes
    backend = str(app.conf.result_backend or "").partition("://")[0]
    options = dict(app.conf.broker_transport_options or {})
    own = options.get("delayq", {})
    if isinstance(own, Mapping):
        own = {name: value for name, value in own.items() if name not in ON_RABBITMQ}
        own |= _TRAVEL_SETTINGS
    wanted: dict[str, Any] = {
        **dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url"), broker_url),
        **dict.fromkeys(_ADDRESS_PARTS),
        "broker_transport_options": {**options, "delayq": own},
        "task_always_eager": False,
    }
    if backend in _REDIS_BACKENDS:
        wanted["result_backend"] = redis_url
    before = {name: changes.get(name, _MISSING) for name in wanted}
    app.conf.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _MISSING:
                changes.pop(name, None)
            else:
                changes[name] = value


@contextmanager
def _without_connections(app: Celery) -> Iterator[None]:
    """Set the app's pools and result backend aside, and close new ones at the end."""
    own: Any = app
    amqp, delayq = app.amqp, getattr(app, "_delayq", None)
    kept = own._pool, amqp._producer_pool, own._backend_cache, own._local
    own._pool, amqp._producer_pool = None, None
    own._backend_cache, own._local = None, threading.local()
    if delayq is not None:
        delayq.close()
    former_app = _state._tls.current_app
    try:
        yield
    finally:
        used = amqp._producer_pool, own._pool, own._backend
        own._pool, amqp._producer_pool, own._backend_cache, own._local = kept
        _state._tls.current_app = former_app
        with suppress(Exception):  # a test may have ended the server
            _close(delayq, *used)


def _close(delayq: Any, producers: Any, connections: Any, backend: Any) -> None:
    if delayq is not None:
        delayq.close()
    _close_pool(pools.producers, producers)
    _close_pool(pools.connections, connections)
    _close_backend(backend)


def _close_pool(group: Any, pool: Any) -> None:
    """Close a pool, and have kombu forget it: the next test has to declare its queues again."""
    if pool is not None:
        pool.force_close_all()
        for key in [key for key, each in group.items() if each is pool]:
            dict.pop(group, key)


def _close_backend(backend: Any) -> None:
    consumer = getattr(backend, "result_consumer", None)
    if consumer is not None and getattr(consumer, "_pubsub", None) is not None:
        consumer.stop()
        consumer._pubsub = None  # else a result that is collected later opens it again
    client = vars(backend).get("client") if backend is not None else None
    if client is not None and hasattr(client, "connection_pool"):
        client.connection_pool.disconnect()


@contextmanager
def _without(variables: Any, names: tuple[str, ...]) -> Iterator[None]:
    before = {name: variables.pop(name) for name in names if name in variables}
    try:
        yield
    finally:
        variables.update(before)
