"""The page "Limits": the limits of tasks, how much of them is used, and their longest lanes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from celery_delayq.errors import InvalidLimit
from celery_delayq.limits.client import LaneStatus, LimitStatus
from celery_delayq.web.query import NotFound, Query
from celery_delayq.web.site import Site

#: Most lanes of a limit, the longest first.
MAX_LANES = 50


@dataclass(frozen=True, slots=True)
class LimitsPage:
    """The view; *limit* is the one whose name is in the path, with its lanes."""

    now: datetime
    limits: list[LimitStatus]
    limit: LimitStatus | None = None
    lanes: list[LaneStatus] | None = None


def read(site: Site, query: Query) -> LimitsPage:
    """Return the view.

    Raises
    ------
    NotFound
        There is no limit with the name in the path.
    """
    limits = site.delayq.limits
    if not query.rest:
        return LimitsPage(site.now(), limits.list())
    try:
        limit = limits.get(query.rest)
    except InvalidLimit as exc:
        raise NotFound(str(exc)) from exc
    lanes = limits.lanes(query.rest, MAX_LANES)
    return LimitsPage(site.now(), [limit], limit, lanes)
