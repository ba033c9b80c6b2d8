"""An archive in tables of a database, by JDBC.

``delayq_history``, ``delayq_dead_letters`` and ``delayq_scheduled`` have the rows, and
``delayq_archive_log`` the commits. Rows are staged in a table of the job's own, to which Spark may
write some of them twice; one transaction notes the commit and takes each of them over once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions as F

from celery_delayq.errors import ConfigError
from celery_delayq.spark.archives.commits import ArchiveError, Commit
from celery_delayq.spark.archives.rows import COLUMNS, KEYS, died_since
from celery_delayq.spark.jdbc import check_zone, connecting, read_jdbc
from celery_delayq.spark.session import MOST_CONNECTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Most characters of what databases are to find rows by.
_LENGTHS = {"digest": 64, "offset": 48, "snapshot": 48, "source": 200}

#: What numbers the rows of a staging.
_PLACE = "place"

_PREFIX = re.compile(r"([A-Za-z_]\w*\.)?[A-Za-z_]\w*", re.ASCII)

#: The class of errors about a key that is taken.
_TAKEN = "23"


def check_prefix(prefix: str) -> None:
    """Raise :class:`ConfigError` where names of tables cannot begin like that."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"the prefix {prefix!r} of tables: expected letters, digits and _")


class DatabaseTarget:
    """An archive in a database.

    Parameters
    ----------
    url : str
        Of JDBC, without a password; that is in the environment.
    prefix : str
        What the names of all its tables begin with; there may be a schema before it.

    Raises
    ------
    ConfigError
        The URL has a password, the driver is not known, or the prefix is none.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        *,
        user: str | None = None,
        driver: str | None = None,
        prefix: str = "delayq_",
    ) -> None:
        check_prefix(prefix)
        self._sql, self._prefix = Sql(spark, connecting(url, user, driver)), prefix

    def place(self, table: str, *, make: bool) -> Table:
        """Return the table."""
        return Table(self._sql, self._prefix, table, make=make)


class Table:
    """The rows of one table; see :class:`~celery_delayq.spark.archives.commits.Place`."""

    def __init__(self, sql: Sql, prefix: str, table: str, *, make: bool) -> None:
        self.table = table
        self._sql, self._name, self._log = sql, f"{prefix}{table}", f"{prefix}archive_log"
        self._keys = ", ".join(map(sql.quoted, KEYS[table]))
        self._columns = {name: sql.type_of(name, kind) for name, kind in COLUMNS[table].items()}
        if not all("ZONE" in self._columns[name] for name in _times(table)):
            check_zone(sql.spark)
        if make:
            self._make()
        elif not sql.has(self._log):
            raise ArchiveError(f"there is no table {self._log}: archive to this database first")
        number = sql.ask(f"SELECT MAX(number) FROM {self._log} WHERE name = '{table}'")[0][0]
        self.last = None if number is None else self.commit_of(int(number))
        if self.last is not None:
            self._tidy(self.last)
        elif not make:
            raise ArchiveError(f"there is no archive of {table} in {self._log}")

    def commit_of(self, number: int) -> Commit | None:
        """Return the commit with a number, None where there is none."""
        found = self._sql.ask(
            f"SELECT told FROM {self._log} WHERE name = '{self.table}' AND number = {number}"
        )
        where = f"{self._log}, number {number}"
        return Commit.unpack(found[0][0], where, self.table) if found else None

    def stage(self, rows: DataFrame, commit: Commit) -> Commit:
        """Write rows to a table of their own."""
        commit = replace(commit, staging=f"{self._name}_{commit.number}_{uuid4().hex[:8]}")
        # By its key, what was written twice is found without comparing all with all.
        self._sql.do(
            f"CREATE TABLE {commit.staging} ({_PLACE} BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY,"
            f" {self._defined()}, PRIMARY KEY ({self._keys}, {_PLACE}))"
        )
        try:
            self._sql.write(self._told(rows), commit.staging)
            [(count, unreadable)] = self._sql.ask(
                f"SELECT COUNT(*), SUM(CASE WHEN {self._sql.quoted('raw')} IS NULL THEN 0 ELSE 1 "
                f"END) {self._once(commit)}"
            )
        except Exception:
            self.discard(commit)
            raise
        return replace(commit, rows=int(count), unreadable=int(unreadable or 0))

    def commit(self, staged: Commit) -> None:
        """Take staged rows over."""
        names = ", ".join(map(self._sql.quoted, self._columns))
        taken = self._sql.transact(
            (
                f"INSERT INTO {self._log} (name, number, told) VALUES (?, ?, ?)",
                (self.table, staged.number, staged.pack()),
            ),
            (
                f"INSERT INTO {self._name} ({names}) SELECT {names} {self._once(staged)}",
                (),
            ),
        )
        self.discard(staged)
        if taken is not None:
            raise ArchiveError(
                f"{self._name}: another job has archived to it meanwhile ({taken}); nothing was "
                "added, run it again"
            )
        self.last = staged

    def discard(self, staged: Commit) -> None:
        """Remove the table of staged rows."""
        if self._sql.has(staged.staging):
            self._sql.do(f"DROP TABLE {staged.staging}")

    def read(self) -> DataFrame:
        """Return all rows."""
        return self._sql.read(self._name)

    def known(self, since: date) -> DataFrame:
        """Return the digests of dead letters that died on that day or later, or nobody knows
        when."""
        return self.read().where(died_since(since)).select("digest")

    # -- how

    def _make(self) -> None:
        if not self._sql.has(self._log):
            text = self._sql.type_of("told", "STRING")
            self._sql.do(
                f"CREATE TABLE {self._log} (name VARCHAR(32) NOT NULL, number INTEGER NOT NULL, "
                f"told {text}, PRIMARY KEY (name, number))"
            )
        if not self._sql.has(self._name, *self._columns):
            self._sql.do(
                f"CREATE TABLE {self._name} ({self._defined()}, PRIMARY KEY ({self._keys}))"
            )

    def _defined(self) -> str:
        keys = KEYS[self.table]
        return ", ".join(
            f"{self._sql.quoted(name)} {kind}{' NOT NULL' if name in keys else ''}"
            for name, kind in self._columns.items()
        )

    def _once(self, staged: Commit) -> str:
        """Return where each row is once: a task of Spark that is repeated writes them again."""
        keys = map(self._sql.quoted, KEYS[self.table])
        same = " AND ".join(f"o.{key} = s.{key}" for key in keys)
        return (
            f"FROM {staged.staging} s WHERE NOT EXISTS (SELECT 1 FROM {staged.staging} o "
            f"WHERE {same} AND o.{_PLACE} < s.{_PLACE})"
        )

    def _told(self, rows: DataFrame) -> DataFrame:
        """Return rows as databases take them."""

        def told(name: str, kind: str) -> Column:
            column = F.col(name)
            if kind.startswith("MAP"):
                return F.to_json(column)
            if kind == "STRING":
                return F.translate(column, "\0", "\ufffd")
            if name in _times(self.table) and "ZONE" not in self._columns[name]:
                return F.expr(f"timestampadd(MICROSECOND, unix_micros(`{name}`), {_EPOCH})")
            return column

        return rows.select(*(told(*each).alias(each[0]) for each in COLUMNS[self.table].items()))

    def _tidy(self, last: Commit) -> None:
        """Remove what jobs have left that were killed: their numbers are taken by now."""
        for name in self._sql.tables_like(self._name):
            found = re.fullmatch(r"_(\d+)_[0-9a-f]{8}", name[len(self._name.rpartition(".")[2]) :])
            if found and int(found[1]) <= last.number:
                schema = self._name.rpartition(".")[0]
                whole = f"{schema + '.' if schema else ''}{name}"
                if self._sql.has(whole):  # else it is one of another schema
                    self._sql.do(f"DROP TABLE {whole}")


def _times(table: str) -> list[str]:
    """Return the columns with times."""
    return [name for name, kind in COLUMNS[table].items() if kind == "TIMESTAMP_LTZ"]


_EPOCH = "TIMESTAMP_NTZ'1970-01-01 00:00:00'"

#: The class of errors (SQLSTATE) of tables and columns that are not there.
_NO_SUCH = "42"


class Sql:
    """Statements on the driver, and Spark's own reading and writing."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        if "driver" not in options:
            raise ConfigError("the driver of this database is not known: give its class by driver")
        self.spark, self._options = spark, options
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise ConfigError("this needs a session of spark-submit or python, not Spark Connect")
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._dialect: Any = self._jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(options["url"])

    def quoted(self, name: str) -> str:
        """Return a name of a column: some are words of SQL."""
        return str(self._dialect.quoteIdentifier(name))

    def type_of(self, name: str, kind: str) -> str:
        """Return the type of a column, by its type in Spark's words."""
        if name in _LENGTHS:
            return f"VARCHAR({_LENGTHS[name]})"
        word = "STRING" if kind.startswith("MAP") else kind
        meant = self._jvm.org.apache.spark.sql.types.DataType.fromDDL(word)
        found = self._dialect.getJDBCType(meant)
        if not found.isDefined():
            jdbc = self._jvm.org.apache.spark.sql.execution.datasources.jdbc
            found = jdbc.JdbcUtils.getCommonJDBCType(meant)
        return str(found.get().databaseTypeDefinition())

    def read(self, table: str) -> DataFrame:
        """Return a table."""
        options = self._options
        user, driver = options.get("user"), options["driver"]
        return read_jdbc(self.spark, options["url"], table=table, user=user, driver=driver)

    def write(self, rows: DataFrame, table: str) -> None:
        """Add rows to a table."""
        given = {**self._options, "dbtable": table, "numPartitions": str(MOST_CONNECTIONS)}
        rows.write.format("jdbc").mode("append").options(**given).save()

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is a table with these columns."""
        wanted = ", ".join(map(self.quoted, columns)) or "*"
        try:
            self.ask(f"SELECT {wanted} FROM {table} WHERE 1 = 0")
        except Exception as exc:
            if _state(getattr(exc, "java_exception", None))[:2] != _NO_SUCH:
                raise
            return False
        return True

    def tables_like(self, name: str) -> list[str]:
        """Return the names of tables that begin with *name*, in lower case."""
        start = name.rpartition(".")[2].lower()
        with self._connected() as connection:
            types = self._gateway.new_array(self._jvm.java.lang.String, 1)
            types[0] = "TABLE"
            found = connection.getMetaData().getTables(None, None, "%", types)
            names = []
            while found.next():
                names.append(str(found.getString("TABLE_NAME")).lower())
        return [each for each in names if each.startswith(start)]

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, as texts."""
        with self._connected() as connection:
            found = connection.createStatement().executeQuery(query)
            width = found.getMetaData().getColumnCount()
            rows = []
            while found.next():
                rows.append(tuple(found.getString(place + 1) for place in range(width)))
            return rows

    def do(self, statement: str) -> None:
        """Execute a statement."""
        with self._connected() as connection:
            connection.createStatement().execute(statement)

    def transact(self, *statements: tuple[str, tuple[Any, ...]]) -> str | None:
        """Execute statements in one transaction; return why none was, as a key is taken."""
        with self._connected() as connection:
            connection.setAutoCommit(False)
            try:
                for text, values in statements:
                    statement = connection.prepareStatement(text)
                    for place, value in enumerate(values, 1):
                        statement.setObject(place, value)
                    statement.executeUpdate()
                connection.commit()
            except Exception as exc:
                connection.rollback()
                error: Any = getattr(exc, "java_exception", None)
                if error is not None and _state(error).startswith(_TAKEN):
                    return str(error.getMessage())
                raise
        return None

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Open a connection on the driver; it closes with all that was opened on it."""
        java = self._jvm.java
        loader = java.lang.Thread.currentThread().getContextClassLoader()
        try:
            kind = java.lang.Class.forName(self._options["driver"], True, loader)
        except Exception as exc:
            if "ClassNotFound" not in str(exc):
                raise
            raise ConfigError(
                f"the driver {self._options['driver']} is not there: give its file by --jars"
            ) from exc
        made = kind.getDeclaredConstructor(self._gateway.new_array(java.lang.Class, 0))
        driver = made.newInstance(self._gateway.new_array(java.lang.Object, 0))
        properties = java.util.Properties()
        for name in ("user", "password"):
            if name in self._options:
                properties.setProperty(name, self._options[name])
        connection = driver.connect(self._options["url"], properties)
        if connection is None:
            raise ConfigError(f"{self._options['driver']} is no driver for {self._options['url']}")
        try:
            yield connection
        finally:
            connection.close()


def _state(error: Any) -> str:
    """Return the class of an error of a database, ``""`` where Java has another one."""
    try:
        return str(error.getSQLState())
    except Exception:  # it has no such method
        return ""
