"""Cancelling, moving, running and pausing, one or many."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli.options import Meant
from celery_delayq.cli.screen import (
    Things,
    check_priority,
    console_of,
    count_meant,
    in_words,
    meant_table,
    new_table,
    note_unknown_queue,
    note_unknown_task,
    now_of,
    time_text,
)
from celery_delayq.cli.words import shown_id, span, spelled, stamp
from celery_delayq.errors import InvalidETA
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Bulk, Filter, Outcome, moment

_WHY = {
    Outcome.READY: "it waits for a worker already",
    Outcome.RUNNING: "a worker has it",
    Outcome.CHANGED: "it is due at another time, or others move it right now",
    Outcome.PAST: "it would have been due in the past; run-now runs it at once",
    Outcome.UNKNOWN: "it has finished, has no ETA or never was",
}


def _count_entries(delayq: DelayQ, filter: Filter) -> Counter[tuple[str, str]]:
    check_priority(delayq, filter)
    return count_meant(delayq, filter)


ENTRIES = Things("entry", "entries", "nothing that is scheduled", _WHY, _count_entries)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be done: how to say so, and the methods for one id and for a filter.

    *note* is called with the names of the tasks that a filter means, before it is asked.
    """

    verb: str
    done: str
    one: Callable[..., Outcome]
    many: Callable[..., Bulk]
    how: str = ""
    things: Things = ENTRIES
    note: Callable[[Iterable[str]], object] = lambda _: None


def cancel(delayq: DelayQ) -> Change:
    """Return how to cancel."""
    return Change("Cancel", "cancelled", delayq.cancel, delayq.cancel_all)


def run_now(delayq: DelayQ) -> Change:
    """Return how to run at once."""
    return Change("Run now", "made ready", delayq.run_now, delayq.run_all_now)


def reschedule(
    delayq: DelayQ, eta: str | None, countdown: float | None, by: float | None
) -> Change:
    """Return how to move to a time, so many seconds from now, or by an amount.

    Raises
    ------
    click.UsageError
        The time has passed.
    """
    if eta is not None:
        when = due_of_eta(eta).ms
        if when <= delayq.store.now_ms():
            raise click.UsageError(
                f"--eta {stamp(moment(when))} has passed by Redis' clock; run-now runs at once"
            )
        how = f"to {stamp(moment(when))}"
    elif countdown is not None:
        how = f"to {span(countdown)} from now"
    else:
        how = f"{span(by or 0)} {'earlier' if (by or 0) < 0 else 'later'}"
    time: Mapping[str, Any] = {"eta": eta, "countdown": countdown, "by": by}
    return Change(
        "Move",
        "moved",
        partial(delayq.reschedule, **time),
        partial(delayq.reschedule_all, **time),
        f" {how}",
    )


class _InOneLine(logging.Formatter):
    """What is logged meanwhile, without tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        what = record.exc_info[1] if record.exc_info else None
        return spelled(record.getMessage() + ("" if what is None else f": {what}"))


@contextmanager
def _logging_in_one_line() -> Iterator[None]:
    """Show what the package logs meanwhile, such as that the result backend was not told."""
    logger, handler = logging.getLogger("celery_delayq"), logging.StreamHandler()
    handler.setFormatter(_InOneLine())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def change(ctx: click.Context, delayq: DelayQ, what: Change, meant: Meant) -> None:
    """Do it and tell what became of each; exits with 1 when something was not done."""
    with _logging_in_one_line():
        done = _ids(ctx, what, meant) if meant.ids else _filter(ctx, delayq, what, meant)
    if not done:
        raise click.exceptions.Exit(1)


def _ids(ctx: click.Context, what: Change, meant: Meant) -> bool:
    """Change some ids; return whether all were changed."""
    console = console_of(ctx)
    outcomes: dict[str, Outcome] = {}
    try:
        for id in meant.ids:
            try:
                outcome = what.one(id, queue=meant.filter.queue, if_eta=meant.if_eta)
            except InvalidETA as exc:
                if "in the past" not in str(exc):
                    raise
                outcome = Outcome.PAST
            outcomes[id] = outcome
            if not meant.as_json:
                console.print(_became(id, what, outcome), soft_wrap=True)
    finally:  # what was done before an error is told all the same
        if meant.as_json:
            told = [{"id": id, "outcome": str(outcome)} for id, outcome in outcomes.items()]
            print(json.dumps({"outcomes": told}))
    return all(outcomes.values())


def _became(id: str, what: Change, outcome: Outcome) -> Text:
    if outcome:
        return Text(what.done + what.how, "green").append(f"  {shown_id(id)}", "default")
    text = Text(f"not {what.done}", "red").append(f"  {shown_id(id)}", "default")
    return text.append(f"  {outcome}: {what.things.why[outcome]}", "default")


def _filter(ctx: click.Context, delayq: DelayQ, what: Change, meant: Meant) -> bool:
    """Change what a filter means; return whether all of it was changed."""
    console, things = console_of(ctx), what.things
    counts = things.count(delayq, meant.filter)
    question = f"{what.verb} {in_words(counts, things)}{what.how}"
    what.note(task for _, task in counts)
    if meant.dry_run and meant.as_json:
        bulk = Bulk(True, counts.total())
        bulk.outcomes[Outcome.DONE] = counts.total()
        by = [{"queue": q, "task": t, things.many: n} for (q, t), n in sorted(counts.items())]
        print(json.dumps({**bulk.as_dict(), "meant": by}))
        return True
    if not meant.as_json:
        if not counts:
            console.print(f"0 {things.many}: {things.none} is meant by this.")
            note_unknown_queue(delayq, meant.filter.queue, console)
            return True
        if len(counts) > 1:
            console.print(meant_table(counts, things))
        if meant.dry_run:
            console.print(Text(f"{question}: a dry run, nothing was changed."))
            return True
        if not meant.yes and not click.confirm(f"{question}?"):
            console.print("Nothing was changed.")
            return False
    bulk = _with_progress(console, what, meant, counts.total())
    if meant.as_json:
        print(json.dumps(bulk.as_dict()))
    else:
        _say_bulk(console, what, bulk)
    return bulk.done == bulk.looked


def _with_progress(console: Console, what: Change, meant: Meant, total: int) -> Bulk:
    """Change all, with a bar on a terminal; what ends it tells how far it came."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    bar = progress.add_task("", total=total)
    latest = Bulk(False)

    def show(bulk: Bulk) -> None:
        nonlocal latest
        latest = bulk
        # Of what comes meanwhile, more may be met than there was at first.
        progress.update(bar, total=max(total, bulk.looked), completed=bulk.looked)

    visible = console.is_terminal and not meant.as_json
    try:
        with progress if visible else nullcontext():
            return what.many(meant.filter, everything=meant.everything, progress=show)
    except BaseException as exc:
        if latest.looked or isinstance(exc, KeyboardInterrupt):
            # Of the last batch nothing is known.
            were = f"{what.things.number(latest.done)} {'was' if latest.done == 1 else 'were'}"
            click.echo(f"Interrupted: at least {were} {what.done} before.", err=True)
        raise


def _say_bulk(console: Console, what: Change, bulk: Bulk) -> None:
    console.print(Text(f"{what.things.number(bulk.done)} {what.done}{what.how}.", "green"))
    for outcome, number in sorted(bulk.outcomes.items()):
        if not outcome:
            why = what.things.why[outcome]
            console.print(Text(f"{number:,} not {what.done}, {outcome}: {why}."))


def cancel_canvas(
    ctx: click.Context, delayq: DelayQ, *, root: str | None, group: str | None, as_json: bool
) -> None:
    """Cancel a canvas, and tell what became of what was scheduled of it."""
    with _logging_in_one_line():
        bulk = delayq.cancel_canvas(root_id=root, group_id=group)
    if as_json:
        print(json.dumps({"root": root, "group": group, **bulk.as_dict()}))
        return
    console = console_of(ctx)
    _say_bulk(console, cancel(delayq), bulk)
    console.print("What is ready, or is sent later, is refused by the workers.")


def pause(
    ctx: click.Context,
    delayq: DelayQ,
    *,
    queue: str | None,
    task: str | None,
    resume: bool = False,
    as_json: bool,
) -> None:
    """Pause a queue or a task, or let it go on."""
    changed = (delayq.resume if resume else delayq.pause)(queue=queue, task=task)
    note_unknown_queue(delayq, queue, console_of(ctx, stderr=True))
    if task is not None and not (resume and changed):
        store = delayq.store
        names = (name for each in store.registry() for name in store.scheduled_tasks(each))
        note_unknown_task(delayq, task, {*names})
    if as_json:
        told = {"queue": queue, "task": task, "paused": not resume, "changed": changed}
        print(json.dumps(told))
        return
    console = console_of(ctx)
    kind, named = ("Task", task) if queue is None else ("Queue", queue)
    name = f"{kind} {spelled(named or '')}"
    does = ("goes on" if changed else "was not paused") if resume else "is paused"
    already = "" if changed or resume else " already"
    console.print(Text(f"{name} {does}{already}."), soft_wrap=True)


def show_paused(ctx: click.Context, delayq: DelayQ, *, as_json: bool) -> None:
    """Print what is paused."""
    found = delayq.paused()
    kinds = {"queue": found.queues, "task": found.tasks}
    if as_json:
        told = {
            f"{kind}s": {name: since.isoformat() for name, since in names.items()}
            for kind, names in kinds.items()
        }
        print(json.dumps(told))
        return
    console = console_of(ctx)
    if not any(kinds.values()):
        console.print("Nothing is paused.")
        return
    now = now_of(delayq)
    table = new_table("")
    table.add_column("what")
    table.add_column("name", overflow="fold")
    table.add_column("since", overflow="fold")
    for kind, names in kinds.items():
        for name, since in names.items():
            table.add_row(kind, Text(spelled(name)), time_text(since, now))
    console.print(table)
