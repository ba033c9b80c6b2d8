"""Workers move old dead letters to a database, where ``dead_letters_archive`` names one.

It is never in the way of a worker: whatever goes wrong, dead letters stay in Redis, and it is tried
again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.errors import TransferError
from celery_delayq.settings import Settings
from celery_delayq.store.paging import queues_of
from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session
from celery_delayq.transfer.dead_letter_archive import Archive, database_of
from celery_delayq.utils import native_threads

if TYPE_CHECKING:
    from celery import Celery

    from celery_delayq.utils.sql import Database

logger = logging.getLogger(__name__)

#: Seconds between two rounds, of all workers together.
INTERVAL = 10.0

#: Seconds that a round takes at most: a worker has other things to do.
ROUND = 5.0

#: Longest wait between two attempts, in seconds, while the database is away.
PATIENCE = 60.0

#: Seconds for which a worker that stops waits for a batch to end.
FAREWELL = 2.0

_REDIS = (RedisError, OperationalError)


@dataclass
class Pace:
    """When to try next. No I/O."""

    interval: float = INTERVAL
    patience: float = PATIENCE
    failures: int = 0

    def wait(self) -> float:
        """Return for how many seconds to wait."""
        return min(self.interval * 2.0 ** min(self.failures, 9), max(self.patience, self.interval))


class Archiver:
    """Archives again and again, in a native thread: a database may keep one waiting for long.

    Parameters
    ----------
    app : Celery
        The app of the worker, of whose broker it has connections of its own.
    url : str
        The database.
    after : float
        Seconds for which a dead letter stays in Redis.
    """

    def __init__(self, app: Celery, url: str, after: float, *, interval: float = INTERVAL) -> None:
        self._app = app
        self._url = url
        self._after = after
        self._pace = Pace(interval)
        self._stopping = False
        self._stop, self._ended = native_threads.Signal(), native_threads.Signal()

    def start(self) -> None:
        """Begin."""
        native_threads.start(self.run)

    def stop(self) -> None:
        """End, after a moment for the batch that is under way; it may be killed as well."""
        self._stopping = True
        self._stop.give()
        self._ended.wait(FAREWELL)

    def run(self) -> None:
        """Archive until :meth:`stop`; outlives every error but that it cannot be done at all."""
        try:
            # Here, since what it imports takes a second.
            database = database_of(self._url)
            logger.info("Dead letters are moved to %s after %g s", database, self._after)
            with Session(self._app) as session:
                while not self._stopping:
                    self._stop.wait(self._pace.wait())
                    self._try(session, database)
        except TransferError as exc:
            logger.error("Dead letters stay in Redis, they cannot be archived: %s", exc)
        except Exception:
            logger.exception("Dead letters stay in Redis, archiving them has ended")
        finally:
            self._ended.give()

    def _try(self, session: Session, database: Database) -> None:
        if self._stopping:
            return
        try:
            moved = self._round(session, database)
        except Exception as exc:
            self._failed(exc)
            return
        if moved is None:
            return
        if self._pace.failures:
            logger.info("Dead letters are archived again")
        self._pace.failures = 0
        if moved:
            logger.info("%d dead letters were moved to %s", moved, database)

    def _round(self, session: Session, database: Database) -> int | None:
        """Archive for a while and return how many were moved; None where there was nothing to do,
        or another worker does it.
        """
        if not session.ask(partial(self._is_due, uuid4().hex)):
            return None
        end = time.monotonic() + ROUND

        def go_on() -> bool:
            return time.monotonic() < end and not self._stopping

        # No thread more: where they are patched, it would be a greenlet of this one.
        archive = Archive(session, database, spare=self._after, ahead=False, own=True, go_on=go_on)
        return archive.run(older_than=self._after).moved

    def _is_due(self, who: str, store: Store) -> bool:
        """Return whether it is the turn of this worker, and there is something to do."""
        if not store.dead_letters.take_turn(who, 0.9 * self._pace.interval):
            return False
        last = store.now_ms() - int(self._after * 1000)
        known = queues_of(store, None).items()
        return any(store.dead_letters.count(queue, None, last) for queue, x in known if x.archived)

    def _failed(self, exc: Exception) -> None:
        if isinstance(exc, _REDIS) or isinstance(exc.__cause__, _REDIS):
            return  # it is not the database, and the dispatcher tells of it
        if not self._pace.failures:
            logger.warning(
                "Dead letters stay in Redis for now, archiving them failed: %s",
                exc,
                exc_info=not isinstance(exc, TransferError),
            )
        self._pace.failures += 1


def begin(app: Celery) -> Callable[[], None] | None:
    """Archive until the worker of *app* stops, where ``dead_letters_archive`` says so."""
    settings = Settings.from_options(app.conf.broker_transport_options)
    if not settings.dead_letters_archive:
        return None
    archiver = Archiver(app, settings.dead_letters_archive, settings.dead_letters_archive_after)
    archiver.start()
    return archiver.stop
