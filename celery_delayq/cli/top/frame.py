"""What one frame of ``top`` shows, read by the functions of the web's pages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from dateutil.tz import tzlocal

from celery_delayq.admin.lateness import lateness
from celery_delayq.charts.scales import Quantiles
from celery_delayq.cli.top.state import Place, Screen, State, task_fields
from celery_delayq.errors import DelayQError
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.web.pages import fleet, overview, scheduled, task
from celery_delayq.web.pages.fleet import Fleet
from celery_delayq.web.pages.overview import Overview
from celery_delayq.web.pages.scheduled import Scheduled
from celery_delayq.web.pages.task import TaskPage
from celery_delayq.web.query import NotFound, Query
from celery_delayq.web.site import Site

#: Most queues that are read.
MAX_QUEUES = 10_000

#: Minutes whose runs count for the lateness, and most runs that are read for it.
LATENESS_MINUTES, LATENESS_RUNS = 10, 1000


@dataclass(frozen=True)
class Request:
    """What a frame needs: a place, and the step and split of the chart."""

    place: Place
    step: str
    by: str

    @classmethod
    def of(cls, state: State) -> Request:
        """Return what a state needs. Keys that only move the reader need nothing new."""
        place = state.place
        needed = Place(
            place.screen, place.name, place.filter, cursor=place.cursor, looked=place.looked
        )
        if place.screen is Screen.QUEUES:
            needed = Place(place.screen)  # its filter chooses among rows that are there
        return cls(needed, state.step, state.by)


@dataclass(frozen=True)
class Frame:
    """What was read for a request: one of the views, or an error.

    Attributes
    ----------
    read_at : float
        When it was read, by ``time.monotonic``.
    now : datetime | None
        The same by the clock that decides what is due.
    fleet, late : Fleet | None, Quantiles | None
        Dispatchers and processes, and the lateness of the last minutes; None on RabbitMQ.
    is_late_cut : bool
        Whether the lateness is that of as many runs as may be read.
    error : str
        Why it could not be read.
    """

    request: Request
    read_at: float
    now: datetime | None = None
    overview: Overview | None = None
    fleet: Fleet | None = None
    late: Quantiles | None = None
    is_late_cut: bool = False
    tasks: Scheduled | None = None
    task: TaskPage | None = None
    error: str = ""


def read(site: Site, request: Request) -> Frame:
    """Read a frame.

    Raises
    ------
    DelayQError, NotFound
        The broker cannot be reached, or has none of it.
    """
    place = request.place
    if place.screen is Screen.QUEUES:
        return _overview(site, request)
    if place.screen is Screen.TASKS:
        tasks = scheduled.read(site, _query_of(place))
        return Frame(request, time.monotonic(), tasks.now, tasks=tasks)
    found = task.read(site, Query(place.name))
    return Frame(request, time.monotonic(), found.now, task=found)


def read_or_error(site: Site, request: Request) -> Frame:
    """Read a frame; one with the error in place of an error."""
    try:
        return read(site, request)
    except NotFound as exc:
        error = str(exc)
    except (DelayQError, *BROKER_ERRORS) as exc:
        error = describe_error(exc, site.app)
    return Frame(request, time.monotonic(), error=error)


def _overview(site: Site, request: Request) -> Frame:
    query = Query("", {"step": [request.step], "by": [request.by]})
    view = overview.read(site, query, MAX_QUEUES)
    if site.delayq.session.on_rabbitmq:
        return Frame(request, time.monotonic(), view.now, view)
    late = lateness(site.delayq.session, 60, LATENESS_MINUTES, most=LATENESS_RUNS)
    processes = fleet.read(site, Query(""))
    return Frame(
        request, time.monotonic(), view.now, view, processes, Quantiles.of(late.all), late.is_cut
    )


def _query_of(place: Place) -> Query:
    fields = {"queue": place.name, **task_fields(place.filter), "cursor": place.cursor or ""}
    values = {name: [text] for name, text in fields.items() if text}
    return Query("", {**values, "looked": [str(place.looked)]}, tzlocal())
