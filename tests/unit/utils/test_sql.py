"""Databases of archives and exports."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from celery_delayq.errors import TransferError
from celery_delayq.utils.sql import LOCK_SECONDS, Database


def test_the_lock_of_a_sqlite_file_is_waited_for_as_long_as_the_url_says(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dead.db'}"
    with closing(sqlite3.connect(tmp_path / "dead.db", isolation_level=None)) as other:
        other.execute("CREATE TABLE rows (id TEXT)")
        other.execute("BEGIN IMMEDIATE")

        with (
            pytest.raises(TransferError, match="database is locked"),
            Database.of(f"{url}?timeout=0.1").connected() as connection,
        ):
            connection.execute(text("INSERT INTO rows VALUES ('1')"))

    assert Database.of(url).url.query["timeout"] == str(LOCK_SECONDS)
