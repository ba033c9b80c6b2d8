"""An archive: a folder of Parquet files, on any file system that Spark knows.

::

    history/day=2031-05-17/part-….parquet
    history/_log/00000001.json                a commit
    history/_staging/2-5f0c…/                 rows that are not committed yet

Readers of Parquet skip names that begin with ``_``. After a commit, its files are moved one by one,
and a reader at that time sees a part of them. Each job first moves the remaining files of the last
commit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from celery_delayq.errors import ConfigError
from celery_delayq.spark.archive.commits import ArchiveError, Commit
from celery_delayq.spark.archive.rows import ARCHIVE_COLUMNS, PARTITION_COLUMNS, died_since
from celery_delayq.spark.read.tables import schema_of
from celery_delayq.spark.session import setting
from celery_delayq.utils.credentials import check_folder

_TIMES_SETTING = "spark.sql.parquet.outputTimestampType"

_LOG, _STAGING = "_log", "_staging"

#: Names of staging folders. No other folder is moved or removed, even if a commit names it.
_STAGED = re.compile(rf"{_STAGING}/\d+-[0-9a-f]+")


_DATABASE = re.compile(
    r"jdbc:|(postgres(ql)?|mysql|mariadb|sqlite|oracle|mssql)(\+\w+)?:", re.IGNORECASE
)


def check_archive_folder(folder: str) -> None:
    """Raise :class:`ConfigError` for the URL of a database, or a URL with a password."""
    if _DATABASE.match(folder):
        raise ConfigError(
            "the folder is the URL of a database; archives of Spark are folders of Parquet files: "
            "use --folder. For a database use 'celery -A <app> delayq dead archive' or the setting "
            "dead_letters_archive (dead letters), or 'celery -A <app> delayq export' (the schedule)"
        )
    check_folder(folder)


class ArchivedTable:
    """One table of an archive. The constructor publishes committed rows.

    Parameters
    ----------
    folder : str
        The archive, as ``spark.read.parquet`` takes it.
    make : bool
        Make the table if it is missing.

    Attributes
    ----------
    table : str
        The name of the table.
    last_commit : Commit | None
        The last commit, or None.

    Raises
    ------
    ConfigError
        The folder is the URL of a database or has a password, or the session is of Spark Connect.
    ArchiveError
        The table is missing, is no archive of this package, or has another version.
    """

    def __init__(self, spark: SparkSession, folder: str, table: str, *, make: bool) -> None:
        check_archive_folder(folder)
        if not hasattr(spark, "_jsc"):
            raise ConfigError("this needs a session of spark-submit or python, not Spark Connect")
        path = f"{folder.rstrip('/')}/{table}"
        self._spark, self._path, self.table = spark, path, table
        self._files = Files(spark, path)
        self._schema = schema_of(ARCHIVE_COLUMNS[table])
        numbers = [_number(name) for name in self._files.names(_LOG) if name.endswith(".json")]
        if not numbers and (not make or any(not n.startswith("_") for n in self._files.names())):
            raise ArchiveError(f"{path}: there is no archive of celery_delayq in it")
        self.last_commit = self.commit_of(max(numbers)) if numbers else None
        if self.last_commit is not None:
            self._publish(self.last_commit)
            self._remove_staging(self.last_commit)

    def commit_of(self, number: int) -> Commit | None:
        """Return the commit with a number, or None."""
        name = _log_name(number)
        text = self._files.text(name)
        return None if text is None else Commit.unpack(text, f"{self._path}/{name}", self.table)

    def stage(self, rows: DataFrame, commit: Commit) -> Commit:
        """Write rows to a staging folder; return the commit with the number of rows and files."""
        commit = replace(commit, staging=f"{_STAGING}/{commit.number}-{uuid4().hex[:12]}")
        where = f"{self._path}/{commit.staging}"
        try:
            # Parquet's standard type for times. Spark's default is an older type.
            with setting(self._spark, _TIMES_SETTING, "TIMESTAMP_MICROS"):
                rows.write.partitionBy(PARTITION_COLUMNS[self.table]).parquet(where)
            # Rows are counted in the files: counters would count repeated Spark tasks twice.
            staged = self._spark.read.schema(self._schema).parquet(where)
            [(number, unreadable)] = staged.agg(F.count("*"), F.count("raw")).collect()
        except Exception:
            self.discard(commit)
            raise
        files = self._files.all(commit.staging)
        return replace(commit, rows=number, unreadable=unreadable, files=files)

    def commit(self, staged: Commit) -> None:
        """Commit staged rows, and move their files.

        Raises
        ------
        ArchiveError
            Another job committed at the same time; nothing was added.
        """
        if not self._files.create(_log_name(staged.number), staged.pack()):
            self.discard(staged)
            raise ArchiveError(
                f"{self._path}: another job has archived to it meanwhile; nothing was added, "
                "run it again"
            )
        self.last_commit = staged
        self._publish(staged)

    def discard(self, staged: Commit) -> None:
        """Remove staged rows."""
        if _STAGED.fullmatch(staged.staging):
            self._files.delete(staged.staging)

    def read(self) -> DataFrame:
        """Return all rows."""
        return self._spark.read.schema(self._schema).parquet(self._path)

    def known(self, since: date) -> DataFrame:
        """Return the digests of dead letters that died on a day or later, or at an unknown time."""
        return self.read().where(died_since(since)).select("digest")

    def _publish(self, commit: Commit) -> None:
        if not _STAGED.fullmatch(commit.staging):
            raise ArchiveError(
                f"{self._path}/{_log_name(commit.number)}: staging={commit.staging!r} is no folder "
                "of this archive: it is damaged"
            )
        there = self._files.all(commit.staging)
        for name, size in commit.files.items():
            if name in there:
                self._files.move(f"{commit.staging}/{name}", name, size)
        self.discard(commit)

    def _remove_staging(self, last: Commit) -> None:
        """Remove staging folders of killed jobs: later commits have used their numbers."""
        for name in self._files.names(_STAGING):
            if _number(name) <= last.number:
                self._files.delete(f"{_STAGING}/{name}")


class Files:
    """The files below a folder, on S3, HDFS or a disk, by Hadoop's API."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        hadoop: Any = spark._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
        self._hadoop, self._conf = hadoop, spark._jsc.hadoopConfiguration()
        self._gateway: Any = spark.sparkContext._gateway
        self._files = hadoop.Path(folder).getFileSystem(self._conf)
        self._root = self._files.makeQualified(hadoop.Path(folder))

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder; an empty list if there is no folder."""
        path = self._at(folder)
        if not self._files.exists(path):
            return []
        return [each.getPath().getName() for each in self._files.listStatus(path)]

    def all(self, folder: str) -> dict[str, int]:
        """Return the files below a folder that readers see, with their sizes in bytes."""
        path = self._at(folder)
        if not self._files.exists(path):
            return {}
        start = len(path.toUri().getPath()) + 1
        found = {}
        each = self._files.listFiles(path, True)
        while each.hasNext():
            status = each.next()
            name = status.getPath().toUri().getPath()[start:]
            if not any(part.startswith(("_", ".")) for part in name.split("/")):
                found[name] = status.getLen()
        return found

    def text(self, name: str) -> str | None:
        """Return the text of a file, None if there is no file."""
        path = self._at(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8", "replace")
        finally:
            stream.close()

    def create(self, name: str, text: str) -> bool:
        """Create a file with its text in one step; return False if the file exists."""
        draft = self._at(f"{name}.{uuid4().hex[:12]}")
        stream = self._files.create(draft, False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        ways = (self._link, self._rename) if self._files.getScheme() == "file" else (self._rename,)
        try:
            for way in ways:
                try:
                    way(draft, self._at(name))
                    return True
                except Py4JJavaError as exc:
                    if "FileAlreadyExists" in exc.java_exception.getClass().getName():
                        return False
                    if way is ways[-1]:
                        raise
        finally:
            self._files.delete(draft, False)
        raise AssertionError("the last way returns or raises")

    def _link(self, draft: Any, target: Any) -> None:
        """Name a file by a hard link, which is atomic on a disk that supports links."""
        java = self._gateway.jvm.java.nio.file
        none = self._gateway.new_array(self._gateway.jvm.java.lang.String, 0)
        paths = [java.Paths.get(each.toUri().getPath(), none) for each in (target, draft)]
        java.Files.createLink(*paths)

    def _rename(self, draft: Any, target: Any) -> None:
        """Name a file by a FileContext, which never overwrites a file.

        On a disk, the check and the renaming are two steps, which are not atomic.
        """
        context = self._hadoop.FileContext.getFileContext(self._root.toUri(), self._conf)
        how = self._gateway.new_array(getattr(self._hadoop, "Options$Rename"), 0)
        context.rename(draft, target, how)

    def move(self, source: str, target: str, size: int) -> None:
        """Move a file, unless another job has moved it. An incomplete copy is replaced."""
        one, other = self._at(source), self._at(target)
        self._files.mkdirs(other.getParent())
        if self._files.exists(other) and self._files.getFileStatus(other).getLen() != size:
            self._files.delete(other, False)
        moved, why = False, ""
        try:
            moved = self._files.rename(one, other)
        except Py4JJavaError as exc:
            why = f": {exc.java_exception}"
        if not moved and not self._files.exists(other):
            raise ArchiveError(
                f"{one.toString()} cannot be moved to {other.toString()}{why}; nothing is lost: "
                "the next job moves it"
            )

    def delete(self, name: str) -> None:
        """Remove a file or a folder, if it exists."""
        self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._hadoop.Path(self._root, name) if name else self._root


def _log_name(number: int) -> str:
    return f"{_LOG}/{number:08}.json"


def _number(name: str) -> int:
    head = name.partition(".")[0].partition("-")[0]
    return int(head) if head.isdigit() else 0
