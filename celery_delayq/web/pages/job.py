"""The page of a change: its progress, and its outcome."""

from __future__ import annotations

from celery_delayq.web.jobs import Job
from celery_delayq.web.query import NotFound, Query
from celery_delayq.web.site import Site


def read(site: Site, query: Query) -> Job:
    """Return the change with the id in the path.

    Raises
    ------
    NotFound
        The server does not know the change: it remembers the last ones until it ends.
    """
    job = site.jobs.get(query.rest)
    if job is None:
        raise NotFound("This server does not know that change (any more). The log has all changes.")
    return job
