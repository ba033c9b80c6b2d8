"""Dead letters from a SQL database or a file back to Redis, byte for byte.

The way there is in :mod:`celery_delayq.transfer.dead_letter_archive`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import NamedTuple
from uuid import uuid4

from celery_delayq.deadletters.client import BATCH
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.lookup import to_bytes
from celery_delayq.model.scheduled import moment
from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session
from celery_delayq.transfer import jsonl
from celery_delayq.transfer.dead_letter_archive import PAGE, archive_url, database_of, is_url
from celery_delayq.transfer.dead_letter_row import DEAD_LETTERS, DeadLetterRow, is_meant
from celery_delayq.transfer.results import Became, Imported, telling
from celery_delayq.transfer.schedule_row import Header, Told
from celery_delayq.utils.portions import portions

_BECAME: dict[str, Became] = {"d": "restored", "k": "duplicate"}


def restore_from(
    session: Session,
    source: jsonl.Place | None = None,
    filter: DeadFilter | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[Imported], object] | None = None,
) -> Imported:
    """Put back what was archived or exported: they are dead letters again.

    May be repeated: a dead letter that is there is left as it is. Rows of a database stay; workers
    archive what was restored only when it has been back for as long as they leave others alone.

    Parameters
    ----------
    source : str | PathLike | BinaryIO | None
        A path, ``"-"`` for stdin, the URL of a database or a file that is open for bytes; by
        default that of the setting ``dead_letters_archive``.
    filter : DeadFilter | None
        Which; all by default.
    dry_run : bool
        Only look.
    progress : Callable[[Imported], object]
        Called after each batch.

    Raises
    ------
    TransferError
        Something went wrong. What was done stays done; it may be repeated.
    ConfigError
        No source is given, and there is no setting.
    """
    filter = filter or DeadFilter()
    place = archive_url(session) if source is None else source
    report = Imported(dry_run)
    with (
        telling(report, "run it again: what is there already is not added twice", "dead_letters"),
        _reading(session, place, filter, report) as pages,
    ):
        for rows, note in pages:
            meant = [row for row in rows if is_meant(row.dead_letter, filter)]
            report.outcomes["filtered"] += len(rows) - len(meant)
            if not dry_run:
                note(meant)
            for batch in batches(meant):
                put = partial(take, rows=batch, dry_run=dry_run, token=uuid4().hex)
                report.outcomes.update(session.ask(put))
            if progress is not None:
                progress(report)
    report.outcomes = +report.outcomes
    return report


class _Page(NamedTuple):
    """Some dead letters, and what to call before they are put back."""

    rows: Sequence[DeadLetterRow]
    note: Callable[[Sequence[DeadLetterRow]], object]


@contextmanager
def _reading(
    session: Session, source: jsonl.Place, filter: DeadFilter, report: Imported
) -> Iterator[Iterator[_Page]]:
    """Open a file or a database; what is no dead letter in it is told to the report."""
    if not is_url(source):
        with jsonl.reading(source, DEAD_LETTERS) as lines:
            yield _of_file(lines, report)
        return
    database = database_of(str(source))
    from celery_delayq.transfer import dead_letter_sql

    with dead_letter_sql.reading(database) as table:
        report.expect(table.count(filter))

        def note(rows: Sequence[DeadLetterRow]) -> None:
            # First, or a worker might archive them at once.
            table.mark("restored_at", rows, moment(session.ask(lambda store: store.now_ms())))

        def pages() -> Iterator[_Page]:
            number = 0
            for page in table.pages(filter, PAGE):
                rows = []
                for row, digest in page:
                    number += 1
                    if row.digest == digest:
                        rows.append(row)
                    else:
                        report.refuse(number, f"id {row.id[:80]!r}: the row was changed manually")
                yield _Page(rows, note)

        yield pages()


def _of_file(lines: Iterator[tuple[int, Told]], report: Imported) -> Iterator[_Page]:
    while found := [*islice(lines, PAGE)]:
        rows = []
        for line, told in found:
            if isinstance(told, DeadLetterRow):
                rows.append(told)
            elif isinstance(told, Header):
                report.expect(told.about)
            else:
                report.refuse(line, str(told))
        yield _Page(rows, lambda _: None)


def batches(rows: Sequence[DeadLetterRow]) -> Iterator[Sequence[DeadLetterRow]]:
    """Yield dead letters of one queue, as many as a script call takes."""
    by_queue: dict[str, list[DeadLetterRow]] = defaultdict(list)
    for row in rows:
        by_queue[row.queue].append(row)
    for some in by_queue.values():
        yield from portions(some, BATCH, lambda row: len(row.data))


def take(store: Store, rows: Sequence[DeadLetterRow], *, dry_run: bool, token: str) -> list[Became]:
    """Put dead letters of one queue back, or look which are there.

    Asked again with the same *token*, it gives the same answer, for a minute.
    """
    queue = rows[0].queue
    if dry_run:
        names = [name for row in rows for name in (row.id, row.duplicate)]
        found = {
            each.id: each.data
            for each in store.dead_letters.read(queue, [to_bytes(x) for x in names])
        }
        return [
            "duplicate" if row.data in (found.get(row.id), found.get(row.duplicate)) else "restored"
            for row in rows
        ]
    now = store.now_ms()
    # When it died an unreadable one does not say.
    dead_letters = [
        (row.id, row.dead_letter.dead_lettered.died_ms or now, row.data) for row in rows
    ]
    return [_BECAME[state] for state in store.dead_letters.keep(queue, dead_letters, token)]
