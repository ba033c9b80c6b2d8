"""Options of the commands for dead letters, and the values they give."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import click

from celery_delayq.cli import complete
from celery_delayq.cli.options import (
    DurationType,
    JsonType,
    NameType,
    Selection,
    TimeType,
    argument,
    dry_run_option,
    json_option,
    option,
    queue_option,
    stacked,
    task_option,
)
from celery_delayq.model.dead_letter import DeadFilter

F = TypeVar("F", bound=Callable[..., Any])

place_argument = functools.partial(
    argument,
    explained="By default the database of the setting dead_letters_archive.",
    required=False,
)

_FILTER = (
    queue_option,
    task_option,
    option("--id", "task_id", type=NameType(), metavar="ID", help="Of the task with this id."),
    option(
        "--reason", type=NameType(), metavar="TEXT", help="With this in its reason, in any case."
    ),
    option("--exception", type=NameType(), metavar="NAME", help="Of this class of exception."),
    option(
        "--died-from",
        type=TimeType("ago"),
        metavar="TIME",
        help="Died at this time or later: ISO 8601, local without an offset; or 30m ago.",
    ),
    option("--died-to", type=TimeType("ago"), metavar="TIME", help="Died at this time or earlier."),
    option(
        "--root",
        "root_id",
        type=NameType(),
        metavar="ID",
        help="All that began with this task: a chain, chord or tree.",
    ),
    option("--group", "group_id", type=NameType(), metavar="ID", help="All of this group."),
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


def with_dead_letter_filter(command: F) -> F:
    """Give a command the options of a filter of dead letters, and the filter as ``filter``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        filter = DeadFilter(**{name: kwargs.pop(name) for name in _NAMES})
        return command(*args, filter=filter, **kwargs)

    return stacked(wrapper, _FILTER)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class DeadLetterSelection(Selection):
    """Which dead letters a command changes."""

    all_: bool = False

    shows: ClassVar[str] = "dead show"
    how_to_select_all: ClassVar[str] = (
        "give ids or a filter, or --all for all dead letters of all queues"
    )

    @property
    def everything(self) -> bool:
        """Whether all dead letters of all queues are selected, explicitly."""
        return self.all_

    def check(self) -> None:
        """Refuse contradictions, and a selection that may be wider than intended."""
        if self.all_ and (self.ids or not self.filter.is_everything):
            raise click.UsageError("--all means everything: leave out ids and filter")
        Selection.check(self)


def with_dead_letter_selection(command: F) -> F:
    """Give a command ids, a filter and the flags that go with them, as ``selection``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ids = tuple(dict.fromkeys(kwargs.pop("ids")))
        names = ("dry_run", "yes", "as_json", "all_")
        given = {name: kwargs.pop(name) for name in names}
        selection = DeadLetterSelection(ids, kwargs.pop("filter"), None, **given)
        selection.check()
        return command(*args, selection=selection, **kwargs)

    options = (
        argument(
            "ids",
            "[ID]...",
            "Id of a dead letter; put -- before one that begins with a dash.",
            nargs=-1,
        ),
        option("--all", "all_", is_flag=True, help="All dead letters of all queues."),
        dry_run_option,
        option("--yes", is_flag=True, help="Do not ask."),
        json_option,
    )
    return with_dead_letter_filter(stacked(wrapper, options))  # type: ignore[return-value]


class ReplayOptions(NamedTuple):
    """How dead letters are replayed."""

    rate: float | None
    to_queue: str | None
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    eta: str | None
    countdown: float | None

    def check(self, *, ids: bool) -> None:
        """Refuse contradictions (click.UsageError)."""
        timed = self.eta is not None or self.countdown is not None
        if self.eta is not None and self.countdown is not None:
            raise click.UsageError("give one of --eta and --in")
        if timed and not ids:
            raise click.UsageError("--eta and --in go with ids; --rate goes with a filter")
        if self.rate is not None and ids:
            raise click.UsageError("--rate goes with a filter; --in delays an id")


def with_replay_options(command: F) -> F:
    """Give a command the options of a replay, as ``how``."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        how = ReplayOptions(**{name: kwargs.pop(name) for name in ReplayOptions._fields})
        return command(*args, how=how, **kwargs)

    options = (
        option(
            "--rate",
            type=click.FloatRange(0.001, 1e6),
            metavar="NUMBER",
            help="So many a second.",
        ),
        option(
            "--to-queue",
            type=NameType(),
            metavar="QUEUE",
            shell_complete=complete.queues,
            help="To this queue instead of their own.",
        ),
        option(
            "--args",
            type=JsonType(list, "'[1, \"a\"]'"),
            metavar="JSON",
            help="With these arguments.",
        ),
        option(
            "--kwargs",
            type=JsonType(dict, "'{\"n\": 1}'"),
            metavar="JSON",
            help="With these keyword arguments.",
        ),
        option(
            "--eta",
            type=TimeType(),
            metavar="TIME",
            help="Run at this time, as --died-from. For ids.",
        ),
        option(
            "--in",
            "--countdown",
            "countdown",
            type=DurationType(),
            metavar="SPAN",
            help="Run this long from now: 90, 1h30m. Goes with ids.",
        ),
    )
    return stacked(wrapper, options)  # type: ignore[return-value]
