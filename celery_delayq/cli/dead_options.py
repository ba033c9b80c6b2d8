"""Options of the commands for dead letters, and what they are read as."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import click

from celery_delayq.cli import complete
from celery_delayq.cli.options import (
    Json,
    Meant,
    Moment,
    Name,
    Span,
    json_option,
    option,
    queue_option,
    stacked,
    task_option,
)
from celery_delayq.model.dead_letter import DeadFilter

F = TypeVar("F", bound=Callable[..., Any])


class How(NamedTuple):
    """How dead letters are replayed."""

    rate: float | None
    to_queue: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    eta: str | None
    countdown: float | None

    def check(self, *, ids: bool) -> None:
        """Refuse what contradicts itself (click.UsageError)."""
        timed = self.eta is not None or self.countdown is not None
        if self.eta is not None and self.countdown is not None:
            raise click.UsageError("give one of --eta and --in")
        if timed and not ids:
            raise click.UsageError("--eta and --in go with ids; --rate spreads what a filter means")
        if self.rate is not None and ids:
            raise click.UsageError("--rate goes with a filter; --in delays an id")


_FILTER = (
    queue_option,
    task_option,
    option("--id", "task_id", type=Name(), metavar="ID", help="Of the task with this id."),
    option("--reason", type=Name(), metavar="TEXT", help="With this in its reason, in any case."),
    option("--exception", type=Name(), metavar="NAME", help="Of this class of exception."),
    option(
        "--died-from",
        type=Moment("ago"),
        metavar="TIME",
        help="Died at this time or later: ISO 8601, local without an offset; or 30m ago.",
    ),
    option("--died-to", type=Moment("ago"), metavar="TIME", help="Died at this time or earlier."),
    option(
        "--root",
        "root_id",
        type=Name(),
        metavar="ID",
        help="All that began with this task: a chain, chord or tree.",
    ),
    option("--group", "group_id", type=Name(), metavar="ID", help="All of this group."),
)

_NAMES = (
    "queue",
    "task",
    "task_id",
    "reason",
    "exception",
    "died_from",
    "died_to",
    "root_id",
    "group_id",
)


def with_dead_filter(command: F) -> F:
    """Give a command the options of a filter of dead letters, and the filter as ``filter``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        filter = DeadFilter(**{name: kwargs.pop(name) for name in _NAMES})
        return command(*args, filter=filter, **kwargs)

    return stacked(wrapper, _FILTER)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class DeadMeant(Meant):
    """Which dead letters a command is to change."""

    all_: bool = False

    shows: ClassVar[str] = "dead show"
    sure: ClassVar[str] = "give ids or a filter, or --all for all dead letters of all queues"

    @property
    def everything(self) -> bool:
        """Whether all dead letters of all queues are meant, and it is said so."""
        return self.all_

    def check(self) -> None:
        """Refuse what contradicts itself, and what may be more than was meant."""
        if self.all_ and (self.ids or not self.filter.is_everything):
            raise click.UsageError("--all means everything: leave out ids and filter")
        Meant.check(self)


_HOW = (
    option("--rate", type=click.FloatRange(0.001, 1e6), metavar="NUMBER", help="So many a second."),
    option(
        "--to-queue",
        type=Name(),
        metavar="QUEUE",
        shell_complete=complete.queues,
        help="To this queue, instead of the one they were in.",
    ),
    option("--args", type=Json(list, "'[1, \"a\"]'"), metavar="JSON", help="With these arguments."),
    option(
        "--kwargs",
        type=Json(dict, "'{\"n\": 1}'"),
        metavar="JSON",
        help="With these keyword arguments.",
    ),
    option(
        "--eta", type=Moment(), metavar="TIME", help="Run at this time, as --died-from. For ids."
    ),
    option(
        "--in",
        "--countdown",
        "countdown",
        type=Span(),
        metavar="SPAN",
        help="Run this long from now: 90, 1h30m. Goes with ids.",
    ),
)


def with_how(command: F) -> F:
    """Give a command what there is to say about replaying, as ``how``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        how = How(**{name: kwargs.pop(name) for name in How._fields})
        return command(*args, how=how, **kwargs)

    return stacked(wrapper, _HOW)  # type: ignore[return-value]


_MEANT = (
    option("--all", "all_", is_flag=True, help="All dead letters of all queues."),
    option("--dry-run", is_flag=True, help="Only tell what is meant by the filter."),
    option("--yes", is_flag=True, help="Do not ask."),
    json_option,
)


def with_dead_meant(command: F) -> F:
    """Give a command ids, a filter and what goes with them, as ``meant``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ids = tuple(dict.fromkeys(kwargs.pop("ids")))
        names = ("dry_run", "yes", "as_json", "all_")
        given = {name: kwargs.pop(name) for name in names}
        meant = DeadMeant(ids, kwargs.pop("filter"), None, **given)
        return command(*args, meant=meant, **kwargs)

    return with_dead_filter(stacked(wrapper, _MEANT))  # type: ignore[return-value]
