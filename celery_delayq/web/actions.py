"""The changes that the pages offer, with their words, and the fields of their forms. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from celery_delayq.model.scheduled import Outcome

#: What a change is about: tasks or dead letters that were chosen, all that match a filter, the
#: pause of a queue or a task, a periodic entry, or a limit.
Kind = Literal["tasks", "all tasks", "dead letters", "all dead letters", "pause", "entry", "limit"]


class Action(NamedTuple):
    """A change.

    Attributes
    ----------
    verb : str
        What it does, as an order.
    done : str
        What has become of its object, as a participle.
    fields : Sequence[str]
        The names of the fields of its question.
    is_dangerous : bool
        Whether the change cannot be undone.
    """

    verb: str
    kind: Kind
    done: str
    fields: Sequence[str] = ()
    is_dangerous: bool = False

    @property
    def is_edit(self) -> bool:
        """Whether its form begins with the present values, and saves them."""
        return self.verb in ("Edit", "Change")


_MOVE = ("when", "by")
_REPLAY = ("args", "kwargs", "to_queue", "when")

#: All changes by the value of the button.
ACTIONS: Mapping[str, Action] = {
    "run_now": Action("Run now", "tasks", "due now"),
    "move": Action("Move", "tasks", "moved", _MOVE),
    "cancel": Action("Cancel", "tasks", "cancelled", is_dangerous=True),
    "edit": Action("Edit", "tasks", "edited", ("args", "kwargs", "priority", "expires")),
    "run_all_now": Action("Run now", "all tasks", "due now"),
    "move_all": Action("Move", "all tasks", "moved", _MOVE),
    "cancel_all": Action("Cancel", "all tasks", "cancelled", is_dangerous=True),
    "replay": Action("Replay", "dead letters", "replayed", _REPLAY),
    "purge": Action("Delete", "dead letters", "deleted", is_dangerous=True),
    "replay_all": Action(
        "Replay", "all dead letters", "replayed", ("args", "kwargs", "to_queue", "rate")
    ),
    "purge_all": Action("Delete", "all dead letters", "deleted", is_dangerous=True),
    "archive_all": Action("Archive", "all dead letters", "archived"),
    "pause": Action("Pause", "pause", "paused"),
    "resume": Action("Resume", "pause", "resumed"),
    "pause_entry": Action("Pause", "entry", "paused"),
    "resume_entry": Action("Resume", "entry", "resumed"),
    "run_entry": Action("Run now", "entry", "started"),
    "edit_entry": Action("Edit", "entry", "edited", ("schedule", "args", "kwargs", "to_queue")),
    "set_limit": Action("Change", "limit", "changed", ("limit_rate", "burst", "concurrency")),
    "end_limit": Action("Switch off", "limit", "switched off"),
    "unset_limit": Action("As in code", "limit", "as in code"),
}

#: Fields that are times, and that browsers offer as a date and a time of day.
TIME_FIELDS = ("when", "expires")

#: Titles and hints of fields.
FIELDS: Mapping[str, tuple[str, str]] = {
    "when": ("Due", ""),
    "by": ("Or later by", "30m, 2h or 1d; -1d for earlier"),
    "args": ("Arguments", "JSON such as [1, 2]; empty: as they are"),
    "kwargs": ("Keywords", 'JSON such as {"user": 7}; empty: as they are'),
    "to_queue": ("Queue", "empty: as it is"),
    "priority": ("Priority", "empty: as it is"),
    "expires": ("Expires", "empty: as it is"),
    "rate": ("At most a second", "empty: all at once"),
    "schedule": ("Schedule", "every 30m, 0 9 * * mon-fri, FREQ=…, or 2030-01-31T09:00"),
    "limit_rate": ("Rate", "100/m; none: no rate; empty: as it is"),
    "burst": ("Burst", "empty: as it is"),
    "concurrency": ("At the same time", "none: any number; empty: as it is"),
}

#: Names of values in errors, by the field of the value; others have the name of their field.
_VALUE_NAMES = {"when": "eta", "to_queue": "queue", "limit_rate": "rate"}

#: What a change of the pause of an object means, by the change and the field of the object.
PAUSE_TEXTS: Mapping[tuple[str, str], str] = {
    ("pause", "queue"): (
        "Until it is resumed, no task of this queue starts. Tasks that workers have already taken "
        "run on."
    ),
    ("pause", "task"): (
        "Until it is resumed, no task of this name starts, in any queue. Tasks that workers have "
        "already taken run on."
    ),
    ("resume", "queue"): "Its tasks that are due start as soon as workers are free.",
    ("resume", "task"): "Tasks of this name that are due start as soon as workers are free.",
}

#: Why a task was not changed.
UNCHANGED: Mapping[Outcome, str] = {
    Outcome.READY: "ready already: a worker takes it next",
    Outcome.RUNNING: "a worker has it",
    Outcome.CHANGED: "somebody else has changed it meanwhile",
    Outcome.PAST: "the new time would be in the past. Give a later time, or use Run now",
    Outcome.CONFLICT: "another task has its unique key",
    Outcome.UNREADABLE: "it is no message of a task",
    Outcome.REFUSED: "the broker refused it",
    Outcome.UNKNOWN: "it has gone meanwhile",
}


def counted(number: int, kind: str) -> str:
    """Return a number of tasks or dead letters in words."""
    noun = "task" if kind.endswith("tasks") else "dead letter"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def fields_of_error(error: str, names: Sequence[str]) -> list[str]:
    """Return the names of the fields whose values an error is about.

    An error begins with the value, or with the title of the field. One about a call begins with the
    name of the task, and all arguments follow it.
    """
    stated = re.match(r"(?:\S+: )?(\w+)=", error)
    value = stated[1] if stated else ""
    found = [
        name
        for name in names
        if error.startswith(f"{FIELDS[name][0]}: ") or value in (name, _VALUE_NAMES.get(name))
    ]
    is_of_call = found == ["args"] and ", kwargs=" in error
    return ["args", "kwargs"] if is_of_call and "kwargs" in names else found
