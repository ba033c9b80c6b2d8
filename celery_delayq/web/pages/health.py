"""The page "Health": what the doctor finds."""

from __future__ import annotations

from celery_delayq.admin.doctor import Diagnosis
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site


def read(site: Site, _: Query) -> Diagnosis:
    """Return the findings, which are at most a minute old."""
    return site.all_findings()
