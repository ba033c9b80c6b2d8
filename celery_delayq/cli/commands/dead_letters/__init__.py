"""``delayq dead``: commands for dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace as changed
from functools import partial
from typing import Any

import click

from celery_delayq.app import DelayQ
from celery_delayq.cli import Group, options, screen
from celery_delayq.cli.apply import Action, apply, future_eta, values_as_options
from celery_delayq.cli.command import command
from celery_delayq.cli.commands.dead_letters.dead_letter_options import (
    DEAD_LETTER_ID_HELP,
    ReplayOptions,
    place_argument,
    with_dead_letter_filter,
    with_dead_letter_selection,
    with_replay_options,
    with_replay_selection,
)
from celery_delayq.cli.commands.dead_letters.tables import DEAD_LETTERS, print_archived
from celery_delayq.cli.commands.transfer import print_imported, progress_of_report
from celery_delayq.cli.items import Bar, SelectedKind
from celery_delayq.cli.search import note_unknown, prepare_search, search_dead_letters
from celery_delayq.cli.text import shown_id
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.scheduled import Outcome
from celery_delayq.transfer.results import Archived
from celery_delayq.utils.text import span, spelled

#: Number of dead letters that are shown by default.
DEFAULT_LIMIT = 100


@click.group(cls=Group)
def dead() -> None:
    """Manage dead letters: tasks that will not run any more.

    A task that failed for good, that killed its workers or that nobody could read is a dead letter
    until it is replayed, purged or archived.

    \b
    Examples:
      celery -A shop delayq dead list
      celery -A shop delayq dead replay --task shop.remind --died-from 1h
      celery -A shop delayq dead purge --help
    """


@command("list", group=dead)
@with_dead_letter_filter
@options.number_option("--limit", help=f"Most dead letters to show; {DEFAULT_LIMIT} by default.")
@options.name_option("--cursor", metavar="CURSOR", help="Show those after this cursor.")
@options.flag("--all", "all_", help="Show all.")
@options.json_option
def list_(
    delayq: DelayQ, filter: DeadFilter, limit: int | None, cursor: str | None, all_: bool
) -> None:
    """Show dead letters, the oldest first.

    Times are local, with their offset. Ids with special characters are quoted for a shell. They are
    shown as they are found; after Ctrl-C it says how to go on.

    \b
    Examples:
      celery -A shop delayq dead list
      celery -A shop delayq dead list --task shop.remind --died-from 1h
      celery -A shop delayq dead list --exception ValueError --reason timeout
      celery -A shop delayq dead list --arg order_id=42 --all
      celery -A shop delayq dead list --all --json | jq -r '.dead_letters[].id'
    """
    if all_ and limit is not None:
        raise click.UsageError("--all shows everything: leave out --limit")
    most = None if all_ else limit or DEFAULT_LIMIT
    search = search_dead_letters(delayq, DEAD_LETTERS, filter, cursor, most)
    search.show(delayq, filter, partial(_next_page, filter, limit, all_=all_))


def _next_page(filter: DeadFilter, limit: int | None, cursor: str, *, all_: bool) -> str:
    """Return the command for the next page. Its filter is the same, with absolute times."""
    words = ["dead list", *options.filter_words(filter)]
    words += [] if limit is None else [f"--limit {limit}"]
    words += ["--all"] if all_ else []
    return screen.whole_command(" ".join([*words, f"--cursor {cursor}"]))


@command(group=dead)
@options.argument("id", "ID", DEAD_LETTER_ID_HELP)
@options.queue_option
@options.json_option
def show(delayq: DelayQ, id: str, queue: str | None) -> bool:
    """Show why a task died, its traceback and its arguments.

    The arguments are JSON, as replay takes them. ID is that of a dead letter, as `dead list` shows
    it, or that of a task: then all its dead letters are shown. Exits with 1 when there is none.

    \b
    Examples:
      celery -A shop delayq dead show 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq dead show mail-7 --json | jq '.dead_letters[0].due'
    """
    with screen.progress_bar(description="search", at_once=False) as bar:
        dead_letter = _find(delayq, id, queue, bar)
        found = [] if dead_letter is None else [dead_letter]
        if dead_letter is not None and dead_letter.id not in (id, id.replace("%00", "\0")):
            found = [*delayq.dead_letters(queue=queue, task_id=id, progress=bar)]
    where = "" if queue is None else f" in queue {spelled(queue)}"
    missing = f"There is no dead letter with the id {shown_id(id)}{where}."
    if not found:
        screen.note_unknown_queue(delayq, queue, stderr=True)
    return DEAD_LETTERS.show_all(delayq, found, missing)


@command(group=dead)
@with_replay_selection
@options.with_changes
@with_replay_options
def replay(
    delayq: DelayQ, selection: options.Selection, changes: dict[str, Any], how: ReplayOptions
) -> bool:
    """Run dead letters again, with all their attempts.

    Give ids, or a filter: then the number of selected dead letters is shown, and you are asked.
    One step takes a dead letter away and makes it scheduled or ready. Exits with 1 when something
    was not replayed: others have replayed it, or another task has its unique key.

    \b
    Examples:
      celery -A shop delayq dead replay 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq dead replay mail-7 --args '["ann@example.org"]'
      celery -A shop delayq dead replay --task shop.remind --dry-run
      celery -A shop delayq dead replay --exception TimeoutError --rate 10 --yes
      celery -A shop delayq dead replay --everything --to-queue slow
    """
    how.check(ids=bool(selection.ids))
    if changes.get("unpickle") and selection.filter.arg is not None:
        filter = changed(selection.filter, unpickle=True)
        selection = changed(selection, filter=filter)
    action = _replaying(delayq, changes, how)
    hint = "" if how.to_queue else "; --queue is where it is, --to-queue where it goes"
    return apply(delayq, changed(action, kind=_in_queue(selection, hint)), selection)


@command(group=dead)
@with_dead_letter_selection
def purge(delayq: DelayQ, selection: options.Selection) -> bool:
    """Delete dead letters; chords that wait for them fail.

    Give ids, or a filter: then the number of selected dead letters is shown, and you are asked.
    Exits with 1 when one did not exist any more.

    \b
    Examples:
      celery -A shop delayq dead purge 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq dead purge --task shop.remind --died-to 30d
      celery -A shop delayq dead purge --everything --yes --json
    """
    one = _by_id(delayq, delayq.purge)
    kind = _in_queue(selection)
    return apply(delayq, Action("Purge", "purged", one, delayq.purge_all, kind), selection)


@command(group=dead)
@options.target_argument
@with_dead_letter_filter
@options.json_option
def export(delayq: DelayQ, target: str, filter: DeadFilter) -> None:
    """Write dead letters to a file or a SQL database.

    They stay in Redis; `archive` moves them. TARGET is a path (JSON Lines, gzipped if it ends in
    .gz), - for standard output, or the URL of a database: sqlite:///path or
    postgresql://user:password@host/name. A file appears when it is complete.

    \b
    Examples:
      celery -A shop delayq dead export dead.jsonl
      celery -A shop delayq dead export - --task shop.remind | jq .reason
      celery -A shop delayq dead export sqlite:///dead.db
    """
    screen.check_queue(delayq, filter.queue)
    prepare_search(delayq, filter)
    with progress_of_report() as progress:
        report = delayq.export_dead(target, filter, progress=progress)
    print_archived(report, "exported", stderr=target == "-")
    _note_left_out(delayq, filter, report)


@command("import", group=dead)
@place_argument("source", "[SOURCE]")
@with_dead_letter_filter
@options.dry_run_option
@options.json_option
def import_(delayq: DelayQ, source: str | None, filter: DeadFilter, dry_run: bool) -> bool:
    """Put archived or exported dead letters back.

    SOURCE is as for export; - is standard input. May be repeated: dead letters that exist are left
    as they are. A database keeps its rows. Exits with 1 when a line was refused.

    \b
    Examples:
      celery -A shop delayq dead import --task shop.remind --died-from 30d
      celery -A shop delayq dead import dead.jsonl --dry-run
      celery -A shop delayq dead import postgresql://backup@db/shop
    """
    prepare_search(delayq, filter)
    with progress_of_report() as progress:
        report = delayq.import_dead(source, filter, dry_run=dry_run, progress=progress)
    note_unknown(DEAD_LETTERS, report.outcomes["unknown"])
    if report.looked == report.outcomes["filtered"]:
        screen.note_unknown_names(delayq, filter)
    return print_imported(report, DEAD_LETTERS)


@command(group=dead)
@place_argument("url", "[URL]")
@with_dead_letter_filter
@options.option(
    "--older-than",
    type=options.DurationType(),
    help="Only those that died longer ago than this: 90 (seconds), 1h30m, 2d.",
)
@options.json_option
def archive(delayq: DelayQ, url: str | None, filter: DeadFilter, older_than: float | None) -> None:
    """Move dead letters to a SQL database.

    URL is sqlite:///path or postgresql://user:password@host/name. A dead letter leaves Redis when
    the database has it, and is stored once there: the command may be interrupted and repeated.
    Workers archive by themselves to the database of the setting dead_letters_archive.

    \b
    Examples:
      celery -A shop delayq dead archive sqlite:////var/lib/shop/dead.db
      celery -A shop delayq dead archive --older-than 1d --task shop.remind
      celery -A shop delayq dead archive postgresql://backup@db/shop --json
    """
    screen.check_queue(delayq, filter.queue)
    prepare_search(delayq, filter)
    with progress_of_report() as progress:
        report = delayq.archive_dead(url, filter, older_than=older_than or 0.0, progress=progress)
    print_archived(report, "archived")
    _note_left_out(delayq, filter, report)


def _note_left_out(delayq: DelayQ, filter: DeadFilter, report: Archived) -> None:
    """Print how many dead letters could not be judged, and names that may be typos."""
    note_unknown(DEAD_LETTERS, report.unknown)
    if not report.dead_letters:
        screen.note_unknown_names(delayq, filter)


def _find(delayq: DelayQ, id: str, queue: str | None, bar: Bar) -> DeadLetter | None:
    """Return a dead letter by its id as the id is shown, with ``%00`` for a NUL."""
    found = delayq.dead_letter(id, queue=queue, progress=bar)
    if found is None and "%00" in id:
        found = delayq.dead_letter(id.replace("%00", "\0"), queue=queue, progress=bar)
    return found


def _in_queue(selection: options.Selection, hint: str = "") -> SelectedKind:
    """Return the kind of a selection. For ids in one queue, the text for unknown ids differs."""
    queue = selection.filter.queue
    if not selection.ids or queue is None:
        return DEAD_LETTERS
    unknown = f"there is no such dead letter in queue {spelled(queue)}, or no more{hint}"
    return changed(DEAD_LETTERS, why={**DEAD_LETTERS.why, Outcome.UNKNOWN: unknown})


def _by_id(delayq: DelayQ, change: Callable[[DeadLetter], Outcome]) -> Callable[..., Outcome]:
    """Return a function that changes a dead letter by its id, in one queue or in all queues."""

    def one(id: str, *, queue: str | None, **_: Any) -> Outcome:
        with screen.progress_bar(description="search", at_once=False) as bar:
            dead_letter = _find(delayq, id, queue, bar)
        return Outcome.UNKNOWN if dead_letter is None else change(dead_letter)

    return one


def _replaying(delayq: DelayQ, changes: Mapping[str, Any], how: ReplayOptions) -> Action:
    """Return the action for a replay (click.UsageError if the ETA has passed)."""
    parts = []
    if changes.keys() - {"unpickle"}:
        names = {"args": "arguments", "kwargs": "arguments", "expires": "expiry"}
        shown = dict.fromkeys(names.get(each, each) for each in changes if each != "unpickle")
        parts.append(f"with other {', '.join(shown)}")
    if how.to_queue is not None:
        parts.append(f"to queue {spelled(how.to_queue)}")
        screen.note_unknown_queue(delayq, how.to_queue, stderr=True)
    if how.eta is not None:
        parts.append(f"to run at {future_eta(delayq, how.eta, 'leave it out to run at once')}")
    elif how.countdown is not None:
        parts.append(f"to run {span(how.countdown)} from now")
    elif how.rate is not None:
        parts.append(f"at {how.rate:g} a second")
    warned: set[str] = set()

    def note(tasks: Iterable[str]) -> None:
        """Warn of tasks that would only become dead letters again."""
        known = screen.known_tasks(delayq)
        unknown = {*tasks} - known - warned - {"?"} if known is not None else set()
        warned.update(tasks)
        for name in sorted(unknown):
            click.echo(
                f"This app does not know the task {spelled(name)}: a worker that does not know it "
                "either makes it a dead letter again.",
                err=True,
            )

    def one(dead_letter: DeadLetter) -> Outcome:
        if dead_letter.task is not None:
            note([dead_letter.task])
        due: Mapping[str, Any] = {"eta": how.eta, "countdown": how.countdown}
        with values_as_options():
            return delayq.replay(dead_letter, queue=how.to_queue, **due, **changes)

    return Action(
        "Replay",
        "replayed",
        _by_id(delayq, one),
        partial(delayq.replay_all, rate=how.rate, to_queue=how.to_queue, **changes),
        DEAD_LETTERS,
        "".join(f" {part}" for part in parts),
        note,
    )
