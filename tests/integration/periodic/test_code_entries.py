"""Periodic entries in code: several versions of it, entries of calls, beats that run."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import crontab
from kombu import pools

from celery_delayq import DelayQ
from celery_delayq.periodic import code_entries, code_version, definition
from celery_delayq.periodic.code_entries import definitions_of
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.runner import PeriodicRunner
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import StartWorker, start
from tests.integration.periodic.conftest import MakeShop
from tests.integration.periodic.versions import (
    CHANGED,
    TASK,
    VERSIONS,
    deploy,
    entries,
    keep,
    silent,
)
from tests.support import TIMEOUT


def test_what_is_in_code_is_written_changed_and_removed(make_shop: MakeShop) -> None:
    one = make_shop(same=TASK, changed=TASK, gone=TASK)
    deploy(one)
    before = entries(one)
    two = make_shop(same=TASK, changed={**TASK, "args": [1]}, new=TASK)
    deploy(two)

    after = entries(two)
    assert after.keys() == {"same", "changed", "new"}
    assert after["same"] == before["same"]
    assert after["changed"].definition.args == (1,)
    assert after["changed"].next == before["changed"].next, "its phase is kept"
    assert {entry.definition.source for entry in after.values()} == {"code shop"}


def test_all_forms_of_entries_in_code(make_shop: MakeShop) -> None:
    app = make_shop(
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


def test_two_versions_side_by_side_do_not_fight(
    make_shop: MakeShop, delayq_redis: RedisUnderTest
) -> None:
    one, two = make_shop(a=TASK), make_shop(a=CHANGED)
    old = deploy(one)
    new = deploy(two)
    written = entries(two)

    for _ in range(3):
        deploy(one)  # an old worker is restarted
        keep(old, one)
        keep(new, two)

    assert entries(two) == written
    assert written["a"].definition.args == (2,)
    silent(delayq_redis, new)
    keep(old, one)
    assert entries(one)["a"].definition.args == (), "the newer version has gone"


# -- logs, and the ticks of removed entries


def test_a_deploy_logs_the_names_of_changed_entries(
    make_shop: MakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, code_version.__name__)
    deploy(make_shop(same=TASK, other=TASK, gone=TASK))
    deploy(make_shop(same=TASK, other={**TASK, "args": [1]}, new=TASK))
    deploy(make_shop(same=TASK, other={**TASK, "args": [1]}, new=TASK))
    deploy(make_shop("many", **{f"n{n}": TASK for n in range(250)}))

    *some, many = [told for told in caplog.messages if not told.startswith("Other apps")]
    assert some == [
        "Periodic entries in code: added 'same', 'other', 'gone'",
        "Periodic entries in code: added 'new'; changed 'other'; removed 'gone'",
    ]
    assert many.startswith("Periodic entries in code: added 'n0', 'n1', ")
    assert many.endswith("'n19' and 230 more")


def test_ticks_of_what_a_deploy_removes_are_taken_out_of_the_schedule(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition, "TICK_AHEAD_MS", 3_600_000)  # none is due before this has ended
    one = make_shop(gone=TASK, stays=TASK)
    deploy(one)
    delayq = DelayQ.of(one)

    def scheduled() -> list[str]:
        return sorted(each.id.rpartition(":")[0] for each in delayq.entries())

    runner = PeriodicRunner(one, deploy=False)
    runner.start()
    all_of_both = ["gone"] * 6 + ["stays"] * 6
    wait_until(lambda: scheduled() == all_of_both, TIMEOUT, "an hour of both is scheduled")
    runner.stop()

    deploy(make_shop(stays=TASK))

    assert scheduled() == ["stays"] * 6


# -- what else is there


def test_arguments_that_the_task_does_not_take_are_an_error_in_the_log(
    make_shop: MakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry is written all the same."""
    counted = {**TASK, "task": "counted"}
    shop = make_shop(
        a={**counted, "args": [1, 2]}, b=counted, unknown={**TASK, "task": "elsewhere"}
    )

    @shop.task(name="counted", shared=False)
    def count(number: int = 0) -> None:
        """Stand for the task."""

    deploy(shop)

    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1, errors
    assert errors[0].startswith(
        "Ticks of periodic entry 'a' in code will fail: counted: args=(1, 2)"
    )
    assert {*entries(shop)} == {"a", "b", "unknown"}


def test_entries_of_calls_and_of_other_apps_are_not_touched(
    make_shop: MakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    one, mail = make_shop(a=TASK, b=TASK), make_shop("mail", c=TASK)
    mine = DelayQ.of(one).periodic.add("a", 5, "note", ["mine"])
    deploy(mail)
    theirs = entries(mail)["c"]
    deploy(one)
    deploy(make_shop())

    assert entries(one) == {"a": mine, "c": theirs}
    assert "'a' in code is left out: there is one of that name" in caplog.text


CRONTAB = {"task": "note", "schedule": crontab(hour=12, minute=0)}


def test_another_time_zone_of_the_app_reaches_entries_without_one(make_shop: MakeShop) -> None:
    def version(zone: str) -> Celery:
        app = make_shop(
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


def test_the_zone_of_an_app_says_the_same_in_each_process(make_shop: MakeShop) -> None:
    class Zone(tzinfo):
        def __init__(self, hours: int) -> None:
            self._hours = hours

        def utcoffset(self, _: datetime | None) -> timedelta:
            return timedelta(hours=self._hours)

        dst = utcoffset

        def tzname(self, _: datetime | None) -> str:
            return ""

    found = code_entries.definition_of("a", CRONTAB, "code", timezone.utc)
    said = [
        code_entries.code_hash_of(found, zone) for zone in (Zone(1), Zone(1), Zone(2), timezone.utc)
    ]

    assert said[0] == said[1]
    assert len({*said}) == 3


def test_a_redis_that_came_back_empty_gets_what_is_in_code_at_once(
    make_shop: MakeShop, delayq_redis: RedisUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(make_shop("mail"))
    app = make_shop(a=TASK)
    stores = DelayQ.of(app).session.stores
    deployment = deploy(app)
    assert caplog.text.count("Other apps") == 1
    delayq_redis.client.delete("delayq:periodic", "delayq:periodic_at", VERSIONS)
    deploy(make_shop("mail"))
    deployment.keep(stores)
    assert not entries(app)

    deployment.look_again()
    deployment.keep(stores)

    assert entries(app).keys() == {"a"}
    assert caplog.text.count("Other apps") == 1, "it says so once"


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
    first: Any, second: Any, warns: bool, make_shop: MakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(make_shop("shop", **first))
    deploy(make_shop("shop", **first))
    assert "Other apps" not in caplog.text

    deploy(make_shop("mail", **second))

    assert (
        "Other apps fire periodic entries of this Redis database too (code shop)" in (caplog.text)
    ) == warns


def test_a_worker_warns_of_a_beat_that_runs(
    make_shop: MakeShop,
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


# -- stock beat with the same schedule

OURS: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "start": datetime(2030, 1, 1, tzinfo=timezone.utc),
    "end": datetime(2040, 1, 1, tzinfo=timezone.utc),
    "max_runs": 7,
    "catch_up": "all",
    "catch_up_max": 20,
    "overlap": "skip",
}


@pytest.fixture
def stock_app(delayq_redis: RedisUnderTest) -> Iterator[Celery]:
    with Celery("shop", broker=delayq_redis.url, set_as_current=False) as app:
        yield app
    pools.reset()


def test_what_is_ours_is_among_the_options_where_beat_is_to_take_it_too(stock_app: Celery) -> None:
    stock_app.conf.beat_schedule = {
        "poll": {"task": "shop.poll", "schedule": 30, "options": {"queue": "slow", **OURS}}
    }

    scheduler = Scheduler(stock_app, lazy=False)
    sent = scheduler.apply_async(scheduler.schedule["poll"], advance=False)
    [(_, definition)] = definitions_of(stock_app)

    with stock_app.connection_for_read() as connection:
        message = connection.SimpleQueue("slow").get(block=False)
    assert message.headers["id"] == sent.id
    assert isinstance(definition, Definition)
    assert definition.options == {"queue": "slow"}
    assert {what: getattr(definition, what) for what in OURS} == OURS


def test_beat_knows_no_keys_of_ours(stock_app: Celery) -> None:
    stock_app.conf.beat_schedule = {
        "poll": {"task": "shop.poll", "schedule": 30, "catch_up": "all"}
    }

    with pytest.raises(TypeError, match="catch_up"):
        Scheduler(stock_app, lazy=False)
