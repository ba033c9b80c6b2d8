"""Warn of a running ``celery beat``: the workers already fire its entries."""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from typing import Any, cast

from celery import Celery
from celery.app.defaults import DEFAULTS

from celery_delayq.errors import NotSupported
from celery_delayq.settings import Settings
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

#: Seconds between two announcements of a beat.
ANNOUNCE_SECONDS = 20.0
#: Seconds for which an announcement is valid.
BEAT_ALIVE_SECONDS = 60.0
_BEAT_ALIVE_MS = int(BEAT_ALIVE_SECONDS * 1000)

#: Settings of celery beat that have no effect where workers fire periodic entries.
IGNORED_BEAT_SETTINGS = (
    *("beat_scheduler", "beat_schedule_filename", "beat_max_loop_interval", "beat_sync_every"),
    *("beat_enable_remote_control", "beat_remote_control_max_tick_age"),
)

_WARNING_TEXT = (
    "celery beat runs (%s): workers fire beat_schedule themselves, so everything in it is sent "
    "twice. Stop beat, see docs/periodic.md"
)


def fires(app: Celery) -> bool:
    """Return whether workers of an app with ``DelayQ(app)`` fire periodic entries."""
    options = app.conf.broker_transport_options
    return Settings.from_options(options).dispatch and not app._delayq.session.on_rabbitmq


def without_effect(app: Celery) -> list[str]:
    """Return the settings of celery beat that an app changes without effect."""
    return [name for name in IGNORED_BEAT_SETTINGS if app.conf.get(name) != DEFAULTS.get(name)]


def warn(store: Store, app: Celery) -> None:
    """Warn of each running beat."""
    for name in running(store, app):
        logger.warning(_WARNING_TEXT, name)


def running(store: Store, app: Celery) -> list[str]:
    """Return the names of running beats: each beat with this package, and RedBeat."""
    client, key = store.client, store.keys.celery_beats
    now = store.now_ms()
    # A later time was written before the clock was set back: that beat may have ended.
    names = cast("list[bytes]", client.zrangebyscore(key, now, now + _BEAT_ALIVE_MS))
    found = [name.decode("utf-8", "replace") for name in names]
    # In a Redis Cluster the lock may be on another node.
    if not store.keys.tag and client.exists(_lock_of_redbeat(app)):
        found.append("RedBeat")
    return found


def redbeat_setting(app: Celery, name: str) -> Any:
    """Return a setting of RedBeat in lower or upper case, or None."""
    return app.conf.first(name, name.upper())


def _lock_of_redbeat(app: Celery) -> str:
    """Return the key of the lock of a running RedBeat. RedBeat ignores ``global_keyprefix``."""
    prefix = redbeat_setting(app, "redbeat_key_prefix") or "redbeat:"
    return str(redbeat_setting(app, "redbeat_lock_key") or f"{prefix}:lock")


def begin(sender: Any, **_: Any) -> None:
    """Announce this beat while it runs."""
    app = sender.app
    delayq = getattr(app, "_delayq", None)
    if delayq is None or delayq.session.on_rabbitmq:  # on RabbitMQ only beat fires the entries
        return
    name = f"{socket.gethostname()} {os.getpid()}"
    logger.warning(_WARNING_TEXT, name)

    def announce() -> None:
        with Session(app) as session:
            store = session.stores.common
            while True:
                now, key = store.now_ms(), store.keys.celery_beats
                store.client.zadd(key, {name: now + _BEAT_ALIVE_MS})
                store.client.zremrangebyscore(key, "-inf", now)
                loop.recovered()
                _never.wait(ANNOUNCE_SECONDS)

    def run() -> None:
        with suppress(NotSupported):  # the broker is not Redis
            loop.run(announce)

    loop = ReconnectingLoop(
        "celery-beat guard",
        logger,
        go_on=lambda: True,
        wait=_never.wait,
        retry=ANNOUNCE_SECONDS,
        outages={"Redis is away": (Exception,)},  # no error here stops beat
        fatal=(NotSupported,),
    )
    threading.Thread(target=run, name="delayq-beat", daemon=True).start()


_never = threading.Event()
