"""The schedule in a table of SQLite or PostgreSQL, with SQLAlchemy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from celery_delayq.model.envelope import MAX_DUE_MS
from celery_delayq.model.names import Renames
from celery_delayq.model.scheduled import Filter, moment
from celery_delayq.transfer.export_format import (
    PAGE_ROWS,
    Header,
    Parsed,
    ParsedLines,
    check_version,
)
from celery_delayq.transfer.schedule_row import ScheduleRow
from celery_delayq.utils.sql import Database, conditions

metadata = sa.MetaData()

#: One row for each entry. The key is a digest, because an id may be too long for an index.
entries = sa.Table(
    "delayq_entries",
    metadata,
    sa.Column("entry", sa.String(64), primary_key=True),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("due", sa.DateTime(timezone=True)),
    sa.Column("due_ms", sa.BigInteger, nullable=False, index=True),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("exported_at", sa.DateTime(timezone=True), nullable=False),
)

#: One row for each finished export.
exports = sa.Table(
    "delayq_exports",
    metadata,
    sa.Column("made", sa.DateTime(timezone=True), primary_key=True),
    sa.Column("server", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("filter", sa.Text, nullable=False),
    sa.Column("entries", sa.BigInteger, nullable=False),
    sa.Column("left_out", sa.BigInteger, nullable=False),
)


@dataclass
class ScheduleTableWriter:
    """Writes an export to the table in one transaction."""

    database: Database
    connection: sa.Connection
    filter: Filter
    renames: Renames
    prune: bool

    def begin(self, header: Header) -> None:
        """Check the format version of earlier exports."""
        _check_version(self.connection)
        self.header, self.made = header, datetime.fromisoformat(header.made)

    def write(self, rows: Sequence[ScheduleRow]) -> None:
        """Insert or update rows."""
        # One row per key: an INSERT of two rows with the same key would fail.
        values = {
            _key(row): {
                **row._asdict(),
                "entry": _key(row),
                "due": moment(row.due_ms) if row.due_ms <= MAX_DUE_MS else None,
                "server": self.header.server,
                "exported_at": self.made,
            }
            for row in rows
        }
        self.database.insert(self.connection, entries, [*values.values()], update=True)

    def end(self, number: int, left_out: int) -> int:
        """Record the export; return how many rows of earlier exports were removed."""
        pruned = 0
        if self.prune:
            gone = sa.delete(entries).where(
                entries.c.server == self.header.server,
                entries.c.exported_at != self.made,
                *_conditions(self.filter, self.renames),
            )
            pruned = self.connection.execute(gone).rowcount
        done = {
            "made": self.made,
            "server": self.header.server,
            "version": self.header.version,
            "filter": json.dumps(self.header.filter),
            "entries": number,
            "left_out": left_out,
        }
        self.connection.execute(sa.insert(exports).values(done))
        return pruned


@contextmanager
def writing(
    url: str, filter: Filter, renames: Renames, *, prune: bool
) -> Iterator[ScheduleTableWriter]:
    """Open a database to write to. An error leaves it unchanged."""
    database = Database.of(url)
    with database.connected_to_write(entries, exports) as connection, connection.begin():
        yield ScheduleTableWriter(database, connection, filter, renames, prune)


@contextmanager
def reading(url: str, filter: Filter, renames: Renames) -> Iterator[ParsedLines]:
    """Open a database to read from. Rows come in order of due time."""
    database = Database.of(url)
    with database.connected_to_read(entries, "export to it first") as connection:
        if database.dialect == "postgresql":
            # Some time zones cannot show the last day of the year 9999.
            connection.exec_driver_sql("SET TIME ZONE 'UTC'")
        with closing(_rows(connection, filter, renames)) as rows:
            yield rows


def _rows(
    connection: sa.Connection, filter: Filter, renames: Renames
) -> Generator[tuple[int, Parsed], None, None]:
    version = _check_version(connection)
    meant = _conditions(filter, renames)
    number = connection.scalar(sa.select(sa.func.count()).select_from(entries).where(*meant))
    yield 0, Header(version, "", "", {}, number)
    wanted = [entries.c[name] for name in (*ScheduleRow._fields, "due")]
    statement = sa.select(*wanted).where(*meant).order_by(entries.c.due_ms, entries.c.entry)
    with connection.execution_options(yield_per=PAGE_ROWS).execute(statement) as found:
        for number, fields in enumerate(found.mappings(), 1):
            try:
                yield number, ScheduleRow.of_fields(dict(fields))
            except ValueError as exc:
                yield number, f"id {str(fields['id'])[:80]!r}: {exc}"


def _check_version(connection: sa.Connection) -> int:
    if not sa.inspect(connection).has_table(exports.name):
        return 1
    version = connection.scalar(sa.select(sa.func.max(exports.c.version))) or 1
    check_version(version)
    return version


def _conditions(filter: Filter, renames: Renames) -> list[sa.ColumnElement[bool]]:
    where = filter.where()
    names = None if filter.task is None else renames.names(filter.task)
    return conditions(
        entries,
        "due_ms",
        where.due_from,
        where.due_to,
        queue=filter.queue,
        task=names,
        step=where.step,
    )


def _key(row: ScheduleRow) -> str:
    data = "\0".join((row.queue, row.id, row.message_id))
    return hashlib.sha256(data.encode()).hexdigest()
