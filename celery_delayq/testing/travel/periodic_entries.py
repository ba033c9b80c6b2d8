"""Fires the periodic entries of an app in the caller's thread."""

from __future__ import annotations

from celery import Celery

from celery_delayq.integration import beat_guard
from celery_delayq.periodic.firing import TickScheduler
from celery_delayq.periodic.runner import LOOK_AT_ONCE, PeriodicRunner
from celery_delayq.store.session import Session


class PeriodicEntries:
    """The entries in the code of an app, and those that a test adds.

    Parameters
    ----------
    app : Celery
        An app with ``DelayQ(app)``.
    """

    def __init__(self, app: Celery) -> None:
        self._session = Session(app)
        self._stores = self._session.stores
        self._store = self._stores.common
        self._runner = PeriodicRunner(app, session=self._session)
        self._scheduler = TickScheduler(app, self._stores)
        self._scheduler.__enter__()
        self._runner.keep(self._stores)

    @classmethod
    def of(cls, app: Celery) -> PeriodicEntries | None:
        """Return the entries; None for an app whose workers fire none."""
        has_entries = getattr(app, "_delayq", None) is not None and beat_guard.fires(app)
        return cls(app) if has_entries else None

    def write_again(self) -> None:
        """Write the entries in code: the test has emptied the server."""
        self._runner.look_again()
        self._runner.keep(self._stores)

    def try_failing_again(self) -> None:
        """Try entries that could not be fired at the next look."""
        self._runner.try_failing_again()

    def fire_due(self) -> int:
        """Schedule the ticks that are due; return their number."""
        before = self._runner.fired
        while self._runner.fire_due(self._stores, self._store, self._scheduler) == LOOK_AT_ONCE:
            pass
        return self._runner.fired - before

    @property
    def failing(self) -> list[str]:
        """The entries that cannot be fired, and are not tried at the next look."""
        return self._runner.failing

    def close(self) -> None:
        """Close the connections."""
        self._scheduler.__exit__(None, None, None)
        self._session.close()
