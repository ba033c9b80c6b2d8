"""Options of the commands for periodic entries, and what they are read as."""

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
from celery_delayq.cli.options import Json, Moment, Name, Span, argument, option, stacked
from celery_delayq.periodic.crontab import read_crontab
from celery_delayq.periodic.definition import CATCH_UPS, OVERLAPS
from celery_delayq.periodic.schedules import rrule

F = TypeVar("F", bound=Callable[..., Any])


class EntryName(Name):
    """The name of a periodic entry that is there: it may be anything, where others wrote it."""

    utf8 = False


_names = functools.partial(
    argument,
    explained="Name of a periodic entry; put -- before one that begins with a dash.",
    type=EntryName(),
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
        type=Span(beside="more than none, such as 30 (seconds), 1h30m or 2d"),
        metavar="SPAN",
        help="So often: 30 (seconds), 1h30m, 2d.",
    ),
    option(
        "--crontab",
        type=Name(),
        metavar="TEXT",
        help="Minute, hour, day of month, month, weekday, such as '0 9 * * mon-fri'.",
    ),
    option("--rrule", type=Name(), metavar="RULE", help="RFC 5545: 'FREQ=MONTHLY;BYDAY=-1FR'."),
    option(
        "--at",
        type=Moment("from now"),
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
    option("--args", type=Json(list, "'[1, \"a\"]'"), metavar="JSON", help="Arguments."),
    option(
        "--kwargs", type=Json(dict, "'{\"n\": 1}'"), metavar="JSON", help="Arguments by their name."
    ),
    option("--queue", type=Name(), metavar="QUEUE", shell_complete=complete.queues),
    option("--priority", type=click.IntRange(0, 9), metavar="NUMBER", help="0 is the first."),
    option(
        "--expires",
        type=Span(beside="more than none, such as 90 (seconds), 5m or 2d"),
        metavar="SPAN",
        help="Not later than this after its tick.",
    ),
    option(
        "--headers", type=Json(dict, '\'{"tenant": "a"}\''), metavar="JSON", help="Its headers."
    ),
    option(
        "--timezone",
        type=Name(),
        metavar="NAME",
        help="Whose clock --crontab and --rrule mean, as Europe/Berlin.",
    ),
    option("--start", type=Moment("from now"), metavar="TIME", help="No tick before; as --at."),
    option("--end", type=Moment("from now"), metavar="TIME", help="No tick after; as --at."),
    option("--max-runs", type=click.IntRange(1), metavar="NUMBER", help="Most ticks."),
    option(
        "--catch-up", type=click.Choice(CATCH_UPS), help="Ticks that were missed; one by default."
    ),
    option(
        "--catch-up-max",
        type=click.IntRange(1),
        metavar="NUMBER",
        help="Most of them, with --catch-up all; 100 by default.",
    ),
    option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="While an earlier one runs; by default allow.",
    ),
)

_OPTIONS = ("queue", "priority", "expires", "headers")
_TIMES = ("start", "end")
_OTHERS = ("args", "kwargs", "timezone", "max_runs", "catch_up", "catch_up_max", "overlap")

#: What may be said of an entry beside its schedule and task, as Python calls it.
SAYABLE = (*_OPTIONS, *_TIMES, *_OTHERS)

unset_option = option(
    "--unset",
    "unset",
    multiple=True,
    type=click.Choice([name.replace("_", "-") for name in SAYABLE]),
    metavar="OPTION",
    help="Take back what was said: " + ", ".join(n.replace("_", "-") for n in SAYABLE) + ".",
)


class Asked(NamedTuple):
    """What was said about an entry; what was not is not in it.

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

    def without(self, names: Iterable[str]) -> Asked:
        """Return it with None for what is to be unset (click.UsageError)."""
        fields = [name.replace("-", "_") for name in names]
        for name, field in zip(names, fields, strict=True):
            if field in self.options or field in self.others:
                raise click.UsageError(f"--{name}, --unset {name}: give one of them")
        nothing = dict.fromkeys(fields)
        options = {name: None for name in nothing if name in _OPTIONS}
        others = {name: None for name in nothing if name not in _OPTIONS}
        return self._replace(options=self.options | options, others=self.others | others)


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


def as_options(text: str) -> str:
    """Return an error of the API with the options of the command line in it."""
    return _ASSIGNED.sub(lambda match: f"--{match[1].replace('_', '-')} ", text)


_ASSIGNED = re.compile(rf"\b({'|'.join(SAYABLE)})=(?=\S)")


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
