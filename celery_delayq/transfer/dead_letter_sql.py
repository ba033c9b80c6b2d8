"""Dead letters in a table of SQLite or PostgreSQL, with SQLAlchemy.

Most columns are for people. ``data`` is the dead letter byte for byte. The key contains a digest
of queue, id and ``data``, so each dead letter has one row, even if several processes write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, unquote

import sqlalchemy as sa

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.names import Renames
from celery_delayq.model.script_values import to_bytes
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from celery_delayq.transfer.export_format import FORMAT_VERSION, PAGE_ROWS, Header, ParsedLines
from celery_delayq.utils.portions import batches
from celery_delayq.utils.sql import Database, Values, conditions

metadata = sa.MetaData()

#: One row for each dead letter. The key begins with the time, so rows are added at the end.
dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("died_ms", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("died", sa.DateTime(timezone=True), nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("task", sa.Text),
    sa.Column("task_id", sa.Text),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("exception", sa.Text),
    sa.Column("retries", sa.Integer),
    sa.Column("worker", sa.Text),
    sa.Column("root_id", sa.Text),
    sa.Column("group_id", sa.Text),
    sa.Column("traceback", sa.Text),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("archived_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("moved_at", sa.DateTime(timezone=True)),
    sa.Column("restored_at", sa.DateTime(timezone=True)),
)

#: Workers often read the recently restored dead letters. Few rows have ``restored_at``.
_restored = sa.Index(
    "ix_dead_letters_restored_at",
    dead_letters.c.restored_at,
    sqlite_where=dead_letters.c.restored_at.is_not(None),
    postgresql_where=dead_letters.c.restored_at.is_not(None),
)

#: Most dead letters in one statement. SQLite before 3.32 takes 999 variables.
MAX_VARIABLES = 500

#: Columns that a filter compares.
_FILTER_COLUMNS = ("task", "task_id", "exception", "root_id", "group_id")

#: Columns with the text of an attribute of a dead letter.
_TEXT_COLUMNS = (*_FILTER_COLUMNS, "reason", "worker", "traceback")

_MAX_INTEGER = 2**31 - 1
_MAX_BIG_INTEGER = 2**63 - 1

#: Characters that databases do not accept in a text, and the escape character.
_ESCAPED_CHARACTERS = re.compile("[%\0\udc80-\udcff]")


@dataclass
class DeadLetterTable:
    """The table on one connection. Each call is one transaction."""

    database: Database
    connection: sa.Connection

    def add(self, rows: Sequence[Values]) -> int:
        """Add rows made by :func:`values`; return the number of new rows."""
        with self.connection.begin():
            return self.database.insert(self.connection, dead_letters, rows, update=False)

    def mark(
        self, name: Literal["moved_at", "restored_at"], rows: Sequence[DeadLetterRow], at: datetime
    ) -> None:
        """Set the time at which dead letters were moved to this table, or restored."""
        if not rows:
            return
        column = dead_letters.c
        keys = sorted((_bounded(row.dead_letter.dead_lettered.died_ms), row.digest) for row in rows)
        with self.connection.begin():
            for part in batches(keys, MAX_VARIABLES):
                digests = [digest for _, digest in part]
                meant = (
                    # A range of the key makes the index useful. It may contain other rows.
                    column.died_ms.between(part[0][0], part[-1][0]),
                    column.digest == sa.any_(sa.literal(digests, sa.ARRAY(sa.String)))
                    if self.connection.dialect.driver == "psycopg"
                    else column.digest.in_(digests),
                )
                # Lock in key order: two processes that mark the same rows cannot deadlock.
                ordered = sa.select(column.digest).where(*meant).with_for_update()
                self.connection.execute(ordered.order_by(column.died_ms, column.digest))
                self.connection.execute(sa.update(dead_letters).where(*meant).values({name: at}))

    def restored_since(self, at: datetime) -> set[tuple[str, str]]:
        """Return queue and id of the dead letters restored at *at* or later."""
        column = dead_letters.c
        statement = sa.select(column.queue, column.id).where(column.restored_at >= at)
        with self.connection.begin():
            found = self.connection.execute(statement)
            return {(_unescaped(queue), _unescaped(id)) for queue, id in found}

    def lines(self, filter: DeadFilter, renames: Renames) -> ParsedLines:
        """Yield the dead letters that match a filter, by time of death, ignoring its reason.

        Each page is one transaction, so that other processes can write in between.
        """
        column = dead_letters.c
        meant = _conditions(filter, renames)
        with self.connection.begin():
            counted = sa.select(sa.func.count()).select_from(dead_letters).where(*meant)
            about = self.connection.scalar(counted)
        yield 0, Header(FORMAT_VERSION, "", "", {}, about)
        wanted = sa.select(column.died_ms, column.digest, column.queue, column.id, column.data)
        wanted = wanted.where(*meant).order_by(column.died_ms, column.digest).limit(PAGE_ROWS)
        page, read = wanted, 0
        while True:
            with self.connection.begin():
                found = self.connection.execute(page).all()
            for number, each in enumerate(found, read + 1):
                queue, id = _unescaped(each.queue), _unescaped(each.id)
                row = DeadLetterRow.of_data(queue, id, bytes(each.data))
                changed = f"id {id[:80]!r}: the row was changed manually"
                yield number, row if row.digest == each.digest else changed
            if len(found) < PAGE_ROWS:
                return
            last, read = found[-1], read + len(found)
            page = wanted.where(
                sa.tuple_(column.died_ms, column.digest) > sa.tuple_(last.died_ms, last.digest)
            )


@contextmanager
def writing(database: Database) -> Iterator[DeadLetterTable]:
    """Connect to a database to add dead letters."""
    with database.connected_to_write(dead_letters, concurrent=True) as connection:
        yield DeadLetterTable(database, connection)


@contextmanager
def reading(database: Database) -> Iterator[DeadLetterTable]:
    """Connect to a database that has dead letters."""
    with database.connected_to_read(dead_letters, "archive to it first") as connection:
        yield DeadLetterTable(database, connection)


def values(rows: Sequence[DeadLetterRow], server: str, at: datetime) -> Sequence[Values]:
    """Return the column values of dead letters.

    Parameters
    ----------
    server : str
        The Redis of the dead letters.
    at : datetime
        The time by the clock of this Redis.
    """
    found = [{**_values(row), "server": server, "archived_at": at} for row in rows]
    # Sort by key: two writers of the same rows cannot deadlock.
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
        "retries": retries if retries is not None and abs(retries) <= _MAX_INTEGER else None,
        **{name: _text(getattr(dead_letter, name)) for name in _TEXT_COLUMNS},
        "data": row.data,
    }


def _bounded(died_ms: int) -> int:
    """Return the time of death within the range of the column. Redis may contain any number."""
    return max(0, min(died_ms, _MAX_BIG_INTEGER))


def _escaped(name: str) -> str:
    """Return the name of a queue or a dead letter in a form that databases accept."""
    return _ESCAPED_CHARACTERS.sub(lambda found: quote(to_bytes(found[0])), name)


def _unescaped(name: str) -> str:
    return unquote(name, errors="surrogateescape") if "%" in name else name


def _text(text: str | None) -> str | None:
    """Return a text in a form that databases accept. ``data`` keeps the text byte for byte."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _conditions(filter: DeadFilter, renames: Renames) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a filter without its reason: databases differ in case matching."""
    equal: dict[str, Any] = {name: _text(getattr(filter, name)) for name in _FILTER_COLUMNS}
    if filter.task is not None:
        equal["task"] = [*map(_text, renames.names(filter.task))]
    queue = None if filter.queue is None else _escaped(filter.queue)
    return conditions(dead_letters, "died_ms", *filter.range_ms(), queue=queue, **equal)
