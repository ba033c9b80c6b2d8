"""Workers move old dead letters to a database, where ``dead_letters_archive`` names one.

It is never in the way of a worker: whatever goes wrong, dead letters stay in Redis, and it is tried
again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
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
from celery_delayq.utils.reconnecting import ReconnectingLoop

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


def backoff(failures: int, interval: float = INTERVAL) -> float:
    """Return for how many seconds to wait after so many failures in a row."""
    return min(interval * 2.0 ** min(failures, 9), max(PATIENCE, interval))


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
        self._interval = interval
        self._stopping = False
        self._stop, self._ended = native_threads.Signal(), native_threads.Signal()
        self.loop = ReconnectingLoop(
            "dead-letter archiver",
            logger,
            go_on=lambda: not self._stopping,
            wait=self._stop.wait,
            retry=lambda failures: backoff(failures, self._interval),
            outages={"the database is away": (TransferError,)},
        )

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
                self._archive(session, database)
        except TransferError as exc:
            logger.error("Dead letters stay in Redis, they cannot be archived: %s", exc)
        except Exception:
            logger.exception("Dead letters stay in Redis, archiving them has ended")
        finally:
            self._ended.give()

    def _archive(self, session: Session, database: Database) -> None:
        def step() -> None:
            moved = self._round(session, database)
            if moved is not None:
                self.loop.recovered()
            if moved:
                logger.info("dead letters archived: moved=%d database=%s", moved, database)
            self._stop.wait(self._interval)

        self._stop.wait(self._interval)
        self.loop.run(step)

    def _round(self, session: Session, database: Database) -> int | None:
        """Archive for a while and return how many were moved; None where there was nothing to do,
        or another worker does it.
        """
        try:
            if not session.ask(partial(self._is_due, uuid4().hex)):
                return None
        except _REDIS:
            return None  # the dispatcher reports an outage of Redis
        end = time.monotonic() + ROUND

        def go_on() -> bool:
            return time.monotonic() < end and not self._stopping

        # No thread more: where they are patched, it would be a greenlet of this one.
        archive = Archive(session, database, spare=self._after, ahead=False, own=True, go_on=go_on)
        try:
            return archive.run(older_than=self._after).moved
        except _REDIS:
            return None
        except TransferError as exc:
            if isinstance(exc.__cause__, _REDIS):
                return None
            raise

    def _is_due(self, who: str, store: Store) -> bool:
        """Return whether it is the turn of this worker, and there is something to do."""
        if not store.dead_letters.take_turn(who, 0.9 * self._interval):
            return False
        last = store.now_ms() - int(self._after * 1000)
        known = queues_of(store, None).items()
        return any(store.dead_letters.count(queue, None, last) for queue, x in known if x.archived)


def begin(app: Celery) -> Callable[[], None] | None:
    """Archive until the worker of *app* stops, where ``dead_letters_archive`` says so."""
    settings = Settings.from_options(app.conf.broker_transport_options)
    if not settings.dead_letters_archive:
        return None
    archiver = Archiver(app, settings.dead_letters_archive, settings.dead_letters_archive_after)
    archiver.start()
    return archiver.stop
