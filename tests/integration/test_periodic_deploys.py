"""Periodic entries in code: several versions of it, entries of calls, beats that run."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab
from kombu import pools

from celery_delayq import DelayQ, deploys
from celery_delayq.definitions import Overlap
from celery_delayq.deploys import Deployment
from celery_delayq.periodic import Periodic
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import TIMEOUT, Diary, StartWorker, start, tasks_of

MakeApp = Callable[..., Celery]

TASK = {"task": "note", "schedule": 600.0}


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


def test_after_the_newer_version_has_gone_the_older_one_counts(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = make_app(a=TASK), make_app(a={**TASK, "args": [2]})
    old = deploy(one)
    monkeypatch.setattr(deploys, "ALIVE", 0.0)
    deploy(two)
    assert entries(one)["a"].definition.args == (2,)

    keep(old, one)

    assert entries(one)["a"].definition.args == ()


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


def test_apps_of_other_names_have_their_own(make_app: MakeApp) -> None:
    shop, mail = make_app("shop", a=TASK), make_app("mail", b=TASK)
    deploy(shop)
    deploy(mail)
    deploy(make_app("shop"))

    assert entries(mail).keys() == {"b"}


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
            wait_until(lambda: delayq_redis.client.zcard("delayq:beats"), TIMEOUT, "it says so")
            worker = start(delayq_worker)
            worker.wait_log("celery beat runs .*sent twice")
        finally:
            beat.kill()
            told = beat.stdout.read() if beat.stdout else ""
    assert "celery beat runs" in told


# -- overlap


def running(diary: Diary, name: str) -> int:
    return len(diary.ticks(name))


@pytest.mark.parametrize("overlap", ["skip", "queue_one"])
def test_while_one_runs_no_other_does(
    overlap: Overlap, make_app: MakeApp, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    app, diary = make_app(), Diary(delayq_redis)
    periodic = DelayQ.of(app).periodic
    periodic.add("slow", 0.3, "note", kwargs={"do": "wait"}, overlap=overlap)
    periodic.add("clock", 0.3, "note")
    start(delayq_worker, concurrency=4)
    wait_until(lambda: running(diary, "slow") == 1, TIMEOUT, "one runs")
    seen = running(diary, "clock")

    wait_until(lambda: running(diary, "clock") >= seen + 10, TIMEOUT, "ten ticks pass")

    assert running(diary, "slow") == 1
    ended = diary.now() * 1000
    diary.client.rpush("go", "")
    wait_until(lambda: running(diary, "slow") == 2, TIMEOUT, "the next one runs")
    first, second = diary.ticks("slow")
    assert second - first >= 1500, "those that passed between are one"
    if overlap == "skip":
        assert second > ended - 2000, "those that passed meanwhile are gone"
    periodic.remove("slow")
    diary.client.rpush("go", "")
    diary.client.rpush("go", "")


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
