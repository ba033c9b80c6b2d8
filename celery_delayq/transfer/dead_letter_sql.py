"""Dead letters in a table of SQLite or PostgreSQL, by SQLAlchemy.

A row tells in columns what people look for, and keeps the dead letter byte for byte. Its key is
made of the dead letter, so that each is there once, however often and by how many it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, unquote

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    CursorResult,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    any_,
    func,
    inspect,
    literal,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from celery_delayq.errors import TransferError
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.lookup import to_bytes
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.utils.sql import Database

metadata = MetaData()

#: One row for each dead letter. The moment comes first in the key, so that rows are added at its
#: end.
dead_letters = Table(
    "dead_letters",
    metadata,
    Column("died_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(64), primary_key=True),
    Column("died", DateTime(timezone=True), nullable=False),
    Column("queue", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("task", Text),
    Column("task_id", Text),
    Column("reason", Text, nullable=False),
    Column("exception", Text),
    Column("retries", Integer),
    Column("worker", Text),
    Column("root_id", Text),
    Column("group_id", Text),
    Column("traceback", Text),
    Column("data", LargeBinary, nullable=False),
    Column("server", Text, nullable=False),
    Column("archived_at", DateTime(timezone=True), nullable=False),
    Column("moved_at", DateTime(timezone=True)),
    Column("restored_at", DateTime(timezone=True)),
)

#: Workers ask all the time which dead letters were restored of late; few have been at all.
_restored = Index(
    "ix_dead_letters_restored_at",
    dead_letters.c.restored_at,
    sqlite_where=dead_letters.c.restored_at.is_not(None),
    postgresql_where=dead_letters.c.restored_at.is_not(None),
)

#: A row, by the names of its columns.
Values = dict[str, Any]

#: Dead letters that one statement names; SQLite before 3.32 takes 999 variables.
VARIABLES = 500

_MAX_INTEGER = 2**31 - 1
_MAX_BIG_INTEGER = 2**63 - 1

#: What databases take in no text, and the sign of its spelling.
_UNTOLD = re.compile("[%\0\udc80-\udcff]")


class DeadLetters:
    """The table, on one connection; each call is a transaction."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._connection = connection
        self._by_array = connection.dialect.driver == "psycopg"
        # RETURNING would tell how many are new, too, but at five times the price.
        self._insert = (
            database.insert(dead_letters)
            .on_conflict_do_nothing()
            .execution_options(preserve_rowcount=True)
        )

    def add(self, values: Sequence[Values]) -> int:
        """Add dead letters, as :func:`values` tells them, and return how many were not there."""
        if not values:
            return 0
        with self._connection.begin():
            return max(0, self._inserted(values).rowcount)

    def mark(
        self, name: Literal["moved_at", "restored_at"], rows: Sequence[DeadLetterRow], at: datetime
    ) -> None:
        """Note when dead letters were moved here, or put back."""
        if not rows:
            return
        column = dead_letters.c
        with self._connection.begin():
            for start in range(0, len(rows), VARIABLES):
                part = rows[start : start + VARIABLES]
                moments = [_bounded(row.dead_letter.dead_lettered.died_ms) for row in part]
                digests = [row.digest for row in part]
                statement = update(dead_letters).where(
                    # One range of the key, which other rows may be in.
                    column.died_ms.between(min(moments), max(moments)),
                    column.digest == any_(literal(digests, ARRAY(String)))
                    if self._by_array
                    else column.digest.in_(digests),
                )
                self._connection.execute(statement.values({name: at}))

    def restored_since(self, at: datetime) -> set[tuple[str, str]]:
        """Return queue and id of the dead letters that were put back then or later."""
        column = dead_letters.c
        statement = select(column.queue, column.id).where(column.restored_at >= at)
        with self._connection.begin():
            found = self._connection.execute(statement)
            return {(_untold(queue), _untold(id)) for queue, id in found}

    def count(self, filter: DeadFilter) -> int:
        """Return about how many dead letters a filter means."""
        statement = select(func.count()).select_from(dead_letters).where(*_meant(filter))
        with self._connection.begin():
            return self._connection.scalar(statement) or 0

    def pages(self, filter: DeadFilter, size: int) -> Iterator[Sequence[tuple[DeadLetterRow, str]]]:
        """Yield the dead letters that a filter means but for its reason, with the digests of their
        rows, in order of when they died.

        A transaction for each page, since in between others, and we, are to write.
        """
        column = dead_letters.c
        wanted = select(column.died_ms, column.digest, column.queue, column.id, column.data)
        wanted = wanted.where(*_meant(filter)).order_by(column.died_ms, column.digest).limit(size)
        after: tuple[int, str] | None = None
        while True:
            page = wanted
            if after is not None:
                page = wanted.where(tuple_(column.died_ms, column.digest) > tuple_(*after))
            with self._connection.begin():
                found = self._connection.execute(page).all()
            if found:
                yield [(_row(row.queue, row.id, row.data), row.digest) for row in found]
            if len(found) < size:
                return
            after = found[-1].died_ms, found[-1].digest

    def _inserted(self, values: Sequence[Values]) -> CursorResult[Any]:
        """Insert rows; with psycopg as one array for each column, in a third of the time."""
        if not self._by_array:
            return self._connection.execute(self._insert, values)
        columns = [column for column in dead_letters.c if column.name in values[0]]
        names = ", ".join(column.name for column in columns)
        arrays = ", ".join(
            f"%({column.name})b::{column.type.compile(self._connection.dialect)}[]"
            for column in columns
        )
        return self._connection.exec_driver_sql(
            f"INSERT INTO {dead_letters.name} ({names}) SELECT * FROM unnest({arrays}) "
            "ON CONFLICT DO NOTHING",
            {column.name: [each[column.name] for each in values] for column in columns},
            execution_options={"preserve_rowcount": True},
        )


@contextmanager
def writing(database: Database) -> Iterator[DeadLetters]:
    """Connect to a database to add dead letters, and make the table if it is missing."""
    database.make_file()
    with database.connected() as connection:
        with connection.begin():
            there = inspect(connection).has_table(dead_letters.name)
        if not there:
            _make(database)
        yield _checked(database, connection)


@contextmanager
def reading(database: Database) -> Iterator[DeadLetters]:
    """Connect to a database that has dead letters."""
    database.expect_file()
    with database.connected() as connection:
        with connection.begin():
            there = inspect(connection).has_table(dead_letters.name)
        if not there:
            raise TransferError(
                f"{database}: there is no table {dead_letters.name}; archive to it first"
            )
        yield _checked(database, connection)


def _make(database: Database) -> None:
    try:
        if database.file is not None and not database.file.stat().st_size:
            # Half the time for a commit, as durable, and readers do not wait; of a file that others
            # have made it is theirs to choose.
            with database.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        metadata.create_all(database.engine)
    except SQLAlchemyError:
        # Of two who make it at the same time, one fails.
        if not inspect(database.engine).has_table(dead_letters.name):
            raise


def _checked(database: Database, connection: Connection) -> DeadLetters:
    """Check that the table is ours: the name is one that others may choose too."""
    with connection.begin():
        known = {column["name"] for column in inspect(connection).get_columns(dead_letters.name)}
    missing = [column.name for column in dead_letters.c if column.name not in known]
    if missing:
        raise TransferError(
            f"{database}: the table {dead_letters.name} is another one, it has no column "
            f"{', '.join(missing)}"
        )
    return DeadLetters(database, connection)


def values(rows: Sequence[DeadLetterRow], server: str, at: datetime) -> Sequence[Values]:
    """Return what the columns of dead letters hold.

    Parameters
    ----------
    server : str
        From which Redis they are.
    at : datetime
        What its clock says.
    """
    found = [{**_values(row), "server": server, "archived_at": at} for row in rows]
    # In one order, so that two who write the same rows never wait for each other.
    found.sort(key=lambda each: (each["died_ms"], each["digest"]))
    return found


def _values(row: DeadLetterRow) -> Values:
    """Return what the columns of a dead letter hold."""
    dead_letter = row.dead_letter
    retries = dead_letter.retries
    return {
        "died_ms": _bounded(dead_letter.dead_lettered.died_ms),
        "digest": row.digest,
        "died": dead_letter.died,
        "queue": _told(row.queue),
        "id": _told(row.id),
        "task": _text(dead_letter.task),
        "task_id": _text(dead_letter.task_id),
        "reason": _text(dead_letter.reason),
        "exception": _text(dead_letter.exception),
        "retries": retries if retries is not None and abs(retries) <= _MAX_INTEGER else None,
        "worker": _text(dead_letter.worker),
        "root_id": _text(dead_letter.root_id),
        "group_id": _text(dead_letter.group_id),
        "traceback": _text(dead_letter.traceback),
        "data": row.data,
    }


def _bounded(died_ms: int) -> int:
    """Return when a dead letter died, or nearly, if what says so was written by a hand."""
    return max(0, min(died_ms, _MAX_BIG_INTEGER))


def _row(queue: str, id: str, data: Any) -> DeadLetterRow:
    return DeadLetterRow.of_data(_untold(queue), _untold(id), bytes(data))


def _told(name: str) -> str:
    """Return a name of a queue or a dead letter so that it can be read back, by :func:`_untold`."""
    return _UNTOLD.sub(lambda found: quote(to_bytes(found[0])), name)


def _untold(name: str) -> str:
    return unquote(name, errors="surrogateescape") if "%" in name else name


def _text(text: str | None) -> str | None:
    """Return a text as a database takes it; the dead letter has it byte for byte."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _meant(filter: DeadFilter) -> list[ColumnElement[bool]]:
    """Return a filter as conditions, but for the reason: databases know other upper cases."""
    column = dead_letters.c
    conditions = [
        dead_letters.c[name] == _text(value)
        for name in ("task", "task_id", "exception", "root_id", "group_id")
        if (value := getattr(filter, name)) is not None
    ]
    if filter.queue is not None:
        conditions.append(column.queue == _told(filter.queue))
    low, high = filter.range_ms()
    if low is not None:
        conditions.append(column.died_ms >= low)
    if high is not None:
        conditions.append(column.died_ms <= high)
    return conditions
