"""Entries of RedBeat go on where they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redbeat as rb  # type: ignore[import-untyped]
from celery import Celery
from celery.schedules import crontab, schedule
from dateutil.rrule import FR, MO

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import ConfigError
from celery_delayq.periodic.importers import redbeat
from celery_delayq.periodic.wall_clock import ms_of_datetime
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.periodic.conftest import MakeShop
from tests.integration.periodic.importing import (
    TASK,
    ago,
    defined,
    entries,
    problems,
    results,
    save,
    state,
)
from tests.support.periodic import HOUR, UTC
from tests.support.sentinel import MASTER_NAME, Sentinel

pytestmark = pytest.mark.filterwarnings(
    "ignore:Call to '.*' function with deprecated:DeprecationWarning"
)


def test_entries_of_redbeat_go_on(app: Celery) -> None:
    at = ago(minutes=90)
    save(
        app,
        "every",
        schedule(3600),
        at,
        args=["x"],
        kwargs={"seconds": [2]},
        options={"queue": "q"},
    )
    save(app, "rounded", schedule(7200, relative=True), at)
    save(app, "crontab", crontab(minute=5, hour="*/2", day_of_week="mon-fri"), at, enabled=False)

    said = results(app, redbeat.entries(app))

    assert said == {"every": "added", "rounded": "added", "crontab": "added"}
    cron = defined("crontab", crontab(minute=5, hour="*/2", day_of_week="mon-fri"))
    given: dict[str, Any] = {"args": ("x",), "kwargs": {"seconds": [2]}, "options": {"queue": "q"}}
    every = defined("every", schedule(3600), **given)
    rounded = defined("rounded", schedule(7200, relative=True))
    ms = ms_of_datetime(at)
    assert entries(app) == [
        state(cron, at, None, at, status="paused"),
        state(every, at, ms + HOUR, at),
        state(rounded, at, ms // HOUR * HOUR + 2 * HOUR, at),
    ]
    assert set(results(app, redbeat.entries(app)).values()) == {"kept"}


def test_redbeats_own_count_is_kept(app: Celery) -> None:
    entry = save(app, "a", schedule(3600))
    for _ in range(3):
        entry = next(entry)

    results(app, redbeat.entries(app))

    (found,) = entries(app)
    assert found.total_run_count == 3
    assert found.state.last_tick == ms_of_datetime(entry.last_run_at)


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        ("UTC", datetime(2026, 1, 5, 7, 30, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 1, 5, 7, 30, tzinfo=ZoneInfo("Europe/Berlin"))),
        ("Asia/Kolkata", datetime(2026, 1, 5, 7, 30, tzinfo=ZoneInfo("Asia/Kolkata"))),
    ],
)
@pytest.mark.parametrize(
    "rule",
    [
        {"freq": "MINUTELY", "interval": 7},
        {"freq": "DAILY", "byhour": [9, 17], "byminute": 30, "bysecond": 0},
        {"freq": "WEEKLY", "byweekday": [MO, FR], "wkst": MO, "until": datetime(2040, 1, 1)},
        {"freq": "MONTHLY", "byweekday": [0, 1], "bysetpos": -1},
        {"freq": "MONTHLY", "interval": 2, "byweekday": [FR(-1), MO(1)], "byhour": [9, 17]},
        {"freq": "YEARLY", "bymonth": 3, "bymonthday": [1, -1], "count": 90},
        {"freq": "YEARLY", "byeaster": 1},
        {"freq": "YEARLY", "byweekno": [1, 20], "byweekday": 2},
        {"freq": "YEARLY", "byyearday": [100, 200]},
    ],
)
def test_rules_of_redbeat_have_the_same_ticks(
    rule: dict[str, Any], zone: str, start: datetime, make_shop: MakeShop
) -> None:
    app = make_shop("shop", zone)
    save(app, "rule", rb.schedules.rrule(dtstart=start, app=app, **rule), start)
    # As its scheduler reads it: with the offset of the start, whatever the season.
    theirs = rb.RedBeatSchedulerEntry.from_key("redbeat:rule", app=app).schedule.rrule
    expected: list[datetime] = []
    at: Any = start
    while len(expected) < 60 and (at := theirs.after(at)) is not None:
        expected.append(at)

    results(app, redbeat.entries(app))

    assert DelayQ.of(app).periodic.next("rule", 60)[: len(expected)] == expected


def test_a_rule_by_an_offset_that_no_zone_has(app: Celery) -> None:
    start = datetime(2026, 1, 5, 7, 30, tzinfo=timezone(timedelta(hours=5, minutes=17)))
    save(app, "odd", rb.schedules.rrule("DAILY", dtstart=start, app=app))

    (found,) = redbeat.entries(app)

    assert found.problem is not None
    assert "no zone is so all the year: add it by delayq.periodic.add" in found.problem


def test_static_entries_of_redbeat_are_those_in_code(make_shop: MakeShop) -> None:
    old = make_shop(stays=TASK, goes=TASK)
    rb.RedBeatScheduler(old, lock_key=None)
    at = ago(minutes=20)
    save(old, "stays", schedule(600), at)
    save(old, "dynamic", schedule(600), at)
    app = make_shop(stays=TASK)

    said = results(app, redbeat.entries(app))

    assert said == {"stays": "added", "goes": "skipped", "dynamic": "added"}
    dynamic, stays = entries(app)
    assert (dynamic.definition.source, stays.definition.source) == ("api", "code shop")
    assert stays == state(stays.definition, at, ms_of_datetime(at) + HOUR, at), (
        "the code says how often"
    )


def test_other_keys_of_redbeat(make_shop: MakeShop, delayq_redis: RedisUnderTest) -> None:
    theirs = make_shop()
    theirs.conf.redbeat_key_prefix = "mine:"
    save(theirs, "a", schedule(60))
    app = make_shop()

    assert results(app, redbeat.entries(app), dry_run=True) == {}
    assert results(theirs, redbeat.entries(theirs, delayq_redis.url + "/1")) == {}
    assert results(theirs, redbeat.entries(theirs), dry_run=True) == {"a": "added"}
    assert results(theirs, redbeat.entries(theirs, delayq_redis.url)) == {"a": "added"}
    brokers = make_shop()
    brokers.conf.redbeat_key_prefix = "mine:"
    del brokers.conf["redbeat_redis_url"]  # then it is the broker's
    assert results(brokers, redbeat.entries(brokers)) == {"a": "kept"}
    expected = r"^'https://…@x': expected the URL of RedBeat's Redis"
    with pytest.raises(ConfigError, match=expected):
        list(redbeat.entries(app, "https://user:secret@x"))


def test_redbeat_behind_sentinels(
    make_shop: MakeShop, delayq_redis_factory: Callable[..., EmbeddedRedis], tmp_path: Path
) -> None:
    password = "p@ss"
    master = delayq_redis_factory(password=password)
    with Sentinel(master, password, tmp_path / "sentinel") as sentinel:
        sentinel.wait_ready()
        app = make_shop()
        app.conf.redbeat_redis_url = "redis-sentinel://"
        app.conf.redbeat_redis_options = {
            "sentinels": [("127.0.0.1", sentinel.port)],
            "service_name": MASTER_NAME,
            "password": password,
        }
        save(app, "a", schedule(60))

        assert results(app, redbeat.entries(app)) == {"a": "added"}


def test_an_invalid_record_is_refused_and_the_others_are_imported(
    make_shop: MakeShop, delayq_redis: RedisUnderTest
) -> None:
    app = make_shop(coded=TASK)
    client, at = delayq_redis.client, ago(minutes=1)
    save(app, "good", schedule(60))
    save(app, "coded", schedule(60), at)
    save(app, "done", rb.schedules.rrule("DAILY", count=2, dtstart=ago(days=9), app=app), at)
    save(app, "x" * 1001, schedule(60))
    save(app, "micro", schedule(timedelta(microseconds=5)))
    made: dict[str, Any] = {"task": "note", "schedule": {"__type__": "interval", "every": 5.0}}
    wrong: dict[str, Any] = {
        "text": b"{nothing",
        "list": b"[]",
        "taskless": {**made, "task": None},
        "kind": {**made, "schedule": {"__type__": "moon"}},
        "none": {**made, "schedule": None},
        "crontab": {**made, "schedule": {"__type__": "crontab", "minute": 99}},
        "never": {**made, "schedule": {"__type__": "crontab", "day_of_month": "31",
                                       "month_of_year": "2"}},
        "freq": {**made, "schedule": {"__type__": "rrule", "freq": 55}},
        "kwargs": {**made, "kwargs": [1]},
        "options": {**made, "options": {"countdown": 5}},
        "coded": {**made, "schedule": {"__type__": "moon"}},
    }  # fmt: skip
    for name, definition in wrong.items():
        text = definition if isinstance(definition, bytes) else json.dumps(definition)
        client.hset(f"redbeat:{name}", "definition", text)
        client.zadd("redbeat::schedule", {f"redbeat:{name}": 1})
    client.hset("redbeat:meta", mapping={"definition": json.dumps(made), "meta": "[5]"})
    client.set("redbeat:string", "x")
    client.zadd("redbeat::schedule", dict.fromkeys(("redbeat:meta", "redbeat:string"), 1))
    client.zadd("redbeat::schedule", {"redbeat:gone": 1})

    said = results(app, redbeat.entries(app))

    taken = {name: what for name, what in said.items() if what != "refused"}
    assert taken == {"good": "added", "coded": "added", "done": "skipped", "gone": "skipped"}
    assert [entry.name for entry in entries(app)] == ["coded", "good"]
    told = problems(redbeat.entries(app))
    for name, match in {
        "text": "unreadable", "list": "expected an object", "taskless": "task=None: expected",
        "kind": "schedule of the type 'moon': expected interval", "none": "schedule=None",
        "crontab": "99", "never": "crontab", "freq": "unreadable", "kwargs": "a mapping by names",
        "options": "countdown: no option", "meta": "expected an object",
        "string": "not a key of RedBeat", "gone": "its key is gone", "x" * 1001: "at most 1,000",
        "micro": "whole milliseconds",
    }.items():  # fmt: skip
        assert match in told[name], name
