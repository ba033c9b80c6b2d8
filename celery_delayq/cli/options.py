"""Options that several commands share, the types of their values, and selections."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any, ClassVar, TypeVar

import click
from celery.bin.base import CeleryOption

from celery_delayq.cli import complete, screen
from celery_delayq.cli.text import quoted
from celery_delayq.errors import InvalidETA
from celery_delayq.model.arguments.search import TypedValue
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.envelope import due_of_countdown
from celery_delayq.model.scheduled import Filter
from celery_delayq.model.typed_times import (
    DISTANCE_HELP,
    TIME_HELP,
    Direction,
    read_typed_time,
)
from celery_delayq.utils.text import is_utf8, seconds_of

F = TypeVar("F", bound=Callable[..., Any])

_DURATION_HELP = "a duration such as 90 (seconds), 5m, 1h30m or 2d"


class NameType(click.ParamType):  # type: ignore[type-arg]
    """A name or an id: any non-empty text."""

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
    """A point in time as people type it.

    Parameters
    ----------
    span : Direction
        Where a distance without a sign leads.
    """

    name = "time"

    def __init__(self, span: Direction = "from now") -> None:
        self.span = span

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        now = datetime.now(timezone.utc).replace(microsecond=0)
        try:
            return read_typed_time(value, now, unsigned=self.span).isoformat()
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r}: expected {TIME_HELP} (local time without an offset), or "
                f"{DISTANCE_HELP}",
                param,
                ctx,
            )


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """A duration in seconds.

    Parameters
    ----------
    negative : bool
        Whether the duration may be negative.
    expected : str
        The expected value in the error for a zero or a refused negative duration.
    """

    name = "span"

    def __init__(
        self,
        *,
        negative: bool = False,
        expected: str = "more than none, such as 90 (seconds), 5m, 1h30m or 2d",
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
            self.fail(f"{value!r}: expected {_DURATION_HELP}{also}", param, ctx)
        is_valid = seconds > 0 or (self.negative and seconds < 0)
        if not is_valid:
            self.fail(f"{value!r}: expected {self.expected}", param, ctx)
        return seconds


class JsonType(click.ParamType):  # type: ignore[type-arg]
    """A JSON value of one type."""

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


class WantedArgumentType(click.ParamType):  # type: ignore[type-arg]
    """``NAME=VALUE``: an argument with which tasks were sent."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, TypedValue]:
        if isinstance(value, tuple):
            return value
        name, equals, typed = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r}: expected NAME=VALUE, such as order_id=42", param, ctx)
        return name, TypedValue(typed)


def _by_name(
    _: click.Context, param: click.Parameter, given: Sequence[tuple[str, TypedValue]]
) -> dict[str, TypedValue] | None:
    """Return wanted arguments by name; None without any."""
    by_name = dict(given)
    if len(by_name) < len(given):
        raise click.BadParameter(
            "a name is given twice, but an argument has one value", None, param
        )
    return by_name or None


class HelpedArgument(click.Argument):
    """An argument with a line in the help, for every version of click."""

    help_group = "Arguments"

    def __init__(self, *args: Any, explained: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.explained = explained

    def get_help_record(self, _: click.Context) -> tuple[str, str]:
        """Return the line of the argument in the help."""
        return str(self.metavar), self.explained


def argument(name: str, metavar: str, explained: str, **options: Any) -> Callable[[F], F]:
    """Declare an argument. Its type is a name unless *options* give another type."""
    given = {"type": NameType(), "cls": HelpedArgument, **options}
    return click.argument(name, metavar=metavar, explained=explained, **given)


def apply_decorators(command: F, decorators: Sequence[Callable[[Any], Any]]) -> F:
    """Return a decorated command. The first decorator is on top."""
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def names_of(*options: Callable[[Any], Any]) -> list[str]:
    """Return the parameter names under which a command gets the values of options."""
    parameters = click.command("")(apply_decorators(lambda: None, options)).params
    return [str(each.name) for each in parameters if each.expose_value]


def options_as_one_value(
    name: str, make: Callable[..., Any], *options: Callable[[Any], Any]
) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, and passes one value made of them.

    Parameters
    ----------
    name : str
        The parameter of the command for this value.
    make : Callable[..., Any]
        Makes the value. Takes the values of the options by their names.
    """
    names = names_of(*options)

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            made = make(**{each: kwargs.pop(each) for each in names})
            return command(*args, **{name: made}, **kwargs)

        return apply_decorators(wrapper, options)  # type: ignore[return-value]

    return decorate


def _note_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[screen.JSON_KEY] = value


option = functools.partial(click.option, cls=CeleryOption)
flag = functools.partial(option, is_flag=True)
name_option = functools.partial(option, type=NameType())
number_option = functools.partial(option, type=click.IntRange(1), metavar="NUMBER")
#: Declares ``--json``. The command does not get the value, see :func:`.screen.is_json`.
_json_flag = functools.partial(flag, "--json", expose_value=False, callback=_note_json)


def with_address(port: int) -> Callable[[F], F]:
    """Return a decorator that adds --host and --port, where a server listens, to a command.

    Parameters
    ----------
    port : int
        The default of --port.
    """
    host_option = name_option(
        "--host", default="127.0.0.1", show_default=True, help="The address to listen on."
    )
    port_option = option(
        "--port",
        type=click.IntRange(0, 65535),
        default=port,
        show_default=True,
        help="The port to listen on; 0 for a free one.",
    )
    return lambda command: apply_decorators(command, (host_option, port_option))


_TASK_ID_HELP = "Id of a task; put -- before one that begins with a dash."
_PLACE_HELP = "A path, - or the URL of a database."

id_argument = argument("id", "ID", _TASK_ID_HELP)
target_argument = argument("target", "TARGET", _PLACE_HELP)
source_argument = argument("source", "SOURCE", _PLACE_HELP)

json_option = _json_flag(help="Print JSON, times in UTC.")
json_lines_option = _json_flag(help="Print one JSON object per line, times in UTC.")
dry_run_option = flag("--dry-run", help="Only show what would be changed.")
queue_option = name_option(
    "--queue", metavar="QUEUE", shell_complete=complete.queues, help="Only those in this queue."
)
task_option = name_option(
    "--task", metavar="TASK", shell_complete=complete.tasks, help="Only those of this task."
)

_if_eta_option = functools.partial(option, "--if-eta", type=TimeType())
if_eta_option = _if_eta_option(help="Only if it is due at this time, as `list` shows it.")
root_option = name_option(
    "--root",
    "root_id",
    metavar="ID",
    help="Only tasks of the chain, chord or tree that this task began.",
)
group_option = name_option("--group", "group_id", metavar="ID", help="Only tasks of this group.")

_PLACE_OPTIONS = (
    queue_option,
    task_option,
    option(
        "--due-from",
        type=TimeType(),
        help="Due at this time or later: ISO 8601, 17:00, tomorrow 9:00, or 30m from now.",
    ),
    option("--due-to", type=TimeType(), help="Due at this time or earlier."),
    option(
        "--priority",
        type=click.IntRange(0),
        metavar="STEP",
        help="In this priority step: 0, 3, 6 or 9, unless the app has others.",
    ),
)

arg_option = option(
    "--arg",
    type=WantedArgumentType(),
    metavar="NAME=VALUE",
    multiple=True,
    callback=_by_name,
    help="Sent with this argument, such as order_id=42, by keyword or by place (0 is the first "
    "place). 42 is the number and the text. Reads all of them. May be repeated.",
)
unpickle_option = flag(
    "--unpickle", help="With --arg, also decode pickle and other content that may run code."
)
_FILTER_OPTIONS = (*_PLACE_OPTIONS, arg_option, unpickle_option)

#: Adds the options of a filter to a command, and passes the filter as ``filter``.
with_filter = options_as_one_value("filter", Filter, *_FILTER_OPTIONS)

#: The same without a search by argument.
with_place_filter = options_as_one_value("filter", Filter, *_PLACE_OPTIONS)


#: Names of options that differ from the fields of a filter.
_OPTIONS_OF_FIELDS = {"task_id": "id", "root_id": "root", "group_id": "group"}


def filter_words(filter: Filter | DeadFilter) -> list[str]:
    """Return the options that select the same, with absolute times."""
    place = filter.without_arg
    given = {each.name: getattr(place, each.name) for each in fields(place)}
    words = [
        f"--{_OPTIONS_OF_FIELDS.get(name, name).replace('_', '-')} {quoted(str(value))}"
        for name, value in given.items()
        if value is not None and value is not False
    ]
    words += [f"--arg {quoted(f'{name}={value}')}" for name, value in (filter.arg or {}).items()]
    return [*words, "--unpickle"] if filter.unpickle else words


def _changes(
    *,
    expires: str | None,
    no_expires: bool,
    header: Sequence[str],
    no_header: Sequence[str],
    unpickle: bool,
    **given: Any,
) -> dict[str, Any]:
    """Return the changes of a message as arguments of ``delayq.update``, maybe *unpickle* only."""
    changes = {name: value for name, value in given.items() if value is not None}
    if expires is not None and no_expires:
        raise click.UsageError("give one of --expires and --no-expires")
    if expires is not None or no_expires:
        changes["expires"] = False if no_expires else expires
    headers: dict[str, str | None] = dict.fromkeys(no_header)
    for each in header:
        name, separator, value = each.partition("=")
        if not (name and separator):
            raise click.UsageError(f"--header {each!r}: expected NAME=VALUE, such as tenant=a")
        headers[name] = value
    if headers:
        changes["headers"] = headers
    return {**changes, "unpickle": True} if unpickle else changes


#: Adds the options that change a message to a command, and passes them as ``changes``: arguments of
#: ``delayq.update`` and ``delayq.replay`` by name.
with_changes = options_as_one_value(
    "changes",
    _changes,
    option("--args", type=JsonType(list, "'[1, \"a\"]'"), help="With these arguments."),
    option("--kwargs", type=JsonType(dict, "'{\"n\": 1}'"), help="With these keyword arguments."),
    option("--priority", type=click.IntRange(0, 255), metavar="NUMBER", help="0 is the first."),
    option(
        "--expires",
        type=TimeType(),
        help="Run at this time at the latest: ISO 8601, 17:00, tomorrow 9:00, or 2h from now.",
    ),
    flag("--no-expires", help="It never expires."),
    name_option(
        "--header",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a header of its message. May be repeated.",
    ),
    name_option("--no-header", multiple=True, metavar="NAME", help="Remove a header."),
    flag(
        "--unpickle",
        help="Decode pickled arguments, to change them or for --arg: may run code of whoever wrote "
        "them.",
    ),
)


@dataclass(frozen=True)
class Selection:
    """The items that a command changes: ids or a filter, and their flags.

    Attributes
    ----------
    everything : bool
        Whether all items of all queues are selected explicitly.
    """

    ids: Sequence[str]
    filter: Any
    everything: bool
    if_eta: str | None
    dry_run: bool
    yes: bool


def select(
    filter_class: type,
    show_command: str,
    many: str,
    *,
    ids: Sequence[str],
    dry_run: bool,
    yes: bool,
    everything: bool,
    if_eta: str | None = None,
    **given: Any,
) -> Selection:
    """Return the selection of the given options.

    Parameters
    ----------
    show_command : str
        The command that shows one item by its id.
    many : str
        The name of several items.
    everything : bool
        Whether ``--everything`` is given. Without ids and a filter it is required.

    Raises
    ------
    click.UsageError
        The options contradict each other, or may select more than intended. The message names
        the right options.
    """
    filter = filter_class(**given)
    if everything and (ids or not filter.is_everything):
        raise click.UsageError(f"--everything means all {many}: leave out ids and filter")
    if ids:
        if filter != filter_class(queue=filter.queue):
            raise click.UsageError("give ids or a filter, not both; only --queue goes with ids")
        if dry_run:
            raise click.UsageError(f"--dry-run goes with a filter; `{show_command}` shows an id")
    ids = [*dict.fromkeys(ids)]
    if if_eta is not None and len(ids) != 1:
        raise click.UsageError("--if-eta goes with a single id")
    if not ids and not dry_run:
        if filter.is_everything and not everything:
            raise click.UsageError(
                f"give ids or a filter, or --everything for all {many} of all queues; --dry-run "
                "counts them"
            )
        if not yes:
            check_can_ask(", or --dry-run to see what is selected")
    return Selection(ids, filter, everything, if_eta, dry_run, yes)


def check_can_ask(instead: str = "") -> None:
    """Refuse to ask if nobody can answer (click.UsageError)."""
    if screen.is_json() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(f"nobody can be asked here whether to do it: say --yes{instead}")


#: Adds ids, a filter and their flags to a command, and passes them as ``selection``.
with_selection = options_as_one_value(
    "selection",
    functools.partial(
        select,
        Filter,
        "get",
        "entries",
    ),
    *_FILTER_OPTIONS,
    argument("ids", "[ID]...", _TASK_ID_HELP, nargs=-1),
    _if_eta_option(help="Only if it is due at this time, as `list` shows it. For a single id."),
    flag("--everything", help="All entries of all queues."),
    dry_run_option,
    flag("--yes", help="Do not ask."),
    json_option,
)
