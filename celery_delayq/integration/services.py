"""Interfaces of rooms above that this room calls; ``app.py`` registers their objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from celery import Celery

#: Starts background work in a worker; returns the function that stops it, or None.
Background = Callable[[Celery], Callable[[], object] | None]


class RevocationService(Protocol):
    """Stores revokes: :class:`celery_delayq.schedule.revocation.Revocation`."""

    def revoke(self, ids: Iterable[str]) -> None:
        """Store ids, and cancel scheduled tasks with them."""
        ...

    def revoke_by_stamps(self, stamps: Mapping[str, Any]) -> None:
        """Store stamped headers, and cancel scheduled tasks with one of them."""
        ...

    def revoke_new(self, ids: Sequence[str]) -> None:
        """Do as :meth:`revoke` with ids that are not stored yet."""
        ...

    def revoke_new_stamps(self, stamps: Mapping[str, Any]) -> None:
        """Do as :meth:`revoke_by_stamps` with stamps that are not stored yet."""
        ...


class Services(NamedTuple):
    """The services of one app."""

    revocation: RevocationService
    background: Sequence[Background]


def services_of(app: Celery) -> Services | None:
    """Return the services of an app, None for one without the extension."""
    found: Services | None = app.__dict__.get("_delayq_services")
    return found


def revocation_of(app: Celery) -> RevocationService | None:
    """Return the service for revokes; None without the extension, or with another broker."""
    services, delayq = services_of(app), getattr(app, "_delayq", None)
    return services.revocation if services and delayq is not None and delayq.has_store else None
