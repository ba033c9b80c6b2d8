"""Durable revokes: clients and workers store revoked ids and stamps in Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery
from celery.app.control import Control as CeleryControl
from kombu.utils.functional import maybe_list

from celery_delayq.integration.endings.request import refuse_reserved

logger = logging.getLogger(__name__)


class ControlMixin:
    """Stores revokes of every kind: ``broadcast`` sends all of them."""

    app: Any

    def broadcast(
        self, command: str, arguments: Any = None, destination: Any = None, **kwargs: Any
    ) -> Any:
        """Broadcast a command. Store a revoke for all workers in Redis before the broadcast."""
        wanted = command in ("revoke", "revoke_by_stamped_headers") and not destination
        revocation = _revocation_of(self.app) if wanted else None
        if revocation is not None:
            given = {**(arguments or {}), **kwargs}
            if command == "revoke":
                revocation.revoke(maybe_list(given.get("task_id")) or [])
            else:
                revocation.revoke_by_stamps(stamps_of(given.get("headers")))
        return super().broadcast(command, arguments, destination, **kwargs)  # type: ignore[misc]


class Control(ControlMixin, CeleryControl):
    """Celery's own remote control with durable revokes."""


def recreate(app: Celery) -> None:
    """Have an app create its remote control again, if it has one."""
    if not isinstance(app.__dict__.get("control"), ControlMixin):
        app.__dict__.pop("control", None)


def store_revokes(_panel: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a revoke command of workers: also store the ids or stamps in Redis.

    This covers revokes by clients without the extension.
    """

    def revoke(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(state, *args, **kwargs)
        refuse_reserved()
        try:
            revocation = _revocation_of(state.app)
            if revocation is not None and "task_id" in kwargs:
                revocation.revoke_new([*map(str, maybe_list(kwargs["task_id"]) or [])])
            elif revocation is not None:
                revocation.revoke_new_stamps(stamps_of(kwargs.get("headers")))
        except Exception:
            logger.exception("Revoking is not stored in Redis: workers that start later run it")
        return result

    return revoke


def _revocation_of(app: Celery) -> Any:
    """Return the object that stores revokes; None without the extension, or with another broker."""
    delayq = getattr(app, "_delayq", None)
    return delayq.revocation if delayq is not None and delayq.has_store else None


def stamps_of(headers: Any) -> dict[str, Any]:
    """Return stamped headers as a mapping; the command line gives a list of ``name=value``."""
    if isinstance(headers, Mapping):
        return dict(headers)
    pairs = (str(each).partition("=") for each in maybe_list(headers) or [])
    return {name: value for name, _, value in pairs}
