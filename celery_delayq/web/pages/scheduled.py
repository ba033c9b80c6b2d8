"""The page "Scheduled": a list of scheduled tasks by a filter, and a search of their arguments."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from celery.utils.saferepr import saferepr

from celery_delayq.admin.load_ahead import tasks_of
from celery_delayq.errors import InvalidETA, InvalidFilter
from celery_delayq.model.arguments.search import named_arguments
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Filter, Paused, ScheduledTask
from celery_delayq.store.paging import queues_of
from celery_delayq.store.stores import Stores
from celery_delayq.utils.text import similar_name
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

#: The fields of a search that reads tasks: changes of all that match do not know them.
SEARCH_FIELDS = ("argument", "state", "limit", "limit_key")

#: All fields of a query of the page.
QUERY_FIELDS = (*FIELDS, "id", *SEARCH_FIELDS, "cursor", "looked", "found", "until")

#: States that can be searched for, with what they mean.
STATES = {
    "held": "held: due, and waits for a pause or a limit",
    "held_by_limit": "held by a limit",
    "overdue": "overdue",
}

#: Most names that are offered in place of one that nothing has.
MAX_MEANT = 5

#: Words of a search: texts in double quotes, or without space.
_WORDS = re.compile(r'"([^"]+)"|(\S+)')


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
        The same with exact times, and ``until``, the end of a search of due tasks: the next page
        has the same filter.
    total : int
        Number of tasks that the filter selects, before the search of arguments.
    cursor : str | None
        Where the next page begins; None on the last one.
    looked, found : int
        Number of tasks that a search has read and found, on this page and before.
    queues, tasks : list[str]
        Names that fields suggest.
    paused : Paused
        Paused queues and tasks.
    meant : list[tuple[str, str]]
        Fields and names that the search may mean, if nothing has the given ones.
    error : str
        What is wrong with the search.
    """

    now: datetime
    fields: dict[str, str]
    exact_fields: dict[str, str]
    rows: list[Row]
    total: int
    cursor: str | None = None
    looked: int = 0
    found: int = 0
    queues: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    paused: Paused = field(default_factory=lambda: Paused({}, {}))
    meant: list[tuple[str, str]] = field(default_factory=list)
    error: str = ""

    @property
    def pausable(self) -> list[tuple[str, str, bool]]:
        """``"task"`` or ``"queue"``, a name that the search has, and whether it is paused."""
        known = {
            "task": (self.paused.tasks, self.tasks),
            "queue": (self.paused.queues, self.queues),
        }
        return [
            (kind, name, name in paused)
            for kind, (paused, names) in known.items()
            if (name := self.fields.get(kind)) and len(name) <= MAX_ID
            if self.total or name in paused or name in names
        ]

    def pauses_of(self, task: ScheduledTask) -> list[str]:
        """Return which pauses hold a task that is not shown as paused."""
        if task.state == "paused":
            return []
        paused = {"task": task.task in self.paused.tasks, "queue": task.queue in self.paused.queues}
        return [f"{what} paused" for what, is_paused in paused.items() if is_paused]

    @property
    def is_search(self) -> bool:
        """Whether tasks are read to find some."""
        return any(name in self.fields for name in SEARCH_FIELDS)

    @property
    def is_selective(self) -> bool:
        """Whether a filter leaves something out that a change of all can use."""
        return any(name in self.fields for name in FIELDS)


def read(site: Site, query: Query) -> Scheduled:
    """Return the view.

    Fields: those of a filter, ``id`` of one task, ``argument`` for parts of arguments, ``state``,
    ``limit`` and ``limit_key``, ``cursor`` of a page, and of earlier pages of a search ``looked``
    and ``found``, how many tasks they have read and found, and ``until``, when it began.
    """
    now = site.now()
    names = (*FIELDS, "id", *SEARCH_FIELDS)
    fields = {name: text for name in names if (text := query.name(name) or "").strip()}
    queues, tasks = _suggested(site)
    try:
        filter = filter_of(query, now)
        _check_state(fields.get("state"))
        until = query.moment("until", now) or now
    except (InvalidETA, InvalidFilter) as exc:
        return Scheduled(now, fields, {}, [], 0, queues=queues, tasks=tasks, error=str(exc))
    paused = site.delayq.paused()
    times = {name: it for name in ("due_from", "due_to") if (it := getattr(filter, name))}
    if "state" in fields:  # only due tasks have these states
        times["until"] = until
        filter = replace(filter, due_to=min(times.get("due_to", until), until))
    exact = fields | {name: time.isoformat() for name, time in times.items()}
    looked, cursor = query.number("looked"), query.optional("cursor")
    if "id" in fields:
        found = site.delayq.find(fields["id"], queue=filter.queue)
        rows = [row_of(site, each) for each in found]
        total, cursor = len(rows), None
    elif any(name in fields for name in SEARCH_FIELDS):
        total = site.delayq.count(filter)
        rows, cursor, read_now = _search(site, filter, fields, cursor, paused)
        looked += read_now
    else:
        total = site.delayq.count(filter)
        page = site.delayq.list(filter, limit=PAGE_TASKS, cursor=cursor)
        rows, cursor = [row_of(site, each) for each in page], page.cursor
    known = {"task": [*tasks, *site.app.tasks], "queue": queues}
    return Scheduled(
        *(now, fields, exact, rows, total, cursor, looked, query.number("found") + len(rows)),
        *(queues, tasks, paused, [] if total else meant(fields, known)),
    )


def meant(fields: Mapping[str, str], known: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return fields and known names that contain the given ones, or are similar to them."""
    found: list[tuple[str, str]] = []
    for kind, all_names in known.items():
        given, names = fields.get(kind, ""), dict.fromkeys(filter(_is_plain, all_names))
        if not given or given in names or len(given) > MAX_ID:
            continue
        parts = [each for each in names if given.lower() in each.lower()]
        similar = similar_name(given, names)
        others = parts or ([similar] if similar else [])
        found += [(kind, each) for each in others[:MAX_MEANT]]
    return found


def filter_of(query: Query, now: datetime) -> Filter:
    """Return the filter of the fields.

    Raises
    ------
    InvalidFilter, InvalidETA
        A field is invalid.
    """
    due_from, due_to = (query.moment(name, now) for name in ("due_from", "due_to"))
    return Filter(query.name("queue"), query.name("task"), due_from, due_to)


def _check_state(state: str | None) -> None:
    if state is not None and state not in STATES:
        raise InvalidFilter(f"state={state!r}: expected {', '.join(STATES)}, or nothing for any")


def row_of(site: Site, task: ScheduledTask) -> Row:
    """Return a task with what may be shown of its arguments."""
    return Row(task, site.texts_of(task, uuid=task.id, name=task.task))


def _search(
    site: Site, filter: Filter, fields: Mapping[str, str], cursor: str | None, paused: Paused
) -> tuple[list[Row], str | None, int]:
    """Read tasks for a moment. Return those that match *fields*, the cursor behind the last one
    that was read, and how many were read.
    """
    ends = time.monotonic() + SEARCH_SECONDS
    found, looked = list[Row](), 0
    while True:
        page = site.delayq.list(filter, limit=SEARCH_TASKS, cursor=cursor)
        looked += len(page)
        for task in page:
            if _is_in_place(site, task, fields, paused):
                row = row_of(site, task)
                if has_argument(site, task, row.texts, fields.get("argument", "")):
                    found.append(row)
        cursor = page.cursor
        if cursor is None or len(found) >= PAGE_TASKS or time.monotonic() > ends:
            return found, cursor, looked


def _is_in_place(
    site: Site, task: ScheduledTask, fields: Mapping[str, str], paused: Paused
) -> bool:
    """Return whether a due task has the state, the limit and the key of a search."""
    return (
        fields.get("limit") in (None, task.limit)
        and fields.get("limit_key") in (None, task.limit_key)
        and _has_state(site, task, fields.get("state"), paused)
    )


def _has_state(site: Site, task: ScheduledTask, state: str | None, paused: Paused) -> bool:
    """Return whether a due task has a state as numbers of queues and limits count it.

    Dispatchers leave a paused queue alone: its due tasks are held. A task may be in its lane while
    its name is paused.
    """
    is_held = task.state in ("held", "paused") or task.queue in paused.queues
    if state == "held_by_limit":
        return task.state == "held" or (task.state == "paused" and _is_in_lane(site, task))
    return state in (None, "held" if is_held else "overdue")


def _is_in_lane(site: Site, task: ScheduledTask) -> bool:
    def read(stores: Stores) -> bool:
        limits, due_ms = stores.of(task.queue).task_limits, due_of_eta(task.due).ms
        return limits.is_held(task.queue, task.lane, task.priority or 0, due_ms, task._name)

    return bool(task.lane) and site.delayq.session.ask(read)


def has_argument(site: Site, task: ScheduledTask | DeadLetter, texts: Texts, wanted: str) -> bool:
    """Return whether the arguments of a task contain a text, or all of its words.

    A word may be ``name=value`` of an argument, with the whole value: ``order=41`` is not 417. The
    app knows the names of positional arguments. Other words are parts in any case.

    A sender may hide values by a text of its own: then only this text is searched.
    """
    wanted = wanted.strip()
    if not wanted:
        return True
    shown = [texts.args or "", texts.kwargs or ""]
    limits = site.app.amqp.argsrepr_maxsize, site.app.amqp.kwargsrepr_maxsize
    for text, value, limit in zip([*shown], (task.args, task.kwargs), limits, strict=True):
        if texts.is_whole and "..." in text and _is_text_of(text, value, limit):
            shown.append(repr(value))  # Celery has cut it in the header
    is_by_name = texts.is_whole and "=" in wanted and _is_text_of(shown[0], task.args, limits[0])
    if is_by_name and task.args and task.task:
        name = site.delayq.session.renames.by_former_name.get(task.task, task.task)
        shown.append(repr(named_arguments(site.app.tasks.get(name), task.args)))
    text = "\n".join(shown)
    return wanted.lower() in text.lower() or all(
        _has_word(text, quoted or bare) for quoted, bare in _WORDS.findall(wanted)
    )


def _is_text_of(text: str, value: Any, limit: int) -> bool:
    """Return whether a text is the one that Celery makes of arguments."""
    forms = (tuple(value), [*value]) if isinstance(value, (list, tuple)) else (value,)
    return any(text in (saferepr(each, limit), repr(each)) for each in forms)


def _has_word(text: str, word: str) -> bool:
    if word.lower() in text.lower():
        return True
    name, equals, value = map(re.escape, word.partition("="))
    forms = rf"'{name}': (?:'{value}'|\"{value}\"|(?i:{value}))(?=[,)}}\]]|$)"
    return bool(equals) and re.search(forms, text, re.MULTILINE) is not None


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
