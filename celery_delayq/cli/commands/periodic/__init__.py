"""``delayq periodic``: commands for periodic entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from celery_delayq.admin.exit_codes import Refused
from celery_delayq.app import DelayQ
from celery_delayq.cli import Group, options, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.commands.periodic.entry_options import (
    TASK_OPTIONS,
    any_names_argument,
    as_options,
    name_argument,
    names_argument,
    unset_option,
    with_entry,
)
from celery_delayq.cli.commands.periodic.import_periodic import import_
from celery_delayq.cli.commands.periodic.tables import PERIODIC_ENTRIES, Entry, source_of
from celery_delayq.cli.items import ItemOutcome, change_each
from celery_delayq.cli.text import quoted, stamp
from celery_delayq.errors import (
    ConfigError,
    InvalidSchedule,
    PeriodicExists,
    PeriodicUnknown,
    RecordError,
)
from celery_delayq.periodic.definition import API_SOURCE
from celery_delayq.periodic.entries import Periodic, UnreadableEntry
from celery_delayq.utils.text import spelled


@click.group(cls=Group)
def periodic() -> None:
    """Manage periodic entries, which run without beat.

    Workers write the entries in code (beat_schedule, add_periodic_task) when they start. Entries
    made here stay until they are removed.

    \b
    Examples:
      celery -A shop delayq periodic list
      celery -A shop delayq periodic add poll shop.poll --every 30
      celery -A shop delayq periodic pause --help
    """


periodic.add_command(import_)


@command("list", group=periodic)
@options.name_option("--source", metavar="SOURCE", help="As it is shown: api, or 'code shop'.")
@options.option(
    "--status",
    type=click.Choice(["on", "paused", "ended", "unreadable"]),
    help="Only those with this status.",
)
@options.json_lines_option
def list_(delayq: DelayQ, source: str | None, status: str | None) -> None:
    """Show all entries, by name.

    "next" is the first tick that is not scheduled yet. `delayq list` shows ticks that are scheduled
    already: those of the next two seconds. An entry is unreadable if the class of its schedule
    cannot be imported here, or if another version wrote it. Its reason is shown, and it can be
    paused and removed.

    \b
    Examples:
      celery -A shop delayq periodic list
      celery -A shop delayq periodic list --status ended
      celery -A shop delayq periodic list --source api --json | jq -r .name
    """
    entries = [
        entry
        for entry in delayq.periodic._all()
        if source in (None, source_of(entry)) and status in (None, entry.status)
    ]
    PERIODIC_ENTRIES.print_pages(delayq, entries, len(entries))
    if screen.is_json():
        return
    output = screen.console()
    if entries:
        output.print(f"{PERIODIC_ENTRIES.number(len(entries))}.")
        return
    filters = [] if source is None else [f"the source {spelled(source)}"]
    filters += [] if status is None else [f"the status {status}"]
    which = f" with {' and '.join(filters)}" if filters else ""
    output.print(f"There are no periodic entries{which}.", soft_wrap=True)


@command(group=periodic)
@name_argument
@options.json_option
def show(delayq: DelayQ, name: str) -> None:
    """Show all fields of an entry. Exits with 1 when there is none.

    \b
    Examples:
      celery -A shop delayq periodic show report
      celery -A shop delayq periodic show report --json | jq .total_run_count
    """
    entry: Entry
    try:
        entry = _entry(delayq, name)
    except (RecordError, InvalidSchedule):
        found = [each for each in delayq.periodic.unreadable() if each.name == name]
        if not found:  # removed meanwhile
            raise
        entry = found[0]
    _print_entry(entry, screen.now_of(delayq))


@command("next", group=periodic)
@name_argument
@options.number_option(
    "--count", type=click.IntRange(1, 10_000), default=5, show_default=True, help="Ticks to show."
)
@options.json_option
def next_(delayq: DelayQ, name: str, count: int) -> None:
    """Show the next ticks of an entry that are not scheduled yet.

    \b
    Examples:
      celery -A shop delayq periodic next report
      celery -A shop delayq periodic next report --count 9 --json | jq .ticks
    """
    ticks = delayq.periodic.next(name, count)
    if screen.is_json():
        screen.print_json({"ticks": [tick.isoformat() for tick in ticks]})
        return
    output, now = screen.console(), screen.now_of(delayq)
    for tick in ticks:
        output.print(Text(screen.time_text(tick, now)), soft_wrap=True)
    if not ticks:
        entry = _entry(delayq, name)
        output.print(f"{quoted(name)} has no more ticks: it is {entry.status}.", soft_wrap=True)


@command(group=periodic)
@name_argument
@options.argument("task", "TASK", "Name of a task.")
@with_entry
@options.flag("--replace", help="Replace an entry of that name.")
@options.json_option
def add(delayq: DelayQ, name: str, task: str, given: dict[str, Any], replace: bool) -> None:
    """Add an entry.

    Give its schedule: one of --every, --crontab, --rrule, --at and --solar. Exits with 1 when
    there is an entry of that name already.

    \b
    Examples:
      celery -A shop delayq periodic add poll shop.poll --every 30
      celery -A shop delayq periodic add report shop.report \\
          --crontab '0 9 * * mon-fri' --timezone Europe/Berlin --overlap skip
      celery -A shop delayq periodic add launch shop.launch --at 2030-01-01
      celery -A shop delayq periodic add payday shop.pay \\
          --rrule 'FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0'
    """
    if "schedule" not in given:
        raise click.UsageError("give one of --every, --crontab, --rrule, --at and --solar")
    screen.note_unknown_queue(delayq, given.get("queue"), stderr=True)
    screen.note_unknown_task(delayq, task)  # imports the tasks, which say what they take
    now = screen.now_of(delayq)  # outside _wrong_use: errors of Redis or the app are not wrong use
    with _wrong_use():
        try:
            entry = delayq.periodic.add(name, task=task, replace=replace, **given)
        except PeriodicExists as exc:
            raise Refused(
                f"there is a periodic entry {quoted(name)} already: change it with `periodic "
                "update`, or say --replace"
            ) from exc
    _print_entry(entry, now)


@command(group=periodic)
@name_argument
@options.name_option("--task", metavar="TASK", help="Another task.")
@with_entry
@unset_option
@options.json_option
def update(
    delayq: DelayQ,
    name: str,
    task: str | None,
    given: dict[str, Any],
    unset: tuple[str, ...],
) -> None:
    """Change the given options of an entry; all others stay.

    An interval keeps its phase. A change to an entry in code holds until its code changes.

    \b
    Examples:
      celery -A shop delayq periodic update report --crontab '30 9 * * *'
      celery -A shop delayq periodic update poll --every 1m --queue slow
      celery -A shop delayq periodic update poll --unset end --unset max-runs
    """
    if task is None and not unset and not given:
        raise click.UsageError("give what is to be changed")
    for each in dict.fromkeys(unset):
        field = each.replace("-", "_")
        if field in given:
            raise click.UsageError(f"--{each}, --unset {each}: give one of them")
        given[field] = None
    entry, now = _entry(delayq, name), screen.now_of(delayq)
    if task is not None:
        given["task"] = task
        screen.note_unknown_task(delayq, task)  # imports the tasks, which say what they take
    elif not given.keys().isdisjoint(("args", "kwargs")):
        screen.known_tasks(delayq)
    screen.note_unknown_queue(delayq, given.get("queue"), stderr=True)
    if changed := {each: given.pop(each) for each in TASK_OPTIONS if each in given}:
        options = {**entry.definition.options, **changed}
        given["options"] = {key: value for key, value in options.items() if value is not None}
    with _wrong_use():
        entry = delayq.periodic.update(name, **given)
    _print_entry(entry, now)


@command(group=periodic)
@any_names_argument
@options.flag("--ended", help="All that have ended and are not in code.")
@options.flag("--yes", help="Do not ask, with --ended.")
@options.json_option
def remove(delayq: DelayQ, names: Sequence[str], ended: bool, yes: bool) -> bool:
    """Remove entries.

    Their scheduled ticks are cancelled; running tasks go on. An entry in code comes back when its
    code changes. --ended asks for confirmation; in a script add --yes. Exits with 1 when one did
    not exist.

    \b
    Examples:
      celery -A shop delayq periodic remove launch
      celery -A shop delayq periodic remove poll report
      celery -A shop delayq periodic remove --ended --yes
    """
    if bool(names) == ended:
        raise click.UsageError("give either names or --ended")
    if ended:
        # Not entries in code: an entry that comes back would count its runs from zero.
        names = [each.name for each in delayq.periodic.list(API_SOURCE) if each.status == "ended"]
        if not names and not screen.is_json():
            click.echo("There are no entries that have ended.")
        if names and not yes:
            options.check_can_ask()
            if not click.confirm(f"Remove {PERIODIC_ENTRIES.number(len(names))}?"):
                click.echo("Nothing was changed.", err=True)
                return False

    def one(name: str) -> ItemOutcome:
        existed = delayq.periodic.remove(name)
        return _outcome(name, existed, "removed" if existed else "unknown")

    return _change_entries(names, one)


@command(group=periodic)
@names_argument
@options.json_option
def pause(delayq: DelayQ, names: Sequence[str]) -> bool:
    """Fire no ticks of entries until they are resumed.

    They stay paused through deploys and restarts. Their scheduled ticks are cancelled.

    \b
    Example:
      celery -A shop delayq periodic pause report
    """

    def one(name: str) -> ItemOutcome:
        entry = delayq.periodic.pause(name)
        return _outcome(
            name, True, "paused" if isinstance(entry, UnreadableEntry) else entry.status
        )

    return _change_entries(names, one)


@command(group=periodic)
@names_argument
@options.json_option
def resume(delayq: DelayQ, names: Sequence[str]) -> bool:
    """Resume paused entries with their next tick.

    Ticks that passed meanwhile are not caught up.

    \b
    Example:
      celery -A shop delayq periodic resume report
    """

    def one(name: str) -> ItemOutcome:
        entry = delayq.periodic.resume(name)
        more = {} if entry.next is None else {"next": entry.next.isoformat()}
        return _outcome(name, True, entry.status, **more)

    return _change_entries(names, one)


@command("run-now", group=periodic)
@names_argument
@options.json_option
def run_now(delayq: DelayQ, names: Sequence[str]) -> bool:
    """Run the task of entries once more, now.

    Their ticks stay as they are. Exits with 1 when one was not run: it is unknown, or an earlier
    run is not done and may not overlap.

    \b
    Example:
      celery -A shop delayq periodic run-now report
    """

    def one(name: str) -> ItemOutcome:
        id = delayq.periodic.run_now(name)
        if id is None:
            return _outcome(
                name,
                False,
                "not sent: an earlier run has not ended, and the entry's runs may not overlap",
            )
        return _outcome(name, True, "sent", id=id)

    return _change_entries(names, one)


def _outcome(name: str, done: bool, outcome: str, **more: str) -> ItemOutcome:
    """Return the outcome for an entry, with further values to show."""
    note = Text()
    for key, value in more.items():
        shown = stamp(datetime.fromisoformat(value)) if key == "next" else quoted(value)
        note.append(f"  {key} {shown}", "dim")
    values = {"name": name, "done": done, "outcome": outcome, **more}
    return ItemOutcome(done, outcome, quoted(name), values, note)


def _change_entries(names: Sequence[str], one: Callable[[str], ItemOutcome]) -> bool:
    """Change each entry and print its outcome; return whether all entries were changed."""

    def change(name: str) -> ItemOutcome:
        try:
            return one(name)
        except PeriodicUnknown:
            return _outcome(name, False, "unknown")
        except (RecordError, InvalidSchedule) as exc:
            return _outcome(name, False, f"failed: {spelled(str(exc))}")

    return change_each(names, change)


@contextmanager
def _wrong_use() -> Iterator[None]:
    """Report invalid values of an entry as wrong use: ``max_runs=0`` as ``--max-runs 0``."""
    try:
        yield
    except ConfigError as exc:
        raise click.UsageError(spelled(as_options(str(exc)))) from exc


def _print_entry(entry: Entry, now: datetime) -> None:
    if screen.is_json():
        screen.print_json(entry.as_dict())
    else:
        PERIODIC_ENTRIES.show(entry, now)


def _entry(delayq: DelayQ, name: str) -> Periodic:
    entry = delayq.periodic.get(name)
    if entry is None:
        raise PeriodicUnknown(f"there is no periodic entry {quoted(name)}")
    return entry
