"""Revoking that lasts: clients and workers have Redis remember what is revoked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery.app.control import Control as CeleryControl
from celery.worker import control
from kombu.utils.functional import maybe_list

from celery_delayq.integration.services import RevocationService, revocation_of

logger = logging.getLogger(__name__)


class ControlMixin:
    """Sees all ways of revoking: they are broadcast."""

    app: Any

    def broadcast(
        self, command: str, arguments: Any = None, destination: Any = None, **kwargs: Any
    ) -> Any:
        """Have Redis remember what is revoked on all workers, and tell them."""
        wanted = command in _COMMANDS and not destination
        revocation = revocation_of(self.app) if wanted else None
        if revocation is not None:
            given = {**(arguments or {}), **kwargs}
            if command == "revoke":
                revocation.revoke(maybe_list(given.get("task_id")) or [])
            else:
                revocation.revoke_by_stamps(stamps_of(given.get("headers")))
        return super().broadcast(command, arguments, destination, **kwargs)  # type: ignore[misc]


class Control(ControlMixin, CeleryControl):
    """Celery's own remote control with revoking that lasts."""


def install_in_worker() -> None:
    """Make a worker remember what a client without the extension revokes."""
    data = control.Panel.data
    for command, remember in _COMMANDS.items():
        if not hasattr(data[command], "delayq"):
            data[command] = _remembering(data[command], remember)


def _remembering(
    stock: Callable[..., Any], remember: Callable[[RevocationService, dict[str, Any]], None]
) -> Callable[..., Any]:
    """Make revoking last that a client without the extension has asked for."""

    def revoke(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(state, *args, **kwargs)
        try:
            revocation = revocation_of(state.app)
            if revocation is not None:
                remember(revocation, kwargs)
        except Exception:
            logger.exception("Revoking is not stored in Redis: workers that start later run it")
        return result

    revoke.__doc__ = stock.__doc__
    revoke.delayq = True  # type: ignore[attr-defined]
    return revoke


def _remember_ids(revocation: RevocationService, given: dict[str, Any]) -> None:
    revocation.revoke_new([str(id) for id in maybe_list(given.get("task_id")) or []])


def _remember_stamps(revocation: RevocationService, given: dict[str, Any]) -> None:
    revocation.revoke_new_stamps(stamps_of(given.get("headers")))


#: The commands that revoke, and how a worker remembers them.
_COMMANDS = {"revoke": _remember_ids, "revoke_by_stamped_headers": _remember_stamps}


def stamps_of(headers: Any) -> dict[str, Any]:
    """Return stamped headers as a mapping; the command line gives a list of ``name=value``."""
    if isinstance(headers, Mapping):
        return dict(headers)
    pairs = (str(each).partition("=") for each in maybe_list(headers) or [])
    return {name: value for name, _, value in pairs}
