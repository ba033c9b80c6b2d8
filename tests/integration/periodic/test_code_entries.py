"""Periodic entries in code: several versions of it, entries of calls, beats that run."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab
from kombu import pools

from celery_delayq import DelayQ
from celery_delayq.periodic import code_entries, code_version, definition
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.definition import Overlap
from celery_delayq.periodic.runner import Ticker
from celery_delayq.periodic.state import Periodic
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import TIMEOUT, Diary, StartWorker, start, tasks_of

MakeApp = Callable[..., Celery]

DEPLOYS = "delayq:code_versions"
TASK = {"task": "note", "schedule": 600.0}
WRONG = {**TASK, "shedule": 5}


@pytest.fixture
def make_app(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[MakeApp]:
    apps: list[Celery] = []

    def make(name: str = "shop", **schedule: Any) -> Celery:
        app = Celery(name, broker=delayq_broker_url, backend=delayq_redis.url, set_as_current=False)
        DelayQ(app)
        app.conf.beat_schedule = schedule
        apps.append(app)
        return tasks_of(app)

    yield make
    for app in apps:
        DelayQ.of(app).close()
        app.close()
    pools.reset()


def deploy(app: Celery) -> Deployment:
    """Start a worker of that code: its part about entries."""
    deployment = Deployment(app)
    deployment.keep(DelayQ.of(app).store)
    return deployment


def keep(deployment: Deployment, app: Celery) -> None:
    """Let the time pass after which a worker says again that it is about."""
    deployment._kept = float("-inf")
    deployment.keep(DelayQ.of(app).store)


def entries(app: Celery) -> dict[str, Periodic]:
    return {entry.name: entry for entry in DelayQ.of(app).periodic.list()}


def test_what_is_in_code_is_written_changed_and_removed(make_app: MakeApp) -> None:
    one = make_app(same=TASK, changed=TASK, gone=TASK)
    deploy(one)
    before = entries(one)
    two = make_app(same=TASK, changed={**TASK, "args": [1]}, new=TASK)
    deploy(two)

    after = entries(two)
    assert after.keys() == {"same", "changed", "new"}
    assert after["same"] == before["same"]
    assert after["changed"].definition.args == (1,)
    assert after["changed"].next == before["changed"].next, "its phase is kept"
    assert {entry.definition.source for entry in after.values()} == {"code shop"}


def test_all_forms_of_entries_in_code(make_app: MakeApp) -> None:
    app = make_app(
        plain=TASK, cron={"task": "note", "schedule": crontab(minute=5), "overlap": "skip"}
    )

    @app.on_after_finalize.connect
    def more(sender: Celery, **_: Any) -> None:
        task = sender.tasks["note"]
        sender.add_periodic_task(30, task.s("a"), name="named", expires=10, catch_up="all")

    app.finalize()
    deploy(app)

    found = {name: entry.definition for name, entry in entries(app).items()}
    assert found.keys() == {"plain", "cron", "named"}
    assert found["cron"].overlap == "skip"
    assert (found["named"].args, found["named"].options) == (("a",), {"expires": 10})
    assert found["named"].catch_up == "all"


def test_two_versions_side_by_side_do_not_fight(make_app: MakeApp) -> None:
    one, two = make_app(a=TASK), make_app(a={**TASK, "args": [2]})
    old = deploy(one)
    new = deploy(two)
    written = entries(two)

    for _ in range(3):
        deploy(one)  # an old worker is restarted
        keep(old, one)
        keep(new, two)

    assert entries(two) == written
    assert written["a"].definition.args == (2,)


def silent(delayq_redis: RedisUnderTest, *versions: Deployment) -> None:
    """Make it as if nobody had said for longer than a minute that versions are about."""
    for each in versions:
        field = f"{each.source}\0{each.version}"
        since, _, last = (delayq_redis.client.hget(DEPLOYS, field) or b"").partition(b" ")
        delayq_redis.client.hset(DEPLOYS, field, f"{int(since)} {int(last) - 61_000}")


def test_after_the_newer_version_has_gone_the_older_one_counts(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    one, two = make_app(a=TASK), make_app(a={**TASK, "args": [2]})
    old = deploy(one)
    new = deploy(two)
    keep(old, one)
    assert entries(one)["a"].definition.args == (2,)

    silent(delayq_redis, new)
    keep(old, one)

    assert entries(one)["a"].definition.args == ()


def test_an_old_version_that_starts_again_after_all_of_it_crashed_is_an_old_one_still(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    one, two = make_app(a=TASK), make_app(a=TASK, new=TASK)
    old = deploy(one)
    silent(delayq_redis, old)
    deploy(two)

    deploy(one)

    assert entries(one).keys() == {"a", "new"}


# -- what calls change in them


def test_what_calls_changed_stays_while_its_own_code_says_the_same(make_app: MakeApp) -> None:
    names = "updated", "paused", "removed", "replaced"
    one = make_app(other=TASK, **dict.fromkeys(names, TASK))
    deploy(one)
    periodic = DelayQ.of(one).periodic
    periodic.update("updated", args=["mine"], schedule=60)
    periodic.pause("paused")
    periodic.remove("removed")
    periodic.add("replaced", 5, "note", ["mine"], replace=True)
    before = entries(one)
    two = make_app(other={**TASK, "args": [2]}, new=TASK, **dict.fromkeys(names, TASK))

    for app in (two, one, two):
        deploy(app)

    after = entries(two)
    assert after.keys() == {"updated", "paused", "replaced", "other", "new"}
    assert after["other"].definition.args == (2,)
    for name in ("updated", "paused", "replaced"):
        assert after[name] == before[name]


def test_what_calls_changed_is_as_the_code_says_when_that_changes(make_app: MakeApp) -> None:
    names = "updated", "paused", "removed"
    one = make_app(**dict.fromkeys(names, TASK))
    deploy(one)
    periodic = DelayQ.of(one).periodic
    periodic.update("updated", args=["mine"], schedule=60)
    periodic.pause("paused")
    periodic.remove("removed")

    changed = {**TASK, "args": [2]}
    deploy(make_app(**dict.fromkeys(names, changed)))

    after = entries(one)
    assert {name: entry.definition.args for name, entry in after.items()} == dict.fromkeys(
        names, (2,)
    )
    assert after["updated"].as_dict()["when"] == after["removed"].as_dict()["when"]
    assert {name for name, entry in after.items() if entry.status == "paused"} == {"paused"}


def test_what_calls_removed_comes_back_when_it_was_gone_from_the_code(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    one, two = make_app(a=TASK, b=TASK), make_app(b=TASK)
    first = deploy(one)
    DelayQ.of(one).periodic.remove("a")
    second = deploy(two)
    assert entries(one).keys() == {"b"}

    silent(delayq_redis, second)
    keep(first, one)

    assert entries(one).keys() == {"a", "b"}


def test_what_the_code_left_out_for_an_entry_of_a_call_comes_with_the_next_change(
    make_app: MakeApp,
) -> None:
    one = make_app(a=TASK)
    DelayQ.of(one).periodic.add("a", 5, "note")
    deploy(one)
    DelayQ.of(one).periodic.remove("a")

    deploy(make_app(a=TASK, b=TASK))

    assert {name: each.definition.source for name, each in entries(one).items()} == {
        "a": "code shop",
        "b": "code shop",
    }


def test_what_is_noted_of_the_code_is_small(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    schedule = {f"app.tasks.number-{n:06}": TASK for n in range(1000)}
    deploy(make_app(**schedule))

    noted = sum(map(len, delayq_redis.client.hvals(DEPLOYS)))
    assert noted / len(schedule) < 50, "bytes for each entry"


# -- what is told, and the ticks of what is gone


def test_what_a_deploy_changed_is_told_by_name(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, code_version.__name__)
    deploy(make_app(same=TASK, other=TASK, gone=TASK))
    deploy(make_app(same=TASK, other={**TASK, "args": [1]}, new=TASK))
    deploy(make_app(same=TASK, other={**TASK, "args": [1]}, new=TASK))

    assert caplog.messages == [
        "Periodic entries in code: added 'same', 'other', 'gone'",
        "Periodic entries in code: added 'new'; changed 'other'; removed 'gone'",
    ]


def test_of_many_the_first_names_are_told(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, code_version.__name__)
    deploy(make_app(**{f"n{n}": TASK for n in range(250)}))

    [told] = caplog.messages
    assert told.startswith("Periodic entries in code: added 'n0', 'n1', ")
    assert told.endswith("'n19' and 230 more")


def test_ticks_of_what_a_deploy_removes_are_taken_out_of_the_schedule(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition, "AHEAD", 3_600_000)  # none is due before this has ended
    one = make_app(gone=TASK, stays=TASK)
    deploy(one)
    delayq = DelayQ.of(one)

    def scheduled() -> list[str]:
        return sorted(each.id.rpartition(":")[0] for each in delayq.entries())

    ticker = Ticker(one, deploy=False)
    ticker.start()
    all_of_both = ["gone"] * 6 + ["stays"] * 6
    wait_until(lambda: scheduled() == all_of_both, TIMEOUT, "an hour of both is scheduled")
    ticker.stop()

    deploy(make_app(stays=TASK))

    assert scheduled() == ["stays"] * 6


# -- what else is there


def test_entries_of_calls_are_not_touched(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    one = make_app(a=TASK, b=TASK)
    mine = DelayQ.of(one).periodic.add("a", 5, "note", ["mine"])
    deploy(one)
    deploy(make_app())

    assert entries(one) == {"a": mine}
    assert "'a' in code is left out: there is one of that name" in caplog.text


def test_what_is_wrong_in_code_is_left_out(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(
        good=TASK,
        zero={**TASK, "schedule": 0},
        zone={**TASK, "timezone": "Nowhere"},
        arguments={**TASK, "args": [object()]},
        nothing={},
        unknown={**TASK, "shedule": 5},
        text="note",
    )
    deploy(app)

    assert entries(app).keys() == {"good"}
    for name in ("zero", "zone", "arguments", "nothing", "unknown", "text"):
        assert f"Periodic entry {name!r} in code is left out" in caplog.text
    assert "unknown: shedule; valid are" in caplog.text


def test_a_name_that_is_no_text_is_taken_as_one(make_app: MakeApp) -> None:
    app = make_app(a=TASK)
    app.conf.beat_schedule = {1: TASK, 2: {**TASK, "schedule": 0}, **app.conf.beat_schedule}
    deploy(app)

    assert entries(app).keys() == {"1", "a"}


def test_what_has_become_wrong_in_code_stays_as_it_is(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, code_version.__name__)
    names = "plain", "updated", "removed"
    right = dict.fromkeys(names, TASK)
    one = make_app(**right)
    deploy(one)
    periodic = DelayQ.of(one).periodic
    periodic.update("updated", args=["mine"])
    periodic.remove("removed")
    before = entries(one)
    caplog.clear()

    deploy(make_app(**dict.fromkeys(names, WRONG)))
    assert entries(one) == before
    assert not any(told.startswith("Periodic entries in code: ") for told in caplog.messages)

    deploy(make_app(**right, other=TASK))  # put right
    assert entries(one).keys() == {"plain", "updated", "other"}
    assert entries(one)["updated"] == before["updated"]

    deploy(make_app(**dict.fromkeys(names, WRONG), other=TASK))
    deploy(make_app(other=TASK))  # taken out
    assert entries(one).keys() == {"other"}


def test_what_is_wrong_in_code_and_then_gone_from_it_is_removed(make_app: MakeApp) -> None:
    app = make_app(a=TASK, b=TASK)
    deploy(app)
    deploy(make_app(a={**TASK, "schedule": 0}, b=TASK))

    deploy(make_app(b=TASK))

    assert entries(app).keys() == {"b"}


CRONTAB = {"task": "note", "schedule": crontab(hour=12, minute=0)}


def test_another_time_zone_of_the_app_reaches_entries_without_one(make_app: MakeApp) -> None:
    def version(zone: str) -> Celery:
        app = make_app(
            own={**CRONTAB, "timezone": "Asia/Tokyo"}, cron=CRONTAB, paused=CRONTAB, every=TASK
        )
        app.conf.timezone = zone
        return app

    one, two = version("America/Lima"), version("Asia/Kolkata")  # -05:00, +05:30
    deploy(one)
    DelayQ.of(one).periodic.pause("paused")
    DelayQ.of(one).periodic.update("every", args=["mine"])
    before = entries(one)
    assert {before["cron"].next.hour, before["own"].next.hour} == {17, 3}  # type: ignore[union-attr]
    deploy(two)

    after = entries(two)
    found = after["cron"]
    assert found.next is not None
    assert (found.next.hour, found.next.minute) == (6, 30)
    assert found.definition == before["cron"].definition
    for name in ("own", "paused", "every"):
        assert after[name] == before[name]


def test_the_zone_of_an_app_says_the_same_in_each_process(make_app: MakeApp) -> None:
    class Zone(tzinfo):
        def __init__(self, hours: int) -> None:
            self._hours = hours

        def utcoffset(self, _: datetime | None) -> timedelta:
            return timedelta(hours=self._hours)

        dst = utcoffset

        def tzname(self, _: datetime | None) -> str:
            return ""

    found = code_entries.definition_of("a", CRONTAB, "code", timezone.utc)
    said = [code_entries.said_of(found, zone) for zone in (Zone(1), Zone(1), Zone(2), timezone.utc)]

    assert said[0] == said[1]
    assert len({*said}) == 3


def test_a_redis_that_came_back_empty_gets_what_is_in_code_at_once(
    make_app: MakeApp, delayq_redis: RedisUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(make_app("mail"))
    app = make_app(a=TASK)
    store = DelayQ.of(app).store
    deployment = deploy(app)
    assert caplog.text.count("Other apps") == 1
    delayq_redis.client.delete("delayq:periodic", "delayq:periodic_at", DEPLOYS)
    deploy(make_app("mail"))
    deployment.keep(store)
    assert not entries(app)

    deployment.look_again()
    deployment.keep(store)

    assert entries(app).keys() == {"a"}
    assert caplog.text.count("Other apps") == 1, "it says so once"


def test_after_an_outage_the_older_version_leaves_what_the_newer_one_wrote(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    one, two = make_app(a=TASK), make_app(a={**TASK, "args": [2]})
    old, new = deploy(one), deploy(two)
    written = entries(two)

    silent(delayq_redis, old, new)
    for _ in range(2):  # two of its workers are the first ones
        keep(old, one)

    assert entries(two) == written


def test_apps_of_other_names_have_their_own(make_app: MakeApp) -> None:
    shop, mail = make_app("shop", a=TASK), make_app("mail", b=TASK)
    deploy(shop)
    deploy(mail)
    deploy(make_app("shop"))

    assert entries(mail).keys() == {"b"}


QUEUED = {**TASK, "options": {"queue": "money"}}


@pytest.mark.parametrize(
    ("first", "second", "warns"),
    [
        ({"a": TASK}, {}, True),
        ({}, {"b": TASK}, True),
        ({"a": QUEUED}, {"b": QUEUED}, False),
        ({}, {}, False),
    ],
)
def test_apps_that_share_a_redis_database_are_warned_that_each_fires_those_of_all(
    first: Any, second: Any, warns: bool, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(make_app("shop", **first))
    deploy(make_app("shop", **first))
    assert "Other apps" not in caplog.text

    deploy(make_app("mail", **second))

    assert (
        "Other apps fire periodic entries of this Redis database too (code shop)" in (caplog.text)
    ) == warns


def test_a_worker_warns_of_a_beat_that_runs(
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    delayq_broker_url: str,
    delayq_worker: StartWorker,
    tmp_path: Any,
) -> None:
    code = f"""
from celery import Celery
from celery_delayq import DelayQ
app = Celery("shop", broker={delayq_broker_url!r})
DelayQ(app)
app.start(["beat", "--schedule", {str(tmp_path / "schedule")!r}])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as beat:
        try:
            wait_until(
                lambda: delayq_redis.client.zcard("delayq:celery_beats"), TIMEOUT, "it says so"
            )
            worker = start(delayq_worker)
            worker.wait_log("celery beat runs .*sent twice")
        finally:
            beat.kill()
            told = beat.stdout.read() if beat.stdout else ""
    assert "celery beat runs" in told


# -- overlap


@pytest.mark.parametrize(("overlap", "ran"), [("skip", [0]), ("queue_one", [0, 3])])
def test_while_one_runs_no_other_does(
    overlap: Overlap,
    ran: list[int],
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> None:
    """There are four ticks, and the task of the first one runs until all of them have passed."""
    app, diary = make_app(), Diary(delayq_redis)
    periodic = DelayQ.of(app).periodic
    periodic.add("clock", 0.3, "note")
    start(delayq_worker, concurrency=4)
    wait_until(lambda: diary.ticks("clock"), TIMEOUT, "the worker runs ticks")
    begins = datetime.fromtimestamp(math.ceil(diary.now()), timezone.utc)
    ends = begins + timedelta(seconds=4)
    periodic.add("slow", 1, "note", kwargs={"do": "wait"}, overlap=overlap, start=begins, end=ends)
    ticks = [round(begins.timestamp() * 1000) + 1000 * n for n in range(1, 5)]

    # Beside it others run.
    wait_until(lambda: diary.ticks("clock")[-1] > ticks[-1] + 1000, TIMEOUT, "all have passed")
    assert diary.ticks("slow") == ticks[:1]
    assert entries(app)["slow"].status == ("ended" if overlap == "skip" else "on")

    for _ in ran:
        diary.client.rpush("go", "")
    wait_until(lambda: len(diary.ticks("slow")) == len(ran), TIMEOUT, f"{len(ran)} have run")
    wait_until(lambda: entries(app)["slow"].status == "ended", TIMEOUT, "it is over")
    periodic.remove("clock")
    diary.wait_empty()

    assert diary.ticks("slow") == [ticks[n] for n in ran]


# -- what was missed


@pytest.mark.parametrize(
    ("options", "last"),
    [
        ({"catch_up": "skip"}, 0),
        ({"catch_up": "one"}, 1),
        ({"catch_up": "all"}, 20),
        ({"catch_up": "all", "catch_up_max": 3}, 3),
    ],
)
def test_ticks_that_were_missed_while_no_worker_was_there(
    options: dict[str, Any],
    last: int,
    make_app: MakeApp,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> None:
    app, diary = make_app(), Diary(delayq_redis)
    periodic = DelayQ.of(app).periodic
    begins = datetime.fromtimestamp(math.ceil(diary.now()) + 1, timezone.utc)
    ends = begins + timedelta(seconds=2)
    periodic.add("a", 0.1, "note", start=begins, end=ends, **options)
    missed = [round(begins.timestamp() * 1000) + 100 * n for n in range(1, 21)]
    diary.wait_past(ends.timestamp() + 1.1)

    start(delayq_worker)
    wait_until(lambda: entries(app)["a"].status == "ended", TIMEOUT, "all is looked at")
    diary.wait_empty()

    assert diary.ticks("a") == missed[20 - last :]
