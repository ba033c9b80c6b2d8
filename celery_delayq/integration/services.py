"""Interfaces of the rooms above that the hooks call; ``app.py`` registers what serves them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from celery import Celery

#: Begins work in the background of a worker, and returns what ends it; None where it has none.
Background = Callable[[Celery], Callable[[], object] | None]


class RevocationService(Protocol):
    """Makes revoking last: :class:`celery_delayq.schedule.revocation.Revocation`."""

    def revoke(self, ids: Iterable[str]) -> None:
        """Remember ids, and cancel those that are scheduled."""
        ...

    def revoke_by_stamps(self, stamps: Mapping[str, Any]) -> None:
        """Remember stamped headers, and cancel what is scheduled and has one of them."""
        ...

    def revoke_new(self, ids: Sequence[str]) -> None:
        """Do as :meth:`revoke` with the ids that are not remembered yet."""
        ...

    def revoke_new_stamps(self, stamps: Mapping[str, Any]) -> None:
        """Do as :meth:`revoke_by_stamps` unless they are remembered already."""
        ...


class Services(NamedTuple):
    """All that the hooks of one app call above their room."""

    revocation: RevocationService
    background: Sequence[Background]


def services_of(app: Celery) -> Services | None:
    """Return the services of an app, None for one without the extension."""
    found: Services | None = app.__dict__.get("_delayq_services")
    return found


def revocation_of(app: Celery) -> RevocationService | None:
    """Return how to make revoking last; None without the extension, or with another broker."""
    services, delayq = services_of(app), getattr(app, "_delayq", None)
    return services.revocation if services and delayq is not None and delayq.has_store else None
