"""Changes that the pages offer: what each asks first, and how it is made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Bulk, Filter, Outcome, moment
from celery_delayq.transfer.results import Archived
from celery_delayq.utils.text import seconds_of
from celery_delayq.web.jobs import Job
from celery_delayq.web.pages import dead, scheduled
from celery_delayq.web.query import NotFound, Query, mark_of, unquoted
from celery_delayq.web.site import Site

#: Most characters of arguments that a form offers for editing.
MAX_EDITED = 20_000

#: The fields of all forms.
FORM_FIELDS = ("action", "confirmed", "mark", "_xsrf")

#: Most tasks that are chosen one by one.
MAX_MARKS = 1000

#: What a change is about: tasks or dead letters that were chosen, all that match a filter, the
#: pause of a queue or a task, a periodic entry, or a limit.
Kind = Literal["tasks", "all tasks", "dead letters", "all dead letters", "pause", "entry", "limit"]


class Action(NamedTuple):
    """A change.

    Attributes
    ----------
    verb : str
        What it does, as an order.
    fields : Sequence[str]
        The names of the fields of its question.
    is_dangerous : bool
        Whether the change cannot be undone.
    """

    verb: str
    kind: Kind
    fields: Sequence[str] = ()
    is_dangerous: bool = False


_MOVE = ("when", "by")
_REPLAY = ("args", "kwargs", "to_queue", "when")

#: All changes by the value of the button.
ACTIONS: Mapping[str, Action] = {
    "run_now": Action("Run now", "tasks"),
    "move": Action("Move", "tasks", _MOVE),
    "cancel": Action("Cancel", "tasks", is_dangerous=True),
    "edit": Action("Edit", "tasks", ("args", "kwargs", "priority", "expires")),
    "run_all_now": Action("Run now", "all tasks"),
    "move_all": Action("Move", "all tasks", _MOVE),
    "cancel_all": Action("Cancel", "all tasks", is_dangerous=True),
    "replay": Action("Replay", "dead letters", _REPLAY),
    "purge": Action("Delete", "dead letters", is_dangerous=True),
    "replay_all": Action("Replay", "all dead letters", ("args", "kwargs", "to_queue", "rate")),
    "purge_all": Action("Delete", "all dead letters", is_dangerous=True),
    "archive_all": Action("Archive", "all dead letters"),
    "pause": Action("Pause", "pause"),
    "resume": Action("Resume", "pause"),
    "pause_entry": Action("Pause", "entry"),
    "resume_entry": Action("Resume", "entry"),
    "run_entry": Action("Run now", "entry"),
    "set_limit": Action("Change", "limit", ("limit_rate", "burst", "concurrency")),
    "end_limit": Action("Switch off", "limit"),
    "unset_limit": Action("As in code", "limit"),
}

#: Titles and hints of fields.
FIELDS: Mapping[str, tuple[str, str]] = {
    "when": ("When", "2h from now, or 2030-01-31T09:00"),
    "by": ("Or move by", "30m, or -1d for earlier"),
    "args": ("Arguments", "JSON such as [1, 2]; empty: as they are"),
    "kwargs": ("Keywords", 'JSON such as {"user": 7}; empty: as they are'),
    "to_queue": ("Queue", "empty: as it is"),
    "priority": ("Priority", "empty: as it is"),
    "expires": ("Expires", "2h from now, or 2030-01-31T09:00; empty: as it is"),
    "rate": ("At most a second", "empty: all at once"),
    "limit_rate": ("Rate", "100/m; none: no rate; empty: as it is"),
    "burst": ("Burst", "empty: as it is"),
    "concurrency": ("At once", "none: any number; empty: as it is"),
}

#: Why a task was not changed.
UNCHANGED: Mapping[Outcome, str] = {
    Outcome.READY: "ready already: a worker takes it next",
    Outcome.RUNNING: "a worker has it",
    Outcome.CHANGED: "somebody else has changed it meanwhile",
    Outcome.PAST: "the new time would be in the past",
    Outcome.CONFLICT: "another task has its unique key",
    Outcome.UNREADABLE: "it is no message of a task",
    Outcome.REFUSED: "the broker refused it",
    Outcome.UNKNOWN: "it has gone meanwhile",
}


@dataclass(frozen=True)
class Question:
    """What a user is asked before a change, and the page that shows it.

    Attributes
    ----------
    title : str
        The change, as an order with its object.
    number : int
        How many tasks it concerns.
    examples : list[str]
        Some of the ids.
    marks : list[str]
        What was chosen, for the form to send again.
    filter : dict[str, str]
        The fields of a filter, or the name of what is paused, to be sent again.
    values : dict[str, str]
        The texts in the fields of the question.
    error : str
        What is wrong with the fields; ``""`` at first.
    """

    name: str
    action: Action
    title: str
    number: int
    examples: list[str]
    marks: list[str]
    filter: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)
    error: str = ""


def action_of(query: Query) -> tuple[str, Action]:
    """Return the change that a form asks for.

    Raises
    ------
    NotFound
        There is no such change.
    """
    name = query.text("action")
    if name not in ACTIONS:
        raise NotFound(f"There is no change {name!r}.")
    return name, ACTIONS[name]


def ask(site: Site, query: Query, error: str = "") -> Question:
    """Return the question for a change.

    Raises
    ------
    NotFound
        There is no such change.
    InvalidFilter, InvalidETA
        Nothing was chosen, or a field of the filter is invalid.
    """
    name, action = action_of(query)
    now = site.now()
    kept: dict[str, str] = {}
    marks: list[str] = []
    examples: list[str] = []
    if action.kind in _OBJECTS:
        number, (what, name_of) = 1, _object(query, action.kind)
        kept, object_text = {what: name_of}, f"{what} {name_of}"
    elif action.kind in ("tasks", "dead letters"):
        chosen = _marks(query)
        number, examples = len(chosen), [id for _, id in chosen[:10]]
        marks = [mark_of(ms, id) for ms, id in chosen]
        object_text = _counted(number, action.kind)
    else:
        fields = scheduled.FIELDS if action.kind == "all tasks" else dead.FIELDS
        query.check_fields([*fields, *action.fields, *FORM_FIELDS])
        kept = {each: text for each in fields if (text := query.name(each))}
        if action.kind == "all tasks":
            filter = scheduled.filter_of(query, now)
            number = site.delayq.count(**{n: getattr(filter, n) for n in scheduled.FIELDS})
        else:
            number = site.delayq.count_dead(dead.filter_of(query, now))
        given = ", ".join(f"{each} {text}" for each, text in kept.items())
        object_text = _counted(number, action.kind) + (f" with {given}" if given else "")
    values = {each: query.text(each) for each in action.fields}
    if name in ("edit", "replay") and not query.text("confirmed"):
        values |= _present_arguments(site, name, _marks(query))
    title = f"{action.verb}: {object_text}"
    return Question(name, action, title, number, examples, marks, kept, values, error)


def _present_arguments(site: Site, name: str, marks: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Return the arguments of the one chosen task as JSON, unless they are hidden."""
    if len(marks) != 1:
        if name == "edit":
            raise InvalidFilter("Edit one task at a time.")
        return {}
    read = site.delayq.get if name == "edit" else site.delayq.dead_letter
    task = None if site.hides else read(marks[0][1])
    values = {} if task is None else task.arguments()
    found = {name: values.get(name) for name in ("args", "kwargs")}
    texts = {name: json.dumps(it, ensure_ascii=False) for name, it in found.items() if it}
    return {name: text for name, text in texts.items() if len(text) < MAX_EDITED}


def _counted(number: int, kind: str) -> str:
    noun = "task" if kind.endswith("tasks") else "dead letter"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


#: The fields that name what a change is about.
_OBJECTS: Mapping[str, Sequence[str]] = {
    "pause": ("queue", "task"),
    "entry": ("entry",),
    "limit": ("limit",),
}


def _object(query: Query, kind: str) -> tuple[str, str]:
    """Return the field that names what a change is about, and the name."""
    for what in _OBJECTS[kind]:
        if name := query.name(what):
            return what, name
    raise InvalidFilter(f"Choose a {' or a '.join(_OBJECTS[kind])}.")


def _marks(query: Query) -> list[tuple[int, str]]:
    """Return the times (ms) and ids of chosen tasks."""
    found: list[tuple[int, str]] = []
    for mark in dict.fromkeys(query.all("mark")):
        ms, _, id = mark.partition(":")
        if id and ms.removeprefix("-").isdigit() and len(ms) < 17:
            found.append((int(ms), unquoted(id)))
    if not found:
        raise InvalidFilter("Nothing was chosen. Go back, and tick what you mean.")
    if len(found) > MAX_MARKS:
        raise InvalidFilter(f"Choose at most {MAX_MARKS:,}, or use a filter.")
    return found


def prepare(site: Site, query: Query, question: Question) -> Callable[[Job], object]:
    """Return the function that makes a change; it notes outcomes in its job.

    Raises
    ------
    DelayQError
        A field of the question is invalid.
    """
    name, action = question.name, question.action
    now = site.now()
    if action.kind in _OBJECTS:
        return _single(site, name, _object(query, action.kind), query)
    values = _values(query, action, now)
    if action.kind == "tasks":
        return _each(site, name, _marks(query), values)
    if action.kind == "dead letters":
        return _each_dead(site, name, _marks(query), values)
    if action.kind == "all tasks":
        return _all(site, name, scheduled.filter_of(query, now), values)
    return _all_dead(site, name, dead.filter_of(query, now), values)


def _values(query: Query, action: Action, now: datetime) -> dict[str, Any]:
    """Return the arguments of a call for the fields of a question."""
    found: dict[str, Any] = {}
    if "when" in action.fields and (when := query.moment("when", now)) is not None:
        found["eta"] = when
    if "by" in action.fields:
        text = query.text("by")
        seconds = seconds_of(text)
        if text and not seconds:
            raise InvalidETA(f"by={text!r}: expected a duration such as 30m, or -1d for earlier")
        if bool(text) is ("eta" in found):
            raise InvalidETA("give either the new time, or by how much to move")
        if text:
            found["by"] = seconds
    for name, kind, example in (("args", list, "[1, 2]"), ("kwargs", dict, '{"user": 7}')):
        if name in action.fields and (text := query.text(name)):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, kind):
                raise ConfigError(f"{name}: expected JSON such as {example}")
            found[name] = value
    if "priority" in action.fields and (text := query.text("priority")):
        if not (text.isascii() and text.isdigit() and len(text) < 4):
            raise ConfigError(f"priority={text!r}: expected a whole number, such as 0 or 9")
        found["priority"] = int(text)
    if "expires" in action.fields and (expires := query.moment("expires", now)) is not None:
        found["expires"] = expires
    if action.fields == ACTIONS["edit"].fields and not found:
        raise ConfigError("give at least one of the fields")
    if "to_queue" in action.fields and (queue := query.name("to_queue")):
        found["queue"] = queue
    if "rate" in action.fields and (text := query.text("rate")):
        try:
            found["rate"] = float(text)
        except ValueError:
            raise ConfigError(f"rate={text!r}: expected a number of tasks a second") from None
    return found


def _single(
    site: Site, action: str, named: tuple[str, str], query: Query
) -> Callable[[Job], object]:
    """Return the function for a change of one queue, task name, periodic entry or limit."""
    (what, name), periodic, limits = named, site.delayq.periodic, site.delayq.limits
    values = _limit_values(query) if action == "set_limit" else {}
    calls: dict[str, Callable[[], object]] = {
        "pause": lambda: site.delayq.pause(**{what: name}),
        "resume": lambda: site.delayq.resume(**{what: name}),
        "pause_entry": lambda: periodic.pause(name),
        "resume_entry": lambda: periodic.resume(name),
        "run_entry": lambda: periodic.run_now(name),
        "set_limit": lambda: limits.set(name, **values),
        "end_limit": lambda: limits.set(name, off=True),
        "unset_limit": lambda: limits.unset(name),
    }

    def make(job: Job) -> None:
        changed = calls[action]()
        job.outcomes[Outcome.DONE if changed else Outcome.CHANGED] += 1

    return make


def _limit_values(query: Query) -> dict[str, Any]:
    """Return what a limit is to be, for the fields that are set."""
    found: dict[str, Any] = {}
    if text := query.text("limit_rate"):
        found["rate"] = None if text == "none" else text
    for name in ("burst", "concurrency"):
        if text := query.text(name):
            if not ((text.isascii() and text.isdigit() and len(text) < 10) or text == "none"):
                raise ConfigError(f"{name}={text!r}: expected a whole number, or none")
            found[name] = None if text == "none" else int(text)
    if not found:
        raise ConfigError("give at least one of the fields")
    return found


def _each(
    site: Site, name: str, marks: Sequence[tuple[int, str]], values: Mapping[str, Any]
) -> Callable[[Job], object]:
    calls: dict[str, Callable[..., Outcome]] = {
        "run_now": site.delayq.run_now,
        "move": site.delayq.reschedule,
        "cancel": site.delayq.cancel,
        "edit": site.delayq.update,
    }

    def make(job: Job) -> None:
        job.total = len(marks)
        for ms, id in marks:
            job.check()
            try:
                outcome = calls[name](id, if_eta=moment(ms), **values)
            except InvalidETA:
                if len(marks) == 1:
                    raise
                outcome = Outcome.PAST
            job.outcomes[outcome] += 1

    return make


def _each_dead(
    site: Site, name: str, marks: Sequence[tuple[int, str]], values: Mapping[str, Any]
) -> Callable[[Job], object]:
    dead_letters = site.delayq.dead_letters

    def change(ms: int, id: str) -> Outcome:
        found = dead_letters.get(id)
        if found is None:
            return Outcome.UNKNOWN
        if found.dead_lettered.died_ms != ms:
            return Outcome.CHANGED
        return (
            dead_letters.replay(found, **values) if name == "replay" else dead_letters.purge(found)
        )

    def make(job: Job) -> None:
        job.total = len(marks)
        for ms, id in marks:
            job.check()
            job.outcomes[change(ms, id)] += 1

    return make


def _all(
    site: Site, name: str, filter: Filter, values: Mapping[str, Any]
) -> Callable[[Job], object]:
    calls: dict[str, Callable[..., Bulk]] = {
        "run_all_now": site.delayq.run_all_now,
        "move_all": site.delayq.reschedule_all,
        "cancel_all": site.delayq.cancel_all,
    }
    everything = filter.is_everything
    return lambda job: job.note(
        calls[name](filter, everything=everything, progress=job.note, **values)
    )


def _all_dead(
    site: Site, name: str, filter: DeadFilter, values: Mapping[str, Any]
) -> Callable[[Job], object]:
    if name == "archive_all":
        return lambda job: _note_archived(
            job, site.delayq.archive_dead(None, filter, progress=partial(_note_archived, job))
        )
    calls: dict[str, Callable[..., Bulk]] = {
        "replay_all": site.delayq.replay_all,
        "purge_all": site.delayq.purge_all,
    }
    everything = filter.is_everything
    return lambda job: job.note(
        calls[name](filter, everything=everything, progress=job.note, **values)
    )


def _note_archived(job: Job, archived: Archived) -> None:
    outcomes = {Outcome.DONE: archived.moved, Outcome.UNKNOWN: archived.gone}
    job.note(Bulk(False, archived.total or archived.looked, Counter(outcomes)))


def back_of(question: Question) -> tuple[str, dict[str, str]]:
    """Return the page to which a change leads back, and its fields."""
    kind = question.action.kind
    pages = {"pause": "overview", "entry": "periodic", "limit": "limits"}
    if kind in pages:
        return pages[kind], {}
    page = "scheduled" if kind.endswith("tasks") else "dead"
    if kind.startswith("all"):
        return page, question.filter
    return page, {}
