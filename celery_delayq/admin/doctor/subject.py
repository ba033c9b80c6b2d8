"""What is looked at: an app, and its Redis."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any, cast

from celery import Celery

from celery_delayq.admin.stats import Stats, gather
from celery_delayq.errors import CommandRefused
from celery_delayq.settings import Settings
from celery_delayq.store.schedule import Store
from celery_delayq.store.stores import Stores


class OnRedis:
    """An app whose broker is Redis, or the part of it in one hash tag of a Redis Cluster.

    Each thing is read once.

    Parameters
    ----------
    role : Role
        Whose rights are looked at, of those of :mod:`celery_delayq.admin.accounts`.
    queues : Collection[str]
        Those of the app's queues that are there.
    """

    def __init__(
        self, app: Celery, store: Store, settings: Settings, role: Any, queues: Collection[str]
    ) -> None:
        self.app, self.store, self.settings, self.role = app, store, settings, role
        self.queues = queues
        #: Called by the check that reads all, with how much there is and how much was read.
        self.progress: Callable[[int, int], object] = lambda _total, _done: None
        self.info = cache(self._info)
        self.stats = cache(self._stats)

    def _info(self, section: str) -> dict[str, Any]:
        """Return a section of INFO."""
        return cast("dict[str, Any]", self.store.client.info(section))

    def config(self, name: str) -> str:
        """Return a setting of the server.

        Raises
        ------
        CommandRefused
            The server does not tell it, as some hosted ones.
        """
        found = cast("dict[str, str]", self.store.client.config_get(name))
        if name not in found:
            raise CommandRefused(f"Redis does not tell its setting {name}")
        return str(found[name])

    def _stats(self) -> Stats:
        return gather(Stores.single(self.store), self.queues)
