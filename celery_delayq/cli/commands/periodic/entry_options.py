"""Options of the commands for periodic entries, and their values."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

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
    name_option,
    names_of,
    number_option,
    option,
    options_as_one_value,
)
from celery_delayq.periodic.crontab import read_crontab
from celery_delayq.periodic.definition import CATCH_UPS, OVERLAPS
from celery_delayq.periodic.rrule import rrule


class EntryNameType(NameType):
    """The name of an existing periodic entry, which may contain any bytes."""

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

_SCHEDULES: Mapping[str, Callable[[Any], BaseSchedule | datetime]] = {
    "every": schedule,
    "crontab": read_crontab,
    "rrule": rrule,
    "at": datetime.fromisoformat,
    "solar": lambda parts: solar(parts[0], float(parts[1]), float(parts[2])),
}

_SCHEDULE_OPTIONS = (
    option(
        "--every",
        type=DurationType(),
        help="Interval: 30 (seconds), 1h30m, 2d.",
    ),
    name_option(
        "--crontab",
        metavar="TEXT",
        help="Minute, hour, day of month, month, weekday, such as '0 9 * * mon-fri'.",
    ),
    name_option("--rrule", metavar="RULE", help="RFC 5545: 'FREQ=MONTHLY;BYDAY=-1FR'."),
    option(
        "--at",
        type=TimeType(),
        help="Once: ISO 8601, 17:00, tomorrow 9:00, or 30m from now.",
    ),
    option(
        "--solar",
        nargs=3,
        type=str,
        metavar="EVENT LAT LON",
        help="By the sun: sunset 52.5 13.4. Needs the library ephem.",
    ),
)

#: The fields of an entry that are options of ``apply_async``.
_TASK_OPTIONS = (
    name_option(
        "--queue", metavar="QUEUE", shell_complete=complete.queues, help="Queue of the task."
    ),
    option("--priority", type=click.IntRange(0, 9), metavar="NUMBER", help="0 is the first."),
    option(
        "--expires",
        type=DurationType(),
        help="Run at most this long after its tick.",
    ),
    option("--headers", type=JsonType(dict, '\'{"tenant": "a"}\''), help="Headers of the message."),
)

_FIELD_OPTIONS = (
    option("--args", type=JsonType(list, "'[1, \"a\"]'"), help="Arguments."),
    option("--kwargs", type=JsonType(dict, "'{\"n\": 1}'"), help="Keyword arguments."),
    *_TASK_OPTIONS,
    name_option("--timezone", help="Time zone of --crontab and --rrule, as Europe/Berlin."),
    option("--start", type=TimeType(), help="No tick before; as --at."),
    option("--end", type=TimeType(), help="No tick after; as --at."),
    number_option("--max-runs", help="Ticks until it ends."),
    option("--catch-up", type=click.Choice(CATCH_UPS), help="Missed ticks to run; one by default."),
    number_option("--catch-up-max", help="Most missed ticks, with --catch-up all; 100 by default."),
    option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="What to do while an earlier run is not done; allow by default.",
    ),
)

#: Names of an entry's fields without schedule and task: options of ``apply_async``, and all fields.
TASK_OPTIONS, FIELDS = names_of(*_TASK_OPTIONS), names_of(*_FIELD_OPTIONS)

_NAMES = [name.replace("_", "-") for name in FIELDS]

unset_option = option(
    "--unset",
    multiple=True,
    type=click.Choice(_NAMES),
    metavar="OPTION",
    help=f"Remove what was set: {', '.join(_NAMES)}.",
)


def _given(**options: Any) -> dict[str, Any]:
    """Return the given fields, by their names in ``delayq.periodic.add``."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    when = {name: given.pop(name) for name in _SCHEDULES if name in given}
    for name in given.keys() & {"start", "end"}:
        given[name] = datetime.fromisoformat(given[name])
    if len(when) > 1:
        raise click.UsageError(f"{', '.join(f'--{name}' for name in when)}: give one of them")
    for name, value in when.items():
        try:
            given["schedule"] = _SCHEDULES[name](value)
        except (ValueError, TypeError, ImportError, ImproperlyConfigured, ParseException) as exc:
            raise click.UsageError(f"--{name}: {exc}") from exc
    return given


#: Adds the options for all fields of an entry to a command, and passes the set ones as ``given``.
with_entry = options_as_one_value("given", _given, *_SCHEDULE_OPTIONS, *_FIELD_OPTIONS)


def as_options(text: str) -> str:
    """Return an error of the API, with its option names replaced by those of the command line."""
    return _ASSIGNED.sub(lambda match: f"--{match[1].replace('_', '-')} ", text)


_ASSIGNED = re.compile(rf"\b({'|'.join(FIELDS)})=(?=\S)")
