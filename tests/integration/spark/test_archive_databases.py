"""The queue is archived to tables of a database, by JDBC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.spark.archives.adding import Options, archive
from celery_delayq.spark.archives.commits import Commit
from celery_delayq.spark.archives.databases import DatabaseTarget
from celery_delayq.spark.archives.restoring import Options as RestoreOptions
from celery_delayq.spark.archives.restoring import restore
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from tests.integration.spark.conftest import CommandLine
from tests.support.dead_letters import fill
from tests.support.postgres import PostgresServer
from tests.support.runs import finished

pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)

NOON = datetime(2031, 5, 17, 12, tzinfo=timezone.utc)


def add_runs(delayq: DelayQ, start: int, number: int, ended: datetime = NOON) -> None:
    at = int(ended.timestamp() * 1000)
    lines = [
        finished(f"run-{n}", at, task="shop.mail", state="FAILURE", reason="a \0 b")
        for n in range(start, start + number)
    ]
    delayq.store.history.add("me", start + 1, 100_000, lines)


@pytest.fixture
def derby(spark: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database inside Spark's Java."""
    jvm = spark._jvm
    jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:{tmp_path}/shop"
    jvm.org.apache.derby.jdbc.EmbeddedDriver()
    jvm.java.sql.DriverManager.getConnection(f"{url};create=true").close()
    yield url
    with pytest.raises(Exception, match="shutdown"):  # so it tells that it was
        jvm.java.sql.DriverManager.getConnection(f"{url};shutdown=true")


def test_an_archive_in_derby_is_added_to_and_put_back(
    spark: Any, derby: str, app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest,
    delayq_broker_url: str,
) -> None:  # fmt: skip
    access = {"url": delayq_broker_url}
    target = DatabaseTarget(spark, derby, prefix="app.q_")
    everything = Options(("history", "dead_letters", "scheduled"), remove=True, access=access)
    add_runs(delayq, 0, 3)
    fill(delayq, 4)
    dead_letters = {
        DeadLetterRow.of(each).digest: each.dead_lettered.data for each in delayq.dead_letters()
    }
    app.send_task("tasks.add", (1, 2), task_id="one", eta=NOON + timedelta(microseconds=1500))
    entries = delayq_redis.client.hgetall("{celery}:entries")

    told = archive(spark, target, everything)

    assert (told.history, told.dead_letters, told.removed, told.scheduled) == (3, 4, 4, 1)
    add_runs(delayq, 3, 2)
    told = archive(spark, target, Options(access=access))
    assert (told.history, told.dead_letters, told.removed) == (2, 0, None)
    runs = target.place("history", make=False).read()
    assert {(each["id"], each["ended"], each["reason"]) for each in runs.collect()} == {
        (f"run-{n}", NOON.replace(tzinfo=None), "a \ufffd b") for n in range(5)
    }
    found = target.place("dead_letters", make=False).read().select("digest", "data").collect()
    assert {each["digest"]: bytes(each["data"]) for each in found} == dead_letters

    delayq_redis.client.delete("{celery}:entries", "{celery}:due", "{celery}:tasks")
    assert restore(spark, target, RestoreOptions(access=access)).outcomes == {"scheduled": 1}
    assert delayq_redis.client.hgetall("{celery}:entries") == entries
    given = RestoreOptions(table="dead_letters", access=access)
    assert restore(spark, target, given).outcomes == {"restored": 4}
    assert {DeadLetterRow.of(each).digest for each in delayq.dead_letters()} == dead_letters.keys()


def test_rows_that_were_staged_twice_are_archived_once(
    spark: Any, derby: str, delayq: DelayQ, delayq_broker_url: str
) -> None:
    add_runs(delayq, 0, 500)
    rows = (
        spark.read.format("celery_delayq")
        .options(url=delayq_broker_url, table="history")
        .load()
        .selectExpr("'here' AS source", "*", "DATE'2031-05-17' AS day")
    )
    place = DatabaseTarget(spark, derby).place("history", make=True)

    # As when tasks of Spark are repeated after their rows were written.
    staged = place.stage(rows.union(rows.limit(200)), Commit("history", 1, "", "here"))
    place.commit(staged)

    assert staged.rows == 500
    ids = [each["id"] for each in place.read().collect()]
    assert sorted(ids) == sorted(f"run-{n}" for n in range(500))


@pytest.mark.timeout(600)
def test_a_job_that_is_killed_in_its_commit_is_completed_by_the_next(
    command_line: CommandLine, postgres: PostgresServer, delayq: DelayQ
) -> None:
    fill(delayq, 20)
    ids = {each.id for each in delayq.dead_letters()}
    words = ("archive", "--tables", "dead_letters", "--remove")
    with postgres.connect(command_line.database) as other:
        # As the job makes it, and locked so that nothing can be committed.
        other.execute(
            "CREATE TABLE delayq_archive_log (name VARCHAR(32) NOT NULL, number INTEGER NOT NULL, "
            "told TEXT, PRIMARY KEY (name, number))"
        )
        other.execute("BEGIN")
        other.execute("LOCK TABLE delayq_archive_log IN SHARE MODE")

        def is_waiting() -> bool:
            with postgres.connect(command_line.database) as looking:
                found = looking.execute(
                    "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                ).fetchall()
            return any("INSERT INTO delayq_archive_log" in query for (query,) in found)

        with command_line.process(*words) as job:
            wait_until(lambda: is_waiting() or not job.running, 280, lambda: job.log)
            assert job.running, job.log
            job.kill()
        assert delayq.count_dead() == 20
        other.execute("ROLLBACK")

    told, said = command_line.run(*words)

    assert (told["dead_letters"], told["removed"], told["gone"]) == (20, 20, 0)
    assert delayq.count_dead() == 0
    with postgres.connect(command_line.database) as looking:
        rows = looking.execute("SELECT id, died FROM delayq_dead_letters").fetchall()
    assert {id for id, _ in rows} == ids
    assert len(rows) == 20
    assert all(died.tzinfo for _, died in rows)
    assert "hunter2" not in said + job.log
