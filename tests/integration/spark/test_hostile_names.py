"""Hostile names go into files, tables and pages unchanged, and come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.model.history import reason_of
from celery_delayq.spark.archive.commits import ArchiveError, Commit
from celery_delayq.spark.archive.folder import ArchivedTable
from celery_delayq.spark.report import Options as ReportOptions
from celery_delayq.spark.report import page, report
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.app.test_hostile_names import NAMES
from tests.integration.spark.conftest import Archive, Read, Restore
from tests.integration.spark.flights import NOON
from tests.support.dead_letters import details, message
from tests.support.keyspace import look
from tests.support.runs import finished

pytestmark = pytest.mark.nightly

#: Everything there is to archive, with these names in all places that have one.
TABLES = ("history", "dead_letters", "scheduled")


@pytest.fixture
def archived(app: Celery, delayq: DelayQ) -> dict[str, str]:
    """Names, each that of a task, its id and its queue: scheduled, dead and in the history."""
    ended = int(NOON.timestamp() * 1000)
    for name in NAMES.values():
        app.send_task(name, (name,), {name: name}, task_id=name, queue=name, eta=NOON)
        died = message(name, name, group=name)
        delayq.store.dead_letters.add(
            name, name, f"failed: {name}", died, details(name, worker=name)
        )
    lines = [
        finished(name, ended, task=name, queue=name, state="FAILURE", reason=reason_of(name))
        for name in NAMES.values()
    ]
    delayq.store.history.add("me", 1, 1000, lines)
    return NAMES


def stored(redis: RedisUnderTest) -> dict[bytes, Any]:
    """Return scheduled tasks and dead letters of all queues."""
    return look(redis.client, "{*:due", "{*:entries", "{*:tasks", "{*:dead", "{*:dead_at")


def test_an_archive_in_a_folder_has_them_and_gives_them_back(
    archived: dict[str, str],
    archive: Archive,
    restore: Restore,
    delayq_redis: RedisUnderTest,
    tmp_path: Path,
) -> None:
    before = stored(delayq_redis)

    told = archive(*TABLES, source="../../etc")
    delayq_redis.client.flushall()
    for table in ("scheduled", "dead_letters"):
        restore(table=table, source="../../etc")

    number = len(archived)
    assert (told.history, told.dead_letters, told.scheduled) == (number,) * 3
    assert stored(delayq_redis) == before
    assert [each.name for each in tmp_path.iterdir()] == ["archive"]
    assert {each.name for each in (tmp_path / "archive").iterdir()} == set(TABLES)


def test_a_log_cannot_have_files_of_others_moved(spark: Any, tmp_path: Path) -> None:
    other, log = tmp_path / "other", tmp_path / "archive" / "history" / "_log"
    for folder in (other, log):
        folder.mkdir(parents=True)
    (other / "theirs").write_text("stays")
    commit = Commit("history", 1, "", "shop", staging="../../other", files={"theirs": 5})
    (log / "00000001.json").write_text(commit.pack())

    with pytest.raises(ArchiveError, match="is no folder of this archive"):
        ArchivedTable(spark, str(tmp_path / "archive"), "history", make=False)

    assert [each.name for each in other.iterdir()] == ["theirs"]


def test_tables_say_them(read: Read, archived: dict[str, str]) -> None:
    for table in ("scheduled", "dead_letters", "history"):
        rows = read(table).select("task", "queue").collect()
        names = {(name, name) for name in archived.values()}
        assert {(row["task"], row["queue"]) for row in rows} == names


def test_a_page_shows_them_as_text(
    spark: Any, archived: dict[str, str], delayq_broker_url: str
) -> None:
    told = report(spark, ReportOptions(access={"url": delayq_broker_url}))

    text = page(told, "<script>alert(1)</script>")

    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.replace("\n", "").isprintable()
    assert json.dumps(told.as_dict())
