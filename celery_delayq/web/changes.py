"""Changes that the pages offer: what each asks first, and how it is made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.limits.client import LimitStatus, set_as_seen, unset_as_seen
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.payload import MessageFields
from celery_delayq.model.scheduled import Bulk, Filter, Outcome, ScheduledTask, moment
from celery_delayq.periodic.client import changed_entry, swap_entry
from celery_delayq.periodic.definition import definition_hash_of
from celery_delayq.periodic.serialization import describe
from celery_delayq.periodic.state import Periodic
from celery_delayq.schedule.update import update_as_seen
from celery_delayq.transfer.results import Archived
from celery_delayq.utils.text import is_utf8, seconds_of, shortened
from celery_delayq.web.jobs import Back, Job
from celery_delayq.web.pages import dead, scheduled
from celery_delayq.web.query import NotFound, Query, mark_of, unquoted
from celery_delayq.web.site import Site
from celery_delayq.web.words import read_schedule

#: Most characters of arguments that a form offers for editing, and of a field that is sent.
MAX_EDITED, MAX_FIELD = 20_000, 1_000_000

#: The fields of all forms.
FORM_FIELDS = ("action", "confirmed", "mark", "version", "_xsrf")

#: Most tasks that are chosen one by one, and most ids that the log has of one change.
MAX_MARKS, MAX_LOGGED_IDS = 1000, 100

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
    "edit_entry": Action("Edit", "entry", ("schedule", "args", "kwargs", "to_queue")),
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
    "schedule": ("Schedule", "every 30m, 0 9 * * mon-fri, FREQ=…, or 2030-01-31T09:00"),
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
    version : str
        A text that differs when somebody else has changed the object of the form; ``""`` for
        changes that need none.
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
    version: str = ""
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
        Nothing was chosen, a field of the filter is invalid, or a field is too long.
    """
    name, action = action_of(query)
    for each in action.fields:
        if (length := len(query.text(each))) > MAX_FIELD:
            raise InvalidFilter(
                f"{each}: {length:,} characters; a form takes at most {MAX_FIELD:,}"
            )
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
        if number == 1:
            object_text = f"{object_text.removeprefix('1 ')} {examples[0]}"
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
    version = query.text("version")
    if not query.text("confirmed"):
        present, version = _present(site, name, query, kept)
        values |= present
    title = f"{action.verb}: {object_text}"
    return Question(name, action, title, number, examples, marks, kept, values, version, error)


def _present(
    site: Site, name: str, query: Query, kept: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Return the texts with which the fields of a form begin, and the version of its object."""
    if name == "edit_entry":
        entry = _entry(site, kept["entry"])
        return _present_fields(site, entry), definition_hash_of(entry.definition)
    if ACTIONS[name].kind == "limit":
        return {}, _version(site.delayq.limits.get(kept["limit"]).definitions)
    if name not in ("edit", "replay"):
        return {}, ""
    if name == "replay" and len(_marks(query)) > 1:
        return {}, ""
    id = _only_mark(query)[1]
    task: MessageFields | None
    if name == "edit":
        tasks = _waiting(site, id)
        task, version = (tasks[0] if tasks else None), _tasks_version(tasks)
    else:
        task = dead = site.delayq.dead_letter(id)
        version = "" if dead is None else _version(dead.dead_lettered.data)
    values = {} if task is None or site.hides else task.arguments()
    return _json_texts({each: values.get(each) for each in ("args", "kwargs")}), version


def _waiting(site: Site, id: str) -> Sequence[ScheduledTask]:
    """Return the scheduled tasks with an id, the first due one first."""
    found = [each for each in site.delayq.find(id) if each.message is not None]
    return sorted(found, key=lambda each: (each.due, each.queue))


def _tasks_version(tasks: Sequence[ScheduledTask]) -> str:
    return _version(sorted((each.queue, repr(each.message)) for each in tasks))


def _version(value: object) -> str:
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _present_fields(site: Site, entry: Periodic) -> dict[str, str]:
    """Return the fields of a periodic entry as texts, without arguments that are hidden."""
    definition, stored = entry.definition, {} if site.hides else entry.as_dict()
    queue = definition.options.get("queue") or ""
    fields = {"schedule": describe(definition.schedule), "to_queue": queue}
    return fields | _json_texts({name: stored.get(name) for name in ("args", "kwargs")})


def _json_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as JSON that a browser sends back as it is, without empty and long ones."""
    texts: dict[str, str] = {}
    for name, value in values.items():
        try:
            text = json.dumps(value, ensure_ascii=False)
            text = text if is_utf8(text) else json.dumps(value)
        except RecursionError:
            continue
        if value and len(text) < MAX_EDITED:
            texts[name] = text
    return texts


def _entry(site: Site, name: str) -> Periodic:
    """Return a periodic entry.

    Raises
    ------
    NotFound
        There is no entry of this name.
    RecordError, InvalidSchedule
        This process cannot read the entry.
    """
    found = site.delayq.periodic.get(name)
    if found is None:
        raise NotFound(f"There is no periodic entry {name!r}.")
    return found


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


def _only_mark(query: Query) -> tuple[int, str]:
    """Return the time (ms) and the id of the one chosen task."""
    marks = _marks(query)
    if len(marks) > 1:
        raise InvalidFilter("Edit one task at a time.")
    return marks[0]


def prepare(site: Site, query: Query, question: Question) -> Callable[[Job], object]:
    """Return the function that makes a change; it notes outcomes in its job.

    Raises
    ------
    DelayQError
        A field of the question is invalid.
    """
    name, action = question.name, question.action
    now = site.now()
    values = _values(query, action, now)
    if action.kind in _OBJECTS:
        what, name_of = _object(query, action.kind)
        if name == "edit_entry":
            return _edited_entry(site, name_of, query, values, question.version)
        if action.kind == "limit":
            return _changed_limit(site, name, name_of, query, question.version)
        return _single(site, name, what, name_of)
    if name == "edit":
        return _edited_task(site, _only_mark(query), values, question.version)
    if action.kind == "tasks":
        return _each(site, name, _marks(query), values)
    if action.kind == "dead letters":
        return _each_dead(site, name, _marks(query), values, question.version)
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


def _single(site: Site, action: str, what: str, name: str) -> Callable[[Job], object]:
    """Return the function for a change of one queue, task name or periodic entry without further
    fields.

    It needs no version: what somebody else changes meanwhile stays, and of two that are opposites
    the last one counts.
    """
    periodic = site.delayq.periodic
    calls: dict[str, Callable[[], object]] = {
        "pause": lambda: site.delayq.pause(**{what: name}),
        "resume": lambda: site.delayq.resume(**{what: name}),
        "pause_entry": lambda: periodic.pause(name),
        "resume_entry": lambda: periodic.resume(name),
        "run_entry": lambda: periodic.run_now(name),
    }

    def make(job: Job) -> None:
        changed = calls[action]()
        if changed is None:  # of run_entry only
            job.error = "A task of the entry waits or runs, and its runs may not overlap."
            return
        job.outcomes[Outcome.DONE if changed else Outcome.CHANGED] += 1

    return make


def _edited_task(
    site: Site, mark: tuple[int, str], values: Mapping[str, Any], version: str
) -> Callable[[Job], object]:
    """Return the function that edits a task, unless it differs from the one in the form."""
    ms, id = mark

    def make(job: Job) -> None:
        tasks, outcome = _waiting(site, id), Outcome.CHANGED
        if not tasks or _tasks_version(tasks) == version:
            outcome = update_as_seen(site.delayq.updates, id, tasks, moment(ms), **values)
        job.outcomes[outcome] += 1

    return make


def _edited_entry(
    site: Site, name: str, query: Query, values: dict[str, Any], version: str
) -> Callable[[Job], object]:
    """Return the function that edits a periodic entry, unless it differs from that in the form."""
    periodic, before = site.delayq.periodic, _entry(site, name).definition
    if "queue" in values:
        values["options"] = {**before.options, "queue": values.pop("queue")}
    schedule = query.text("schedule").replace("\r\n", "\n")
    if schedule and schedule != describe(before.schedule):
        values["schedule"] = read_schedule(schedule)
    after = changed_entry(periodic, before, values)
    is_same = definition_hash_of(before) == version

    def make(job: Job) -> None:
        outcome = swap_entry(periodic, before, after) if is_same else Outcome.CHANGED
        job.outcomes[outcome] += 1

    return make


def _changed_limit(
    site: Site, action: str, name: str, query: Query, version: str
) -> Callable[[Job], object]:
    """Return the function that changes a limit, unless it differs from the one in the form."""
    limits = site.delayq.limits
    values = _limit_values(query) if action == "set_limit" else {}
    calls: dict[str, Callable[[LimitStatus], Outcome]] = {
        "set_limit": lambda seen: set_as_seen(limits, seen, **values),
        "end_limit": lambda seen: set_as_seen(limits, seen, off=True),
        "unset_limit": lambda seen: unset_as_seen(limits, seen),
    }

    def make(job: Job) -> None:
        seen = limits.get(name)
        is_same = _version(seen.definitions) == version
        job.outcomes[calls[action](seen) if is_same else Outcome.CHANGED] += 1

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
    site: Site,
    name: str,
    marks: Sequence[tuple[int, str]],
    values: Mapping[str, Any],
    version: str,
) -> Callable[[Job], object]:
    """Return the function that replays or deletes dead letters.

    The scripts compare the time of death. A *version*, of one with a form, also tells whether a
    rewrite has changed its message.
    """
    dead_letters = site.delayq.dead_letters

    def change(ms: int, id: str) -> Outcome:
        found = dead_letters.get(id)
        if found is None:
            return Outcome.UNKNOWN
        if found.dead_lettered.died_ms != ms:
            return Outcome.CHANGED
        if version and _version(found.dead_lettered.data) != version:
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


def log_text(query: Query, question: Question) -> str:
    """Return what the log says of a change besides its title: fields without arguments, and ids."""
    fields = {name: query.text(name) for name in question.action.fields}
    said = [
        f"new {name}" if name in ("args", "kwargs") else f"{name} {shortened(text, 200)}"
        for name, text in fields.items()
        if text
    ]
    if question.number > 1 and question.marks:
        ids = [id for _, id in _marks(query)]
        more = f" and {len(ids) - MAX_LOGGED_IDS:,} more" if len(ids) > MAX_LOGGED_IDS else ""
        said.append(f"ids {' '.join(ids[:MAX_LOGGED_IDS])}{more}")
    return ", ".join(said)


def back_of(question: Question) -> Back:
    """Return the page to which a change leads back."""
    kind = question.action.kind
    if question.name == "edit_entry":
        return Back("periodic", question.filter["entry"])
    pages = {"pause": "overview", "entry": "periodic", "limit": "limits"}
    if kind in pages:
        return Back(pages[kind])
    if kind == "tasks" and len(question.marks) == 1 and not question.action.is_dangerous:
        return Back("task", question.examples[0])
    page = "scheduled" if kind.endswith("tasks") else "dead"
    return Back(page, "", question.filter)
