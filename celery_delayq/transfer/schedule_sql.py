"""The schedule in a table of SQLite or PostgreSQL, by SQLAlchemy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    inspect,
    select,
)

from celery_delayq.errors import TransferError
from celery_delayq.model.envelope import MAX_DUE_MS
from celery_delayq.model.scheduled import Filter, moment
from celery_delayq.transfer.schedule_row import Header, Row, Target, Told, check_version
from celery_delayq.utils.sql import Database

metadata = MetaData()

#: One row for each entry. The key is a digest, since an id may be longer than an index takes.
entries = Table(
    "delayq_entries",
    metadata,
    Column("entry", String(64), primary_key=True),
    Column("queue", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("due", DateTime(timezone=True)),
    Column("due_ms", BigInteger, nullable=False, index=True),
    Column("step", Integer, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("exported_at", DateTime(timezone=True), nullable=False),
)

#: One row for each export that was finished.
exports = Table(
    "delayq_exports",
    metadata,
    Column("made", DateTime(timezone=True), primary_key=True),
    Column("server", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("filter", Text, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("left_out", BigInteger, nullable=False),
)


@dataclass
class _SqlTarget:
    """The table, in one transaction."""

    database: Database
    connection: Connection
    filter: Filter
    prune: bool
    takes_nul = False

    def begin(self, header: Header) -> None:
        _check_version(self.connection)
        self.header, self.made = header, datetime.fromisoformat(header.made)
        statement = self.database.insert(entries)
        self.upsert = statement.on_conflict_do_update(
            index_elements=[entries.c.entry],
            set_={
                column.name: statement.excluded[column.name]
                for column in entries.c
                if not column.primary_key
            },
        )

    def write(self, rows: Sequence[Row]) -> None:
        more = {"server": self.header.server, "exported_at": self.made}
        values = [
            {
                **row._asdict(),
                "entry": _key(row),
                "due": moment(row.due_ms) if row.due_ms <= MAX_DUE_MS else None,
                **more,
            }
            for row in rows
        ]
        if values:
            with self.database.telling():
                self.connection.execute(self.upsert, values)

    def end(self, number: int, left_out: int) -> int:
        pruned = 0
        if self.prune:
            gone = delete(entries).where(
                entries.c.server == self.header.server,
                entries.c.exported_at != self.made,
                *_meant(self.filter),
            )
            pruned = self.connection.execute(gone).rowcount
        self.connection.execute(
            insert(exports).values(
                made=self.made,
                server=self.header.server,
                version=self.header.version,
                filter=json.dumps(self.header.filter),
                entries=number,
                left_out=left_out,
            )
        )
        return pruned


@contextmanager
def writing(url: str, filter: Filter, *, prune: bool) -> Iterator[Target]:
    """Open a database to write to; all is kept at the end or, after an error, nothing."""
    database = Database.of(url)
    database.make_file()
    with database.telling():
        metadata.create_all(database.engine)
        with database.engine.begin() as connection:
            yield _SqlTarget(database, connection, filter, prune)


@contextmanager
def reading(url: str, filter: Filter) -> Iterator[Iterator[tuple[int, Told]]]:
    """Open a database to read from, in order of due."""
    database = Database.of(url)
    database.expect_file()
    with database.connected() as connection:
        if not inspect(connection).has_table(entries.name):
            raise TransferError(f"{database}: there is no table {entries.name}; export to it first")
        if database.dialect == "postgresql":
            # The last day of the year 9999 cannot be told in all time zones.
            connection.exec_driver_sql("SET TIME ZONE 'UTC'")
        with closing(_rows(connection, filter)) as rows:
            yield rows


def _rows(connection: Connection, filter: Filter) -> Generator[tuple[int, Told], None, None]:
    version = _check_version(connection)
    meant = _meant(filter)
    number = connection.scalar(select(func.count()).select_from(entries).where(*meant))
    yield 0, Header(version, "", "", {}, number)
    wanted = [entries.c[name] for name in (*Row._fields, "due")]
    statement = select(*wanted).where(*meant).order_by(entries.c.due_ms, entries.c.entry)
    with connection.execution_options(yield_per=500).execute(statement) as found:
        for number, fields in enumerate(found.mappings(), 1):
            try:
                yield number, Row.of_fields(dict(fields))
            except ValueError as exc:
                yield number, f"id {str(fields['id'])[:80]!r}: {exc}"


def _check_version(connection: Connection) -> int:
    if not inspect(connection).has_table(exports.name):
        return 1
    version = connection.scalar(select(func.max(exports.c.version))) or 1
    check_version(version)
    return version


def _meant(filter: Filter) -> list[ColumnElement[bool]]:
    """Return a filter as conditions."""
    where, column = filter.where(), entries.c
    conditions = []
    if filter.queue is not None:
        conditions.append(column.queue == filter.queue)
    if where.task is not None:
        conditions.append(column.task == where.task)
    if where.step is not None:
        conditions.append(column.step == where.step)
    if where.due_from is not None:
        conditions.append(column.due_ms >= where.due_from)
    if where.due_to is not None:
        conditions.append(column.due_ms <= where.due_to)
    return conditions


def _key(row: Row) -> str:
    data = "\0".join((row.queue, row.id, row.message_id))
    return hashlib.sha256(data.encode()).hexdigest()
