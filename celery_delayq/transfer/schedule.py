"""The schedule to a file or a SQL database and back: as a backup, and from server to server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal, cast
from uuid import uuid4

from celery_delayq.errors import RecordError, TransferError
from celery_delayq.model.lookup import Where
from celery_delayq.model.scheduled import Filter, moment
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import CALL_SIZE
from celery_delayq.store.scripting.replies import STATES
from celery_delayq.store.session import Session
from celery_delayq.transfer import jsonl
from celery_delayq.transfer.results import (
    EXAMPLES,
    Became,
    Exported,
    Imported,
    Unreadable,
    server_of,
    shown_filter,
    sqlalchemy_needed,
    telling,
)
from celery_delayq.transfer.schedule_row import SCHEDULE, VERSION, Header, Row, Target, Told
from celery_delayq.utils.portions import portions

#: Entries that are read or written in one round trip.
PAGE = 500


def export_to(
    session: Session,
    target: jsonl.Place,
    filter: Filter | None = None,
    *,
    prune: bool = False,
    progress: Callable[[Exported], object] | None = None,
) -> Exported:
    """Write all scheduled entries that a filter means, in order of due for each queue.

    What comes, goes or is moved meanwhile may be in it or not; all else is. A file appears when it
    is complete, and a database changes in one transaction. What cannot be read is left out, and
    reported.

    Parameters
    ----------
    target : str | PathLike | BinaryIO
        A path, gzipped if it ends in ``.gz``; ``"-"`` for stdout; ``sqlite:///…`` or
        ``postgresql://…``; or a file that is open for bytes.
    prune : bool
        Remove from the database what this filter means and what is not scheduled here any more.
    progress : Callable[[Exported], object]
        Called after each page.

    Raises
    ------
    TransferError
        Something went wrong; the target is as it was.
    """
    filter = filter or Filter()
    where = filter.where()
    report = Exported()

    def ask(store: Store) -> tuple[int, str, list[str], int | None]:
        queues = [filter.queue] if filter.queue is not None else sorted(store.registry())
        about = None
        if where.step is None:
            about = sum(store.control.count(queue, where) for queue in queues)
        return store.now_ms(), server_of(store), queues, about

    with telling(report, "nothing is kept of it: run it again"):
        now, server, queues, report.total = session.ask(ask)
        report.made = moment(now).isoformat()
        header = Header(VERSION, report.made, server, shown_filter(filter), report.total)
        with _writing(target, filter, prune=prune) as out:
            out.begin(header)
            for queue in queues:
                for rows in _pages(session, queue, where, report, takes_nul=out.takes_nul):
                    out.write(rows)
                    report.entries += len(rows)
                    if progress is not None:
                        progress(report)
            report.pruned = out.end(report.entries, report.left_out)
    return report


def _pages(
    session: Session, queue: str, where: Where, report: Exported, *, takes_nul: bool
) -> Iterator[list[Row]]:
    """Yield the entries of a queue, and note those that cannot be read."""
    after = None
    while True:
        page = session.ask(
            lambda store, after=after: store.control.page(queue, where, PAGE, after)  # type: ignore[misc]
        )
        rows = []
        for listed in page.entries:
            try:
                row = Row.of_listed(queue, listed)
                if not takes_nul and "\0" in row.queue + row.task:
                    raise RecordError("databases take no NUL in the name of a queue or task")
            except RecordError as exc:
                report.left_out += 1
                if len(report.unreadable) < EXAMPLES:
                    report.unreadable.append(Unreadable(queue, listed.id, str(exc)))
            else:
                rows.append(row)
        yield rows
        if not page.more:
            return
        after = page.last


def import_from(
    session: Session,
    source: jsonl.Place,
    filter: Filter | None = None,
    *,
    overdue: Literal["run", "skip"] = "run",
    dry_run: bool = False,
    progress: Callable[[Imported], object] | None = None,
) -> Imported:
    """Schedule what was exported, all or what a filter means.

    May be repeated: what is scheduled, ready or held already is left as it is, and nothing that is
    there is replaced. What has finished meanwhile is not known any more, and would run again.

    Parameters
    ----------
    source : str | PathLike | BinaryIO
        As for :func:`export_to`; ``"-"`` is stdin.
    overdue : "run" | "skip"
        Whether what should have run by now, by Redis' clock, becomes ready at once or is passed
        over.
    dry_run : bool
        Only look. Whether a queue is full or a unique key taken shows only when it is done.
    progress : Callable[[Imported], object]
        Called after each 500 lines.

    Raises
    ------
    TransferError
        Something went wrong. What was done stays done; the import may be repeated.
    """
    if overdue not in ("run", "skip"):
        raise TransferError(f"overdue={overdue!r}: expected 'run' or 'skip'")
    filter = filter or Filter()
    where = filter.where()
    report = Imported(dry_run)

    def meant(line: int, told: Told) -> bool:
        if isinstance(told, Row):
            if is_meant(told, filter.queue, where):
                return True
            report.outcomes["filtered"] += 1
        elif isinstance(told, Header):
            report.expect(told.about)
        else:
            report.refuse(line, str(told))
        return False

    with (
        telling(report, "run it again: what is there already is not added twice"),
        _reading(source, filter) as lines,
    ):
        for found in portions(lines, PAGE, lambda line: _size(line[1])):
            rows = [cast(Row, told) for line, told in found if meant(line, told)]
            if rows:
                put(session, rows, report, skip=overdue == "skip")
            if progress is not None:
                progress(report)
    return report


def put(session: Session, rows: Sequence[Row], report: Imported, *, skip: bool) -> None:
    """Schedule a batch, or look what would become of it, and note it in the report.

    What a second attempt does is the same as what the first one did, so what is overdue is found
    out before.
    """
    now = session.ask(lambda store: store.now_ms()) if skip or report.dry_run else 0
    wanted = [row for row in rows if row.due_ms > now] if skip else rows
    if len(wanted) < len(rows):
        report.outcomes["overdue"] += len(rows) - len(wanted)
    if report.dry_run:
        known = session.ask(lambda store: _known(store, _by_queue(wanted)))
        for row in wanted:
            outcome: Became = "ready" if row.due_ms <= now else "scheduled"
            report.outcomes["duplicate" if row in known else outcome] += 1
        return
    answers = session.ask(partial(_import, _by_queue(wanted), uuid4().hex))
    for answer in answers:
        if isinstance(answer, bytes):
            report.outcomes.update(cast("list[Became]", [STATES[x] for x in answer.decode()]))
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer


def _import(by_queue: dict[str, list[Row]], token: str, store: Store) -> list[bytes | Exception]:
    """Schedule rows; asked again with the same *token*, it gives the same answer for a minute."""
    calls = []
    for queue, rows in by_queue.items():
        for number, some in enumerate(portions(rows, CALL_SIZE, _size)):
            entries = [row.entry(store.layout) for row in some]
            calls.append(store.import_call(queue, entries, f"{token}-{number}"))
    return store.import_entries(calls)


def _by_queue(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.queue].append(row)
    return found


def _size(told: Told) -> int:
    """Return the approximate bytes of a row in a call."""
    return len(told.message) if isinstance(told, Row) else 0


def _known(store: Store, by_queue: dict[str, list[Row]]) -> set[Row]:
    """Return those entries that are scheduled, ready or held already."""
    known: set[Row] = set()
    for queue, rows in by_queue.items():
        dead_letters = store.control.known(queue, [(row.id, row.message_id) for row in rows])
        known.update(
            row for row, dead_letter in zip(rows, dead_letters, strict=True) if dead_letter == "d"
        )
    return known


def is_meant(row: Row, queue: str | None, where: Where) -> bool:
    return (
        queue in (None, row.queue)
        and where.task in (None, row.task)
        and where.step in (None, row.step)
        and (where.due_from is None or where.due_from <= row.due_ms)
        and (where.due_to is None or row.due_ms <= where.due_to)
    )


def _writing(target: jsonl.Place, filter: Filter, *, prune: bool) -> AbstractContextManager[Target]:
    if isinstance(target, str) and "://" in target:
        with sqlalchemy_needed():
            from celery_delayq.transfer import schedule_sql
        return schedule_sql.writing(target, filter, prune=prune)
    if prune:
        raise TransferError("only rows of a database can be pruned; a file is written anew")
    return jsonl.writing(target, SCHEDULE)


def _reading(
    source: jsonl.Place, filter: Filter
) -> AbstractContextManager[Iterator[tuple[int, Told]]]:
    if isinstance(source, str) and "://" in source:
        with sqlalchemy_needed():
            from celery_delayq.transfer import schedule_sql
        return schedule_sql.reading(source, filter)
    return jsonl.reading(source, SCHEDULE)
