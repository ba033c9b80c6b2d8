"""The subject of checks: an app and its Redis."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any, cast

from celery_delayq.admin.stats import gather
from celery_delayq.errors import CommandRefused
from celery_delayq.settings import Settings
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores

#: Seconds within which an idle worker takes any message.
IDLE_WORKER_SECONDS = 1.5


class OnRedis:
    """An app whose broker is Redis, or the app's part in one hash tag of a Redis Cluster.

    INFO and statistics are read once.

    Parameters
    ----------
    role : Role
        The role whose rights are checked, one of :data:`celery_delayq.admin.accounts.ROLES`.
    queues : Collection[str]
        The existing queues of the app.
    progress : Callable[[int, int], object]
        Called by the check that reads all keys, with the total number of members and the number of
        members read so far.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        settings: Settings,
        role: Any,
        queues: Collection[str],
        progress: Callable[[int, int], object],
    ) -> None:
        self.app, self.store, self.settings, self.role = session.app, store, settings, role
        self._session = session
        self.queues, self.progress = queues, progress
        self.info = cache(self._info)
        self.stats = cache(lambda: gather(Stores.single(store), queues))

    def _info(self, section: str) -> dict[str, Any]:
        """Return a section of INFO."""
        return cast("dict[str, Any]", self.store.client.info(section))

    def config(self, name: str) -> str:
        """Return a setting of the server.

        Raises
        ------
        CommandRefused
            The server does not show the setting. Some hosted servers do not.
        """
        found = cast("dict[str, str]", self.store.client.config_get(name))
        if name not in found:
            raise CommandRefused(f"Redis does not tell its setting {name}")
        return str(found[name])

    def ask_workers(self, question: str, seconds: float = 1.0) -> dict[str, Any]:
        """Return the answers of workers to a command of ``inspect``, by worker name."""
        # Closing the connection at once also removes the queue for the answers.
        with self._session.connection() as connection:
            inspect = self.app.control.inspect(timeout=seconds, connection=connection)
            return getattr(inspect, question)() or {}

    def consumed_queues(self) -> set[str]:
        """Return the queues that workers say they consume.

        The call lasts so long that each idle worker takes a message which it may take.
        """
        answers = self.ask_workers("active_queues", IDLE_WORKER_SECONDS)
        return {each["name"] for queues in answers.values() for each in queues}
