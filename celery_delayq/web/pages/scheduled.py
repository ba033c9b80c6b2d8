"""The page "Scheduled": a list of scheduled tasks by a filter, and a search of their arguments."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_delayq.admin.load import tasks_of
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Filter, Paused, ScheduledTask
from celery_delayq.store.paging import queues_of
from celery_delayq.web.query import Query, mark_of
from celery_delayq.web.site import Site, Texts

#: Tasks of a page.
PAGE_TASKS = 50

#: Seconds after which a search shows what it has found, and tasks that it reads at once.
SEARCH_SECONDS, SEARCH_TASKS = 0.1, 200

#: Most names that a field suggests.
MAX_SUGGESTED = 200

#: Most characters of an id that can be chosen.
MAX_ID = 1000

#: The fields of the filter, as in :class:`~celery_delayq.model.scheduled.Filter`.
FIELDS = ("queue", "task", "due_from", "due_to")

#: All fields of a query of the page.
QUERY_FIELDS = (*FIELDS, "id", "argument", "cursor", "looked")


@dataclass(frozen=True, slots=True)
class Row:
    """A task, and what may be shown of its arguments."""

    task: ScheduledTask
    texts: Texts

    @property
    def mark(self) -> str:
        """The due time (ms) and the id, by which a change finds the task as it is shown; ``""`` for
        an id that is too long for a form.
        """
        id = self.task.id
        return "" if len(id) > MAX_ID else mark_of(due_of_eta(self.task.due).ms, id)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The view.

    Attributes
    ----------
    fields : dict[str, str]
        The texts of the fields of the search, without empty ones.
    exact_fields : dict[str, str]
        The same with exact times: the next page has the same filter.
    total : int
        Number of tasks that the filter selects, before the search of arguments.
    cursor : str | None
        Where the next page begins; None on the last one.
    looked : int
        Number of tasks that the search of arguments has read, on this page and before.
    queues, tasks : list[str]
        Names that fields suggest.
    paused : Paused
        Paused queues and tasks, if the search names one.
    """

    now: datetime
    fields: dict[str, str]
    exact_fields: dict[str, str]
    rows: list[Row]
    total: int
    cursor: str | None = None
    looked: int = 0
    queues: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    paused: Paused = field(default_factory=lambda: Paused({}, {}))

    @property
    def pausable(self) -> list[tuple[str, str, bool]]:
        """``"task"`` or ``"queue"``, a name that the search has, and whether it is paused."""
        names = {"task": self.paused.tasks, "queue": self.paused.queues}
        return [
            (kind, name, name in its)
            for kind, its in names.items()
            if (name := self.fields.get(kind)) and len(name) <= MAX_ID
        ]

    @property
    def is_search(self) -> bool:
        """Whether arguments are searched."""
        return "argument" in self.fields

    @property
    def is_selective(self) -> bool:
        """Whether a filter leaves something out that a change of all can use."""
        return any(name in self.fields for name in FIELDS)


def read(site: Site, query: Query) -> Scheduled:
    """Return the view.

    Fields: those of a filter, ``id`` of one task, ``argument`` for a part of an argument,
    ``cursor`` of a page, and ``looked``: how many tasks earlier pages of a search have read.
    """
    now = site.now()
    filter = filter_of(query, now)
    names = (*FIELDS, "id", "argument")
    fields = {name: text for name in names if (text := query.name(name) or "").strip()}
    times = {name: it for name in ("due_from", "due_to") if (it := getattr(filter, name))}
    exact = fields | {name: time.isoformat() for name, time in times.items()}
    queues, tasks = _suggested(site)
    if "id" in fields:
        found = site.delayq.find(fields["id"], queue=filter.queue)
        rows = [row_of(site, each) for each in found]
        return Scheduled(now, fields, exact, rows, len(rows), queues=queues, tasks=tasks)
    total = site.delayq.count(
        queue=filter.queue, task=filter.task, due_from=filter.due_from, due_to=filter.due_to
    )
    cursor, looked = query.optional("cursor"), query.number("looked")
    if "argument" in fields:
        rows, cursor, read_now = _search(site, filter, fields["argument"], cursor)
        looked += read_now
    else:
        page = site.delayq.list(**_as_dict(filter), limit=PAGE_TASKS, cursor=cursor)
        rows, cursor = [row_of(site, each) for each in page], page.cursor
    paused = site.delayq.paused() if filter.queue or filter.task else Paused({}, {})
    return Scheduled(now, fields, exact, rows, total, cursor, looked, queues, tasks, paused)


def filter_of(query: Query, now: datetime) -> Filter:
    """Return the filter of the fields.

    Raises
    ------
    InvalidFilter, InvalidETA
        A field is invalid.
    """
    due_from, due_to = (query.moment(name, now) for name in ("due_from", "due_to"))
    return Filter(query.name("queue"), query.name("task"), due_from, due_to)


def row_of(site: Site, task: ScheduledTask) -> Row:
    """Return a task with what may be shown of its arguments."""
    return Row(task, site.texts_of(task, uuid=task.id, name=task.task))


def _as_dict(filter: Filter) -> dict[str, Any]:
    return {name: getattr(filter, name) for name in FIELDS}


def _search(
    site: Site, filter: Filter, part: str, cursor: str | None
) -> tuple[list[Row], str | None, int]:
    """Read tasks for a moment. Return those with *part* in an argument, the cursor behind the last
    one that was read, and how many were read.
    """
    ends = time.monotonic() + SEARCH_SECONDS
    part, found, looked = part.lower(), list[Row](), 0
    while True:
        page = site.delayq.list(**_as_dict(filter), limit=SEARCH_TASKS, cursor=cursor)
        looked += len(page)
        for task in page:
            row = row_of(site, task)
            if _has(row, part):
                found.append(row)
        cursor = page.cursor
        if cursor is None or len(found) >= PAGE_TASKS or time.monotonic() > ends:
            return found, cursor, looked


def _has(row: Row, part: str) -> bool:
    """Return whether an argument has a part, which is in lower case."""
    texts = [row.texts.args or "", row.texts.kwargs or ""]
    if any(part in text.lower() for text in texts):
        return True
    if not row.texts.is_whole or not any("..." in text for text in texts):
        return False
    # Celery cuts long texts in the header.
    return part in repr((row.task.args, row.task.kwargs)).lower()


def _suggested(site: Site) -> tuple[list[str], list[str]]:
    """Return the names of queues and of scheduled tasks."""
    queues = sorted(site.delayq.session.ask(lambda stores: queues_of(stores, None)))
    some = queues[:MAX_SUGGESTED]
    tasks: Counter[str] = site.delayq.session.ask(lambda stores: tasks_of(stores, some))
    names = [name for name, _ in tasks.most_common(MAX_SUGGESTED)]
    return [*filter(_is_plain, some)], sorted(filter(_is_plain, names))


def _is_plain(name: str) -> bool:
    """Return whether a field may suggest a name."""
    return len(name) <= MAX_ID and name.isprintable()
