"""``compat``: could this code run what waits?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.table import Table
from rich.text import Text

from celery_delayq.admin.compat import PLACES, CompatReport, CompatRow, Place
from celery_delayq.admin.exit_codes import Refused, WrongUse
from celery_delayq.app import DelayQ
from celery_delayq.cli import complete, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.options import flag, json_option, name_option, option
from celery_delayq.cli.text import number_of, shown_id, stamp
from celery_delayq.errors import DelayQError
from celery_delayq.model.compat.calls import Part
from celery_delayq.model.scheduled import moment
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.utils.text import spelled

_STYLES = {"fails": "bold red", "unknown": "yellow"}


@command()
@name_option(
    "--file",
    "source",
    metavar="SOURCE",
    help="An export of the schedule or of dead letters in place of the broker: a path, - or the "
    "URL of a database.",
)
@name_option(
    "--queue",
    "queues",
    metavar="QUEUE",
    multiple=True,
    shell_complete=complete.queues,
    help="Only those in this queue. May be repeated.",
)
@option(
    "--place",
    "places",
    type=click.Choice(PLACES),
    multiple=True,
    help="Only what waits here. May be repeated.",
)
@flag("--unpickle", help="Also decode pickle and other content that may run code.")
@flag("--strict", help="Exit with 1 also if it cannot be told about a message.")
@json_option
def compat(
    delayq: DelayQ,
    source: str | None,
    queues: Sequence[str],
    places: Sequence[Place],
    unpickle: bool,
    strict: bool,
) -> bool:
    """Check whether this code could run each message that waits.

    For a deployment: run it in the new code, before a rollback in the old code. Every message is
    read: scheduled, held and ready tasks, dead letters and periodic entries, with their chains,
    callbacks and chords; entries of beat_schedule as this code has them, if its first worker
    replaces those that wait. Is the task registered, does it take the arguments, do its Pydantic
    models accept them, is the content type accepted? Nothing is run or changed, and no worker is
    needed.

    Exits with 0 when all of them bind, with 1 when one would fail, and with 2 when not all could be
    looked at or a module cannot be imported.

    \b
    Examples:
      celery -A shop delayq compat
      celery -A shop delayq compat --strict --json | jq -r '.problems[].task'
      celery -A shop delayq compat --queue mail --queue bills
      celery -A shop delayq compat --place scheduled --place ready
      celery -A shop delayq compat --file schedule.jsonl.gz
    """
    with _looking(delayq), screen.progress_bar(description="check", at_once=False) as bar:
        for queue in queues if source is None else ():
            screen.check_queue(delayq, queue)
        report = delayq.compat(
            source,
            queue=queues or None,
            place=places or None,
            unpickle=unpickle,
            progress=lambda report: bar(report.total, report.number),
        )
    if screen.is_json():
        screen.print_json(report.as_dict())
    else:
        _print(report)
    if report.refused:
        raise click.exceptions.Exit(2)
    return not (report.fails or (strict and (report.unknown or report.not_looked)))


@contextmanager
def _looking(delayq: DelayQ) -> Iterator[None]:
    """Exit with 2 if the messages or the code cannot be looked at."""
    try:
        yield
    except Refused as exc:
        raise WrongUse(exc.message) from exc
    except (DelayQError, *BROKER_ERRORS) as exc:
        raise WrongUse(spelled(describe_error(exc, delayq.app))) from exc


def _print(report: CompatReport) -> None:
    output = screen.console()
    rows = report.rows
    if rows:
        output.print(_table(rows, screen.gap_of(output)))
    lines = [Text(f"line {line:,}: {spelled(reason)}") for line, reason in report.refusals]
    screen.print_list(lines, report.refused)
    looked = ", ".join(f"{report.looked[place]:,} {place}" for place in PLACES)
    output.print(f"{number_of(report.number, 'message', 'messages')} looked at: {looked}")
    output.print(
        f"{report.binds:,} bind, {report.fails:,} would fail, {report.unknown:,} cannot be told"
    )
    if report.replaced:
        entries = number_of(report.replaced, "periodic entry", "periodic entries")
        them = "it" if report.replaced == 1 else "them"
        output.print(f"{entries} would fail, but the first worker of this code replaces {them}.")
    if report.not_looked:
        output.print(f"This broker lets nobody read what is {' or '.join(report.not_looked)}.")


def _table(rows: Iterable[CompatRow], gap: str) -> Table:
    table = screen.new_table("task", "found", "problem")
    table.show_lines = gap == "\n"
    for row in rows:
        table.add_row(Text(spelled(row.problem.task)), f"{row.count:,}", _problem(row, gap))
    return table


def _problem(row: CompatRow, gap: str) -> Text:
    """Return the problem, where the messages wait, their due times, and some ids."""
    _, part, verdict, detail = row.problem
    text = Text(verdict.value, _STYLES[verdict.level])
    if verdict.level == "unknown":
        text.append(" (cannot be told)")
    if detail:
        text.append(f": {spelled(detail)}", "default")
    places = ", ".join(f"{number:,} {place}" for place, number in row.places.items())
    inside = "" if part is Part.MESSAGE else f", in a {part.value}"
    text.append(f"{gap}{places}{inside}", "default")
    if row.first_due is not None and row.last_due is not None:
        first, last = (stamp(moment(ms)) for ms in (row.first_due, row.last_due))
        text.append(f"{gap}due {first}" + ("" if first == last else f" to {last}"), "default")
    more = ", …" if row.count > len(row.ids) else ""
    return text.append(f"{gap}{', '.join(map(shown_id, row.ids))}{more}", "dim")
