"""Restore dead letters from a SQL database or a file to Redis, byte for byte.

The other direction is :mod:`celery_delayq.transfer.dead_letter_archive`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from celery_delayq.deadletters.client import CHANGE_BATCH
from celery_delayq.deadletters.reading import DeadLetterSearch
from celery_delayq.model.dead_letter import DeadFilter, DeadFilterFields
from celery_delayq.model.names import filter_of
from celery_delayq.model.scheduled import moment
from celery_delayq.model.script_values import to_bytes
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.transfer import jsonl
from celery_delayq.transfer.dead_letter_archive import archive_url, database_of
from celery_delayq.transfer.dead_letter_row import DEAD_LETTERS, DeadLetterRow
from celery_delayq.transfer.dead_letter_stream import StreamRestore
from celery_delayq.transfer.export_format import FileOrUrl, by_queue, is_url, meant_rows
from celery_delayq.transfer.results import Imported, ImportOutcome, transfer_errors
from celery_delayq.utils.delegation import names_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OUTCOMES: dict[str, ImportOutcome] = {"d": "restored", "k": "duplicate"}


@names_arguments
def import_dead(
    session: Session,
    source: FileOrUrl | None = None,
    filter: DeadFilter | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[Imported], object] | None = None,
    **fields: Unpack[DeadFilterFields],
) -> Imported:
    """Restore archived or exported dead letters.

    The call may be repeated: an existing dead letter does not change. Rows of a database stay.
    Workers archive a restored dead letter only after ``dead_letters_archive_after`` seconds.

    Parameters
    ----------
    source : str | PathLike | BinaryIO | None
        A path, ``"-"`` for stdin, the URL of a database or a file opened for bytes. Default: the
        setting ``dead_letters_archive``.
    filter, **fields
        The dead letters to restore, as for ``delayq.dead_letters(…)``.
    dry_run : bool
        Change nothing.
    progress : Callable[[Imported], object]
        Called after each page of at most 500 rows.

    Raises
    ------
    TransferError
        Redis, the file or the database failed. Restored dead letters stay. Repeat the call.
    InvalidPlace
        No source is given, and the setting is empty.
    """
    filter = filter_of(DeadFilter, filter, fields, import_dead)
    place = archive_url(session) if source is None else source
    report, search = Imported(dry_run), DeadLetterSearch(session, filter)

    restore = restore_of(session)
    with transfer_errors(report, DEAD_LETTERS.noun), ExitStack() as stack:
        table = None
        if is_url(place):
            database = database_of(place)
            from celery_delayq.transfer import dead_letter_sql

            table = stack.enter_context(dead_letter_sql.reading(database))
            lines = table.lines(filter, session.renames)
        else:
            lines = stack.enter_context(jsonl.reading(place, DEAD_LETTERS))
        for rows in meant_rows(lines, report, filter, session.renames):
            if filter.arg is not None:
                rows = _selected(rows, search, report)
            if table is not None and rows and not dry_run:
                # Set before the restore: otherwise a worker might archive them again at once.
                table.mark("restored_at", rows, moment(session.now_ms()))
            restore(rows, report)
            if progress is not None:
                progress(report)
    return report


def _selected(
    rows: Sequence[DeadLetterRow], search: DeadLetterSearch, report: Imported
) -> list[DeadLetterRow]:
    """Return the rows with the arguments of a search. The report counts all others."""
    before = search.unknown
    found = [row for row in rows if search.selects(row.dead_letter)]
    unknown = search.unknown - before
    if unknown:
        report.outcomes["unknown"] += unknown
    report.outcomes["filtered"] += len(rows) - len(found) - unknown
    return found


def restore_of(session: Session) -> Callable[[Sequence[DeadLetterRow], Imported], None]:
    """Return a function that restores rows and counts outcomes. A dry run predicts outcomes."""
    return StreamRestore(session) if session.on_rabbitmq else partial(_restore_all, session)


def _restore_all(session: Session, rows: Sequence[DeadLetterRow], report: Imported) -> None:
    for queue, some in by_queue(rows, CHANGE_BATCH):
        ask = _predicted if report.dry_run else partial(_restore, token=uuid4().hex)
        report.outcomes.update(session.ask(partial(ask, queue=queue, rows=some)))


def _predicted(stores: Stores, *, queue: str, rows: Sequence[DeadLetterRow]) -> list[ImportOutcome]:
    names = [to_bytes(name) for row in rows for name in (row.id, row.duplicate)]
    found = {each.id: each.data for each in stores.of(queue).dead_letters.read(queue, names)}
    return [
        "duplicate" if row.data in (found.get(row.id), found.get(row.duplicate)) else "restored"
        for row in rows
    ]


def _restore(
    stores: Stores, *, queue: str, rows: Sequence[DeadLetterRow], token: str
) -> list[ImportOutcome]:
    """Restore rows. A repetition with the same *token* within a minute returns the same result."""
    store = stores.of(queue)
    now = store.now_ms()
    # An unreadable dead letter has no time of death.
    dead_letters = [
        (row.id, row.dead_letter.dead_lettered.died_ms or now, row.data) for row in rows
    ]
    return [_OUTCOMES[state] for state in store.dead_letters.restore(queue, dead_letters, token)]
