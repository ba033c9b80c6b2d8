"""The archive in a folder has each row once, whatever happens during a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

import pyarrow.dataset as ds
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.spark.archive import Summary
from celery_delayq.spark.archive.commits import ArchiveError, Commit
from celery_delayq.spark.archive.folder import ArchivedTable
from celery_delayq.spark.read.history import RunsLost
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transfer.dead_letter_row import DeadLetterRow
from tests.integration.spark.conftest import Archive, CommandLine
from tests.integration.spark.flights import NOON
from tests.support.dead_letters import fill, message, stored
from tests.support.runs import finished


def add_runs(delayq: DelayQ, numbers: Sequence[int], ended: datetime = NOON) -> None:
    """Add runs to the history; each number is an id."""
    at = int(ended.timestamp() * 1000)
    lines = [finished(f"run-{n}", at + n, task="shop.mail") for n in numbers]
    delayq.store.history.add("me", numbers[0] + 1, 100_000, lines)


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of an archive as another reader of Parquet sees them."""
    found = ds.dataset(folder / table, format="parquet", partitioning="hive")
    return found.to_table().to_pylist()  # type: ignore[no-any-return]


def days(folder: Path, table: str) -> set[str]:
    return {each.name for each in (folder / table).iterdir() if not each.name.startswith("_")}


@pytest.mark.nightly
def test_runs_dead_letters_and_the_schedule_are_archived_once_each(
    archive: Archive, spark: Any, app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest,
    tmp_path: Path,
) -> None:  # fmt: skip
    folder = tmp_path / "archive"
    late = datetime(2031, 5, 17, 23, 59, 59, 999_000, tzinfo=timezone.utc)
    add_runs(delayq, range(1), late)
    add_runs(delayq, range(1, 3), late)  # the day after
    fill(delayq, 5)
    fill(delayq, 3, queue="mail", age=3 * 86_400)
    delayq.store.dead_letters.restore(
        "mail", [("odd", 1_700_000_000_000, b"no dead letter at all")]
    )
    for n in range(4):
        app.send_task("tasks.add", (n, n), task_id=f"entry-{n}", eta=NOON + timedelta(hours=n))
    delayq_redis.client.hset("{celery}:entries", "entry-3", b"broken")

    told = archive("history", "dead_letters", "scheduled")

    assert (told.history, told.dead_letters, told.scheduled) == (3, 9, 4)
    assert (told.removed, told.refused, told.unreadable, told.lost) == (None, 1, 2, "")
    assert days(folder, "history") == {"day=2031-05-17", "day=2031-05-18"}
    runs = rows_of(folder, "history")
    assert {each["id"] for each in runs if each["day"] == "2031-05-17"} == {"run-0"}
    assert [each["ended"] for each in runs if each["id"] == "run-0"] == [late]
    assert len({each["offset"] for each in runs}) == 3
    dead_letters = delayq.dead_letters()
    expected = {DeadLetterRow.of(each).digest: each.dead_lettered.data for each in dead_letters}
    found = rows_of(folder, "dead_letters")
    assert {each["digest"]: each["data"] for each in found} == expected
    assert len(found) == 9
    assert days(folder, "dead_letters") >= {"day=1970-01-01"}
    entries = {each["id"]: each for each in rows_of(folder, "scheduled")}
    assert [entries[f"entry-{n}"]["due"] for n in range(3)] == [
        NOON + timedelta(hours=n) for n in range(3)
    ]
    assert entries["entry-3"]["raw"] == b"broken"
    assert {each["snapshot"] for each in entries.values()} == {told.snapshot}

    # What a job has left that was killed before its commit is no part of it.
    left = folder / "history" / "_staging" / "1-dead" / "day=2031-05-17"
    left.mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"half of a file")

    # Nothing new, then a little of it.
    assert archive("history", "dead_letters") == Summary(told.source, history=0, dead_letters=0)
    add_runs(delayq, range(3, 5))
    fill(delayq, 1, queue="new")
    again = archive("history", "dead_letters", "scheduled")
    assert (again.history, again.dead_letters, again.scheduled) == (2, 1, 4)
    assert Counter(each["id"] for each in rows_of(folder, "history")) == Counter(
        f"run-{n}" for n in range(5)
    )
    assert len(rows_of(folder, "dead_letters")) == 10
    assert spark.read.parquet(str(folder / "scheduled")).count() == 8
    assert not any(path.exists() for path in folder.glob("*/_staging/*"))


def test_dead_letters_are_removed_once_they_are_in_the_archive_wherever_a_job_has_ended(
    archive: Archive, delayq: DelayQ, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    old = fill(delayq, 3, queue="mail", age=7200)
    fill(delayq, 2)
    before = {DeadLetterRow.of(each).digest for each in delayq.dead_letters(queue="mail")}
    options: dict[str, Any] = {"older_than": 3600}
    table = folder / "dead_letters"

    assert archive("dead_letters", **options).dead_letters == 3
    # As it is after a kill between the commit and the moves.
    staging = (
        table
        / Commit.unpack((table / "_log" / "00000001.json").read_text(), "", "dead_letters").staging
    )
    staging.mkdir(parents=True)
    for each in table.glob("day=*"):
        each.rename(staging / each.name)
    assert delayq.count_dead() == 5
    options["remove"] = True
    told = archive("dead_letters", **options)

    assert (told.dead_letters, told.removed, told.gone) == (0, 3, 0)
    assert {each["digest"] for each in rows_of(folder, "dead_letters")} == before
    assert delayq.count_dead(queue="mail") == 0
    assert delayq.count_dead() == 2

    # One that was put back is known, and another one of that id is another dead letter.
    dead_letter = next(each for each in rows_of(folder, "dead_letters") if each["id"] == old[0])
    died_ms = round(dead_letter["died"].timestamp() * 1000)
    delayq.store.dead_letters.restore("mail", [(old[0], died_ms, dead_letter["data"])])
    delayq.store.dead_letters.restore(
        "mail", [(old[0], died_ms - 1, stored(died_ms - 1, "why", b"x"))]
    )
    told = archive("dead_letters", **options)
    assert (told.dead_letters, told.removed) == (1, 2)
    assert len(rows_of(folder, "dead_letters")) == 4
    assert delayq.count_dead() == 2


def test_a_job_that_is_killed_loses_nothing_and_is_completed_by_the_next(
    command_line: CommandLine, delayq: DelayQ, tmp_path: Path
) -> None:
    fill(delayq, 20)
    folder = tmp_path / "archive"
    words = ("archive", "--folder", str(folder), "--tables", "dead_letters", "--remove")

    def dead_letters() -> set[str]:
        return {DeadLetterRow.of(each).digest for each in delayq.dead_letters()}

    def archived() -> list[str]:
        return sorted(each["digest"] for each in rows_of(folder, "dead_letters"))

    before = dead_letters()
    with command_line.process(*words) as job:
        staging = folder / "dead_letters" / "_staging"
        wait_until(lambda: staging.exists() or not job.running, TIMEOUT, lambda: job.log)
        assert job.running, job.log
        job.kill()
    assert dead_letters().union(archived()) == before

    told, _ = command_line.run(*words)

    assert archived() == sorted(before)
    assert dead_letters() == set()
    assert told["gone"] == 0


def test_dead_letters_that_would_come_back_under_another_id_stay(
    archive: Archive, delayq: DelayQ
) -> None:
    died = delayq.store.now_ms() - 1000
    no_texts = ["\udcff\udc80", "a \udcc3"]
    for id in (*no_texts, "plain"):
        delayq.store.dead_letters.restore("mail", [(id, died, stored(died, "why", message("x")))])

    told = archive("dead_letters", remove=True)

    assert (told.dead_letters, told.removed, told.gone) == (3, 1, 0)
    assert sorted(each.id for each in delayq.dead_letters()) == sorted(no_texts)


def test_of_two_jobs_at_once_one_adds_nothing(spark: Any, tmp_path: Path) -> None:
    folder = str(tmp_path / "archive")
    one, other = (ArchivedTable(spark, folder, "history", make=True) for _ in range(2))
    rows = spark.createDataFrame(
        [("here", "1-0", datetime(2031, 5, 17).date())], "source STRING, offset STRING, day DATE"
    )
    staged, lost = (place.stage(rows, Commit("history", 1, "", "here")) for place in (one, other))

    one.commit(staged)
    with pytest.raises(ArchiveError, match="another job has archived to it meanwhile"):
        other.commit(lost)

    assert [each["offset"] for each in rows_of(tmp_path / "archive", "history")] == ["1-0"]
    assert not any(tmp_path.glob("archive/history/_staging/*"))


def test_runs_that_may_be_lost_and_brokers_of_another_name_are_reported(
    archive: Archive, delayq: DelayQ, delayq_redis: RedisUnderTest, tmp_path: Path
) -> None:
    log = tmp_path / "archive" / "history" / "_log"
    log.mkdir(parents=True)
    reached = {"shop": "1-0"}
    (log / "00000004.json").write_text(
        Commit("history", 4, "", "shop", reached=reached, staging="_staging/4-a").pack()
    )
    add_runs(delayq, range(1))

    with pytest.raises(ArchiveError, match="the archive has the history of shop, and this broker"):
        archive("history")
    with pytest.raises(RunsLost, match="was read up to 1-0: runs after that may be lost"):
        archive("history", source="shop", on_loss="fail")
    told = archive("history", source="shop")
    assert told.history == 1
    assert "was read up to 1-0" in told.lost
    assert archive("history", source="shop") == Summary("shop", history=0)


@pytest.mark.parametrize("left", [1, 0])
def test_runs_that_are_forgotten_while_they_are_read_are_reported(
    archive: Archive,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    left: int,
) -> None:
    stage = ArchivedTable.stage

    def stage_when_some_are_gone(folder: ArchivedTable, rows: Any, commit: Commit) -> Commit:
        delayq_redis.client.xtrim("delayq:history", maxlen=left, approximate=False)
        return stage(folder, rows, commit)

    add_runs(delayq, range(5))
    monkeypatch.setattr(ArchivedTable, "stage", stage_when_some_are_gone)

    begins = "begins with" if left else "is empty"
    with pytest.raises(RunsLost, match=f"the history {begins}.*Nothing was added"):
        archive("history", on_loss="fail")
    told = archive("history")
    assert (told.history, told.lost) == (left, "")  # nobody knows any more what was there


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "there is no archive of celery_delayq in it"), ("{", "it is damaged")],
)
def test_a_folder_that_is_no_archive_is_left_alone(
    archive: Archive, tmp_path: Path, text: str | None, problem: str
) -> None:
    folder = tmp_path / "archive" / "history"
    (folder / "_log").mkdir(parents=True)
    name = folder / ("year=2031" if text is None else "_log/00000001.json")
    name.write_text(text or "")
    with pytest.raises(ArchiveError, match=problem):
        archive("history")
