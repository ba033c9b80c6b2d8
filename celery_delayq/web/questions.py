"""What the pages ask before a change: what it is about, and the values in its form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from celery_delayq.errors import InvalidETA, InvalidFilter
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.limits import Definition
from celery_delayq.model.payload import MessageFields
from celery_delayq.model.scheduled import Filter, ScheduledTask, moment
from celery_delayq.periodic.definition import definition_hash_of
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.serialization import describe
from celery_delayq.utils.text import shortened
from celery_delayq.web.actions import ACTIONS, PAUSE_TEXTS, Action, Kind, counted
from celery_delayq.web.jobs import Back, Job
from celery_delayq.web.pages import PAGES, dead, scheduled
from celery_delayq.web.query import NotFound, Query, local_text, mark_of, unquoted
from celery_delayq.web.site import Site, Texts

#: Most characters of arguments that a form offers for editing, and of a field that is sent.
MAX_EDITED, MAX_FIELD = 20_000, 1_000_000

#: The fields of all forms.
FORM_FIELDS = ("action", "confirmed", "mark", "version", "back", "_xsrf")

#: Most tasks that are chosen one by one, and those of them that a question shows.
MAX_MARKS, MAX_SAMPLES = 1000, 5


class Sample(NamedTuple):
    """A task or a dead letter of a question; *at* is when it is due or when it died."""

    at: datetime
    task: str | None
    queue: str
    texts: Texts
    id: str


@dataclass(frozen=True)
class Question:
    """What a user is asked before a change, and the page that shows it.

    Attributes
    ----------
    title : str
        The change, as an order with its object.
    number : int
        How many tasks it concerns.
    object_text : str
        What it is about.
    samples : list[Sample]
        Some of the tasks or dead letters.
    notes : list[str]
        What the change means, as sentences.
    back : Back
        The page from which the user came.
    marks : list[str]
        What was chosen, for the form to send again.
    filter : dict[str, str]
        The fields of a filter, or the name of what is paused, to be sent again.
    values : dict[str, str]
        The texts in the fields of the question.
    version : str
        A text that differs when somebody else has changed the object of the form; ``""`` for
        changes that need none.
    """

    name: str
    action: Action
    title: str
    number: int
    object_text: str
    samples: list[Sample]
    notes: list[str]
    back: Back
    marks: list[str]
    filter: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)
    version: str = ""

    @property
    def is_of_dead(self) -> bool:
        """Whether it is about dead letters."""
        return not self.action.kind.endswith("tasks")

    @property
    def button(self) -> str:
        """The change with its object, as the text of a button."""
        text = shortened(self.object_text, 60)
        if self.marks or self.action.kind.startswith("all "):
            text = counted(self.number, self.action.kind)
            text = f"this {text.removeprefix('1 ')}" if self.number == 1 else text
        if self.action.is_edit or self.name == "unset_limit":
            return "Save" if self.action.is_edit else self.action.verb
        verb, now, _ = self.action.verb.partition(" now")
        return f"{verb} {text}{now}"

    @property
    def refusal(self) -> str:
        """The text of the link that leads back without a change."""
        if not self.action.is_dangerous:
            return "No, go back"
        return "Keep it" if self.number == 1 else "Keep them"

    def done_text(self, number: int) -> str:
        """Return what was changed, when the change has ended."""
        its = self.object_text
        if self.action.kind not in OBJECTS:
            its = counted(number, self.action.kind)
        return f"{shortened(its, 200)} {self.action.done}"


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


def ask(site: Site, query: Query) -> Question:
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
    samples: list[Sample] = []
    notes: list[str] = []
    if action.kind in OBJECTS:
        number, (what, name_of) = 1, object_of(query, action.kind)
        kept, object_text = {what: name_of}, f"{what} {name_of}"
        notes = [*_notes(site, name, what, name_of)]
    elif action.kind in ("tasks", "dead letters"):
        chosen = marks_of(query)
        if name == "edit":
            only_mark(query)
        number, marks = len(chosen), [mark_of(ms, id) for ms, id in chosen]
        object_text = counted(number, action.kind)
        if number == 1:
            object_text = f"{object_text.removeprefix('1 ')} {chosen[0][1]}"
        samples = _chosen(site, action.kind, [id for _, id in chosen[:MAX_SAMPLES]])
    else:
        fields = scheduled.FIELDS if action.kind == "all tasks" else dead.FIELDS
        query.check_fields([*fields, *action.fields, *FORM_FIELDS])
        kept = {each: text for each in fields if (text := query.name(each))}
        number, samples = _matching(site, query, action.kind, now)
        given = ", ".join(f"{each} {text}" for each, text in kept.items())
        object_text = counted(number, action.kind) + (f" with {given}" if given else "")
        notes = [] if given else ["There is no filter: these are all of them."]
    values = {each: query.text(each) for each in action.fields}
    version = query.text("version")
    if not query.text("confirmed"):
        present, version = present_values(site, name, query, kept)
        values |= present
    title, back = f"{action.verb}: {object_text}", back_in(query) or _usual_back(action, kept)
    return Question(
        *(name, action, title, number, object_text, samples, notes, back),
        *(marks, kept, values, version),
    )


def _notes(site: Site, name: str, what: str, name_of: str) -> Iterator[str]:
    """Yield what a change of one object means."""
    if (name, what) in PAUSE_TEXTS:
        yield PAUSE_TEXTS[name, what]
        if not site.on_rabbitmq:
            filter = Filter(queue=name_of) if what == "queue" else Filter(task=name_of)
            yield f"{counted(site.delayq.count(filter), 'tasks')} of it in the schedule."
    elif what == "limit":
        limit = site.delayq.limits.get(name_of)
        if limit.definition is not None:
            yield f"Now: {limit_text(limit.definition)}. {counted(limit.held, 'tasks')} held."
        if name == "unset_limit" and limit.of_code is not None:
            yield f"In code: {limit_text(limit.of_code)}."


def _chosen(site: Site, kind: Kind, ids: Sequence[str]) -> list[Sample]:
    if kind == "tasks":
        return [_sample(site, each) for id in ids for each in site.delayq.find(id)]
    found = map(site.delayq.dead_letter, ids)
    return [_dead_sample(site, each) for each in found if each is not None]


def _matching(site: Site, query: Query, kind: Kind, now: datetime) -> tuple[int, list[Sample]]:
    """Return the number of what matches a filter, and the first ones."""
    if kind == "all tasks":
        filter = scheduled.filter_of(query, now)
        page = site.delayq.list(filter, limit=MAX_SAMPLES)
        return site.delayq.count(filter), [_sample(site, each) for each in page]
    filter_of_dead = dead.filter_of(query, now)
    found = islice(site.delayq.dead_letters(filter_of_dead), MAX_SAMPLES)
    samples = [_dead_sample(site, each) for each in found]
    return site.delayq.count_dead(filter_of_dead), samples


def _sample(site: Site, task: ScheduledTask) -> Sample:
    return Sample(task.due, task.task, task.queue, scheduled.row_of(site, task).texts, task.id)


def _dead_sample(site: Site, found: DeadLetter) -> Sample:
    return Sample(found.died, found.task, found.queue, dead.row_of(site, found).texts, found.id)


def back_in(query: Query) -> Back | None:
    """Return the page on which a form was; None if the form has none."""
    path, _, text = query.text("back").partition("?")
    page, _, rest = path.partition("/")
    if page not in PAGES:
        return None
    known = PAGES[page].fields
    fields = parse_qsl(text, errors="surrogateescape")
    return Back(page, unquoted(rest), {name: it for name, it in fields if name in known})


def _usual_back(action: Action, kept: Mapping[str, str]) -> Back:
    """Return the page to which a change leads back if its form does not say whence it came."""
    pages = {"pause": "overview", "entry": "periodic", "limit": "limits"}
    if action.kind in pages:
        return Back(pages[action.kind])
    return Back("scheduled" if action.kind.endswith("tasks") else "dead", "", kept)


def present_values(
    site: Site, name: str, query: Query, kept: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """Return the texts with which the fields of a form begin, and the version of its object."""
    if name == "edit_entry":
        entry = entry_of(site, kept["entry"])
        return _present_fields(site, entry), definition_hash_of(entry.definition)
    if ACTIONS[name].kind == "limit":
        limit = site.delayq.limits.get(kept["limit"])
        return _limit_texts(limit.definition), version_of(limit.definitions)
    if name not in ("edit", "replay", "move") or len(marks_of(query)) > 1:
        return {}, ""
    ms, id = only_mark(query)
    if name == "move":
        return {"when": local_text(moment(ms), site.zone)}, ""
    task: MessageFields | None
    if name == "edit":
        tasks = waiting_tasks(site, id)
        task, version = (tasks[0] if tasks else None), tasks_version(tasks)
    else:
        task = dead = site.delayq.dead_letter(id)
        version = "" if dead is None else version_of(dead.dead_lettered.data)
    values = {} if task is None or site.hides else task.arguments()
    found = _json_texts({each: values.get(each) for each in ("args", "kwargs")})
    if name == "edit" and task is not None:
        found |= _option_texts(site, task)
    return found, version


def _option_texts(site: Site, task: MessageFields) -> dict[str, str]:
    """Return the priority and the end of a task as texts."""
    found, properties = {}, (task.message or {}).get("properties")
    priority = properties.get("priority") if isinstance(properties, Mapping) else None
    if isinstance(priority, int):
        found["priority"] = str(priority)
    if isinstance(expires := task.headers.get("expires"), str):
        with suppress(InvalidETA):
            found["expires"] = local_text(moment(due_of_eta(expires).ms), site.zone)
    return found


def waiting_tasks(site: Site, id: str) -> Sequence[ScheduledTask]:
    """Return the scheduled tasks with an id, the first due one first."""
    found = [each for each in site.delayq.find(id) if each.message is not None]
    return sorted(found, key=lambda each: (each.due, each.queue))


def tasks_version(tasks: Sequence[ScheduledTask]) -> str:
    return version_of(sorted((each.queue, repr(each.message)) for each in tasks))


def version_of(value: object) -> str:
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _present_fields(site: Site, entry: Periodic) -> dict[str, str]:
    """Return the fields of a periodic entry as texts, without arguments that are hidden."""
    definition, stored = entry.definition, {} if site.hides else entry.as_dict()
    queue = definition.options.get("queue") or ""
    fields = {"schedule": describe(definition.schedule), "to_queue": queue}
    return fields | _json_texts({name: stored.get(name) for name in ("args", "kwargs")})


def _json_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return values as JSON that a browser sends back as it is, without empty and long ones.

    Characters that are not printable are escaped, so that they can be seen.
    """
    texts: dict[str, str] = {}
    for name, value in values.items():
        try:
            text = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            continue
        if value and len(text) < MAX_EDITED:
            texts[name] = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return texts


def entry_of(site: Site, name: str) -> Periodic:
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


#: The fields that name what a change is about.
OBJECTS: Mapping[str, Sequence[str]] = {
    "pause": ("queue", "task"),
    "entry": ("entry",),
    "limit": ("limit",),
}


def object_of(query: Query, kind: str) -> tuple[str, str]:
    """Return the field that names what a change is about, and the name."""
    for what in OBJECTS[kind]:
        if name := query.name(what):
            return what, name
    raise InvalidFilter(f"Choose a {' or a '.join(OBJECTS[kind])}.")


def marks_of(query: Query) -> list[tuple[int, str]]:
    """Return the times (ms) and ids of chosen tasks."""
    found: list[tuple[int, str]] = []
    for mark in dict.fromkeys(query.all("mark")):
        ms, _, id = mark.partition(":")
        if id and ms.removeprefix("-").isdigit() and len(ms) < 17:
            found.append((int(ms), unquoted(id)))
    if not found:
        raise InvalidFilter("Nothing was chosen. Tick what you mean first.")
    if len(found) > MAX_MARKS:
        raise InvalidFilter(f"Choose at most {MAX_MARKS:,}, or use a filter.")
    return found


def only_mark(query: Query) -> tuple[int, str]:
    """Return the time (ms) and the id of the one chosen task."""
    marks = marks_of(query)
    if len(marks) > 1:
        raise InvalidFilter("Tick one task only: tasks are edited one at a time.")
    return marks[0]


def _limit_texts(definition: Definition | None) -> dict[str, str]:
    """Return the fields of a limit as texts; without those that limit nothing."""
    if definition is None:
        return {}
    found = {"limit_rate": definition.rate, "concurrency": definition.concurrency}
    if definition.rate:
        found["burst"] = definition.burst
    return {name: str(value) for name, value in found.items() if value}


def limit_text(definition: Definition) -> str:
    """Return what a limit allows, in words."""
    parts = [str(definition.rate)] if definition.rate else []
    if definition.rate and definition.burst > 1:
        parts.append(f"bursts of {definition.burst:,}")
    if definition.concurrency:
        parts.append(f"{definition.concurrency} at the same time")
    return ", ".join(parts)


def job_of(question: Question, user: str, log_text: str = "") -> Job:
    """Return the job of a change."""
    return Job(
        *(question.title, user, question.back, question.number, log_text),
        done_text=question.done_text,
    )
