"""The page "Health": what the doctor finds."""

from __future__ import annotations

from typing import NamedTuple

from celery_delayq.web.doctor_looks import Checks, Look
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


#: Seconds to wait for the doctor before the page is shown without its findings.
WAIT_SECONDS = 3.0


class Health(NamedTuple):
    """The newest look of the doctor; None before the first one. *is_looking*: it looks again."""

    look: Look | None
    is_looking: bool


def read(site: Site, query: Query) -> Health:
    """Return the newest findings.

    Opening the page starts all checks. Refreshing the page starts none: the checks read all keys.
    """
    doctor = site.doctor
    if "fragment" not in query.values:
        doctor.request(Checks.ALL)
        doctor.wait(WAIT_SECONDS)
    elif doctor.newest is None:  # the server has started again
        doctor.request(Checks.ALL)
    return Health(doctor.newest_of_all_checks, doctor.makes_all_checks)
