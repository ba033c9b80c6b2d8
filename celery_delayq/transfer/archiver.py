"""Workers move old dead letters to the database of the setting ``dead_letters_archive``.

The archiver never disturbs a worker. After an error dead letters stay in Redis, and the archiver
tries again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING
from uuid import uuid4

from kombu.exceptions import OperationalError

from celery_delayq.deadletters.client import counts_of
from celery_delayq.errors import CommandRefused, TransferError
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.settings import Settings
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.transfer.dead_letter_archive import database_of, insert_all
from celery_delayq.utils import native_threads
from celery_delayq.utils.reconnecting import ReconnectingLoop

if TYPE_CHECKING:
    from celery import Celery

    from celery_delayq.utils.sql import Database

logger = logging.getLogger(__name__)

#: Seconds between two rounds. One worker does each round.
ROUND_INTERVAL_SECONDS = 10.0

#: Longest duration of a round, in seconds.
MAX_ROUND_SECONDS = 5.0

#: Longest wait between two attempts, in seconds, while the database cannot be reached.
MAX_BACKOFF_SECONDS = 60.0

#: Most seconds that a stopping worker waits for the end of a batch.
STOP_SECONDS = 2.0

_REDIS_ERRORS = (CommandRefused, OperationalError)


def backoff(failures: int, interval: float = ROUND_INTERVAL_SECONDS) -> float:
    """Return how many seconds to wait after *failures* consecutive failures."""
    return min(interval * 2.0 ** min(failures, 9), max(MAX_BACKOFF_SECONDS, interval))


class Archiver:
    """Archives regularly. Runs in a native thread, because a database may block for long.

    Parameters
    ----------
    app : Celery
        The app of the worker. The archiver has its own connections to the broker.
    url : str
        The URL of the database.
    after : float
        Seconds for which a dead letter stays in Redis.
    interval : float
        Seconds between two rounds.
    """

    def __init__(
        self, app: Celery, url: str, after: float, *, interval: float = ROUND_INTERVAL_SECONDS
    ) -> None:
        self._app = app
        self._url = url
        self._after = after
        self._interval = interval
        self._stopping = False
        self._stop, self._ended = native_threads.Event(), native_threads.Event()
        self.loop = ReconnectingLoop(
            "dead-letter archiver",
            logger,
            go_on=lambda: not self._stopping,
            wait=self._stop.wait,
            retry=lambda failures: backoff(failures, self._interval),
            outages={"the database is away": (TransferError,)},
        )

    def start(self) -> None:
        """Start the thread."""
        if native_threads.has_green_threads():
            # A greenlet that imports a module while a native thread does may wait for ever.
            with suppress(Exception):  # the thread reports it
                database_of(self._url)
                import_module("celery_delayq.transfer.dead_letter_sql")
        native_threads.start(self.run)

    def stop(self) -> None:
        """Stop, after at most :data:`STOP_SECONDS` for the current batch."""
        self._stopping = True
        self._stop.set()
        self._ended.wait(STOP_SECONDS)
        native_threads.write_log_lines()

    def run(self) -> None:
        """Archive until :meth:`stop`. Only a wrong URL or a missing package ends it earlier."""
        try:
            # In the thread if it may import, because its imports take a second.
            database = database_of(self._url)
            logger.info("archiving dead letters: database=%s after_s=%g", database, self._after)
            with Session(self._app) as session:
                self._archive(session, database)
        except TransferError as exc:
            logger.error("cannot archive dead letters, they stay in Redis: %s", exc)
        except Exception:
            logger.exception("archiving of dead letters has ended, they stay in Redis")
        finally:
            self._ended.set()

    def _archive(self, session: Session, database: Database) -> None:
        def step() -> None:
            moved = self._round(session, database)
            if moved is not None:
                self.loop.recovered()
            if moved:
                logger.info("archived dead letters: moved=%d database=%s", moved, database)
            self._stop.wait(self._interval)

        self._stop.wait(self._interval)
        self.loop.run(step)

    def _round(self, session: Session, database: Database) -> int | None:
        """Archive for at most :data:`MAX_ROUND_SECONDS`; return the number of moved dead letters.

        Return None if there is nothing to do, or if another worker does this round.
        """
        end = time.monotonic() + MAX_ROUND_SECONDS

        def go_on() -> bool:
            return time.monotonic() < end and not self._stopping

        try:
            if not session.ask(partial(self._is_due, uuid4().hex)):
                return None
            # No reading ahead: under gevent its thread would be a greenlet of this thread.
            return insert_all(
                session, database, DeadFilter(), older_than=self._after, spare=self._after,
                own=True, ahead=False, go_on=go_on,
            ).moved  # fmt: skip
        except (TransferError, *_REDIS_ERRORS) as exc:
            # The dispatcher reports an outage of Redis.
            if isinstance(exc, _REDIS_ERRORS) or isinstance(exc.__cause__, _REDIS_ERRORS):
                return None
            raise

    def _is_due(self, who: str, stores: Stores) -> bool:
        """Return whether this worker does the round, and there are dead letters to move."""
        if not stores.common.dead_letters.take_turn(who, 0.9 * self._interval):
            return False
        last_ms = stores.now_ms() - int(self._after * 1000)
        return any(counts_of(stores, high=last_ms, archived=True).values())


def begin(app: Celery) -> Callable[[], None] | None:
    """Start an archiver if ``dead_letters_archive`` is set; return the function to stop it."""
    settings = Settings.from_options(app.conf.broker_transport_options)
    if not settings.dead_letters_archive:
        return None
    archiver = Archiver(app, settings.dead_letters_archive, settings.dead_letters_archive_after)
    archiver.start()
    return archiver.stop
