"""Apply an action to ids or to a filter's selection: ask, show progress, report outcomes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.table import Table
from rich.text import Text

from celery_delayq.app import DelayQ
from celery_delayq.cli import screen
from celery_delayq.cli.items import Counts, ItemOutcome, SelectedKind, change_each
from celery_delayq.cli.options import Selection
from celery_delayq.cli.text import shown_id, stamp
from celery_delayq.errors import ConfigError, InvalidETA, InvalidOption, NotSupported
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Bulk, Outcome, moment
from celery_delayq.utils.text import spelled


@dataclass(frozen=True, slots=True)
class Action:
    """An action: its words, and its methods for one id and for a filter.

    *note* is called with the names of the selected tasks before the question.
    """

    verb: str
    done: str
    one: Callable[..., Outcome]
    many: Callable[..., Bulk]
    kind: SelectedKind
    how: str = ""
    note: Callable[[Iterable[str]], object] = lambda _: None


def future_eta(delayq: DelayQ, eta: str, instead: str) -> str:
    """Return an ETA as people read it. Refuse an ETA in the past (click.UsageError)."""
    when = due_of_eta(eta).ms
    shown = stamp(moment(when))
    if when <= delayq.session.now_ms():
        raise click.UsageError(f"--eta {shown} has passed; {instead}")
    return shown


class _OneLine(logging.Formatter):
    """Formats log records without tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        return spelled(record.getMessage() + ("" if error is None else f": {error}"))


@contextmanager
def logging_in_one_line() -> Iterator[None]:
    """Show log records of the package in one line each, such as an unreachable result backend."""
    logger, handler = logging.getLogger("celery_delayq"), logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def values_as_options() -> Iterator[None]:
    """Report values that a task or its message does not take as wrong use (click.UsageError)."""
    try:
        yield
    except NotSupported:
        raise
    except (ConfigError, InvalidOption) as exc:
        raise click.UsageError(spelled(str(exc))) from exc


def apply(delayq: DelayQ, action: Action, selection: Selection) -> bool:
    """Apply an action and report each outcome; return whether everything was done."""
    with logging_in_one_line():
        if selection.ids:
            is_done = _apply_to_ids(action, selection)
            if not is_done:
                screen.note_unknown_queue(delayq, selection.filter.queue, stderr=True)
            return is_done
        return _apply_to_filter(delayq, action, selection)


def _apply_to_ids(action: Action, selection: Selection) -> bool:
    """Return whether all ids were changed."""

    def change(id: str) -> ItemOutcome:
        try:
            outcome = action.one(id, queue=selection.filter.queue, if_eta=selection.if_eta)
        except InvalidETA as exc:
            if "in the past" not in str(exc):
                raise
            outcome = Outcome.PAST
        return item_outcome(action.kind, id, outcome, action.done, action.how)

    return change_each(selection.ids, change)


def item_outcome(
    kind: SelectedKind, id: str, outcome: Outcome, done: str, how: str = ""
) -> ItemOutcome:
    """Return the outcome of a change of one item; *done* is the word for it."""
    what, note = done + how, Text()
    if not outcome:
        what = f"not {done}"
        note.append(f"  {outcome}: {kind.reason(outcome)}", "default")
    values = {"id": id, "outcome": str(outcome)}
    return ItemOutcome(bool(outcome), what, shown_id(id), values, note)


def _apply_to_filter(delayq: DelayQ, action: Action, selection: Selection) -> bool:
    """Return whether everything that the filter selects was changed."""
    output, kind = screen.console(), action.kind
    with screen.progress_bar(description="count") as bar:
        counts = kind.count(delayq, selection.filter, bar)
    question = f"{action.verb} {_counts_text(counts, kind)}{action.how}"
    action.note(task for _, task in counts)
    if selection.dry_run and screen.is_json():
        bulk, key = Bulk(True, counts.total()), kind.key
        bulk.outcomes[Outcome.DONE] = counts.total()
        bulk.unknown = counts.unknown
        by = [{"queue": q, "task": t, key: n} for (q, t), n in sorted(counts.items())]
        screen.print_json({**bulk.as_dict(), "meant": by})
        return True
    if not screen.is_json():
        if not counts:
            kind.print_none(delayq, selection.filter)
            return True
        if len(counts) > 1:
            output.print(_counts_table(counts, kind))
        if selection.dry_run:
            output.print(Text(f"{question}: a dry run, nothing was changed."))
            return True
        if not selection.yes and not click.confirm(f"{question}?"):
            output.print("Nothing was changed.")
            return False
    bulk = _with_progress(action, selection, counts.total())
    if screen.is_json():
        screen.print_json(bulk.as_dict())
    else:
        print_bulk(action, bulk)
    return bulk.done == bulk.looked


def _with_progress(action: Action, selection: Selection, total: int) -> Bulk:
    """Change all, with a bar on a terminal. An interruption reports the number changed so far."""
    latest = Bulk(False)
    try:
        step = action.verb.lower()
        with screen.progress_bar(description=step) as bar:

            def show(bulk: Bulk) -> None:
                nonlocal latest
                latest = bulk
                if bulk.looked:
                    bar(total, bulk.looked)
                else:
                    bar(total, bulk.found, "find")

            return action.many(selection.filter, everything=selection.everything, progress=show)
    except BaseException as exc:
        if latest.looked or isinstance(exc, KeyboardInterrupt):
            # The outcome of the last batch is unknown.
            were = f"{action.kind.number(latest.done)} {'was' if latest.done == 1 else 'were'}"
            click.echo(f"Interrupted: at least {were} {action.done} before.", err=True)
        raise


def print_bulk(action: Action, bulk: Bulk) -> None:
    """Print how many items were changed, and why others were not changed."""
    output, kind = screen.console(), action.kind
    output.print(Text(f"{kind.number(bulk.done)} {action.done}{action.how}.", "green"))
    for outcome, number in sorted(bulk.outcomes.items()):
        if not outcome:
            output.print(Text(f"{number:,} not {action.done}, {outcome}: {kind.reason(outcome)}."))


def _counts_text(counts: Counts, kind: SelectedKind) -> str:
    """Return ``1,204 entries of 2 tasks in 3 queues``."""
    queues, tasks = ({key[i] for key in counts} for i in (0, 1))
    text = kind.number(counts.total())
    if tasks:
        text += f" of {spelled(*tasks)}" if len(tasks) == 1 else f" of {len(tasks):,} tasks"
        text += (
            f" in queue {spelled(*queues)}" if len(queues) == 1 else f" in {len(queues):,} queues"
        )
    return text


def _counts_table(counts: Counts, kind: SelectedKind) -> Table:
    table = screen.new_table("task", "queue", kind.many)
    for (queue, task), number in sorted(counts.items()):
        table.add_row(Text(spelled(task)), Text(spelled(queue)), f"{number:,}")
    return table
