"""Access to SQLite and PostgreSQL by SQLAlchemy. Errors show no secrets and no values of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Table,
    create_engine,
    inspect,
    make_url,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from celery_delayq.errors import InvalidPlace, TransferError
from celery_delayq.utils.credentials import hide

_DIALECT_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

#: Seconds to wait for the answer of a PostgreSQL server, unless the URL has a timeout.
CONNECT_SECONDS = 10

#: Seconds to wait for the lock of a SQLite file, unless the URL has a timeout. Python's default of
#: 5 s is too short for several processes that archive at once.
LOCK_SECONDS = 60

#: A row by the names of its columns.
Values = Mapping[str, Any]


@dataclass
class Database:
    """A database at a URL. Its ``str()`` has no user and no password."""

    url: URL
    engine: Engine

    @classmethod
    def of(cls, text: str) -> Database:
        """Parse a URL, without a connection.

        Raises
        ------
        InvalidPlace
            The text is not the URL of such a database.
        TransferError
            The driver of the database is missing.
        """
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):  # the text of the error may hold a password
            raise InvalidPlace(f"{hide(text)}: this is no URL of a database") from None
        backend = url.get_backend_name()
        if url.drivername in ("postgresql", "postgres"):
            backend, url = "postgresql", url.set(drivername="postgresql+psycopg")
        if backend not in _DIALECT_INSERTS:
            raise InvalidPlace(
                f"{hide(text)}: expected a path, '-', sqlite:///path or postgresql://…"
            )
        if backend == "sqlite" and url.database in (None, "", ":memory:"):
            raise InvalidPlace(f"{hide(text)}: expected a file, such as sqlite:///schedule.db")
        if "+psycopg" in url.drivername and "connect_timeout" not in url.query:
            url = url.update_query_dict({"connect_timeout": str(CONNECT_SECONDS)})
        if backend == "sqlite" and "timeout" not in url.query:
            url = url.update_query_dict({"timeout": str(LOCK_SECONDS)})
        try:
            engine = create_engine(url, hide_parameters=True, poolclass=NullPool)
        except ImportError as exc:
            raise TransferError(
                f"the driver of {url.drivername} is missing ({exc}): "
                'pip install "celery-delayq[sql]" "psycopg[binary]"'
            ) from exc
        return cls(url, engine)

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.engine.dialect.name

    @property
    def file(self) -> Path | None:
        """The file of a SQLite database, else None."""
        return Path(self.url.database or "") if self.dialect == "sqlite" else None

    def __str__(self) -> str:
        url = self.url
        return str(URL.create(self.dialect, None, None, url.host, url.port, url.database))

    def expect_file(self) -> None:
        """Raise :class:`TransferError` if the database is a file that does not exist."""
        if self.file is not None and not self.file.exists():
            raise TransferError(f"{self}: there is no such file")

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Connect to the database; errors become :class:`TransferError`.

        Errors are not chained: a database error may show values of rows, or the password.
        """
        try:
            with self.engine.connect() as connection:
                yield connection
        except SQLAlchemyError as exc:
            lines = str(getattr(exc, "orig", None) or exc).strip().splitlines()
            text = lines[0] if lines else type(exc).__name__
            secrets = [value for name, value in self.url.query.items() if "pass" in name]
            for secret in (self.url.password, *secrets):
                if isinstance(secret, str) and secret:
                    text = text.replace(secret, "***")
            raise TransferError(f"{self}: {text}") from None

    @contextmanager
    def connected_to_write(self, *tables: Table, concurrent: bool = False) -> Iterator[Connection]:
        """Connect to write to tables; create missing tables.

        Parameters
        ----------
        concurrent : bool
            Whether other clients read and write at the same time, in many small transactions.
        """
        if self.file is not None:
            with suppress(OSError):  # connecting reports the error
                self.file.touch(mode=0o600)  # the file will hold arguments of tasks
        with self.connected() as connection:
            for table in tables:
                if not _columns(connection, table):
                    self._create(table, concurrent=concurrent)
                self._check_columns(connection, table)
            yield connection

    def has_table(self, table: Table) -> bool:
        """Return whether the database has a table."""
        self.expect_file()
        with self.connected() as connection:
            return bool(_columns(connection, table))

    @contextmanager
    def connected_to_read(self, table: Table, hint: str) -> Iterator[Connection]:
        """Connect to read from a table (TransferError with the *hint* if the table is missing)."""
        self.expect_file()
        with self.connected() as connection:
            if not _columns(connection, table):
                raise TransferError(f"{self}: there is no table {table.name}; {hint}")
            self._check_columns(connection, table)
            yield connection

    def insert(
        self, connection: Connection, table: Table, rows: Sequence[Values], *, update: bool
    ) -> int:
        """Insert rows with the same columns, and return how many were written.

        Parameters
        ----------
        update : bool
            Whether an existing row with the same key is updated, else it stays unchanged.
        """
        if not rows:
            return 0
        columns = [column for column in table.c if column.name in rows[0]]
        others = [column.name for column in columns if not column.primary_key]
        # RETURNING would count new rows too, but takes five times as long.
        options = {"preserve_rowcount": True}
        if connection.dialect.driver == "psycopg":
            text = _insert_arrays(connection, table, columns, others if update else None)
            arrays = {column.name: [row[column.name] for row in rows] for column in columns}
            return connection.exec_driver_sql(text, arrays, execution_options=options).rowcount
        insert: Any = _DIALECT_INSERTS[self.dialect](table)
        if update:
            changed = {name: insert.excluded[name] for name in others}
            insert = insert.on_conflict_do_update(index_elements=[*table.primary_key], set_=changed)
        else:
            insert = insert.on_conflict_do_nothing()
        return connection.execute(insert.execution_options(**options), rows).rowcount

    def _create(self, table: Table, *, concurrent: bool) -> None:
        try:
            if concurrent and self.file is not None and not self.file.stat().st_size:
                # Commits take half the time and are as durable, and readers do not wait. Only a new
                # file gets this mode: the owner of an existing file has chosen its mode.
                with self.engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            table.create(self.engine, checkfirst=True)
        except SQLAlchemyError:
            # Of two clients that create the table at the same time, one fails.
            if not inspect(self.engine).has_table(table.name):
                raise

    def _check_columns(self, connection: Connection, table: Table) -> None:
        """Check that the table is ours: another program may use the same name."""
        known = _columns(connection, table)
        missing = [column.name for column in table.c if column.name not in known]
        if missing:
            raise TransferError(
                f"{self}: the table {table.name} is of another program, it has no column "
                f"{', '.join(missing)}"
            )


def conditions(
    table: Table, range_column: str, low: int | None, high: int | None, **equal: Any
) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter on columns.

    Parameters
    ----------
    **equal
        The value of a column; a list or tuple of its values; or None for any.
    """
    column = table.c[range_column]
    found = [
        table.c[name].in_(value) if isinstance(value, (list, tuple)) else table.c[name] == value
        for name, value in equal.items()
        if value is not None
    ]
    if low is not None:
        found.append(column >= low)
    if high is not None:
        found.append(column <= high)
    return found


def _columns(connection: Connection, table: Table) -> set[str]:
    """Return the names of the columns of a table; an empty set if the table is missing."""
    with connection.begin():
        inspector = inspect(connection)
        if not inspector.has_table(table.name):
            return set()
        return {column["name"] for column in inspector.get_columns(table.name)}


def _insert_arrays(
    connection: Connection, table: Table, columns: Sequence[Column[Any]], update: list[str] | None
) -> str:
    """Return an INSERT with one array for each column. It takes a third of the time of rows."""
    names = ", ".join(column.name for column in columns)
    arrays = ", ".join(
        f"%({column.name})b::{column.type.compile(connection.dialect)}[]" for column in columns
    )
    conflict = "DO NOTHING"
    if update is not None:
        keys = ", ".join(column.name for column in table.primary_key)
        changes = ", ".join(f"{name} = excluded.{name}" for name in update)
        conflict = f"({keys}) DO UPDATE SET {changes}"
    return (
        f"INSERT INTO {table.name} ({names}) SELECT * FROM unnest({arrays}) ON CONFLICT {conflict}"
    )
