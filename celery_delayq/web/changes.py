"""How the changes are made that the pages offer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from celery_delayq.errors import ConfigError, InvalidETA, InvalidLimit
from celery_delayq.limits.changes import Definitions, LimitChanges
from celery_delayq.limits.client import TaskLimits
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Bulk, Filter, Outcome, moment
from celery_delayq.periodic.client import changed_entry, swap_entry
from celery_delayq.periodic.definition import definition_hash_of
from celery_delayq.periodic.serialization import describe
from celery_delayq.schedule.update import update_as_seen
from celery_delayq.transfer.results import Archived
from celery_delayq.utils.text import seconds_of, shortened
from celery_delayq.web.actions import ACTIONS, FIELDS, TIME_FIELDS, Action
from celery_delayq.web.jobs import Job
from celery_delayq.web.pages import dead, scheduled
from celery_delayq.web.query import Query
from celery_delayq.web.questions import (
    OBJECTS,
    Question,
    entry_of,
    limit_text,
    marks_of,
    object_of,
    only_mark,
    present_values,
    tasks_version,
    version_of,
    waiting_tasks,
)
from celery_delayq.web.schedule_words import read_schedule
from celery_delayq.web.site import Site

#: Most ids that the log has of one change.
MAX_LOGGED_IDS = 100

#: Titles of facts that a look at the changed task replaces.
_PLACE_TITLES = (FIELDS["when"][0], FIELDS["by"][0])

#: Changes whose forms begin with present values. Only what differs from them is written.
_WITH_PRESENT_VALUES = ("edit", "replay", "move", "set_limit")


def prepare(site: Site, query: Query, question: Question) -> Callable[[Job], object]:
    """Return the function that makes a change; it notes outcomes in its job.

    Raises
    ------
    DelayQError
        A field of the question is invalid.
    """
    name, action = question.name, question.action
    if name in _WITH_PRESENT_VALUES:
        present, version = present_values(site, name, query, question.filter)
        if version == question.version:
            query = query.without({n for n, text in present.items() if query.text(n) == text})
    values = _values(query, action, site.now())
    change = _change(site, query, question, values)

    def make(job: Job) -> None:
        job.facts += _facts(site, query, action, values)
        change(job)

    return make


def _facts(
    site: Site, query: Query, action: Action, values: Mapping[str, Any]
) -> Iterator[tuple[str, str | datetime]]:
    """Yield the new values of a change with their titles."""
    for name in action.fields:
        if not (text := query.text(name)) or (name in ("args", "kwargs") and site.hides):
            continue
        at = values.get("eta" if name == "when" else name) if name in TIME_FIELDS else None
        yield FIELDS[name][0], at or text


def _change(
    site: Site, query: Query, question: Question, values: dict[str, Any]
) -> Callable[[Job], object]:
    name, action, now = question.name, question.action, site.now()
    if action.kind in OBJECTS:
        what, name_of = object_of(query, action.kind)
        if name == "edit_entry":
            return _edited_entry(site, name_of, query, values, question.version)
        if action.kind == "limit":
            return _changed_limit(site, name, name_of, query, question.version)
        return _single(site, name, what, name_of)
    if name == "edit":
        return _edited_task(site, only_mark(query), values, question.version)
    if action.kind == "tasks":
        return _each(site, name, marks_of(query), values)
    if action.kind == "dead letters":
        return _each_dead(site, name, marks_of(query), values, question.version)
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
            found[name] = _read_json(FIELDS[name][0], text, kind, example)
    if "priority" in action.fields and (text := query.text("priority")):
        if not (text.isascii() and text.isdigit() and len(text) < 4):
            raise ConfigError(f"priority={text!r}: expected a whole number, such as 0 or 9")
        found["priority"] = int(text)
    if "expires" in action.fields and (expires := query.moment("expires", now)) is not None:
        found["expires"] = expires
    if action.fields == ACTIONS["edit"].fields and not found:
        raise ConfigError("change at least one of the fields")
    if "to_queue" in action.fields and (queue := query.name("to_queue")):
        found["queue"] = queue
    if "rate" in action.fields and (text := query.text("rate")):
        try:
            found["rate"] = float(text)
        except ValueError:
            raise ConfigError(f"rate={text!r}: expected a number of tasks a second") from None
    return found


def _read_json(title: str, text: str, kind: type, example: str) -> Any:
    """Return the value of JSON that somebody has typed."""
    where = ""
    try:
        if isinstance(value := json.loads(text), kind):
            return value
    except json.JSONDecodeError as exc:
        where = f" (line {exc.lineno}, character {exc.colno}: {exc.msg})"
    except (ValueError, RecursionError):
        pass
    raise ConfigError(f"{title}: expected JSON such as {example}, with double quotes{where}")


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
        tasks, outcome = waiting_tasks(site, id), Outcome.CHANGED
        if not tasks or tasks_version(tasks) == version:
            outcome = update_as_seen(site.delayq.updates, id, tasks, moment(ms), **values)
        job.outcomes[outcome] += 1
        job.task_id = id

    return make


def _edited_entry(
    site: Site, name: str, query: Query, values: dict[str, Any], version: str
) -> Callable[[Job], object]:
    """Return the function that edits a periodic entry, unless it differs from that in the form."""
    periodic, before = site.delayq.periodic, entry_of(site, name).definition
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
    limits, changes = site.delayq.limits, LimitChanges(site.delayq.session)
    values = _limit_values(query) if action == "set_limit" else {}
    calls: dict[str, Callable[[Definitions], Outcome]] = {
        "set_limit": lambda seen: changes.set(name, values, seen=seen),
        "end_limit": lambda seen: changes.switch_off(name, seen=seen),
        "unset_limit": lambda seen: changes.forget(name, seen=seen),
    }

    def make(job: Job) -> None:
        seen = limits.get(name).definitions
        is_same = version_of(seen) == version
        job.outcomes[calls[action](seen) if is_same else Outcome.CHANGED] += 1
        job.facts = [("Now", _limit_now(limits, name))]

    return make


def _limit_now(limits: TaskLimits, name: str) -> str:
    """Return what a limit allows now, in words."""
    try:
        now = limits.get(name).definition
    except InvalidLimit:  # no code has it, and what people had set is forgotten
        now = None
    return "no limit" if now is None else limit_text(now)


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
        raise ConfigError("change at least one of the fields")
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
                if not _is_past(ms, values, site.now()):
                    raise
                outcome = Outcome.PAST
            job.outcomes[outcome] += 1
        if len(marks) == 1 and name != "cancel":
            _look_at(site, job, marks[0][1])

    return make


def _is_past(due_ms: int, values: Mapping[str, Any], now: datetime) -> bool:
    """Return whether the new time of a task with this due is in the past."""
    eta: datetime | None = values.get("eta")
    if eta is not None:
        return eta <= now
    moved_seconds: float = due_ms / 1000 + values.get("by", 0.0)
    return moved_seconds <= now.timestamp()


def _look_at(site: Site, job: Job, id: str) -> None:
    """Note where a changed task is now."""
    job.task_id = id
    if job.done and (found := site.delayq.get(id)) is not None:
        job.facts = [each for each in job.facts if each[0] not in _PLACE_TITLES]
        job.facts += [("Due", found.due), ("State", found.state)]


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
    dead_letters, task_id = site.delayq.dead_letters, ""

    def change(ms: int, id: str) -> Outcome:
        nonlocal task_id
        found = dead_letters.get(id)
        if found is None:
            return Outcome.UNKNOWN
        if found.dead_lettered.died_ms != ms:
            return Outcome.CHANGED
        if version and version_of(found.dead_lettered.data) != version:
            return Outcome.CHANGED
        task_id = found.task_id or id
        return (
            dead_letters.replay(found, **values) if name == "replay" else dead_letters.purge(found)
        )

    def make(job: Job) -> None:
        job.total = len(marks)
        for ms, id in marks:
            job.check()
            job.outcomes[change(ms, id)] += 1
        if name == "replay" and "eta" not in values:
            job.facts.append((FIELDS["when"][0], "now"))
        if len(marks) == 1 and name == "replay" and task_id and not site.on_rabbitmq:
            _look_at(site, job, task_id)

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
        ids = [id for _, id in marks_of(query)]
        more = f" and {len(ids) - MAX_LOGGED_IDS:,} more" if len(ids) > MAX_LOGGED_IDS else ""
        said.append(f"ids {' '.join(ids[:MAX_LOGGED_IDS])}{more}")
    return ", ".join(said)
