"""The page "Health": what the doctor finds."""

from __future__ import annotations

from celery_delayq.admin.doctor import Diagnosis
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site

#: Checks whose names do not say what they look for.
CHECK_HINTS = {
    "stock ETAs": "tasks with an ETA that wait in workers",
    "stock workers": "workers without this package",
    "stalled lanes": "held tasks that nothing lets go",
    "fsck": "keys that contradict each other (fsck)",
    "beat": "a running celery beat",
}


def read(site: Site, _: Query) -> Diagnosis:
    """Return the findings, which are at most a minute old."""
    return site.all_findings()
