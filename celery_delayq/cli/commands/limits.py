"""``delayq limits``: limits of tasks, as they are and as people change them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import Group, complete, options, screen
from celery_delayq.cli.command import command
from celery_delayq.limits.client import LimitStatus
from celery_delayq.utils.text import spelled

name_argument = options.argument("name", "NAME", "Name of a limit.", shell_complete=complete.limits)


@click.group(cls=Group)
def limits() -> None:
    """Look at the limits of tasks, and change them.

    Workers store the limits of their code when they start. What is set here takes precedence until
    it is unset.

    \b
    Examples:
      celery -A shop delayq limits list
      celery -A shop delayq limits set stripe --rate 50/m
      celery -A shop delayq limits lanes stripe
    """


@command("list", group=limits)
@options.json_lines_option
def list_(delayq: DelayQ) -> None:
    """Show all limits: what counts, and how much of it is used.

    Held are due tasks that wait for their limit, each in the lane of its key. Used are tasks that
    workers have.

    \b
    Examples:
      celery -A shop delayq limits list
      celery -A shop delayq limits list --json | jq -r 'select(.held > 0) | .name'
    """
    found = delayq.limits.list()
    if screen.is_json():
        for each in found:
            screen.print_json(each.as_dict())
        return
    output = screen.console()
    if not found:
        output.print("No limit is stored: workers store those of their code when they start.")
        return
    gap = screen.gap_of(output)
    table = screen.new_table("limit", "what counts", "held", "lanes", "used")
    for each in found:
        table.add_row(
            Text(spelled(each.name)),
            _what_counts(each, gap),
            f"{each.held:,}",
            f"{each.lanes:,}",
            f"{each.used:,}",
        )
    output.print(table)


@dataclass(frozen=True)
class _Values:
    """The given values of a limit."""

    given: dict[str, Any]

    @classmethod
    def of(cls, *, no: tuple[str, ...], **given: Any) -> _Values:
        """Return the values of the options of ``set``."""
        values = {name: value for name, value in given.items() if value is not None}
        if twice := {*no} & {*values}:
            raise click.UsageError(f"--no {min(twice)} and --{min(twice)}: give one of them")
        return cls(values | dict.fromkeys(no))


@command("set", group=limits)
@name_argument
@options.options_as_one_value(
    "values",
    _Values.of,
    options.name_option("--rate", metavar="RATE", help="Most tasks of a key: 10/s, 100/m, 5/h."),
    options.number_option("--burst", help="Tasks that may start at once after a quiet time."),
    options.number_option("--concurrency", help="Most tasks of a key that workers have at once."),
    options.option("--fair/--not-fair", default=None, help="Whether keys take turns."),
    options.option(
        "--no",
        type=click.Choice(["rate", "concurrency"]),
        multiple=True,
        help="Remove the rate or the concurrency.",
    ),
)
@options.flag("--off", help="Limit nothing for now.")
@options.json_option
def set_(delayq: DelayQ, name: str, values: _Values, off: bool) -> None:
    """Change a limit for all workers, at once.

    What is not given stays as it is. The values count until `unset`, also after a start of workers.

    \b
    Examples:
      celery -A shop delayq limits set stripe --rate 50/m
      celery -A shop delayq limits set stripe --concurrency 2 --no rate
      celery -A shop delayq limits set stripe --off
    """
    if bool(values.given) is off:
        raise click.UsageError("give --off, or at least one value to set")
    _print_changed(delayq.limits.set(name, off=off, **values.given))


@command(group=limits)
@name_argument
@options.flag("--code", help="Also forget what the code said of a limit that it has no more.")
@options.json_option
def unset(delayq: DelayQ, name: str, code: bool) -> bool:
    """Forget what was set, so that the code counts again. Exits with 1 when nothing was set.

    A limit that is in no code any more still holds tasks: --code forgets it, unless the code of
    this app has it. A running worker of older code stores it again within a minute.

    \b
    Examples:
      celery -A shop delayq limits unset stripe
      celery -A shop delayq limits unset stripe --code
    """
    changed = delayq.limits.unset(name, code=code)
    if screen.is_json():
        screen.print_json({"name": name, "changed": changed})
    else:
        state = "the code counts." if changed and not code else "nothing was set."
        if changed and code:
            state = "forgotten. A running worker of older code stores it again within a minute."
        screen.console().print(Text(f"Limit {spelled(name)}: {state}"), soft_wrap=True)
    return changed


@command(group=limits)
@name_argument
@options.number_option("--limit", default=10, help="Most lanes to show; 10 by default.")
@options.json_lines_option
def lanes(delayq: DelayQ, name: str, limit: int) -> None:
    """Show the longest lanes of a limit: the keys with most held tasks.

    "next" is when the next task of the lane may start: "now" if it waits only for a worker. It is
    empty while the lane waits until one of its tasks ends.

    \b
    Examples:
      celery -A shop delayq limits lanes stripe
      celery -A shop delayq limits lanes stripe --limit 100 --json | jq -r .key
    """
    found = delayq.limits.lanes(name, limit)
    if screen.is_json():
        for each in found:
            screen.print_json(each.as_dict())
        return
    output = screen.console()
    if not found:
        output.print("No task is held.")
        return
    now = screen.now_of(delayq)
    table = screen.new_table("key", "held", "used", "next")
    for each in found:
        when = "" if each.next is None else screen.time_text(each.next, now)
        when = "now" if each.next is not None and each.next <= now else when
        table.add_row(Text(spelled(each.key)), f"{each.held:,}", f"{each.used:,}", when)
    output.print(table)


def _print_changed(status: LimitStatus) -> None:
    if screen.is_json():
        screen.print_json(status.as_dict())
        return
    output = screen.console()
    text = Text(f"Limit {spelled(status.name)}: ")
    output.print(text.append(_what_counts(status, screen.gap_of(output))), soft_wrap=True)


def _what_counts(status: LimitStatus, gap: str) -> Text:
    """Return what counts of a limit and, if people have set it, what the code says."""
    text = Text("off" if status.is_off else str(status.definition or "no limit"))
    if status.override or status.is_off:
        text.stylize("yellow")
        text.append(f"{gap}code: {status.of_code or 'no limit'}", "dim")
    return text
