"""Options of the commands for periodic entries, and what they are read as."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import click
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, ParseException, crontab, schedule, solar

from celery_delayq.cli import complete
from celery_delayq.cli.options import HelpedArgument, Json, Moment, Name, Span, option, stacked
from celery_delayq.definitions import CATCH_UPS, OVERLAPS
from celery_delayq.schedules import clocked, rrule

F = TypeVar("F", bound=Callable[..., Any])


class PeriodicArgument(HelpedArgument):
    """The names of periodic entries."""

    explained = "Name of a periodic entry; put -- before one that begins with a dash."


name_argument = click.argument(
    "name",
    metavar="NAME",
    type=Name(),
    cls=PeriodicArgument,
    shell_complete=complete.periodic,
)
names_argument = click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="NAME...",
    type=Name(),
    cls=PeriodicArgument,
    shell_complete=complete.periodic,
)

_SCHEDULES: Mapping[str, Callable[[Any], BaseSchedule]] = {
    "every": schedule,
    "crontab": lambda text: _crontab(text),
    "rrule": rrule,
    "at": lambda text: clocked(datetime.fromisoformat(text)),
    "solar": lambda parts: solar(parts[0], float(parts[1]), float(parts[2])),
}


def _crontab(text: str) -> crontab:
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(
            f"{text!r}: expected minute, hour, day of month, month and weekday, such as '0 9 * * *'"
        )
    minute, hour, day, month, weekday = fields
    return crontab(minute, hour, weekday, day, month)


_WHEN = (
    option("--every", type=Span(), metavar="SPAN", help="So often: 30 (seconds), 1h30m, 2d."),
    option(
        "--crontab",
        type=Name(),
        metavar="TEXT",
        help="Minute, hour, day of month, month, weekday, such as '0 9 * * mon-fri'.",
    ),
    option("--rrule", type=Name(), metavar="RULE", help="RFC 5545: 'FREQ=MONTHLY;BYDAY=-1FR'."),
    option("--at", type=Moment("from now"), metavar="TIME", help="Once: ISO 8601, or 30m."),
    option(
        "--solar",
        nargs=3,
        type=str,
        metavar="EVENT LAT LON",
        help="By the sun: sunset 52.5 13.4. Needs the library ephem.",
    ),
)

_WHAT = (
    option("--args", type=Json(list, "'[1, \"a\"]'"), metavar="JSON", help="Arguments."),
    option(
        "--kwargs", type=Json(dict, "'{\"n\": 1}'"), metavar="JSON", help="Arguments by their name."
    ),
    option("--queue", type=Name(), metavar="QUEUE", shell_complete=complete.queues),
    option("--priority", type=click.IntRange(0, 9), metavar="NUMBER", help="0 is the first."),
    option("--expires", type=Span(), metavar="SPAN", help="Not later than this after its tick."),
    option(
        "--headers", type=Json(dict, '\'{"tenant": "a"}\''), metavar="JSON", help="Its headers."
    ),
    option("--timezone", type=Name(), metavar="NAME", help="Whose clock counts, as Europe/Berlin."),
    option("--start", type=Moment("from now"), metavar="TIME", help="No tick before this."),
    option("--end", type=Moment("from now"), metavar="TIME", help="No tick after this."),
    option("--max-runs", type=click.IntRange(1), metavar="NUMBER", help="Most ticks."),
    option(
        "--catch-up", type=click.Choice(CATCH_UPS), help="Ticks that were missed; one by default."
    ),
    option("--catch-up-max", type=click.IntRange(1), metavar="NUMBER", help="Most of them."),
    option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="While an earlier one runs; by default allow.",
    ),
)

_OPTIONS = ("queue", "priority", "expires", "headers")
_TIMES = ("start", "end")
_OTHERS = ("args", "kwargs", "timezone", "max_runs", "catch_up", "catch_up_max", "overlap")


class Asked(NamedTuple):
    """What was said about an entry; what was not is not in it.

    Attributes
    ----------
    schedule : BaseSchedule | None
    options : dict[str, Any]
        Those of ``apply_async``.
    others : dict[str, Any]
        Those of :meth:`~celery_delayq.periodic_client.PeriodicTasks.add`.
    """

    schedule: BaseSchedule | None
    options: dict[str, Any]
    others: dict[str, Any]


def with_entry(command: F) -> F:
    """Give a command all there is to say about an entry, as ``asked``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        def given(names: tuple[str, ...]) -> dict[str, Any]:
            found = {name: kwargs.pop(name) for name in names}
            return {name: value for name, value in found.items() if value not in (None, ())}

        when = given(tuple(_SCHEDULES))
        others = given(_OTHERS)
        others |= {name: datetime.fromisoformat(text) for name, text in given(_TIMES).items()}
        asked = Asked(_schedule(when), given(_OPTIONS), others)
        return command(*args, asked=asked, **kwargs)

    return stacked(wrapper, (*_WHEN, *_WHAT))  # type: ignore[return-value]


def _schedule(when: Mapping[str, Any]) -> BaseSchedule | None:
    if len(when) > 1:
        names = ", ".join(f"--{name}" for name in when)
        raise click.UsageError(f"{names}: give one of them")
    for name, value in when.items():
        try:
            return _SCHEDULES[name](value)
        except (ValueError, TypeError, ImportError, ImproperlyConfigured, ParseException) as exc:
            raise click.UsageError(f"--{name}: {exc}") from exc
    return None
