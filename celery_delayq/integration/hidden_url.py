"""Hide the URL of the archive, which may have a password, from reports on an app's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery, signals

from celery_delayq.settings import Hidden

_SETTING = "dead_letters_archive"


def install(app: Celery) -> None:
    """Hide it once *app* has read its settings, and when a worker of it starts."""
    signals.worker_init.connect(_hide_from_worker, dispatch_uid="celery_delayq.hide")
    app.on_after_configure.connect(_hide)


def _hide_from_worker(sender: Any, **_: Any) -> None:
    _hide(sender.app)


def _hide(sender: Any, **_: Any) -> None:
    """Hide the URL: ``celery report``, ``inspect conf`` and with it Flower show all settings."""
    conf = sender.conf
    options = conf.broker_transport_options
    own = options.get("delayq") if isinstance(options, Mapping) else None
    if isinstance(own, Mapping) and isinstance(own.get(_SETTING), str):
        hidden = {**own, _SETTING: Hidden(own[_SETTING])}
        conf.broker_transport_options = {**options, "delayq": hidden}
