"""The page "Dead letters": the newest ones, and groups of them by reason and exception."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from celery_delayq.errors import InvalidETA, InvalidFilter
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import moment
from celery_delayq.model.totals import kind_of
from celery_delayq.web.pages.scheduled import MAX_ID, has_argument, meant
from celery_delayq.web.query import Query, mark_of
from celery_delayq.web.site import Site, Texts

#: Dead letters of a page, and groups, those with most dead letters first.
PAGE_DEAD_LETTERS, MAX_GROUPS = 50, 100

#: Most bytes of the messages of a page with several dead letters.
PAGE_BYTES = 20_000_000

#: Seconds of the stretches of time of which the shortest with enough dead letters is read.
STRETCH_SECONDS = (60, 600, 3600, 86_400, 7 * 86_400, 30 * 86_400)
ENOUGH_DEAD_LETTERS = 1000

#: Seconds after which reading ends.
READ_SECONDS = 1.0

#: The fields of the filter, as in :class:`~celery_delayq.model.dead_letter.DeadFilter`.
FIELDS = ("queue", "task", "task_id", "exception", "reason", "died_from", "died_to")


#: All fields of a query of the page.
QUERY_FIELDS = (*FIELDS, "argument", "before")


@dataclass(frozen=True, slots=True)
class Row:
    """A dead letter, and what may be shown of it."""

    dead: DeadLetter
    texts: Texts
    reason: str

    @property
    def mark(self) -> str:
        """The time of death (ms) and the id, by which a change finds the dead letter; ``""`` for an
        id that is too long for a form.
        """
        id = self.dead.id
        return "" if len(id) > MAX_ID else mark_of(self.dead.dead_lettered.died_ms, id)


@dataclass(slots=True)
class Group:
    """Dead letters with one kind of reason and one class of exception."""

    kind: str
    exception: str
    number: int
    last_died: datetime


@dataclass(frozen=True, slots=True)
class DeadLettersPage:
    """The view.

    Attributes
    ----------
    fields, exact_fields : dict[str, str]
        The texts of the fields of the filter, without empty ones; the same with exact times.
    total : int
        Number of all dead letters.
    read : int
        Number of matching dead letters that were read for the groups.
    since : datetime | None
        The time of death from which they were read; None for all.
    more_groups : int
        Number of groups that are not shown.
    older : datetime | None
        The time before which the next page begins; None if there are no older ones.
    is_cut : bool
        Whether reading took too long, so that groups are incomplete.
    meant : list[tuple[str, str]]
        Fields and names that the search may mean, if nothing has the given ones.
    error : str
        What is wrong with the search.
    """

    now: datetime
    fields: dict[str, str]
    exact_fields: dict[str, str]
    rows: list[Row]
    groups: list[Group]
    total: int
    read: int
    since: datetime | None
    older: datetime | None
    is_cut: bool
    more_groups: int = 0
    meant: list[tuple[str, str]] = field(default_factory=list)
    error: str = ""

    @property
    def is_search(self) -> bool:
        """Whether arguments are searched: changes of all that match do not know that."""
        return "argument" in self.fields


def read(site: Site, query: Query) -> DeadLettersPage:
    """Return the view.

    Fields: those of the filter, ``argument`` for parts of arguments, and ``before``, the end of the
    page.
    """
    now = site.now()
    names = (*FIELDS, "argument")
    fields = {name: text for name in names if (text := query.name(name) or "").strip()}
    try:
        filter = filter_of(query, now)
        before = query.moment("before", now)
    except (InvalidETA, InvalidFilter) as exc:
        total = site.delayq.count_dead()
        return DeadLettersPage(
            *(now, fields, {}, [], [], total, 0, None, None, False), error=str(exc)
        )
    times = {name: it for name in ("died_from", "died_to") if (it := getattr(filter, name))}
    if before is not None:
        filter = replace(filter, died_to=before)
    stretch = filter if filter.died_from is not None else _stretch(site, filter, now)
    groups: dict[tuple[str, str], Group] = {}
    newest, size = deque[DeadLetter](), 0
    number, ends, is_cut = 0, time.monotonic() + READ_SECONDS, False
    for looked, dead in enumerate(site.delayq.dead_letters(stretch)):
        if looked and time.monotonic() > ends:
            is_cut = True
            break
        if "argument" in fields and not _has(site, dead, fields["argument"]):
            continue
        number += 1
        newest.append(dead)
        size += _size(dead)
        while len(newest) > PAGE_DEAD_LETTERS or (len(newest) > 1 and size > PAGE_BYTES):
            size -= _size(newest.popleft())
        key = kind_of(dead.reason), dead.exception or ""
        group = groups.setdefault(key, Group(*key, 0, dead.died))
        group.number, group.last_died = group.number + 1, dead.died
    since = stretch.died_from
    assert since is None or isinstance(since, datetime)
    older: datetime | None = None
    if number > len(newest):
        older = moment(newest[0].dead_lettered.died_ms - 1)
    elif since is not None and filter.died_from is None:
        older = moment(due_of_eta(since).ms - 1)
    return DeadLettersPage(
        now=now,
        fields=fields,
        exact_fields=fields | {name: each.isoformat() for name, each in times.items()},
        rows=[row_of(site, each) for each in reversed(newest)],
        groups=sorted(groups.values(), key=lambda each: -each.number)[:MAX_GROUPS],
        more_groups=max(0, len(groups) - MAX_GROUPS),
        total=site.delayq.count_dead(),
        read=number,
        since=since,
        older=older,
        is_cut=is_cut,
        meant=[] if number else meant(fields, {"task": [*site.app.tasks]}),
    )


def _has(site: Site, dead: DeadLetter, part: str) -> bool:
    return has_argument(site, dead, row_of(site, dead).texts, part)


def _size(dead: DeadLetter) -> int:
    return len(dead.dead_lettered.message) + len(dead.dead_lettered.details)


def filter_of(query: Query, now: datetime) -> DeadFilter:
    """Return the filter of the fields.

    Raises
    ------
    InvalidFilter, InvalidETA
        A field is invalid.
    """
    texts: dict[str, Any] = {
        name: query.name(name) for name in FIELDS if not name.startswith("died_")
    }
    died_from, died_to = (query.moment(name, now, "ago") for name in ("died_from", "died_to"))
    return DeadFilter(**texts, died_from=died_from, died_to=died_to)


def row_of(site: Site, dead: DeadLetter) -> Row:
    """Return a dead letter with what may be shown of it."""
    known = {"exception": dead.error, "traceback": dead.traceback}
    texts = site.texts_of(dead, uuid=dead.task_id or dead.id, name=dead.task, **known)
    return Row(dead, texts, kind_of(dead.reason) if site.hides else dead.reason)


def _stretch(site: Site, filter: DeadFilter, now: datetime) -> DeadFilter:
    """Return the filter for the shortest stretch of time with enough dead letters."""
    if site.delayq.session.on_rabbitmq:  # each count would read them all
        return filter
    ends_ms = due_of_eta(filter.died_to or now).ms
    for seconds in STRETCH_SECONDS:
        begins = moment(ends_ms - seconds * 1000)
        by_place = DeadFilter(filter.queue, died_from=begins, died_to=filter.died_to)
        if site.delayq.count_dead(by_place) >= ENOUGH_DEAD_LETTERS:
            return replace(filter, died_from=begins)
    return filter
