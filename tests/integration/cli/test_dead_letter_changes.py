"""``dead replay``, ``purge``, ``export``, ``import`` and ``archive``."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.cli.conftest import dead_ids
from tests.integration.conftest import MakeApp, ready
from tests.integration.conftest import stored as scheduled
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.dead_letters import fill, message

# -- replay


@pytest.mark.usefixtures("four_dead_letters")
def test_ids_are_replayed_and_each_is_reported(
    cli: CommandLine, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    done = cli("dead", "replay", "nine", "eleven")
    mixed = cli("dead", "replay", "nine", "ten", "--json")
    elsewhere = cli("dead", "replay", "twelve", "--queue", "celery")
    kept = cli("dead", "purge", "twelve", "--queue", "celery")
    unknown = cli("dead", "replay", "nine")

    assert (done.code, done.out, done.err) == (0, "replayed  nine\nreplayed  eleven\n", "")
    assert mixed.code == 1
    assert mixed.json == {
        "outcomes": [{"id": "nine", "outcome": "unknown"}, {"id": "ten", "outcome": "done"}]
    }
    assert (elsewhere.code, elsewhere.out) == (
        1,
        "not replayed  twelve  unknown: there is no such dead letter in queue celery, or no more; "
        "--queue is where it is, --to-queue where it goes\n",
    )
    assert kept.out == (
        "not purged  twelve  unknown: there is no such dead letter in queue celery, or no more\n"
    )
    assert unknown.out == "not replayed  nine  unknown: there is no such dead letter, or no more\n"
    assert dead_ids(delayq) == ["twelve"]
    assert [each["headers"]["id"] for each in ready(delayq_redis.client)] == ["nine", "ten"]
    assert ready(delayq_redis.client)[0]["headers"]["retries"] == 0


@pytest.mark.usefixtures("four_dead_letters")
def test_one_is_replayed_with_other_arguments_later_elsewhere(
    cli: CommandLine, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    ran = cli(
        "dead", "replay", "nine", "--args", '["a", 1]', "--kwargs", '{"n": null}',
        "--to-queue", "slow", "--countdown", "1h30m", "--priority", "3", "--header", "tenant=a",
    )  # fmt: skip

    assert ran.code == 0
    what = "with other arguments, priority, headers to queue slow to run 1h 30m from now"
    assert ran.out == f"replayed {what}  nine\n"
    assert "There is no queue slow" in ran.err
    [entry] = delayq.entries()
    assert (entry.queue, entry.args, entry.kwargs) == ("slow", ["a", 1], {"n": None})
    assert (entry.priority, entry.headers["tenant"]) == (3, "a")
    away = entry.due - datetime.now(timezone.utc)
    assert timedelta(minutes=85) < away < timedelta(minutes=95)
    assert [each["headers"]["id"] for each in scheduled(delayq_redis.client, "slow")] == ["nine"]

    eta = cli("dead", "replay", "ten", "--eta", "2100-01-31T09:00:00+01:00")
    assert eta.out == "replayed to run at 2100-01-31T08:00:00+00:00  ten\n"
    past = cli("dead", "replay", "eleven", "--eta", "2001-01-01")
    assert past.code == 2
    assert "has passed" in past.err
    assert len(dead_ids(delayq)) == 2


@pytest.mark.usefixtures("four_dead_letters")
def test_all_that_a_filter_means_are_replayed(
    cli: CommandLine, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    dry = cli("dead", "replay", "--died-from", "2h", "--dry-run")
    assert dry.code == 0
    assert re.search(r"^shop\.bill +bills +2$", dry.out, re.MULTILINE)
    assert (
        "Replay 3 dead letters of 2 tasks in 2 queues: a dry run, nothing was changed." in dry.out
    )
    told = cli("dead", "replay", "--died-from", "2h", "--dry-run", "--json").json
    assert told["meant"] == [
        {"queue": "bills", "task": "shop.bill", "dead_letters": 2},
        {"queue": "celery", "task": "shop.mail", "dead_letters": 1},
    ]
    assert len(dead_ids(delayq)) == 4

    done = cli("dead", "replay", "--task", "shop.mail", "--to-queue", "bills", "--yes")
    assert (done.code, done.out) == (0, "2 dead letters replayed to queue bills.\n")
    assert len(ready(delayq_redis.client, "bills")) == 2
    told = cli("dead", "replay", "--everything", "--yes", "--json")
    assert (told.code, told.json["outcomes"]) == (0, {"done": 2})
    assert dead_ids(delayq) == []


def test_many_are_spread(cli: CommandLine, delayq: DelayQ) -> None:
    fill(delayq, 21)

    ran = cli("dead", "replay", "--queue", "celery", "--rate", "0.1", "--yes")

    assert ran.out == "21 dead letters replayed at 0.1 a second.\n"
    dues = sorted(each.due for each in delayq.entries())
    # The first is due at once.
    assert len(dues) == 20
    assert {round((b - a).total_seconds()) for a, b in pairwise(dues)} == {10}


def test_a_task_that_the_app_does_not_know_is_warned_of(cli: CommandLine, delayq: DelayQ) -> None:
    add_dead_letter = delayq.store.dead_letters.add
    for id, task in (("a", "shop.gone\x1b"), ("b", "shop.mail"), ("c", "shop.gone\x1b")):
        add_dead_letter("celery", id, "failed", message(id, task))
    warning = r"This app does not know the task shop.gone\x1b"

    dry = cli("dead", "replay", "--everything", "--dry-run", "--json")
    assert dry.err.count(warning) == 1
    one = cli("dead", "replay", "a", "b")
    assert one.err.count(warning) == 1
    assert one.code == 0
    many = cli("dead", "replay", "--task", "shop.gone\x1b", "--yes")
    assert many.err.count(warning) == 1
    assert cli("dead", "purge", "--everything", "--dry-run").err == ""


def test_what_cannot_be_replayed_is_reported(cli: CommandLine, app: Celery, delayq: DelayQ) -> None:
    delayq.store.dead_letters.add("celery", "rotten", "unreadable", b"no json")
    delayq.store.dead_letters.add("celery", "good", "failed", message("good"))

    one = cli("dead", "replay", "rotten")
    assert one.code == 1
    assert "not replayed  rotten  unreadable: it is no message of a task" in one.out
    many = cli("dead", "replay", "--everything", "--yes")
    assert many.code == 1
    assert "1 dead letter replayed." in many.out
    assert "1 not replayed, unreadable: it is no message" in many.out
    assert dead_ids(delayq) == ["rotten"]


# -- purge


@pytest.mark.usefixtures("four_dead_letters")
def test_ids_and_what_a_filter_means_are_purged(cli: CommandLine, delayq: DelayQ) -> None:
    assert cli("dead", "purge", "nine").out == "purged  nine\n"
    assert cli("dead", "purge", "nine").code == 1
    done = cli("dead", "purge", "--queue", "bills", "--yes")
    assert (done.code, done.out) == (0, "2 dead letters purged.\n")
    assert dead_ids(delayq) == ["ten"]
    none = cli("dead", "purge", "--task", "none", "--yes")
    assert (none.code, none.out) == (0, "0 dead letters: the filter selects no dead letter.\n")
    assert cli("dead", "purge", "--everything", "--yes", "--json").json["outcomes"] == {"done": 1}


# -- export, import, archive


@pytest.mark.usefixtures("four_dead_letters")
def test_dead_letters_are_moved_and_put_back(
    cli: CommandLine, delayq: DelayQ, database: str
) -> None:
    exported = cli("dead", "export", database, "--task", "shop.bill")
    assert (exported.code, exported.out) == (0, "2 dead letters exported.\n")
    old = cli("dead", "archive", database, "--older-than", "30m")
    assert (old.code, old.out) == (0, "2 dead letters archived.\n")
    assert dead_ids(delayq) == ["eleven", "twelve"]
    rest = cli("dead", "archive", database)
    assert rest.out == "2 dead letters archived, 2 of them were there already.\n"
    assert cli("dead", "archive", database).out == "0 dead letters archived.\n"

    dry = cli("dead", "import", database, "--dry-run")
    assert (dry.code, dry.out) == (0, "4 dead letters, a dry run:\n           4 put back\n")
    assert dead_ids(delayq) == []
    some = cli("dead", "import", database, "--reason", "timeout")
    assert some.out.splitlines() == [
        "4 dead letters:",
        "           2 put back",
        "           2 not selected by the filter",
    ]
    every = cli("dead", "import", database)
    assert every.out.splitlines()[1:] == [
        "           2 put back",
        "           2 left as they are: they are there already",
    ]
    assert dead_ids(delayq) == ["nine", "ten", "eleven", "twelve"]


def test_the_database_of_the_settings_needs_no_url(make_app: MakeApp, database: str) -> None:
    app = make_app(broker_transport_options={"delayq": {"dead_letters_archive": database}})
    delayq = DelayQ.of(app)
    fill(delayq, 3)
    cli = CommandLine(app)

    assert cli("dead", "archive", "--json").json["moved"] == 3
    assert cli("dead", "import", "--json").json["outcomes"] == {"restored": 3}


@pytest.mark.usefixtures("four_dead_letters")
def test_what_goes_wrong_is_one_line(cli: CommandLine, delayq: DelayQ, tmp_path: Path) -> None:
    for code, args, told in (
        (2, ["archive"], "dead_letters_archive"),
        (2, ["archive", str(tmp_path / "dead.jsonl")], "an export writes them to a file"),
        (1, ["archive", "postgresql://u:hunter2@127.0.0.1:1/db"], "connection"),
        (2, ["archive", "postgresql://u:hunter2@db:port/db"], "no URL of a database"),
        (2, ["export", "mysql://u:hunter2@db/db"], "expected a path"),
        (2, ["archive", "sqlite://"], "expected a file"),
        (1, ["archive", f"sqlite:///{tmp_path}/none/dead.db"], "unable to open"),
        (1, ["import", f"sqlite:///{tmp_path}/none.db"], "no such file"),
        (1, ["import", str(tmp_path / "none")], "No such file"),
        (1, ["export", str(tmp_path / "none/dead.jsonl")], f"{tmp_path}/none: there is no such"),
        (2, ["import"], "dead_letters_archive"),
        (1, ["export", str(tmp_path / "dead.jsonl"), "--queue", "mial"], "no queue mial"),
    ):
        ran = cli("dead", *args)
        assert (ran.code, ran.out) == (code, ""), args
        *usage, line = ran.err.splitlines()
        assert bool(usage) == (code == 2)
        assert told in line
        assert "hunter2" not in line
    assert len(dead_ids(delayq)) == 4
    assert [*tmp_path.iterdir()] == []


@pytest.mark.full
def test_lines_go_through_a_pipe(delayq: DelayQ, shop: list[str]) -> None:
    fill(delayq, 700)

    written = subprocess.run(
        [*shop, "dead", "export", "-", "--json"], capture_output=True, timeout=TIMEOUT
    )
    assert written.returncode == 0
    assert json.loads(written.stderr.splitlines()[-1])["dead_letters"] == 700
    assert delayq.count_dead() == 700
    some = [line for line in written.stdout.splitlines() if b"-0006" in line]
    lines = b"\n".join([*some[:50], b"garbage", *some[50:], b'{"format": "other"}'])
    subprocess.run(
        [*shop, "dead", "purge", "--everything", "--yes"], check=True, capture_output=True
    )

    read = subprocess.run(
        [*shop, "dead", "import", "-", "--json"], input=lines, capture_output=True, timeout=TIMEOUT
    )
    assert read.returncode == 1, read.stderr
    told = json.loads(read.stdout)
    assert told["outcomes"] == {"restored": 100, "refused": 2}
    assert told["refusals"] == [
        {"line": 51, "reason": "no JSON: Expecting value at character 1"},
        {"line": 102, "reason": "format 'other': expected 'celery_delayq.dead_letters'"},
    ]
