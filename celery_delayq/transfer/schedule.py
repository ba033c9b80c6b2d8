"""Export the schedule to a file or a SQL database, and import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, cast
from uuid import uuid4

from celery_delayq.errors import InvalidFilter, InvalidPlace, RecordError, TransferError
from celery_delayq.model.arguments.search import ArgumentSearch
from celery_delayq.model.names import Renames, filter_of
from celery_delayq.model.scheduled import Filter, FilterFields, moment
from celery_delayq.model.script_values import FoundPage
from celery_delayq.schedule.pages import search_of
from celery_delayq.store.paging import counts_of, listed_pages
from celery_delayq.store.scripting.calls import MAX_CALL_MESSAGES, Call
from celery_delayq.store.scripting.pipelining import PipelinedCalls
from celery_delayq.store.scripting.replies import STATES, answered
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.transfer import jsonl, results
from celery_delayq.transfer.export_format import (
    FORMAT_VERSION,
    PAGE_ROWS,
    FileOrUrl,
    Header,
    ParsedLines,
    by_queue,
    is_url,
    meant_rows,
    shown_filter,
)
from celery_delayq.transfer.schedule_row import SCHEDULE, ScheduleRow
from celery_delayq.utils.delegation import names_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from celery_delayq.transfer.schedule_sql import ScheduleTableWriter


@names_arguments
def export_to(
    session: Session,
    target: FileOrUrl,
    filter: Filter | None = None,
    *,
    prune: bool = False,
    progress: Callable[[results.Exported], object] | None = None,
    **fields: Unpack[FilterFields],
) -> results.Exported:
    """Write the scheduled entries that match a filter, each queue in order of due time.

    Entries that are added or removed during the export may be missing. All others are written
    once. A file appears only when it is complete, and a database changes in one transaction.
    Unreadable entries are left out and reported.

    Parameters
    ----------
    target : str | PathLike | BinaryIO
        A path (compressed with gzip if it ends in ``.gz``), ``"-"`` for stdout,
        ``sqlite:///…``, ``postgresql://…``, or a file opened for bytes.
    filter, **fields
        The entries to write, as for :meth:`~celery_delayq.DelayQ.list`.
    prune : bool
        Remove database rows that match the filter and are no longer scheduled in this Redis.
    progress : Callable[[Exported], object]
        Called after each page.

    Raises
    ------
    TransferError
        Redis, the file or the database failed. The target is unchanged.
    """
    filter = filter_of(Filter, filter, fields, export_to)
    if prune and filter.arg is not None:
        raise InvalidFilter("prune=True goes without arg: a database does not know the arguments")
    search = search_of(session, filter)
    conditions = filter.without_arg.conditions(session.renames)
    report = results.Exported()

    def ask(stores: Stores) -> tuple[int, str, dict[str, int]]:
        queues = [filter.queue] if filter.queue is not None else sorted(stores.registry())
        counts = counts_of(stores, queues, *conditions)
        return stores.began_us(), stores.address(), counts

    with results.transfer_errors(report, SCHEDULE.noun, results.NOTHING_KEPT):
        began, server, counts = session.ask(ask)
        is_counted = filter.priority is None and search is None
        report.total = sum(counts.values()) if is_counted else None
        report.made = moment(began // 1000).isoformat()
        header = Header(FORMAT_VERSION, report.made, server, shown_filter(filter), report.total)
        takes_nul = not is_url(target)
        with _writing(target, filter, session.renames, prune=prune) as out:
            out.begin(header)
            queues = [queue for queue, number in counts.items() if number]
            for queue, where in product(queues, conditions):
                pages = listed_pages(session.ask, queue, where, PAGE_ROWS, began=began)
                for rows in _rows(pages, queue, report, search, takes_nul=takes_nul):
                    out.write(rows)
                    report.entries += len(rows)
                    if progress is not None:
                        progress(report)
            report.pruned = out.end(report.entries, report.left_out)
    return report


def _rows(
    pages: Iterator[FoundPage],
    queue: str,
    report: results.Exported,
    search: ArgumentSearch | None,
    *,
    takes_nul: bool,
) -> Iterator[list[ScheduleRow]]:
    """Yield the entries of a queue page by page. The report counts unreadable entries.

    With *search*, only entries that match are yielded, and those nobody can tell of are counted.
    *takes_nul* is whether names of tasks and queues may contain a NUL.
    """
    for page in pages:
        rows = []
        entries = page.entries
        if search is not None:
            entries, unknown = search.select(entries, attrgetter("record"))
            report.unknown += unknown
        for listed in entries:
            try:
                row = ScheduleRow.of_listed(queue, listed)
                if not takes_nul and "\0" in row.queue + row.task:
                    raise RecordError("databases take no NUL in the name of a queue or task")
            except RecordError as exc:
                report.left_out += 1
                if len(report.unreadable) < results.MAX_EXAMPLES:
                    report.unreadable.append(results.LeftOut(queue, listed.id, str(exc)))
            else:
                rows.append(row)
        yield rows


@names_arguments
def import_from(
    session: Session,
    source: FileOrUrl,
    filter: Filter | None = None,
    *,
    overdue: Literal["run", "skip"] = "run",
    dry_run: bool = False,
    progress: Callable[[results.Imported], object] | None = None,
    **fields: Unpack[FilterFields],
) -> results.Imported:
    """Schedule exported entries, either all or those that match a filter.

    The call may be repeated: an entry that is already scheduled, ready or leased does not change,
    and no entry is replaced. Tasks that have finished since the export are scheduled again.

    Parameters
    ----------
    source : str | PathLike | BinaryIO
        As in :func:`export_to`; ``"-"`` is stdin.
    filter, **fields
        The entries to schedule, as for :meth:`~celery_delayq.DelayQ.list`.
    overdue : "run" | "skip"
        Whether entries that are already due by Redis' clock become ready at once or are skipped.
    dry_run : bool
        Change nothing. Full queues and taken unique keys are not predicted.
    progress : Callable[[Imported], object]
        Called after each page of at most 500 rows.

    Raises
    ------
    TransferError
        Redis, the file or the database failed. Imported entries stay. Repeat the call.
    """
    if overdue not in ("run", "skip"):
        raise TransferError(f"overdue={overdue!r}: expected 'run' or 'skip'")
    filter = filter_of(Filter, filter, fields, import_from)
    search = search_of(session, filter)
    filter = filter.without_arg
    filter.where()  # refuses invalid times
    report = results.Imported(dry_run)
    done: Callable[[results.Imported], object] = progress or bool
    with (
        results.transfer_errors(report, SCHEDULE.noun),
        reading(source, filter, session.renames) as lines,
        PipelinedCalls(session.ask) as ahead,
    ):
        for rows in meant_rows(lines, report, filter, session.renames):
            if search is not None:
                found, unknown = search.select(rows, lambda row: row.record().pack())
                if unknown:
                    report.outcomes["unknown"] += unknown
                report.outcomes["filtered"] += len(rows) - len(found) - unknown
                rows = found
            _put(session, ahead, rows, report, done, skip=overdue == "skip")
    return report


def put(
    session: Session, rows: Sequence[ScheduleRow], report: results.Imported, *, skip: bool
) -> None:
    """Schedule a batch and count the outcomes in the report. A dry run only predicts them."""
    with PipelinedCalls(session.ask) as ahead:
        _put(session, ahead, rows, report, bool, skip=skip)


def _put(
    session: Session,
    ahead: PipelinedCalls,
    rows: Sequence[ScheduleRow],
    report: results.Imported,
    done: Callable[[results.Imported], object],
    *,
    skip: bool,
) -> None:
    """Send a batch, as :func:`put` does. It is counted with the next one; then *done* is called."""
    # Filter here, not in the script: a second attempt must send the same rows as the first.
    now = session.now_ms() if rows and (skip or report.dry_run) else 0
    wanted = [row for row in rows if row.due_ms > now] if skip else rows

    def count(answers: Sequence[bytes | Exception]) -> None:
        if len(wanted) < len(rows):
            report.outcomes["overdue"] += len(rows) - len(wanted)
        for answer in answers:
            if isinstance(answer, bytes):
                states = [STATES[x] for x in answer.decode()]
                report.outcomes.update(cast("list[results.ImportOutcome]", states))
        answered([*answers])
        done(report)

    if not report.dry_run:
        ahead.send_all(
            session.ask(partial(_import_calls, session.renames, wanted, uuid4().hex)), count
        )
        return
    known = session.ask(lambda stores: _known(stores, wanted))
    for row in wanted:
        outcome: results.ImportOutcome = "ready" if row.due_ms <= now else "scheduled"
        report.outcomes["duplicate" if row in known else outcome] += 1
    count([])


def _import_calls(
    renames: Renames, rows: Sequence[ScheduleRow], token: str, stores: Stores
) -> list[tuple[str, Call]]:
    """Return the calls that schedule rows, with their queues. For a minute, a repeated call with
    the same *token* returns the same.
    """
    calls: list[tuple[str, Call]] = []
    for number, (queue, some) in enumerate(by_queue(rows, MAX_CALL_MESSAGES)):
        store = stores.of(queue)
        entries = [row.entry(store.layout, renames) for row in some]
        calls.append((queue, store.import_call(queue, entries, f"{token}-{number}")))
    return calls


def _known(stores: Stores, rows: Sequence[ScheduleRow]) -> set[ScheduleRow]:
    """Return the entries that are already scheduled, ready or leased."""
    known: set[ScheduleRow] = set()
    for queue, some in by_queue(rows, len(rows)):
        control = stores.of(queue).control
        states = control.exists(queue, [(row.id, row.message_id) for row in some])
        known.update(row for row, state in zip(some, states, strict=True) if state == "d")
    return known


def _writing(
    target: FileOrUrl, filter: Filter, renames: Renames, *, prune: bool
) -> AbstractContextManager[jsonl.JsonLinesWriter | ScheduleTableWriter]:
    if is_url(target):
        with results.sqlalchemy_needed():
            from celery_delayq.transfer import schedule_sql
        return schedule_sql.writing(target, filter, renames, prune=prune)
    if prune:
        raise InvalidPlace("only rows of a database can be pruned; a file is written as a whole")
    return jsonl.writing(target, SCHEDULE)


def reading(
    source: FileOrUrl, filter: Filter, renames: Renames
) -> AbstractContextManager[ParsedLines]:
    """Open an export of the schedule. A database is read by the filter; a file as a whole."""
    if not is_url(source):
        return jsonl.reading(source, SCHEDULE)
    with results.sqlalchemy_needed():
        from celery_delayq.transfer import schedule_sql
    return schedule_sql.reading(source, filter, renames)
