"""Dead letters in a table of SQLite or PostgreSQL, by SQLAlchemy.

Columns are for people; ``data`` is the dead letter byte for byte, and the key is made of it. So
each has one row, also when several processes write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Literal
from urllib.parse import quote, unquote

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
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
    literal,
    select,
    tuple_,
    update,
)

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.lookup import to_bytes
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.export_format import PAGE, VERSION, Header, ParsedLines
from celery_delayq.utils.sql import Database, Values, conditions

metadata = MetaData()

#: One row for each dead letter. The key begins with the time, so that rows are added at its end.
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

#: Workers often ask which dead letters were restored recently; few rows have been restored.
_restored = Index(
    "ix_dead_letters_restored_at",
    dead_letters.c.restored_at,
    sqlite_where=dead_letters.c.restored_at.is_not(None),
    postgresql_where=dead_letters.c.restored_at.is_not(None),
)

#: Most dead letters in one statement; SQLite before 3.32 takes 999 variables.
VARIABLES = 500

_MAX_INTEGER = 2**31 - 1
_MAX_BIG_INTEGER = 2**63 - 1

#: Characters that no database takes in a text, and the escape character.
_ESCAPED = re.compile("[%\0\udc80-\udcff]")


class DeadLetterTable:
    """The table, on one connection; each call is a transaction."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection
        self._by_array = connection.dialect.driver == "psycopg"

    def add(self, rows: Sequence[Values]) -> int:
        """Add dead letters, made by :func:`values`, and return the number of new ones."""
        with self._connection.begin():
            return self._database.insert(self._connection, dead_letters, rows, update=False)

    def mark(
        self, name: Literal["moved_at", "restored_at"], rows: Sequence[DeadLetterRow], at: datetime
    ) -> None:
        """Set the time at which dead letters were moved here, or restored."""
        if not rows:
            return
        column = dead_letters.c
        with self._connection.begin():
            for start in range(0, len(rows), VARIABLES):
                part = rows[start : start + VARIABLES]
                moments = [_bounded(row.dead_letter.dead_lettered.died_ms) for row in part]
                digests = [row.digest for row in part]
                statement = update(dead_letters).where(
                    # A range of the key, so that the index serves; other rows may be in it.
                    column.died_ms.between(min(moments), max(moments)),
                    column.digest == any_(literal(digests, ARRAY(String)))
                    if self._by_array
                    else column.digest.in_(digests),
                )
                self._connection.execute(statement.values({name: at}))

    def restored_since(self, at: datetime) -> set[tuple[str, str]]:
        """Return queue and id of the dead letters that were restored then or later."""
        column = dead_letters.c
        statement = select(column.queue, column.id).where(column.restored_at >= at)
        with self._connection.begin():
            found = self._connection.execute(statement)
            return {(_unescaped(queue), _unescaped(id)) for queue, id in found}

    def lines(self, filter: DeadFilter) -> ParsedLines:
        """Yield the dead letters that a filter means but for its reason, by the time of death.

        A transaction for each page, since writers come in between.
        """
        column = dead_letters.c
        meant = _conditions(filter)
        with self._connection.begin():
            counted = select(func.count()).select_from(dead_letters).where(*meant)
            about = self._connection.scalar(counted)
        yield 0, Header(VERSION, "", "", {}, about)
        wanted = select(column.died_ms, column.digest, column.queue, column.id, column.data)
        wanted = wanted.where(*meant).order_by(column.died_ms, column.digest).limit(PAGE)
        page, read = wanted, 0
        while True:
            with self._connection.begin():
                found = self._connection.execute(page).all()
            for number, each in enumerate(found, read + 1):
                queue, id = _unescaped(each.queue), _unescaped(each.id)
                row = DeadLetterRow.of_data(queue, id, bytes(each.data))
                changed = f"id {id[:80]!r}: the row was changed manually"
                yield number, row if row.digest == each.digest else changed
            if len(found) < PAGE:
                return
            last, read = found[-1], read + len(found)
            page = wanted.where(
                tuple_(column.died_ms, column.digest) > tuple_(last.died_ms, last.digest)
            )


@contextmanager
def writing(database: Database) -> Iterator[DeadLetterTable]:
    """Connect to a database to add dead letters."""
    with database.writing(dead_letters, concurrent=True) as connection:
        yield DeadLetterTable(database, connection)


@contextmanager
def reading(database: Database) -> Iterator[DeadLetterTable]:
    """Connect to a database that has dead letters."""
    with database.reading(dead_letters, "archive to it first") as connection:
        yield DeadLetterTable(database, connection)


def values(rows: Sequence[DeadLetterRow], server: str, at: datetime) -> Sequence[Values]:
    """Return the columns of dead letters.

    Parameters
    ----------
    server : str
        Their Redis.
    at : datetime
        The time of its clock.
    """
    found = [{**_values(row), "server": server, "archived_at": at} for row in rows]
    # In one order, so that two writers of the same rows cannot deadlock.
    found.sort(key=lambda each: (each["died_ms"], each["digest"]))
    return found


def _values(row: DeadLetterRow) -> Values:
    dead_letter = row.dead_letter
    retries = dead_letter.retries
    return {
        "died_ms": _bounded(dead_letter.dead_lettered.died_ms),
        "digest": row.digest,
        "died": dead_letter.died,
        "queue": _escaped(row.queue),
        "id": _escaped(row.id),
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
    """Return the time of death within the range of the column; Redis may hold any number."""
    return max(0, min(died_ms, _MAX_BIG_INTEGER))


def _escaped(name: str) -> str:
    """Return the name of a queue or a dead letter as a database takes it."""
    return _ESCAPED.sub(lambda found: quote(to_bytes(found[0])), name)


def _unescaped(name: str) -> str:
    return unquote(name, errors="surrogateescape") if "%" in name else name


def _text(text: str | None) -> str | None:
    """Return a text as a database takes it; ``data`` has it byte for byte."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _conditions(filter: DeadFilter) -> list[ColumnElement[bool]]:
    """Return a filter as conditions, but for the reason: databases compare cases differently."""
    names = ("task", "task_id", "exception", "root_id", "group_id")
    equal: Values = {name: _text(getattr(filter, name)) for name in names}
    queue = None if filter.queue is None else _escaped(filter.queue)
    return conditions(dead_letters, "died_ms", *filter.range_ms(), queue=queue, **equal)
