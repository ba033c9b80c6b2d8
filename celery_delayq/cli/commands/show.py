"""``get``, ``list`` and ``count``: scheduled tasks as tables, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import click
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import options, screen
from celery_delayq.cli.command import command
from celery_delayq.cli.items import PAGE_ROWS, Bar, Counts, SelectedKind
from celery_delayq.cli.search import due_only, is_held, search_entries
from celery_delayq.cli.text import (
    argument_texts,
    calls_inside,
    shown_id,
    stamp,
    text_of_calls,
)
from celery_delayq.errors import InvalidETA
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Filter, Outcome, Page, ScheduledTask, moment
from celery_delayq.model.script_values import State
from celery_delayq.store.paging import queues_of, with_entries
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.store import Store
from celery_delayq.utils.text import distance, spelled

#: Number of entries in a page by default.
DEFAULT_LIMIT = 100

#: Number of entries between two updates of a progress bar.
PROGRESS_ENTRIES = 100

_STYLES: dict[State, str] = {
    "scheduled": "",
    "paused": "yellow",
    "held": "yellow",
    "ready": "green",
}


@command()
@options.id_argument
@options.queue_option
@options.json_option
def get(delayq: DelayQ, id: str, queue: str | None) -> bool:
    """Show where a task waits, or which worker has it.

    The due time can be pasted as --if-eta. A task that was routed to two queues is shown twice.
    It shows which tasks its chain, callbacks and chords call, while it is scheduled or held.
    Of a held task it shows the limit and how many tasks are ahead of it in its queue. When it has
    finished or never was, it exits with 1 and says what is known, as `why` does.

    \b
    Examples:
      celery -A shop delayq get 0d1b0f6e-9f5c-4f0e-a8f5-1f6d8cf1f1a5
      celery -A shop delayq get mail-7 --json | jq -r '.entries[0].due'
    """
    found = sorted(delayq.find(id, queue=queue), key=lambda each: each.due)
    if not found:
        return _tell_why_missing(delayq, id, queue)
    kind = replace(
        ENTRIES,
        fields=lambda each: _fields(*each),
        values=lambda each: _values(*each),
    )
    return kind.show_all(delayq, [(each, delayq.limits.ahead(each)) for each in found])


def _tell_why_missing(delayq: DelayQ, id: str, queue: str | None) -> bool:
    """Say why no entry has an id, as ``why`` does; return False."""
    answer = delayq.why(id, queue=queue, ask_workers=False)
    if screen.is_json():
        screen.print_json({ENTRIES.key: [], "why": answer.as_dict()})
    where = "" if queue is None else f" in queue {spelled(queue)}"
    reasons = " ".join(reason.sentence(stamp) for reason in answer.reasons)
    click.echo(
        f"No waiting or running task is known by the id {shown_id(id)}{where}. {reasons}", err=True
    )
    screen.note_unknown_queue(delayq, queue, stderr=True)
    return False


@command("list")
@options.with_filter
@options.number_option(
    "--limit",
    type=click.IntRange(1, 10_000),
    help=f"Most entries to show; {DEFAULT_LIMIT} by default.",
)
@options.name_option("--cursor", metavar="CURSOR", help="Show the page after this cursor.")
@options.flag("--all", "all_", help="Show all, page by page.")
@options.flag("--held", help="Only those that are due and wait for a paused task or a limit.")
@options.json_option
def list_(
    delayq: DelayQ, filter: Filter, limit: int | None, cursor: str | None, all_: bool, held: bool
) -> None:
    """Show scheduled tasks, ordered by due time.

    Times are local, with their offset. Ids with special characters are quoted for a shell. With
    --arg, entries are shown as they are found; after Ctrl-C it says how to go on.

    \b
    Examples:
      celery -A shop delayq list
      celery -A shop delayq list --task shop.remind --due-to 1h
      celery -A shop delayq list --due-from 2030-01-31 --due-to 2030-02-01
      celery -A shop delayq list --queue mail --all --json | jq -r '.entries[].id'
      celery -A shop delayq list --held --limit 20
      celery -A shop delayq list --arg order_id=42 --all
    """
    if all_ and (limit is not None or (cursor is not None and filter.arg is None)):
        raise click.UsageError("--all shows everything: leave out --limit and --cursor")
    screen.check_priority(delayq, filter)
    kind = HELD if held else ENTRIES
    if filter.arg is not None:
        most = None if all_ else limit or DEFAULT_LIMIT
        search = search_entries(delayq, kind, filter, cursor, most, held=held)
        go_on = partial(_next_page, filter, limit or DEFAULT_LIMIT, held=held, all_=all_)
        search.show(delayq, filter, go_on)
    elif all_:
        if held:
            due = delayq.entries(due_only(delayq, filter), page=PAGE_ROWS)
            _show_all(delayq, filter, (each for each in due if is_held(each)), kind)
        else:
            _show_all(delayq, filter, delayq.entries(filter, page=PAGE_ROWS), kind)
    else:
        _show_page(delayq, filter, limit=limit or DEFAULT_LIMIT, cursor=cursor, held=held)


@command()
@options.with_filter
@options.json_option
def count(delayq: DelayQ, filter: Filter) -> None:
    """Count scheduled entries.

    \b
    Examples:
      celery -A shop delayq count
      celery -A shop delayq count --task shop.remind --due-to 1h
      celery -A shop delayq count --queue mail --json | jq .count
    """
    screen.check_priority(delayq, filter)
    if filter.arg is None:
        number = delayq.count(filter)
    else:
        search = search_entries(delayq, ENTRIES, filter)
        number = sum(map(len, search.pages()))
        search.finish()
    if screen.is_json():
        screen.print_json({"count": number})
    else:
        ENTRIES.print_number(delayq, filter, number, end="")


def _show_page(
    delayq: DelayQ, filter: Filter, *, limit: int, cursor: str | None, held: bool
) -> None:
    """Print a page, and the command that shows the next page."""
    read = _held_page if held else _page
    page = read(delayq, filter, limit, cursor)
    if screen.is_json():
        ENTRIES.print_json(page, lambda: {"cursor": page.cursor})
        return
    ENTRIES.print_pages(delayq, page, limit)
    if page.cursor is not None:
        next_page = _next_page(filter, limit, page.cursor, held=held)
        text = Text(f"{ENTRIES.number(len(page))}, and there are more: ")
        screen.console().print(text.append(next_page, "dim"), soft_wrap=True)
    else:
        (HELD if held else ENTRIES).print_number(delayq, filter, len(page))


def _page(delayq: DelayQ, filter: Filter, limit: int, cursor: str | None) -> Page[ScheduledTask]:
    return delayq.list(filter, limit=limit, cursor=cursor)


def _held_page(
    delayq: DelayQ, filter: Filter, limit: int, cursor: str | None
) -> Page[ScheduledTask]:
    """Return a page of held entries, which are due. With a cursor it may have fewer than *limit*
    entries: where most entries that are due are not held.
    """
    now = screen.now_of(delayq)
    found: list[ScheduledTask] = []
    while True:
        page = _page(delayq, filter, limit - len(found), cursor)
        held = [each for each in page if is_held(each)]
        found += held
        cursor = None if page and all(each.due > now for each in page) else page.cursor
        if cursor is None or len(found) == limit or (found and not held):
            return Page(found, cursor)


def _show_all(
    delayq: DelayQ, filter: Filter, entries: Iterable[ScheduledTask], kind: SelectedKind
) -> None:
    """Print entries as they are read."""
    if screen.is_json():
        ENTRIES.print_json(entries, lambda: {"cursor": None})
        return
    kind.print_number(delayq, filter, ENTRIES.print_pages(delayq, entries))


def _next_page(
    filter: Filter, limit: int, cursor: str, *, held: bool = False, all_: bool = False
) -> str:
    """Return the command for the next page. Its filter is the same, with absolute times."""
    limits = [] if limit == DEFAULT_LIMIT else [f"--limit {limit}"]
    flags = [name for name, is_set in {"--held": held, "--all": all_}.items() if is_set]
    words = ["list", *options.filter_words(filter), *limits, *flags, f"--cursor {cursor}"]
    return screen.whole_command(" ".join(words))


def _fields(task: ScheduledTask, ahead: int | None = None) -> Iterable[tuple[str, Any]]:
    """Yield the names and values of a task's fields."""
    yield "id", shown_id(task.id)
    yield "task", task.task
    yield "queue", task.queue
    yield "state", Text(task.state, _STYLES.get(task.state, "cyan"))
    if task.limit:
        key = f", key {task.limit_key}" if task.limit_key else ""
        before = "" if ahead is None else f"; at most {ahead:,} of this key ahead"
        yield "limit", f"{task.limit}{key}{before}"
    yield "worker", task.worker or None
    is_due_known = task.due > moment(0) + timedelta(milliseconds=1)
    yield "due", task.due if is_due_known else None
    yield "eta", None if task.eta is None else _eta(task.eta)
    yield "priority", task.priority
    values = task.as_dict()
    yield "retries", values["retries"] or None
    yield from argument_texts(values)
    yield "calls", text_of_calls(calls_inside(task.message))
    yield "unique key", values["unique_key"]


def _values(task: ScheduledTask, ahead: int | None) -> dict[str, Any]:
    """Return a task's fields as JSON types."""
    values = task.as_dict() | {"calls": calls_inside(task.message)}
    if ahead is not None:
        values["ahead"] = ahead
    return values


def _eta(text: str) -> str:
    """Return an ETA in the form of other times. Without an offset it is UTC, as for workers."""
    try:
        return stamp(moment(due_of_eta(text).ms))
    except InvalidETA:
        return text


def _row(task: ScheduledTask, id: str, now: datetime, is_wide: bool) -> Sequence[Text | str]:
    late = task.due < now and task.state == "scheduled"
    style = "red" if late else _STYLES.get(task.state, "")
    due, away = stamp(task.due), Text(distance((task.due - now).total_seconds()), style)
    queue, name = Text(spelled(task.queue)), Text(spelled(task.task))
    step = "" if task.priority is None else str(task.priority)
    if is_wide:
        return due, away, Text(task.state, style), step, name, queue, Text(id)
    name.append("\n").append(away).append(", ").append(queue)
    if task.priority:
        name.append(f", priority {step}")
    if task.state != "scheduled":
        name.append(", ").append(task.state, style)
    return Text(f"{due}\n{id}"), name


def _count_entries(delayq: DelayQ, filter: Filter, bar: Bar) -> Counts:
    """Count the scheduled entries that a filter selects. Unreadable entries have the task ``?``."""
    screen.check_priority(delayq, filter)
    counts = Counts()
    if filter.arg is not None:
        search = search_entries(delayq, ENTRIES, filter)
        for page in search.pages(bar):
            counts.update((each.queue, each.task) for each in page)
        search.finish()
        counts.unknown = search.unknown
        return counts
    if filter.priority is not None:
        # Only reading all entries finds the entries of one priority.
        for number, each in enumerate(delayq.entries(filter), 1):
            counts[each.queue, each.task] += 1
            if number % PROGRESS_ENTRIES == 0:
                bar(None, number)
        return counts
    stores = delayq.session.stores
    where = filter.where()
    conditions = filter.conditions(delayq.session.renames)
    queues = with_entries(stores, queues_of(stores, filter.queue), *conditions)

    def steps(store: Store, queue: str) -> Steps[Counts]:
        its = Counts()
        tasks = [each.task for each in conditions if each.task is not None]
        if not tasks:
            tasks = [*(yield from store.scheduled_tasks_steps(queue))]
        for task in tasks:
            its[queue, task] = yield from store.control.count_steps(
                queue, where._replace(task=task)
            )
        if filter.task is None:
            total = yield from store.control.count_steps(queue, where)
            its[queue, "?"] += max(0, total - its.total())
        return its

    for its in stores.run_each(queues, steps).values():
        counts.update(its)
    return Counts(+counts)


ENTRIES = SelectedKind(
    one="entry",
    many="entries",
    nothing="Nothing is scheduled.",
    none="nothing that is scheduled",
    id_of=lambda task: shown_id(task.id),
    columns=("due", "", "state", "priority", "task", "queue", "id"),
    narrow=("due, id", "task, queue"),
    row=_row,
    fields=_fields,
    count=_count_entries,
    why={
        Outcome.CHANGED: "it is due at another time, or others move it right now",
        Outcome.CONFLICT: "another task has its new unique key",
        Outcome.UNKNOWN: "it has finished, was cancelled, has no ETA, is in a canvas or never was",
    },
)

#: Entries that are held.
HELD = replace(ENTRIES, nothing="Nothing is held.", none="nothing that is held")
