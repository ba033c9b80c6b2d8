"""A report has the figures that plain Python computes from the same runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery
from click.testing import CliRunner, Result

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.model.history import RunRecord
from celery_delayq.spark.archive.commits import ArchiveError
from celery_delayq.spark.report import Options, command, report
from celery_delayq.spark.session import setting
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark.conftest import Read, pause_due
from tests.integration.spark.plain_report import (
    BEGINS,
    HOSTILE,
    HOUR,
    NIGHT,
    by,
    expected,
    iso,
    less,
    made_up,
)
from tests.support.runs import finished

pytestmark = pytest.mark.nightly

RUNS = made_up(400)


@pytest.fixture
def runs(delayq: DelayQ, delayq_redis: RedisUnderTest) -> list[RunRecord]:
    """Runs in the history, and one that cannot be read."""
    delayq.store.history.add("me", 1, 10_000, [run.pack() for run in RUNS])
    delayq_redis.client.xadd("delayq:history", {"r": b"7 odd"})
    return RUNS


@pytest.fixture
def elsewhere(spark: Any) -> Iterator[None]:
    """The session is in a zone whose hours do not begin with those of UTC."""
    with setting(spark, "spark.sql.session.timeZone", "Asia/Kolkata"):
        yield


@pytest.mark.usefixtures("elsewhere")
def test_figures_are_those_of_plain_python(
    spark: Any, runs: list[RunRecord], delayq_broker_url: str
) -> None:
    told = report(spark, Options(ahead=0, access={"url": delayq_broker_url})).as_dict()

    notes = told.pop("notes")
    begin_early = sum(each < 0 for r in runs if (each := less(r.started, r.promoted)) is not None)
    assert [note.split(" run(s)")[0] for note in notes[:2]] == [
        str(begin_early), str(told["total"]["advanced"])
    ]  # fmt: skip
    assert notes[2:] == ["1 line(s) of the history cannot be read."]
    assert told == {
        "source": "history",
        "filters": {},
        "unreadable": 1,
        "ahead": None,
        **expected(runs, 300),
    }


def test_an_archive_is_read_as_the_history_is(
    spark: Any, runs: list[RunRecord], read: Read, tmp_path: Path
) -> None:
    folder = str(tmp_path / "history")
    rows = read("history").selectExpr("*", "date(ended) AS day").where("raw IS NULL")
    rows.write.partitionBy("day").parquet(folder)
    since, until = NIGHT + timedelta(hours=1), NIGHT + timedelta(hours=3)  # of two days
    low, high = BEGINS + HOUR, BEGINS + 3 * HOUR
    some = [run for run in runs if low <= run.ended < high and run.task == HOSTILE]

    options = Options(
        history=folder, since=since.isoformat(), until=until.isoformat(), task=HOSTILE, step=600
    )
    told = report(spark, options).as_dict()

    assert told.pop("source") == folder
    del told["notes"]
    assert told == {
        "filters": options.filters(),
        "unreadable": 0,
        "ahead": None,
        **expected(some, 600),
    }


def test_queues_in_one_archive_are_not_mixed(
    spark: Any, runs: list[RunRecord], read: Read, tmp_path: Path
) -> None:
    folder = str(tmp_path / "history")
    rows = read("history").where("raw IS NULL")
    rows.selectExpr("*", "IF(queue = 'mail', 'here', 'there') AS source").write.parquet(folder)

    told = report(spark, Options(history=folder, source="here")).as_dict()

    mine = [run for run in runs if run.queue == "mail"]
    assert told["queues"] == by("queue", mine, lambda run: run.queue)
    with pytest.raises(ArchiveError, match="has several: here, there; name one by the option"):
        report(spark, Options(history=folder))
    with pytest.raises(ArchiveError, match="has nothing of nowhere, but of: here, there"):
        report(spark, Options(history=folder, source="nowhere"))


def test_runs_at_times_that_cannot_be_are_reported_and_left_out(
    spark: Any, delayq: DelayQ, delayq_broker_url: str
) -> None:
    year_3001, good = 32_535_216_000_000, [BEGINS, BEGINS + 5]
    ends = {"early": -1, "late": year_3001, "endless": 10**17, "a": good[0], "b": good[1]}
    lines = [finished(id, ended) for id, ended in ends.items()]
    delayq.store.history.add("me", 1, 100, lines)

    told = report(spark, Options(ahead=0, access={"url": delayq_broker_url})).as_dict()

    assert (told["unreadable"], told["total"]["runs"]) == (3, 2)
    assert (told["first"], told["last"]) == (iso(good[0]), iso(good[1]))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments])


def test_the_command_writes_json_tables_and_a_page(
    spark: Any,
    runs: list[RunRecord],
    app: Celery,
    delayq: DelayQ,
    delayq_broker_url: str,
    tmp_path: Path,
) -> None:
    # Nobody promotes what is due, but for this line.
    app.send_task("paused", task_id="a", countdown=0.05, queue="mail")
    delayq.pause(task="paused")
    wait_until(lambda: pause_due(delayq, "mail"), what="an entry that is paused and due")
    app.send_task(HOSTILE, task_id="b", countdown=0.05, queue="mail")
    hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    for id, hours_away in {"c": 3, "d": 3, "e": 30}.items():
        eta = hour + timedelta(hours=hours_away, minutes=1)
        app.send_task(HOSTILE, task_id=id, eta=eta, queue="mail")
    app.send_task(HOSTILE, task_id="elsewhere", countdown=3600, queue="other")
    page, tables = tmp_path / "report.html", tmp_path / "tables"

    done = run(
        *("--url", delayq_broker_url, "--json", "--html", str(page), "--parquet", str(tables)),
        *("--queue", "mail", "--title", "A <title>"),
    )

    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    some = [each for each in runs if each.queue == "mail"]
    assert {name: told[name] for name in expected(some, 300)} == expected(some, 300)
    assert told["filters"] == {"queue": "mail"}
    loads = [(x["task"], x["when"], x["at"], x["entries"]) for x in told["ahead"]["loads"]]
    soon = iso((hour + timedelta(hours=3)).timestamp() * 1000)
    assert loads == [
        (HOSTILE, "due", soon, 2),
        (HOSTILE, "later", None, 1),
        (HOSTILE, "overdue", None, 1),
        ("paused", "held", None, 1),
    ]

    rows = {path.name: spark.read.parquet(str(path)).collect() for path in tables.iterdir()}
    found = {name: [row.asDict(recursive=True) for row in each] for name, each in rows.items()}
    assert found["total"] == [told["total"]]
    assert found["tasks"] == told["tasks"]
    numbers = {name: len(each) for name, each in found.items()}
    assert numbers == {
        **{n: len(told[n]) for n in ("tasks", "queues", "hours", "attempts", "reasons")},
        **{"total": 1, "timeline": len(told["timeline"]), "loads": len(loads)},
    }

    text = page.read_text("utf-8")
    assert "<h1>A &lt;title&gt;</h1>" in text
    assert "<script" not in text


@pytest.mark.usefixtures("spark")
def test_an_empty_history_says_how_to_switch_it_on(delayq_broker_url: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"

    done = run("--url", delayq_broker_url, "--html", str(page))

    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert (
        'no run has ended since it was switched on, or it is off. broker_transport_options={"'
        in told
    )
    assert "The history is empty" in page.read_text("utf-8")


def test_what_is_no_archive_is_refused(spark: Any, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "other"))

    for name, reason in (
        ("other", "it has no column task, queue"),
        ("none", "no archive is there"),
    ):
        folder = str(tmp_path / name)
        with pytest.raises(ConfigError, match=f"history='{folder}'.*{reason}"):
            report(spark, Options(history=folder))
