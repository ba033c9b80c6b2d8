"""The pages as functions without HTML: each gets the site and the query, and returns its view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from celery_delayq.web.pages import (
    dead,
    fleet,
    health,
    job,
    limits,
    overview,
    periodic,
    scheduled,
    task,
)
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site


class Page(NamedTuple):
    """A page.

    Attributes
    ----------
    title : str
        The title in the navigation; ``""`` for a page that is not in it.
    read : Callable[[Site, Query], Any]
        Returns the view. The template of the page shows the view.
    refresh_seconds : int
        Seconds after which a script reads the page again; 0 for never.
    fields : Sequence[str]
        The names of the fields of a query that the page knows.
    filter_fields : Sequence[str]
        Those of them that a change of all that match knows.
    on_rabbitmq : bool
        Whether the page shows something on RabbitMQ.
    has_objects : bool
        Whether the path may have the name of an object behind that of the page.
    """

    title: str
    read: Callable[[Site, Query], Any]
    refresh_seconds: int = 0
    fields: Sequence[str] = ()
    filter_fields: Sequence[str] = ()
    on_rabbitmq: bool = False
    has_objects: bool = False


#: Pages by the first part of their path below ``/delayed``; the template has the same name.
PAGES: Mapping[str, Page] = {
    "overview": Page("Overview", overview.read_page, 5, ("step", "by"), on_rabbitmq=True),
    "scheduled": Page("Scheduled", scheduled.read, 10, scheduled.QUERY_FIELDS, scheduled.FIELDS),
    "dead": Page("Dead letters", dead.read, 10, dead.QUERY_FIELDS, dead.FIELDS, on_rabbitmq=True),
    "periodic": Page("Periodic", periodic.read, 30, ("name",), has_objects=True),
    "limits": Page("Limits", limits.read, 10, has_objects=True),
    "fleet": Page("Fleet", fleet.read, 10, ("queue",)),
    "health": Page("Health", health.read, 5, on_rabbitmq=True),
    "task": Page("", task.read, 5, has_objects=True),
    "job": Page("", job.read, 2, has_objects=True),
}

#: Pages whose views say in *error* what is wrong with their searches.
SEARCH_PAGES = ("scheduled", "dead")
