"""A test moves the clock, and the tasks that are due meanwhile run in the test's own thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from celery import Celery

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.servers import new_server

if TYPE_CHECKING:
    from celery_delayq.testing.travel.traveller import TimeTravel


@contextmanager
def time_travel(
    app: Celery | None = None, server: EmbeddedRedis | None = None
) -> Iterator[TimeTravel]:
    """Move the clocks of a test, as the fixture ``delayq_time`` does.

    Parameters
    ----------
    app : Celery | None
        The app; None for Celery's current app.
    server : EmbeddedRedis | None
        A private server; None for one that this process starts at its first use, and keeps. It is
        emptied.

    Raises
    ------
    TravelError
        The clock of a test cannot be moved here.

    Examples
    --------
    >>> with time_travel(app) as time:          # doctest: +SKIP
    ...     remind.apply_async(("ada",), countdown=86400)
    ...     time.travel(hours=24)
    """
    from celery_delayq.testing.travel.traveller import TimeTravel  # imports Celery's worker

    private = _own_server(os.getpid()) if server is None else server
    with TimeTravel(app, private, empty=True) as time:
        yield time


@cache
def _own_server(_pid: int) -> EmbeddedRedis:
    """Return the server of this process; a forked child has another one."""
    return new_server()
