"""Options of the commands for dead letters, and their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from celery_delayq.cli import complete
from celery_delayq.cli.options import (
    DurationType,
    TimeType,
    arg_option,
    argument,
    dry_run_option,
    flag,
    group_option,
    json_option,
    name_option,
    option,
    options_as_one_value,
    queue_option,
    root_option,
    select,
    task_option,
    unpickle_option,
)
from celery_delayq.model.dead_letter import DeadFilter

F = TypeVar("F", bound=Callable[..., Any])

DEAD_LETTER_ID_HELP = "Id of a dead letter; put -- before one that begins with a dash."

place_argument = functools.partial(
    argument,
    explained="By default the database of the setting dead_letters_archive.",
    required=False,
)

_FILTER_OPTIONS = (
    queue_option,
    task_option,
    name_option("--id", "task_id", metavar="ID", help="Of the task with this id."),
    name_option("--reason", metavar="TEXT", help="With this in its reason, in any case."),
    name_option("--exception", help="Of this class of exception."),
    option(
        "--died-from",
        type=TimeType("ago"),
        help="Died at this time or later: ISO 8601, 17:00, yesterday 9:00, or 30m ago.",
    ),
    option("--died-to", type=TimeType("ago"), help="Died at this time or earlier."),
    root_option,
    group_option,
    arg_option,
)

#: Adds the options of a dead-letter filter to a command, and passes the filter as ``filter``.
with_dead_letter_filter = options_as_one_value(
    "filter", DeadFilter, *_FILTER_OPTIONS, unpickle_option
)


def _with_selection(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds ids, a filter and their flags to a command, and passes them as
    ``selection``.
    """
    return options_as_one_value(
        "selection",
        functools.partial(
            select,
            DeadFilter,
            "dead show",
            "dead letters",
        ),
        *_FILTER_OPTIONS,
        *options,
        argument("ids", "[ID]...", DEAD_LETTER_ID_HELP, nargs=-1),
        flag("--everything", help="All dead letters of all queues."),
        dry_run_option,
        flag("--yes", help="Do not ask."),
        json_option,
    )


with_dead_letter_selection = _with_selection(unpickle_option)

#: The same without ``--unpickle``, which is one of the changes of a replay.
with_replay_selection = _with_selection()


class ReplayOptions(NamedTuple):
    """How dead letters are replayed."""

    rate: float | None
    to_queue: str | None
    eta: str | None
    countdown: float | None

    def check(self, *, ids: bool) -> None:
        """Refuse options that contradict each other (click.UsageError)."""
        timed = self.eta is not None or self.countdown is not None
        if self.eta is not None and self.countdown is not None:
            raise click.UsageError("give one of --eta and --in")
        if timed and not ids:
            raise click.UsageError("--eta and --in go with ids; --rate goes with a filter")
        if self.rate is not None and ids:
            raise click.UsageError("--rate goes with a filter; --in delays an id")


#: Adds the options of a replay to a command, and passes them as ``how``.
with_replay_options = options_as_one_value(
    "how",
    ReplayOptions,
    option("--rate", type=click.FloatRange(0.001, 1e6), metavar="NUMBER", help="So many a second."),
    name_option(
        "--to-queue",
        metavar="QUEUE",
        shell_complete=complete.queues,
        help="To this queue instead of their own.",
    ),
    option(
        "--eta",
        type=TimeType(),
        help="Run at this time: ISO 8601, 17:00, tomorrow 9:00, or 2h from now. For ids.",
    ),
    option(
        "--in",
        "--countdown",
        "countdown",
        type=DurationType(),
        help="Run this long from now: 90, 1h30m. Goes with ids.",
    ),
)
