"""Hide the URL of the archive, which may have a password, from reports on an app's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_delayq.settings import Hidden

_SETTING = "dead_letters_archive"


def hide(sender: Any, **_: Any) -> None:
    """Hide the URL: ``celery report``, ``inspect conf`` and with it Flower show all settings."""
    conf = sender.conf
    options = conf.broker_transport_options
    own = options.get("delayq") if isinstance(options, Mapping) else None
    if isinstance(own, Mapping) and isinstance(own.get(_SETTING), str):
        hidden = {**own, _SETTING: Hidden(own[_SETTING])}
        conf.broker_transport_options = {**options, "delayq": hidden}
