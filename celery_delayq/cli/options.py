"""Options that several commands share, the types of their values, and what they select."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar, Literal, TypeVar

import click
from celery.bin.base import CeleryOption

from celery_delayq.cli import complete
from celery_delayq.cli.text import read_stamp, seconds_of
from celery_delayq.errors import InvalidETA
from celery_delayq.model.envelope import due_of_countdown, due_of_eta
from celery_delayq.model.names import is_utf8
from celery_delayq.model.scheduled import Filter, moment

F = TypeVar("F", bound=Callable[..., Any])

_ISO = "ISO 8601 such as 2030-01-31T09:00:00+01:00 (without an offset it is local time)"
_SPAN = "a duration such as 90 (seconds), 5m, 1h30m or 2d"

option = functools.partial(click.option, cls=CeleryOption)


class NameType(click.ParamType):  # type: ignore[type-arg]
    """A name or an id: any text but an empty one."""

    name = "name"

    #: Whether text that is not UTF-8 is refused.
    utf8: ClassVar[bool] = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text:
            self.fail("it is empty: leave it out, or check the variable it came from", param, ctx)
        if self.utf8 and not is_utf8(text):
            self.fail(f"{text!r} is not UTF-8", param, ctx)
        return text


class TimeType(click.ParamType):  # type: ignore[type-arg]
    """A point in time in ISO 8601, or a duration with a unit.

    Parameters
    ----------
    span : str
        How a duration is read: ``"from now"``, ``"ago"``, or ``""`` if none is allowed.
    """

    name = "time"

    def __init__(self, span: Literal["", "from now", "ago"] = "") -> None:
        self.span = span

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = seconds_of(value, bare=False) if self.span else None
        try:
            if seconds is not None:
                away = timedelta(seconds=-seconds if self.span == "ago" else seconds)
                when = datetime.now(timezone.utc) + away
                return when.replace(microsecond=0).isoformat()
            return moment(due_of_eta(read_stamp(value)).ms).isoformat()
        except (ValueError, OverflowError):
            also = f", or {_SPAN.replace('90 (seconds), ', '')} {self.span}" if self.span else ""
            self.fail(f"{value!r}: expected {_ISO}{also}", param, ctx)


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """A duration, as seconds.

    Parameters
    ----------
    negative : bool
        Whether it may be negative.
    expected : str
        What the error for zero, or for a negative one, asks for.
    """

    name = "duration"

    def __init__(
        self,
        *,
        negative: bool = False,
        expected: str = "a time in the future; run-now runs at once",
    ) -> None:
        self.negative = negative
        self.expected = expected

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = seconds_of(value)
        try:
            if seconds is not None:
                due_of_countdown(abs(seconds))
        except InvalidETA:
            seconds = None
        if seconds is None:
            also = ", or -10m for earlier" if self.negative else ""
            self.fail(f"{value!r}: expected {_SPAN}{also}", param, ctx)
        if not seconds > 0 and not (self.negative and seconds):
            self.fail(f"{value!r}: expected {self.expected}", param, ctx)
        return seconds


class JsonType(click.ParamType):  # type: ignore[type-arg]
    """A value of one type in JSON."""

    name = "json"

    def __init__(self, kind: type, example: str) -> None:
        self.kind = kind
        self.example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, self.kind):
            self.fail(f"{value!r}: expected JSON such as {self.example}", param, ctx)
        return found


class HelpedArgument(click.Argument):
    """An argument with a line in the help, with every version of click."""

    help_group = "Arguments"

    def __init__(self, *args: Any, explained: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.explained = explained

    def get_help_record(self, _: click.Context) -> tuple[str, str]:
        """Return its line in the help."""
        return str(self.metavar), self.explained


def argument(name: str, metavar: str, explained: str, **options: Any) -> Callable[[F], F]:
    """Declare an argument, a name unless *options* give another type."""
    given = {"type": NameType(), "cls": HelpedArgument, **options}
    return click.argument(name, metavar=metavar, explained=explained, **given)


_TASK_ID = "Id of a task; put -- before one that begins with a dash."
_PLACE = "A path, - or the URL of a database."

id_argument = argument("id", "ID", _TASK_ID)
ids_argument = argument("ids", "[ID]...", _TASK_ID, nargs=-1)
target_argument = argument("target", "TARGET", _PLACE)
source_argument = argument("source", "SOURCE", _PLACE)

json_option = option("--json", "as_json", is_flag=True, help="Print JSON, times in UTC.")
json_lines_option = option(
    "--json", "as_json", is_flag=True, help="Print JSON, one line for each; times in UTC."
)
dry_run_option = option("--dry-run", is_flag=True, help="Only show what would be changed.")
queue_option = option(
    "--queue",
    type=NameType(),
    metavar="QUEUE",
    shell_complete=complete.queues,
    help="In this queue.",
)
task_option = option(
    "--task", type=NameType(), metavar="TASK", shell_complete=complete.tasks, help="Of this task."
)

_FILTER = (
    queue_option,
    task_option,
    option(
        "--due-from",
        type=TimeType("from now"),
        metavar="TIME",
        help="Due at this time or later: ISO 8601, local without an offset; or 30m from now.",
    ),
    option(
        "--due-to",
        type=TimeType("from now"),
        metavar="TIME",
        help="Due at this time or earlier.",
    ),
    option(
        "--priority",
        type=click.IntRange(0),
        metavar="STEP",
        help="In this priority step: 0, 3, 6 or 9, unless the app has others.",
    ),
)


def stacked(command: F, decorators: tuple[Callable[[Any], Any], ...]) -> F:
    """Return a command with the first decorator on top."""
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def with_filter(command: F) -> F:
    """Give a command the options of a filter, and the filter as ``filter``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        names = ("queue", "task", "due_from", "due_to", "priority")
        filter = Filter(*(kwargs.pop(name) for name in names))
        return command(*args, filter=filter, **kwargs)

    return stacked(wrapper, _FILTER)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a command changes: ids or a filter, and the flags that go with them."""

    ids: tuple[str, ...]
    filter: Any
    if_eta: str | None
    dry_run: bool
    yes: bool
    as_json: bool

    #: The command that shows one by its id, and how to select everything.
    shows: ClassVar[str] = "get"
    how_to_select_all: ClassVar[str] = (
        "give ids or a filter. If all entries of all queues are meant, say --yes; --dry-run counts "
        "them"
    )

    @property
    def everything(self) -> bool:
        """Whether all entries of all queues are selected, explicitly."""
        return bool(self.filter.is_everything) and self.yes

    def check(self) -> None:
        """Refuse contradictions, and a selection that may be wider than intended.

        Raises
        ------
        click.UsageError
            With what would be right.
        """
        if self.ids:
            if self.filter != type(self.filter)(queue=self.filter.queue):
                raise click.UsageError("give ids or a filter, not both; only --queue goes with ids")
            if self.dry_run:
                raise click.UsageError(f"--dry-run goes with a filter; `{self.shows}` shows an id")
        if self.if_eta is not None and len(self.ids) != 1:
            raise click.UsageError("--if-eta goes with a single id")
        if self.ids or self.dry_run:
            return
        if self.filter.is_everything and not self.everything:
            raise click.UsageError(self.how_to_select_all)
        if not self.yes:
            check_can_ask(self.as_json, ", or --dry-run to see what is selected")


def check_can_ask(as_json: bool, instead: str = "") -> None:
    """Refuse to ask where nobody can answer (click.UsageError)."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(f"nobody can be asked here whether to do it: say --yes{instead}")


def with_selection(command: F) -> F:
    """Give a command ids, a filter and the flags that go with them, as ``selection``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs["ids"] = tuple(dict.fromkeys(kwargs["ids"]))
        names = ("ids", "filter", "if_eta", "dry_run", "yes", "as_json")
        selection = Selection(*(kwargs.pop(name) for name in names))
        selection.check()
        return command(*args, selection=selection, **kwargs)

    if_eta = option(
        "--if-eta",
        type=TimeType(),
        metavar="TIME",
        help="Only if it is due at this time, as `list` shows it. For a single id.",
    )
    yes = option("--yes", is_flag=True, help="Do not ask. Required without a filter.")
    options = (ids_argument, if_eta, dry_run_option, yes, json_option)
    return with_filter(stacked(wrapper, options))  # type: ignore[return-value]


def with_queue_or_task(command: F) -> F:
    """Give a command ``--queue`` and ``--task``; exactly one is required."""

    @functools.wraps(command)
    def wrapper(*args: Any, queue: str | None, task: str | None, **kwargs: Any) -> Any:
        if (queue is None) == (task is None):
            raise click.UsageError("give either --queue or --task")
        return command(*args, queue=queue, task=task, **kwargs)

    return stacked(wrapper, (queue_option, task_option))  # type: ignore[return-value]
