"""Notice a ``celery beat`` that runs: it sends what workers fire already a second time."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import Any

from celery import Celery, signals

from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session

logger = logging.getLogger(__name__)

#: Seconds after which a beat says again that it runs, and for which it is said to.
KEEP, ALIVE = 20.0, 60.0

_WARNING = (
    "celery beat runs (%s): workers fire beat_schedule themselves, so everything in it is sent "
    "twice. Stop beat, see docs/periodic.md"
)


def install() -> None:
    """Have beats of apps with this package warn, and say that they run."""
    signals.beat_init.connect(_begin, dispatch_uid="celery_delayq.beat")
    signals.beat_embedded_init.connect(_begin, dispatch_uid="celery_delayq.beat")


def running(store: Store, app: Celery) -> list[str]:
    """Return the names of the beats that run: those that use this package, and RedBeat."""
    client, key = store.client, store.keys.beats
    now = store.now_ms()
    client.zremrangebyscore(key, "-inf", now)
    found = [name.decode("utf-8", "replace") for name in client.zrange(key, 0, -1)]
    if client.exists(_lock_of_redbeat(app)):
        found.append("RedBeat")
    return found


def _lock_of_redbeat(app: Celery) -> str:
    """Return what RedBeat holds while it runs; it knows no ``global_keyprefix``."""

    def setting(name: str) -> Any:
        return app.conf.first(name, name.upper())

    return str(setting("redbeat_lock_key") or f"{setting('redbeat_key_prefix') or 'redbeat:'}:lock")


def warn(store: Store, app: Celery) -> None:
    """Warn of each beat that runs."""
    for name in running(store, app):
        logger.warning(_WARNING, name)


def _begin(sender: Any, **_: Any) -> None:
    """Say that this beat runs, as long as it does."""
    app = sender.app
    if getattr(app, "_delayq", None) is None:
        return
    name = f"{socket.gethostname()} {os.getpid()}"
    logger.warning(_WARNING, name)

    def say() -> None:
        while True:
            try:
                with Session(app) as session:
                    store = session.store
                    while True:
                        till = store.now_ms() + int(ALIVE * 1000)
                        store.client.zadd(store.keys.beats, {name: till})
                        _never.wait(KEEP)
            except Exception as exc:  # beat goes on whatever happens to us
                logger.debug("Cannot say that beat runs: %s", exc)
                _never.wait(KEEP)

    threading.Thread(target=say, name="delayq-beat", daemon=True).start()


_never = threading.Event()
