"""Move or copy dead letters to a SQL database or a file.

No dead letter is lost, and a database has each one once. The other direction is
:mod:`celery_delayq.transfer.dead_letter_restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from celery_delayq.deadletters.client import CHANGE_BATCH, counts_of
from celery_delayq.deadletters.reading import DeadLetterSearch
from celery_delayq.errors import InvalidPlace
from celery_delayq.model.dead_letter import DeadFilter, DeadFilterFields, DeadLetter
from celery_delayq.model.names import filter_of
from celery_delayq.model.scheduled import moment
from celery_delayq.model.script_values import StatusCode
from celery_delayq.settings import Settings
from celery_delayq.store.dead_letters import DeadLetterStore, digest_of, size_of
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.transfer import jsonl
from celery_delayq.transfer.dead_letter_row import DEAD_LETTERS, DeadLetterRow
from celery_delayq.transfer.dead_letter_stream import StreamPlan
from celery_delayq.transfer.export_format import (
    FORMAT_VERSION,
    FileOrUrl,
    Header,
    is_url,
    shown_filter,
)
from celery_delayq.transfer.results import (
    NOTHING_KEPT,
    Archived,
    sqlalchemy_needed,
    transfer_errors,
)
from celery_delayq.utils.credentials import hide
from celery_delayq.utils.delegation import names_arguments
from celery_delayq.utils.portions import portions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from celery_delayq.utils.sql import Database

T = TypeVar("T")

#: Queue, id, time of death (ms) and :func:`digest_of` of a dead letter.
ReadDeadLetter = tuple[str, str, int, str]

#: Most dead letters, and approximate bytes, of one transaction. Reading them takes several calls.
PAGE_DEAD_LETTERS, PAGE_BYTES = 1000, 8_000_000


@names_arguments
def archive_dead(
    session: Session,
    url: str | None = None,
    filter: DeadFilter | None = None,
    *,
    older_than: float = 0.0,
    progress: Callable[[Archived], object] | None = None,
    **fields: Unpack[DeadFilterFields],
) -> Archived:
    """Move dead letters to a SQL database.

    Each is inserted before it leaves Redis, and is inserted once; see :func:`insert_all`.

    Parameters
    ----------
    url : str | None
        ``sqlite:///…`` or ``postgresql://…``. A missing table is created. Default: the setting
        ``dead_letters_archive``.
    filter, **fields
        The dead letters to move, as for ``delayq.dead_letters(…)``. Tasks that die during the call
        are not moved.
    older_than : float
        Only dead letters that died at least this many seconds ago, by Redis' clock.
    progress : Callable[[Archived], object]
        Called after each batch.

    Raises
    ------
    TransferError
        Redis or the database failed. Moved dead letters stay moved. All others stay in Redis.
    InvalidPlace
        No URL is given, and the setting is empty.
    """
    filter = filter_of(DeadFilter, filter, fields, archive_dead)
    database = database_of(archive_url(session) if url is None else url)
    return insert_all(session, database, filter, older_than=older_than, progress=progress)


@names_arguments
def export_dead(
    session: Session,
    target: FileOrUrl,
    filter: DeadFilter | None = None,
    *,
    progress: Callable[[Archived], object] | None = None,
    **fields: Unpack[DeadFilterFields],
) -> Archived:
    """Copy dead letters to a file or a SQL database. They also stay in Redis.

    A file appears only when it is complete. In a database, rows are added and never changed.

    Parameters
    ----------
    target : str | PathLike | BinaryIO
        A path (compressed with gzip if it ends in ``.gz``), ``"-"`` for stdout,
        ``sqlite:///…``, ``postgresql://…``, or a file opened for bytes.
    filter, progress, **fields
        As in :func:`archive_dead`.

    Raises
    ------
    TransferError
        Redis, the file or the database failed. A file is unchanged; a database may have some rows.
    """
    filter = filter_of(DeadFilter, filter, fields, export_dead)
    if is_url(target):
        return insert_all(session, database_of(target), filter, move=False, progress=progress)
    report = Archived()
    with transfer_errors(report, DEAD_LETTERS.noun, NOTHING_KEPT):
        plan, _ = plan_of(session, filter, 0.0, report)
        with jsonl.writing(target, DEAD_LETTERS) as out:
            shown = shown_filter(filter)
            out.begin(Header(FORMAT_VERSION, report.made, plan.server, shown, report.total))
            for rows, looked in batches(plan):
                out.write(rows)
                report.unknown = plan.search.unknown
                report.looked += looked
                report.dead_letters += len(rows)
                report.new += len(rows)
                if progress is not None:
                    progress(report)
            out.end(report.dead_letters, 0)
    return report


def insert_all(
    session: Session,
    database: Database,
    filter: DeadFilter,
    *,
    move: bool = True,
    older_than: float = 0.0,
    spare: float = 0.0,
    own: bool = False,
    ahead: bool = True,
    go_on: Callable[[], bool] = lambda: True,
    progress: Callable[[Archived], object] | None = None,
) -> Archived:
    """Insert dead letters into a database, and delete them in Redis.

    For each batch one transaction inserts the rows. A dead letter has at most one row. Then each
    dead letter is deleted in Redis, unless it has changed since it was read. The function may
    therefore be killed at any point, repeated, and run by several processes at the same time.

    Rows of deleted dead letters get a ``moved_at``: the row is then the only copy. A row without
    ``moved_at`` may be a copy of a dead letter that was exported, or replayed meanwhile. Such rows
    stay, because nobody can know that they are copies: another process may have deleted the
    dead letter, and may have been killed before it set ``moved_at``.

    Parameters
    ----------
    move : bool
        Whether dead letters are deleted in Redis.
    spare : float
        Skip dead letters restored from this database within this many seconds.
    own : bool
        Read only queues whose consumers have an archive. Other apps may share this Redis.
    ahead : bool
        Whether a thread reads the next batch while the database writes the current batch.
    go_on : Callable[[], bool]
        Called after each batch. The run ends when it returns False.
    """
    from celery_delayq.transfer import dead_letter_sql

    report = Archived()
    with transfer_errors(report, DEAD_LETTERS.noun):
        plan, now_ms = plan_of(session, filter, older_than, report, own=own)
        now = moment(now_ms)
        with dead_letter_sql.writing(database) as table, ExitStack() as stack:
            since = moment(now_ms - int(spare * 1000))
            spared = table.restored_since(since) if spare else ()
            found = (
                (rows, looked, dead_letter_sql.values(rows, plan.server, now))
                for rows, looked in batches(plan, spared)
            )
            if ahead:
                found = stack.enter_context(closing(_ahead(found)))
            for rows, looked, values in found:
                report.new += table.add(values)
                report.looked += looked
                report.unknown = plan.search.unknown
                report.dead_letters += len(rows)
                if move:
                    moved = plan.delete(rows)
                    table.mark("moved_at", moved, now)
                    report.moved += len(moved)
                    report.gone += len(rows) - len(moved)
                if progress is not None:
                    progress(report)
                if not go_on():
                    break
    return report


def _ahead(found: Iterator[T]) -> Generator[T, None, None]:
    """Yield batches. A thread prepares the next batch while the current one is used."""
    with ThreadPoolExecutor(1, "delayq-archive") as executor:
        coming = executor.submit(next, found, None)
        while (batch := coming.result()) is not None:
            coming = executor.submit(next, found, None)
            yield batch


def database_of(url: str) -> Database:
    """Parse the URL of a database. Does not connect.

    Raises
    ------
    InvalidPlace
        The text is not the URL of a database.
    TransferError
        A package is not installed.
    """
    if not is_url(url):
        raise InvalidPlace(
            f"{hide(url)}: dead letters are moved to a database, sqlite:///path or postgresql://…; "
            "an export writes them to a file"
        )
    with sqlalchemy_needed():
        from celery_delayq.utils.sql import Database
    return Database.of(url)


def archive_url(session: Session) -> str:
    """Return the URL of the setting ``dead_letters_archive``; InvalidPlace if it is empty."""
    url = Settings.from_options(session.app.conf.broker_transport_options).dead_letters_archive
    if not url:
        raise InvalidPlace(
            "give the URL of a database, or set it: "
            'broker_transport_options={"delayq": {"dead_letters_archive": "sqlite:///dead.db"}}'
        )
    return url


def plan_of(
    session: Session, filter: DeadFilter, older_than: float, report: Archived, *, own: bool = False
) -> tuple[RedisPlan | StreamPlan, int]:
    """Return which dead letters to read, and the time in ms; write both into the report.

    Dead letters that are added during the run are left out, or it might never end.
    """
    now_ms = session.now_ms()
    report.made = moment(now_ms).isoformat()
    _, high = filter.range_ms()
    last_ms = now_ms - int(older_than * 1000)
    filter = replace(filter, died_to=moment(last_ms if high is None else min(high, last_ms)))
    plan = StreamPlan(session, filter) if session.on_rabbitmq else RedisPlan(session, filter, own)
    report.total = plan.count()
    return plan, now_ms


def batches(
    plan: RedisPlan | StreamPlan, spared: Collection[tuple[str, str]] = ()
) -> Iterator[tuple[list[DeadLetterRow], int]]:
    """Yield batches of about ``PAGE_BYTES`` bytes, and how many dead letters were read for each.

    *spared* are the queues and ids of dead letters to skip.
    """
    for found in plan.read():
        for some in portions(
            found,
            PAGE_DEAD_LETTERS,
            lambda each: len(each.dead_lettered.data),
            max_bytes=PAGE_BYTES,
        ):
            meant = (DeadLetterRow.of(each) for each in some if plan.search.selects(each))
            yield [row for row in meant if (row.queue, row.id) not in spared], len(some)


class RedisPlan:
    """The dead letters to read in Redis, with *own* only those of queues with an archive."""

    def __init__(self, session: Session, filter: DeadFilter, own: bool) -> None:
        self.session, self.search = session, DeadLetterSearch(session, filter)
        self._low, self._high = filter.range_ms()

        def ask(stores: Stores) -> tuple[str, dict[str, int]]:
            counts = counts_of(stores, filter.queue, self._low, self._high, archived=own)
            return stores.address(), counts

        self.server, self._counts = session.ask(ask)

    def count(self) -> int:
        """Return the number of dead letters to read."""
        return sum(self._counts.values())

    def read(self) -> Iterator[Iterator[DeadLetter]]:
        """Yield the dead letters of each queue in turn."""
        for queue in sorted(queue for queue, number in self._counts.items() if number):
            store = self._dead_letters(queue)
            found = store.all(queue, self._low, self._high, ask=self.session.ask)
            yield map(partial(DeadLetter.of, queue), found)

    def _dead_letters(self, queue: str) -> DeadLetterStore:
        return self.session.ask(lambda stores: stores.of(queue).dead_letters)

    def delete(self, rows: Sequence[DeadLetterRow]) -> list[DeadLetterRow]:
        """Delete dead letters in Redis; return the rows of the unchanged ones."""
        found = {_read_dead_letter(row): row for row in rows}
        states = delete_unchanged(self.session, found)
        return [found[each] for each, state in states if state == "d"]


def _read_dead_letter(row: DeadLetterRow) -> ReadDeadLetter:
    found = row.dead_letter
    return found.queue, found.id, found.dead_lettered.died_ms, digest_of(row.data)


def delete_unchanged(
    session: Session, dead_letters: Iterable[ReadDeadLetter]
) -> Iterator[tuple[ReadDeadLetter, StatusCode]]:
    """Delete dead letters in Redis that have not changed; yield a status code for each.

    One that was rewritten stays: its new bytes are nowhere else.
    """
    for queue, its in groupby(sorted(dead_letters), itemgetter(0)):
        for some in portions(its, CHANGE_BATCH, lambda each: size_of(each[3])):
            delete = partial(_delete, queue, some, uuid4().hex)
            yield from zip(some, session.ask(delete), strict=True)


def _delete(
    queue: str, dead_letters: Sequence[ReadDeadLetter], token: str, stores: Stores
) -> list[StatusCode]:
    names = [(id, died_ms) for _, id, died_ms, _ in dead_letters]
    digests = [digest for *_, digest in dead_letters]
    return stores.of(queue).dead_letters.delete(queue, names, token, digests=digests)
