"""Dead letters to a SQL database or a file: each is there once, and none is lost.

The way back is in :mod:`celery_delayq.transfer.dead_letter_restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import uuid4

from celery_delayq.deadletters.client import BATCH
from celery_delayq.errors import ConfigError, TransferError
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.lookup import StatusCode
from celery_delayq.model.scheduled import moment
from celery_delayq.settings import Settings
from celery_delayq.store.paging import queues_of
from celery_delayq.store.schedule import Store
from celery_delayq.store.session import Session
from celery_delayq.transfer import jsonl
from celery_delayq.transfer.dead_letter_row import DEAD_LETTERS, DeadLetterRow
from celery_delayq.transfer.results import (
    Archived,
    server_of,
    shown_filter,
    sqlalchemy_needed,
    telling,
)
from celery_delayq.transfer.schedule_row import VERSION, Header
from celery_delayq.utils.credentials import hide
from celery_delayq.utils.portions import portions

if TYPE_CHECKING:
    from celery_delayq.utils.sql import Database

T = TypeVar("T")

#: Most dead letters of one transaction, and about how many bytes; reading them takes several calls.
PAGE, ROOM = 1000, 8_000_000


def archive_to(
    session: Session,
    url: str | None = None,
    filter: DeadFilter | None = None,
    *,
    older_than: float = 0.0,
    progress: Callable[[Archived], object] | None = None,
) -> Archived:
    """Move dead letters to a SQL database, see :class:`Archive`.

    Parameters
    ----------
    url : str | None
        ``sqlite:///…`` or ``postgresql://…``, where the table is made if it is missing; by default
        that of the setting ``dead_letters_archive``.
    filter : DeadFilter | None
        Which; all by default. What dies meanwhile is left alone.
    older_than : float
        Only those that died so many seconds ago, by Redis' clock.
    progress : Callable[[Archived], object]
        Called after each batch.

    Raises
    ------
    TransferError
        Something went wrong. What was moved is moved; all else is in Redis as before.
    ConfigError
        No URL is given, and there is no setting.
    """
    archive = Archive(session, database_of(archive_url(session) if url is None else url))
    return archive.run(filter, older_than=older_than, progress=progress)


def export_dead_letters(
    session: Session,
    target: jsonl.Place,
    filter: DeadFilter | None = None,
    *,
    progress: Callable[[Archived], object] | None = None,
) -> Archived:
    """Write dead letters to a file or a SQL database; they stay in Redis too.

    A file appears when it is complete. To a database they are added; a row that is there stays as
    it is.

    Parameters
    ----------
    target : str | PathLike | BinaryIO
        A path, gzipped if it ends in ``.gz``; ``"-"`` for stdout; ``sqlite:///…`` or
        ``postgresql://…``; or a file that is open for bytes.
    filter, progress
        As for :func:`archive_to`.

    Raises
    ------
    TransferError
        Something went wrong. A file is as it was; a database has a part of them.
    """
    if is_url(target):
        return Archive(session, database_of(str(target)), move=False).run(filter, progress=progress)
    report, filter = Archived(), filter or DeadFilter()
    with telling(report, "nothing is kept of it: run it again", "dead_letters"):
        plan = _Plan.of(session, filter, 0.0, report)
        with jsonl.writing(target, DEAD_LETTERS) as out:
            shown = shown_filter(filter)
            out.begin(Header(VERSION, report.made, plan.server, shown, report.total))
            for batch in plan.batches():
                out.write([DeadLetterRow.of(dead_letter) for dead_letter in batch.dead_letters])
                report.looked += batch.looked
                report.dead_letters += len(batch.dead_letters)
                report.new += len(batch.dead_letters)
                if progress is not None:
                    progress(report)
            out.end(report.dead_letters, 0)
    return report


@dataclass
class Archive:
    """A way for dead letters from Redis to a database.

    A batch of dead letters is inserted in a transaction; a database has a row for each dead letter
    only once.
    Then each is forgotten in Redis, if it still is the dead letter that was read. So it may be
    killed anywhere, repeated, and done by several at the same time.

    Rows of what was forgotten get a ``moved_at``: there is no other place for these dead letters
    now. Any other row may be a copy, of a dead letter that was only exported, or that somebody has
    replayed
    in the moment between. It stays all the same: whether it is a copy nobody can know for certain,
    since others may archive too, and one of them may have been killed before it could tell.

    Parameters
    ----------
    move : bool
        Whether dead letters are forgotten in Redis.
    spare : float
        Leave alone what was restored from this database less than so many seconds ago.
    own : bool
        Only of queues whose consumers have an archive: others may share this Redis.
    go_on : Callable[[], bool]
        Asked between two batches.
    ahead : bool
        Whether a thread reads the next batch while the database writes this one.
    """

    session: Session
    database: Database
    move: bool = True
    spare: float = 0.0
    ahead: bool = True
    own: bool = False
    go_on: Callable[[], bool] = field(default=lambda: True)

    def run(
        self,
        filter: DeadFilter | None = None,
        *,
        older_than: float = 0.0,
        progress: Callable[[Archived], object] | None = None,
    ) -> Archived:
        """Archive what a filter means; the parameters are those of :func:`archive_to`."""
        from celery_delayq.transfer import dead_letter_sql

        report = Archived()
        hint = "run it again: what is there already is not added twice"
        with telling(report, hint, "dead_letters"):
            filter = filter or DeadFilter()
            plan = _Plan.of(self.session, filter, older_than, report, own=self.own)
            now = moment(plan.now_ms)
            with dead_letter_sql.writing(self.database) as table, ExitStack() as stack:
                spared = table.restored_since(plan.before(self.spare)) if self.spare else ()
                batches = (
                    (batch, rows, dead_letter_sql.values(rows, plan.server, now))
                    for batch in plan.batches(spared)
                    for rows in [
                        [DeadLetterRow.of(dead_letter) for dead_letter in batch.dead_letters]
                    ]
                )
                if self.ahead:
                    batches = stack.enter_context(closing(_ahead(batches)))
                for batch, rows, values in batches:
                    report.new += table.add(values)
                    report.looked += batch.looked
                    report.dead_letters += len(rows)
                    if self.move:
                        states = self._forget(batch)
                        moved = [
                            row for row, state in zip(rows, states, strict=True) if state == "d"
                        ]
                        table.mark("moved_at", moved, now)
                        report.moved += len(moved)
                        report.gone += len(rows) - len(moved)
                    if progress is not None:
                        progress(report)
                    if not self.go_on():
                        break
        return report

    def _forget(self, batch: _Batch) -> list[StatusCode]:
        names = [(each.id, each.dead_lettered.died_ms) for each in batch.dead_letters]
        states: list[StatusCode] = []
        for start in range(0, len(names), BATCH):
            part = names[start : start + BATCH]
            token = uuid4().hex
            states += self.session.ask(
                lambda store, part=part, token=token: store.dead_letters.discard(  # type: ignore[misc]
                    batch.queue, part, token
                )
            )
        return states


class _Batch(NamedTuple):
    """Dead letters of one queue, and how many were looked at to find them."""

    queue: str
    dead_letters: Sequence[DeadLetter]
    looked: int


class _Plan(NamedTuple):
    """Which dead letters are read: *low* and *high* are ms since 1970."""

    session: Session
    filter: DeadFilter
    server: str
    queues: Sequence[str]
    now_ms: int
    low: int | None
    high: int

    @classmethod
    def of(
        cls,
        session: Session,
        filter: DeadFilter,
        older_than: float,
        report: Archived,
        *,
        own: bool = False,
    ) -> _Plan:
        low, high = filter.range_ms()

        def ask(store: Store) -> tuple[_Plan, int]:
            now = store.now_ms()
            last = now - int(older_than * 1000)
            # Nothing that dies meanwhile, or it might never end.
            last = last if high is None else min(high, last)
            known = queues_of(store, filter.queue)
            queues = sorted(queue for queue, x in known.items() if x.archived or not own)
            total = sum(store.dead_letters.count(queue, low, last) for queue in queues)
            return cls(session, filter, server_of(store), queues, now, low, last), total

        plan, report.total = session.ask(ask)
        report.made = moment(plan.now_ms).isoformat()
        return plan

    def before(self, seconds: float) -> datetime:
        """Return when it was so many seconds ago."""
        return moment(self.now_ms - int(seconds * 1000))

    def batches(self, spared: Collection[tuple[str, str]] = ()) -> Iterator[_Batch]:
        """Yield dead letters, about ``ROOM`` bytes of them.

        Parameters
        ----------
        spared : Collection[tuple[str, str]]
            Queue and id of dead letters that are left alone.
        """
        for queue in self.queues:
            store = self.session.ask(lambda store: store.dead_letters)
            ask = self.session.ask
            dead_letters = store.all(queue, self.low, self.high, ask=ask)
            for some in portions(dead_letters, PAGE, lambda each: len(each.data), room=ROOM):
                found = [DeadLetter.of(queue, each) for each in some]
                meant = [each for each in found if self._means(each, spared)]
                yield _Batch(queue, meant, len(found))

    def _means(self, dead_letter: DeadLetter, spared: Collection[tuple[str, str]]) -> bool:
        if spared and (dead_letter.queue, DeadLetterRow.of(dead_letter).id) in spared:
            return False
        return self.filter.matches(dead_letter)


def _ahead(batches: Iterator[T]) -> Generator[T, None, None]:
    """Yield batches, each of which is made while the one before is worked on."""
    with ThreadPoolExecutor(1, "delayq-archive") as executor:
        coming = executor.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = executor.submit(next, batches, None)
            yield batch


def is_url(place: object) -> bool:
    """Return whether a place is the URL of a database."""
    return isinstance(place, str) and "://" in place


def database_of(url: str) -> Database:
    """Read the URL of a database; connects to nothing.

    Raises
    ------
    TransferError
        It is none, or what it needs is not installed.
    """
    if not is_url(url):
        raise TransferError(
            f"{hide(url)}: dead letters are moved to a database, sqlite:///path or postgresql://…; "
            "an export writes them to a file"
        )
    with sqlalchemy_needed():
        from celery_delayq.utils.sql import Database
    return Database.of(url)


def archive_url(session: Session) -> str:
    """Return the URL of the setting ``dead_letters_archive`` (ConfigError where it is empty)."""
    url = Settings.from_options(session.app.conf.broker_transport_options).dead_letters_archive
    if not url:
        raise ConfigError(
            "give the URL of a database, or set it: "
            'broker_transport_options={"delayq": {"dead_letters_archive": "sqlite:///dead.db"}}'
        )
    return url
