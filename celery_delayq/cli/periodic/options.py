"""Options of the commands for periodic entries, and the values they give."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

import click
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, schedule, solar

from celery_delayq.cli import complete
from celery_delayq.cli.options import (
    DurationType,
    JsonType,
    NameType,
    TimeType,
    argument,
    option,
    stacked,
)
from celery_delayq.periodic.crontab import read_crontab
from celery_delayq.periodic.definition import CATCH_UPS, OVERLAPS
from celery_delayq.periodic.schedules import rrule

F = TypeVar("F", bound=Callable[..., Any])


class EntryNameType(NameType):
    """The name of an existing periodic entry: others may have written any bytes."""

    utf8 = False


_names = functools.partial(
    argument,
    explained="Name of a periodic entry; put -- before one that begins with a dash.",
    type=EntryNameType(),
    shell_complete=complete.periodic,
)
name_argument = _names("name", "NAME")
names_argument = _names("names", "NAME...", nargs=-1, required=True)
any_names_argument = _names("names", "[NAME]...", nargs=-1)

Schedule: TypeAlias = "BaseSchedule | datetime"

_SCHEDULES: Mapping[str, Callable[[Any], Schedule]] = {
    "every": schedule,
    "crontab": read_crontab,
    "rrule": rrule,
    "at": datetime.fromisoformat,
    "solar": lambda parts: solar(parts[0], float(parts[1]), float(parts[2])),
}


_WHEN = (
    option(
        "--every",
        type=DurationType(expected="more than none, such as 30 (seconds), 1h30m or 2d"),
        metavar="SPAN",
        help="Interval: 30 (seconds), 1h30m, 2d.",
    ),
    option(
        "--crontab",
        type=NameType(),
        metavar="TEXT",
        help="Minute, hour, day of month, month, weekday, such as '0 9 * * mon-fri'.",
    ),
    option("--rrule", type=NameType(), metavar="RULE", help="RFC 5545: 'FREQ=MONTHLY;BYDAY=-1FR'."),
    option(
        "--at",
        type=TimeType("from now"),
        metavar="TIME",
        help="Once: ISO 8601, local without an offset; or 30m from now.",
    ),
    option(
        "--solar",
        nargs=3,
        type=str,
        metavar="EVENT LAT LON",
        help="By the sun: sunset 52.5 13.4. Needs the library ephem.",
    ),
)

_WHAT = (
    option("--args", type=JsonType(list, "'[1, \"a\"]'"), metavar="JSON", help="Arguments."),
    option(
        "--kwargs", type=JsonType(dict, "'{\"n\": 1}'"), metavar="JSON", help="Keyword arguments."
    ),
    option(
        "--queue",
        type=NameType(),
        metavar="QUEUE",
        shell_complete=complete.queues,
        help="Queue of the task.",
    ),
    option("--priority", type=click.IntRange(0, 9), metavar="NUMBER", help="0 is the first."),
    option(
        "--expires",
        type=DurationType(expected="more than none, such as 90 (seconds), 5m or 2d"),
        metavar="SPAN",
        help="Run at most this long after its tick.",
    ),
    option(
        "--headers",
        type=JsonType(dict, '\'{"tenant": "a"}\''),
        metavar="JSON",
        help="Headers of the message.",
    ),
    option(
        "--timezone",
        type=NameType(),
        metavar="NAME",
        help="Time zone of --crontab and --rrule, as Europe/Berlin.",
    ),
    option("--start", type=TimeType("from now"), metavar="TIME", help="No tick before; as --at."),
    option("--end", type=TimeType("from now"), metavar="TIME", help="No tick after; as --at."),
    option("--max-runs", type=click.IntRange(1), metavar="NUMBER", help="Ticks until it ends."),
    option("--catch-up", type=click.Choice(CATCH_UPS), help="Missed ticks to run; one by default."),
    option(
        "--catch-up-max",
        type=click.IntRange(1),
        metavar="NUMBER",
        help="Most missed ticks, with --catch-up all; 100 by default.",
    ),
    option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="What to do while an earlier run is not done; allow by default.",
    ),
)

_OPTIONS = ("queue", "priority", "expires", "headers")
_TIMES = ("start", "end")
_OTHERS = ("args", "kwargs", "timezone", "max_runs", "catch_up", "catch_up_max", "overlap")

#: The options of an entry beside its schedule and task, as Python names them.
OPTIONS = (*_OPTIONS, *_TIMES, *_OTHERS)

unset_option = option(
    "--unset",
    "unset",
    multiple=True,
    type=click.Choice([name.replace("_", "-") for name in OPTIONS]),
    metavar="OPTION",
    help="Remove what was set: " + ", ".join(n.replace("_", "-") for n in OPTIONS) + ".",
)


class EntryOptions(NamedTuple):
    """The options that were given for an entry.

    Attributes
    ----------
    schedule : BaseSchedule | datetime | None
    options : dict[str, Any]
        Those of ``apply_async``.
    others : dict[str, Any]
        Those of :meth:`~celery_delayq.periodic.client.PeriodicTasks.add`.
    """

    schedule: Schedule | None
    options: dict[str, Any]
    others: dict[str, Any]

    def without(self, names: Iterable[str]) -> EntryOptions:
        """Return these options, with None for each of *names* (click.UsageError)."""
        fields = [name.replace("-", "_") for name in names]
        for name, field in zip(names, fields, strict=True):
            if field in self.options or field in self.others:
                raise click.UsageError(f"--{name}, --unset {name}: give one of them")
        nothing = dict.fromkeys(fields)
        options = {name: None for name in nothing if name in _OPTIONS}
        others = {name: None for name in nothing if name not in _OPTIONS}
        return self._replace(options=self.options | options, others=self.others | others)


def with_entry(command: F) -> F:
    """Give a command all options of an entry, as ``given``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        def pop(names: tuple[str, ...]) -> dict[str, Any]:
            found = {name: kwargs.pop(name) for name in names}
            return {name: value for name, value in found.items() if value not in (None, ())}

        when = pop(tuple(_SCHEDULES))
        others = pop(_OTHERS)
        others |= {name: datetime.fromisoformat(text) for name, text in pop(_TIMES).items()}
        given = EntryOptions(_schedule(when), pop(_OPTIONS), others)
        return command(*args, given=given, **kwargs)

    return stacked(wrapper, (*_WHEN, *_WHAT))  # type: ignore[return-value]


def as_options(text: str) -> str:
    """Return an error of the API with the command line's names of options in it."""
    return _ASSIGNED.sub(lambda match: f"--{match[1].replace('_', '-')} ", text)


_ASSIGNED = re.compile(rf"\b({'|'.join(OPTIONS)})=(?=\S)")


def _schedule(when: Mapping[str, Any]) -> Schedule | None:
    if len(when) > 1:
        names = ", ".join(f"--{name}" for name in when)
        raise click.UsageError(f"{names}: give one of them")
    for name, value in when.items():
        try:
            return _SCHEDULES[name](value)
        except (ValueError, TypeError, ImportError, ImproperlyConfigured, ParseException) as exc:
            raise click.UsageError(f"--{name}: {exc}") from exc
    return None
