"""Entries that were imported are fired, and commands import them."""

from __future__ import annotations

import json
import re
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from celery import Celery
from celery.schedules import crontab, schedule, solar

from celery_delayq import DelayQ
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.importers import redbeat
from celery_delayq.periodic.wall_clock import ms_of_datetime
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import Diary, StartWorker, start
from tests.integration.periodic.conftest import MakeShop
from tests.integration.periodic.importing import (
    EVERY_KIND,
    TASK,
    ago,
    defined,
    entries,
    results,
    run_beat,
    run_django,
    save,
    state,
)
from tests.support.cli import CommandLine
from tests.support.periodic import HOUR, MINUTE, UTC

pytestmark = pytest.mark.filterwarnings(
    "ignore:Call to '.*' function with deprecated:DeprecationWarning"
)


def test_entries_that_were_taken_over_are_fired_and_their_ticks_not_again(
    app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    diary = Diary(delayq_redis)
    # The last of its ticks is half an hour ago: one of this second would not be missed, but due.
    at, ancient = ago(seconds=100), ago(days=900, minutes=30)
    save(app, "ancient", schedule(3600), ancient)
    save(app, "off", schedule(0.5), at, enabled=False)
    often = save(app, "often", schedule(0.5), at)
    assert set(results(app, redbeat.entries(app)).values()) == {"added"}

    start(delayq_worker)
    diary.wait_ticks("often", 5)
    caught_up = diary.wait_ticks("ancient", 1)

    DelayQ.of(app).periodic.update("often", args=["x"])
    before = entries(app)[-1]
    said = results(app, redbeat.entries(app), replace=True)
    after = entries(app)[-1]
    ticks = diary.wait_ticks("often", len(diary.ticks("often")) + 8)

    assert (said["often"], after.name, after.definition.args) == ("replaced", often.name, ())
    assert after.state.anchor == before.state.anchor
    assert len(ticks) == len({*ticks})
    assert {after - before for before, after in pairwise(ticks[1:])} == {500}
    assert {(tick - ms_of_datetime(at)) % 500 for tick in ticks} == {0}
    assert diary.ticks("ancient") == caught_up, "it is caught up by one"
    assert (caught_up[0] - ms_of_datetime(ancient)) % HOUR == 0
    assert 0 <= diary.now() * 1000 - caught_up[0] <= HOUR + MINUTE
    assert diary.ticks("off") == []


def test_only_replace_replaces_an_entry(app: Celery) -> None:
    mine = DelayQ.of(app).periodic.add("a", 60, "note", ["mine"])
    at = ago(minutes=30)
    save(app, "a", schedule(3600), at)

    assert results(app, redbeat.entries(app)) == {"a": "kept"}
    assert entries(app) == [mine]
    assert results(app, redbeat.entries(app), replace=True, dry_run=True) == {"a": "replaced"}
    assert entries(app) == [mine]
    assert results(app, redbeat.entries(app), replace=True) == {"a": "replaced"}

    definition = defined("a", schedule(3600))
    assert entries(app) == [state(definition, at, ms_of_datetime(at) + HOUR, at)]


# -- on the command line


def test_the_file_of_beat_is_taken_over_by_a_command(make_shop: MakeShop, file: Path) -> None:
    run_beat(make_shop(gone=TASK, stays=TASK), file)
    cli = CommandLine(app := make_shop(stays=TASK))
    command = ("periodic", "import", "--from", "beat", str(file))

    dry = cli(*command, "--dry-run")
    assert (dry.code, entries(app)) == (0, [])
    assert "1 skipped" in dry.out
    assert "A dry run, nothing was changed." in dry.out
    done = cli(*command)

    assert done.code == 0
    assert "added  stays  every 1h" in done.out
    assert [entry.name for entry in entries(app)] == ["stays"]
    assert "skipped  gone  it is not in the code any more; beat forgets it" in done.out
    told = [json.loads(line) for line in cli(*command, "--json").out.splitlines()]
    assert {each["name"]: each["result"] for each in told} == {"stays": "kept", "gone": "skipped"}


def test_redbeat_is_taken_over_by_a_command(app: Celery) -> None:
    save(app, "good", schedule(60))
    paused = save(app, "off", schedule(60), enabled=False)
    client = DelayQ.of(app).store.client
    client.hset("redbeat:bad", "definition", "{")
    client.zadd("redbeat::schedule", {"redbeat:bad": 0})
    assert not paused.enabled

    done = CommandLine(app)("periodic", "import", "--from", "redbeat")

    assert done.code == 1
    assert re.search(r"^added  good  every 1m$", done.out, re.MULTILINE)
    assert re.search(r"^added  off  every 1m  paused$", done.out, re.MULTILINE)
    assert re.search(r"^refused  bad  \S", done.out, re.MULTILINE)
    assert [(entry.name, entry.status) for entry in entries(app)] == [
        ("good", "on"),
        ("off", "paused"),
    ]


def test_django_is_taken_over_by_a_command(app: Celery, database: str) -> None:
    run_django(database, EVERY_KIND)
    cli = CommandLine(app)

    done = cli("periodic", "import", "--from", "django-celery-beat", database, "--json")

    told = [json.loads(line) for line in done.out.splitlines()]
    assert {each["name"] for each in told if each["result"] == "added"} == {
        entry.name for entry in entries(app)
    }
    without = cli("periodic", "import", "--from", "django-celery-beat")
    assert (without.code, "give the URL of Django's database" in without.err) == (2, True)


def test_a_list_is_a_backup(make_shop: MakeShop, delayq_redis: RedisUnderTest, file: Path) -> None:
    delayq = DelayQ.of(app := make_shop())
    delayq.periodic.add("sun", solar("sunset", 52.5, 13.4), "note", [ago(days=1)], priority=3)
    delayq.periodic.add("often", 10, "note", timezone="Europe/Berlin", overlap="skip", max_runs=9)
    delayq.periodic.add("off", crontab(0, 9), "note", kwargs={"do": "nothing"})
    delayq.periodic.pause("off")
    never = crontab(0, 0, day_of_month="29", month_of_year="2")
    delayq.periodic.add("past", never, "note", start=datetime(2020, 1, 1, tzinfo=UTC))
    before, cli = entries(app), CommandLine(app)
    file.write_text(cli("periodic", "list", "--json").out + '{}\nnonsense\n{"name":5}\n')
    delayq_redis.client.flushdb()

    done = cli("periodic", "import", "--from", "list", str(file))

    assert done.code == 1
    refused = re.findall(r"^refused  '(line \d)'", done.out, re.MULTILINE)
    assert (refused, entries(app)) == (["line 5", "line 6", "line 7"], before)


def test_of_a_list_code_is_as_it_is_now_and_what_calls_made_as_it_was(
    make_shop: MakeShop, delayq_redis: RedisUnderTest, file: Path
) -> None:
    cleanup = {"celery.backend_cleanup": TASK}
    older, other = make_shop(stays=TASK, gone=TASK), make_shop(billing=TASK, **cleanup)
    other.main = "billing"
    for app in (older, other):
        Deployment(app).keep(DelayQ.of(app).session.stores)
    periodic = DelayQ.of(older).periodic
    periodic.add("mine", 10, "note", max_runs=9)
    for name in ("stays", "billing", "mine"):
        periodic.pause(name)
    before = {entry.name: entry for entry in entries(older)}
    file.write_text(CommandLine(older)("periodic", "list", "--json").out)
    delayq_redis.client.flushdb()
    # The code has changed since, and has an entry of the name of one that a call made.
    app = make_shop(stays={**TASK, "schedule": 60.0}, mine=TASK)

    done = CommandLine(app)("periodic", "import", "--from", "list", str(file))

    assert done.code == 0
    found = {entry.name: entry for entry in entries(app)}
    assert sorted(found) == ["billing", "celery.backend_cleanup", "mine", "stays"]
    for name in ("billing", "celery.backend_cleanup", "mine"):
        assert found[name] == before[name]
    assert "skipped  gone  it is not in the code any more" in done.out
    stays = found["stays"]
    assert (stays.definition.schedule, stays.status) == (schedule(60), "paused")
    assert stays.state.anchor == before["stays"].state.anchor
    assert stays.definition.source == before["stays"].definition.source == "code shop"


@pytest.mark.parametrize(
    ("source", "place", "code", "told"),
    [
        ("list", "missing", 1, "missing"),
        ("beat", "missing", 1, "missing"),
        ("redbeat", "redis://127.0.0.1:1/0", 1, "127.0.0.1:1"),
        ("django-celery-beat", "sqlite:///missing.db", 1, "missing.db"),
        ("django-celery-beat", "mysql://root:hunter2@localhost/shop", 2, "mysql"),
    ],
)
def test_a_source_without_entries_is_an_error(
    app: Celery, source: str, place: str, code: int, told: str
) -> None:
    done = CommandLine(app)("periodic", "import", "--from", source, place)

    assert (done.code, done.out) == (code, "")
    assert told in done.err
    assert "hunter2" not in done.err
