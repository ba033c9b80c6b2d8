"""What a report tells is what plain Python says of the same runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery import Celery
from click.testing import CliRunner, Result

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.model.history import RunRecord
from celery_delayq.spark.archives.commits import ArchiveError
from celery_delayq.spark.report import Options, command, report
from celery_delayq.store.keys import Layout
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.spark.conftest import Read
from tests.support.runs import finished

# Celery's result backend, with the newest redis-py.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

#: Not at a full hour, and the day changes meanwhile.
NIGHT = datetime(2026, 3, 28, 21, 17, 3, 250_000, tzinfo=timezone.utc)
BEGINS = int(NIGHT.timestamp() * 1000)
HOUR, MINUTE = 3_600_000, 60_000

HOSTILE = "<script>alert('a')</script>\n&"
STATES = ["SUCCESS", "FAILURE", "RETRY", "REJECTED", "REVOKED", "IGNORED"]
ENDINGS = ["succeeded", "failed", "retried", "rejected", "revoked", "ignored"]


def made_up(number: int) -> list[RunRecord]:
    """Return runs of four hours that differ in all that a report looks at."""
    random = Random(7)
    runs = []
    for n in range(number):
        due = BEGINS + random.randrange(4 * HOUR)
        promoted = due + random.randrange(50)
        started = promoted + random.randrange(-20, random.choice([20, 2000, 900_000]))
        ended = started + random.randrange(3000)
        state = random.choices(STATES, [80, 6, 6, 2, 4, 2])[0]
        kind = random.choices(["as planned", "immediate", "advanced", "unknown"], [80, 8, 4, 8])[0]
        if kind == "advanced":
            due = started + random.randrange(1, 5 * HOUR)
        runs.append(
            RunRecord(
                f"id {n if state != 'RETRY' else n % 5}",
                random.choice(["mail.remind", "billing.charge", HOSTILE]),
                random.choice(["mail", "a\nb", "<b>"]),
                "w@h",
                None if kind == "immediate" else due,
                promoted if kind == "as planned" else None,
                None if state == "REVOKED" and n % 2 else started,
                ended,
                state,
                0,
                random.choices([1, 2, 3], [90, 9, 1])[0],
                random.choice(["KeyError: 'gate'", "<b>&"]) if state != "SUCCESS" else "",
            )
        )
    return sorted(runs, key=lambda run: run.ended)


RUNS = made_up(400)


@pytest.fixture
def runs(delayq: DelayQ, delayq_redis: RedisUnderTest) -> list[RunRecord]:
    """Runs in the history, and one that cannot be read."""
    delayq.store.history.add("me", 1, 10_000, [run.pack() for run in RUNS])
    delayq_redis.client.xadd("delayq:history", {"r": b"7 odd"})
    return RUNS


# -- the same in plain Python


def iso(ms: float) -> str:
    time = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=ms)
    return time.isoformat().replace("+00:00", "Z")


def quantiles(found: Iterable[int | None]) -> dict[str, Any]:
    known = sorted(each for each in found if each is not None)
    of = {
        f"p{p}": known[math.ceil(p * len(known) / 100) - 1] if known else None for p in (50, 90, 99)
    }
    early = sum(each < 0 for each in known)
    return {"runs": len(known), "early": early, **of, "max": known[-1] if known else None}


def is_advanced(run: RunRecord) -> bool:
    if run.due is None or run.started is None or run.started >= run.due:
        return False
    return run.promoted is None or run.promoted < run.due


def is_planned(run: RunRecord) -> bool:
    return run.due is not None and run.started is not None and not is_advanced(run)


def less(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


def promotion(run: RunRecord) -> int | None:
    found = less(run.promoted, run.due)
    return None if found is None or found < 0 else found


def bounds(runs: list[RunRecord]) -> tuple[int, int]:
    return min(run.started or run.ended for run in runs), max(run.ended for run in runs)


def figures(some: list[RunRecord], ms: int) -> dict[str, Any]:
    ends = Counter(run.state for run in some)
    return {
        "runs": len(some),
        **{name: ends[state] for name, state in zip(ENDINGS, STATES, strict=True)},
        "redelivered": sum(run.deliveries > 1 for run in some),
        "immediate": sum(run.due is None for run in some),
        "advanced": sum(map(is_advanced, some)),
        "failure_rate": pytest.approx(ends["FAILURE"] / len(some)),
        "per_minute": pytest.approx(len(some) * MINUTE / ms),
        "peak_minute": max(Counter(run.ended // MINUTE for run in some).values()),
        "promotion": quantiles(map(promotion, some)),
        "wait": quantiles(less(run.started, run.promoted) for run in some),
        "lateness": quantiles(less(r.started, r.due) for r in some if is_planned(r)),
        "runtime": quantiles(less(run.ended, run.started) for run in some),
    }


def by(key: str, runs: list[RunRecord], of: Callable[[RunRecord], Any]) -> list[dict[str, Any]]:
    first, last = bounds(runs)
    found: dict[Any, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(of(run), []).append(run)
    rows = [{key: name, **figures(some, last - first)} for name, some in found.items()]
    return sorted(rows, key=lambda row: (-row["runs"], row[key]))


def hours(runs: list[RunRecord]) -> list[dict[str, Any]]:
    first, last = bounds(runs)
    rows = []
    for begins in sorted({run.ended // HOUR * HOUR for run in runs}):
        some = [run for run in runs if run.ended // HOUR * HOUR == begins]
        length = min(begins + HOUR, last) - max(begins, first)
        rows.append({"hour": iso(begins), **figures(some, length)})
    return rows


def timeline(runs: list[RunRecord], width: int) -> Iterator[dict[str, Any]]:
    planned = [run for run in runs if is_planned(run)]
    dues = sorted(run.due for run in planned if run.due is not None)
    first, last = bounds(runs)
    low = min(first, dues[math.ceil(len(dues) / 100) - 1]) // width
    behind = 0

    def place(ms: int | None) -> int:
        return min(max((ms or 0) // width, low), last // width)

    for at in range(low, last // width + 1):
        due = [run for run in planned if place(run.due) == at]
        started = [run for run in planned if place(run.started) == at]
        ended = [run.state for run in runs if place(run.ended) == at]
        behind += len(due) - len(started)
        yield {
            "at": iso(at * width),
            "planned": len(due),
            "started": len(started),
            "difference": len(started) - len(due),
            "behind": behind,
            "ended": len(ended),
            "failed": ended.count("FAILURE"),
            "retried": ended.count("RETRY"),
            "lateness": quantiles(less(run.started, run.due) for run in due),
        }


def attempts(runs: list[RunRecord]) -> list[dict[str, Any]]:
    by_id = Counter((run.task, run.id) for run in runs)
    counts = Counter((task, number) for (task, _), number in by_id.items())
    return [
        {"task": task, "attempts": number, "ids": ids}
        for (task, number), ids in sorted(counts.items())
    ]


def reasons(runs: list[RunRecord]) -> list[dict[str, Any]]:
    bad = [run for run in runs if run.state not in ("SUCCESS", "IGNORED")]
    found = Counter((run.task, run.state, run.reason) for run in bad)
    rows = []
    for (task, state, reason), number in found.items():
        last = max(r.ended for r in bad if (r.task, r.state, r.reason) == (task, state, reason))
        row = {"task": task, "state": state, "reason": reason, "runs": number, "last": iso(last)}
        rows.append((-number, -last, row))
    return [row for *_, row in sorted(rows, key=lambda each: each[:2])]


def expected(runs: list[RunRecord], step: int) -> dict[str, Any]:
    """Return what is to be told of runs."""
    first, last = bounds(runs)
    return {
        "first": iso(first),
        "last": iso(last),
        "total": figures(runs, last - first),
        "tasks": by("task", runs, lambda run: run.task),
        "queues": by("queue", runs, lambda run: run.queue),
        "hours": hours(runs),
        "attempts": attempts(runs),
        "reasons": reasons(runs),
        "step": step,
        "timeline": [*timeline(runs, step * 1000)],
    }


# -- what is told


@pytest.fixture
def elsewhere(spark: Any) -> Iterator[None]:
    """The session is at a place where hours do not begin when they do in UTC."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


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


def test_runs_at_times_that_cannot_be_are_told_and_left_out(
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


def pause_due(delayq: DelayQ, redis: RedisUnderTest) -> bool:
    delayq.store.promote("mail", Layout(), 100)
    return bool(redis.client.zcard("{mail}:paused_due"))


def test_the_command_writes_json_tables_and_a_page(
    spark: Any,
    runs: list[RunRecord],
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    delayq_broker_url: str,
    tmp_path: Path,
) -> None:
    # Nobody promotes what is due, but for this line.
    app.send_task("paused", task_id="a", countdown=0.05, queue="mail")
    delayq.pause(task="paused")
    wait_until(lambda: pause_due(delayq, delayq_redis), what="an entry that is paused and due")
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
        ("paused", "paused", None, 1),
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
