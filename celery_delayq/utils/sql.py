"""A SQLite or PostgreSQL database by its URL, by SQLAlchemy; errors tell nothing secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from celery_delayq.errors import TransferError
from celery_delayq.utils.credentials import hide

_DIALECTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

#: Seconds to wait for a PostgreSQL server that does not answer; the URL may say another number.
PATIENCE = 10


@dataclass
class Database:
    """A database by its URL, which is shown without what is secret in it."""

    url: URL
    engine: Engine

    @classmethod
    def of(cls, text: str) -> Database:
        """Read a URL; connects to nothing.

        Raises
        ------
        TransferError
            It is none of a database that is known here, or its driver is missing.
        """
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):  # its text may hold a password
            raise TransferError(f"{hide(text)}: this is no URL of a database") from None
        backend = url.get_backend_name()
        if url.drivername in ("postgresql", "postgres"):
            backend, url = "postgresql", url.set(drivername="postgresql+psycopg")
        if backend not in _DIALECTS:
            raise TransferError(
                f"{hide(text)}: expected a path, '-', sqlite:///path or postgresql://…"
            )
        if backend == "sqlite" and url.database in (None, "", ":memory:"):
            raise TransferError(f"{hide(text)}: expected a file, such as sqlite:///schedule.db")
        if "+psycopg" in url.drivername and "connect_timeout" not in url.query:
            url = url.update_query_dict({"connect_timeout": str(PATIENCE)})
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
        """The name of its kind, ``sqlite`` or ``postgresql``."""
        return self.engine.dialect.name

    @property
    def file(self) -> Path | None:
        """The file that it is; None for a server."""
        return Path(self.url.database or "") if self.dialect == "sqlite" else None

    def __str__(self) -> str:
        url = self.url
        return str(URL.create(self.dialect, None, None, url.host, url.port, url.database))

    def make_file(self) -> None:
        """Make its file, where it is one and missing: for its owner alone, since arguments of
        tasks will be in it.
        """
        if self.file is not None:
            with suppress(OSError):  # opening it will tell
                self.file.touch(mode=0o600)

    def expect_file(self) -> None:
        """Check that its file is there, where it is one (TransferError)."""
        if self.file is not None and not self.file.exists():
            raise TransferError(f"{self}: there is no such file")

    def insert(self, table: Table) -> Any:
        """Return an INSERT that knows ``ON CONFLICT``."""
        return _DIALECTS[self.dialect](table)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Connect to it, and tell what goes wrong as :meth:`telling` does."""
        with self.telling(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell what went wrong without values of rows and without what is secret in the URL.

        The error itself is not chained: it may hold both.
        """
        try:
            yield
        except SQLAlchemyError as exc:
            lines = str(getattr(exc, "orig", None) or exc).strip().splitlines()
            text = lines[0] if lines else type(exc).__name__
            secrets = [value for name, value in self.url.query.items() if "pass" in name]
            for secret in (self.url.password, *secrets):
                if isinstance(secret, str) and secret:
                    text = text.replace(secret, "***")
            raise TransferError(f"{self}: {text}") from None
