"""Entries of real beats, of RedBeat and of django-celery-beat go on here where they were."""

from __future__ import annotations

import dbm
import fcntl
import json
import os
import pickle
import re
import shelve
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redbeat as rb  # type: ignore[import-untyped]
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import BaseSchedule, crontab, schedule, solar
from dateutil.rrule import FR, MO
from kombu import pools
from sqlalchemy.engine import make_url

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import ConfigError, TransferError
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.importers import FoundEntry, beat, django, redbeat, take_over
from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.state import Periodic, PeriodicState, Status
from celery_delayq.periodic.wall_clock import moment_of, ms_of
from celery_delayq.store.session import Session
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import TIMEOUT, Diary, StartWorker, start, tasks_of
from tests.integration.conftest import query
from tests.support.cli import CommandLine
from tests.support.sentinel import MASTER_NAME, Sentinel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Call to '.*' function with deprecated:DeprecationWarning"),
]

UTC = timezone.utc
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
TASK = {"task": "note", "schedule": 3600.0}

MakeApp = Callable[..., Celery]


@pytest.fixture
def make_app(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[MakeApp]:
    apps: list[Celery] = []

    def make(zone: str = "UTC", **in_code: Any) -> Celery:
        app = Celery(
            "shop", broker=delayq_broker_url, backend=delayq_redis.url, set_as_current=False
        )
        DelayQ(app)
        app.conf.timezone = zone
        app.conf.beat_schedule = in_code
        app.conf.redbeat_redis_url = delayq_redis.url
        apps.append(app)
        return tasks_of(app)

    yield make
    for app in apps:
        DelayQ.of(app).close()
        app.close()
    pools.reset()


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


def ago(**spans: float) -> datetime:
    """Return a moment in whole ms: more is not kept."""
    now = datetime.now(UTC) - timedelta(**spans)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def results(app: Celery, found: Iterable[FoundEntry], **options: Any) -> dict[str, str]:
    return {each.name: said for each, said in take_over(Session(app), found, **options)}


def problems(found: Iterable[FoundEntry]) -> dict[str, str]:
    return {each.name: each.problem or "" for each in found}


def entries(app: Celery) -> list[Periodic]:
    return DelayQ.of(app).periodic.list()


def state(
    definition: Definition,
    anchor: datetime,
    tick: int | None,
    last: datetime | None,
    count: int = 0,
    status: Status = "on",
) -> Periodic:
    """Return an entry as it is to stand."""
    return Periodic(
        definition,
        PeriodicState(
            definition_hash=definition_hash_of(definition),
            anchor=ms_of(anchor),
            tick=tick,
            last=None if last is None else ms_of(last),
            count=count,
            status=status,
        ),
    )


# -- celery beat


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "celerybeat-schedule"


def run_beat(app: Celery, file: Path, **last_run_at: datetime) -> None:
    """Let beat note its entries, and run those that are due since their last run."""
    scheduler = PersistentScheduler(app, schedule_filename=str(file))
    for name, at in last_run_at.items():
        scheduler.schedule[name].last_run_at = at
    while scheduler.tick() == 0:
        pass
    scheduler.close()


def told_by(file: Path) -> dict[str, Any]:
    with shelve.open(str(file), flag="r") as kept:
        return dict(kept["entries"])


def write(file: Path, kept: Any) -> None:
    """Write the entries in beat's file as somebody else could."""
    with dbm.open(str(file), "w") as found:
        found[b"entries"] = pickle.dumps(kept)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_entries_of_beat_go_on_in_their_phase(zone: str, make_app: MakeApp, file: Path) -> None:
    app = make_app(zone, ran=TASK, waits={**TASK, "schedule": crontab(minute=0)}, new=TASK)
    run_beat(app, file, ran=ago(hours=5), waits=ago(days=1))
    told = told_by(file)

    assert results(app, beat.entries(app, file)) == {
        "ran": "added",
        "waits": "added",
        "new": "added",
    }

    new, ran, waits = entries(app)
    codes = {entry.name: entry.definition for entry in (new, ran, waits)}
    assert {each.source for each in codes.values()} == {"code shop"}
    at = {name: entry.last_run_at.astimezone(UTC) for name, entry in told.items()}
    made = ms_of(at["new"])
    assert new == state(codes["new"], at["new"], made + HOUR, None)
    ms = ms_of(at["ran"])
    assert ran == state(codes["ran"], at["ran"], ms + HOUR, at["ran"], 1)
    ms = ms_of(at["waits"])
    assert waits == state(codes["waits"], at["waits"], ms // HOUR * HOUR + HOUR, at["waits"], 1)


def test_workers_take_entries_of_beat_for_those_in_their_code(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK, "b": TASK}
    run_beat(app, file, a=ago(hours=5))
    results(app, beat.entries(app, file))
    before = entries(app)

    Deployment(app).keep(DelayQ.of(app).store)

    assert entries(app) == before


def test_a_second_time_all_are_kept(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK, "b": TASK}
    run_beat(app, file, a=ago(hours=5))
    assert results(app, beat.entries(app, file), dry_run=True) == {"a": "added", "b": "added"}
    assert entries(app) == []
    results(app, beat.entries(app, file))
    before = entries(app)

    assert results(app, beat.entries(app, file)) == {"a": "kept", "b": "kept"}
    assert results(app, beat.entries(app, file), replace=True) == {"a": "kept", "b": "kept"}
    assert entries(app) == before


def test_what_is_in_code_no_more_is_skipped(make_app: MakeApp, file: Path) -> None:
    run_beat(make_app(stays=TASK, goes=TASK), file)
    app = make_app(stays=TASK)

    assert results(app, beat.entries(app, file)) == {"stays": "added", "goes": "skipped"}
    assert "not in the code any more" in problems(beat.entries(app, file))["goes"]


def test_beats_file_is_not_changed(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK}
    run_beat(app, file)

    def look() -> dict[str, Any]:
        return {
            each.name: (each.read_bytes(), each.stat().st_mtime_ns)
            for each in file.parent.iterdir()
        }

    before = look()
    list(beat.entries(app, file))
    assert look() == before

    with pytest.raises(ConfigError, match="there is no such file; expected that of celery beat"):
        beat.entries(app, file.with_name("missing"))
    assert look() == before


class Evil:
    """What a pickle may be made to call."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.made),)


def test_what_pickles_name_is_not_called(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK, "b": TASK, "c": TASK, "d": TASK}
    run_beat(app, file)
    made = file.parent / "made"

    kept = told_by(file)
    kept["a"] = Evil(made)
    kept["b"].args = [Evil(made)]  # of what is to be done the code tells
    kept["c"].last_run_at = Evil(made)
    write(file, kept)

    assert results(app, beat.entries(app, file)) == {
        "a": "refused", "b": "added", "c": "refused", "d": "added",
    }  # fmt: skip
    told = problems(beat.entries(app, file))
    assert "it is a posix.mkdir, of which nothing was read" in told["a"]
    assert "last_run_at" in told["c"]
    write(file, Evil(made))
    with pytest.raises(ConfigError, match="no file of celery beat, or it is damaged"):
        beat.entries(app, file)
    assert not made.exists()


def test_a_damaged_file_is_told(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK}
    run_beat(app, file)
    for each in file.parent.iterdir():
        each.write_bytes(each.read_bytes()[: each.stat().st_size // 2])

    with pytest.raises(ConfigError, match="or it is damaged"):
        beat.entries(app, file)


def test_a_file_that_beat_has_open_is_told(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK}
    run_beat(app, file)
    with next(file.parent.iterdir()).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as GNU's dbm does

        with pytest.raises(ConfigError, match="a celery beat has it open or writes it; stop it"):
            beat.entries(app, file)


# -- RedBeat


def save(app: Celery, name: str, every: Any, at: datetime | None = None, **given: Any) -> Any:
    """Add an entry to RedBeat's, as its users do."""
    entry = rb.RedBeatSchedulerEntry(name, "note", every, app=app, **given)
    entry.save()
    if at is not None:
        entry.reschedule(at)
    return entry


def test_entries_of_redbeat_go_on(app: Celery) -> None:
    at = ago(minutes=90)
    save(app, "every", schedule(3600), at, args=["x", 1], kwargs={"y": [2]}, options={"queue": "q"})
    save(app, "rounded", schedule(7200, relative=True), at)
    save(app, "crontab", crontab(minute=5, hour="*/2", day_of_week="mon-fri"), at, enabled=False)

    said = results(app, redbeat.entries(app))

    assert said == {"every": "added", "rounded": "added", "crontab": "added"}
    of = {
        name: Definition(name=name, task="note", schedule=when)
        for name, when in (
            ("crontab", crontab(minute=5, hour="*/2", day_of_week="mon-fri")),
            ("rounded", schedule(7200, relative=True)),
        )
    }
    every = Definition(
        name="every",
        task="note",
        schedule=schedule(3600),
        args=("x", 1),
        kwargs={"y": [2]},
        options={"queue": "q"},
    )
    ms = ms_of(at)
    assert entries(app) == [
        state(of["crontab"], at, None, at, status="paused"),
        state(every, at, ms + HOUR, at),
        state(of["rounded"], at, ms // HOUR * HOUR + 2 * HOUR, at),
    ]
    assert set(results(app, redbeat.entries(app)).values()) == {"kept"}


def test_redbeats_own_count_is_kept(app: Celery) -> None:
    entry = save(app, "a", schedule(3600))
    for _ in range(3):
        entry = next(entry)

    results(app, redbeat.entries(app))

    (found,) = entries(app)
    assert found.total_run_count == 3
    assert found.state.last == ms_of(entry.last_run_at)


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
        {"freq": "YEARLY", "bymonth": 3, "bymonthday": [1, -1], "count": 90},
        {"freq": "YEARLY", "byeaster": 1},
        {"freq": "YEARLY", "byweekno": [1, 20], "byweekday": 2},
        {"freq": "YEARLY", "byyearday": [100, 200]},
    ],
)
def test_rules_of_redbeat_have_the_same_ticks(
    rule: dict[str, Any], zone: str, start: datetime, make_app: MakeApp
) -> None:
    app = make_app(zone)
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


def test_static_entries_of_redbeat_are_those_in_code(make_app: MakeApp) -> None:
    old = make_app(stays=TASK, goes=TASK)
    rb.RedBeatScheduler(old, lock_key=None)
    at = ago(minutes=20)
    save(old, "stays", schedule(600), at)
    save(old, "dynamic", schedule(600), at)
    app = make_app(stays=TASK)

    said = results(app, redbeat.entries(app))

    assert said == {"stays": "added", "goes": "skipped", "dynamic": "added"}
    dynamic, stays = entries(app)
    assert (dynamic.definition.source, stays.definition.source) == ("api", "code shop")
    assert stays == state(stays.definition, at, ms_of(at) + HOUR, at), "the code says how often"


def test_other_keys_of_redbeat(make_app: MakeApp, delayq_redis: RedisUnderTest) -> None:
    theirs = make_app()
    theirs.conf.redbeat_key_prefix = "mine:"
    save(theirs, "a", schedule(60))
    app = make_app()

    assert results(app, redbeat.entries(app), dry_run=True) == {}
    assert results(app, redbeat.entries(app, delayq_redis.url + "/1", "mine:")) == {}
    assert results(theirs, redbeat.entries(theirs), dry_run=True) == {"a": "added"}
    assert results(app, redbeat.entries(app, delayq_redis.url, "mine:")) == {"a": "added"}
    expected = r"^'https://…@x': expected the URL of RedBeat's Redis"
    with pytest.raises(ConfigError, match=expected):
        list(redbeat.entries(app, "https://user:secret@x"))


def test_without_a_setting_redbeat_is_in_the_brokers_redis(make_app: MakeApp) -> None:
    save(make_app(), "a", schedule(60))
    app = make_app()
    del app.conf["redbeat_redis_url"]

    assert results(app, redbeat.entries(app)) == {"a": "added"}


def test_redbeat_behind_sentinels(
    make_app: MakeApp, delayq_redis_factory: Callable[..., EmbeddedRedis], tmp_path: Path
) -> None:
    password = "p@ss"
    master = delayq_redis_factory(password=password)
    with Sentinel(master, password, tmp_path / "sentinel") as sentinel:
        sentinel.wait_ready()
        app = make_app()
        app.conf.redbeat_redis_url = "redis-sentinel://"
        app.conf.redbeat_redis_options = {
            "sentinels": [("127.0.0.1", sentinel.port)],
            "service_name": MASTER_NAME,
            "password": password,
        }
        save(app, "a", schedule(60))

        assert results(app, redbeat.entries(app)) == {"a": "added"}


def test_what_is_wrong_in_redbeat_is_told_and_the_others_go_on(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    app = make_app(coded=TASK)
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
        "string": "none of RedBeat's", "gone": "its key is gone", "x" * 1001: "at most 1,000",
        "micro": "whole milliseconds",
    }.items():  # fmt: skip
        assert match in told[name], name


# -- django-celery-beat

_MANAGE = """
import json, sys
from datetime import *
import django
from django.conf import settings
database, migration, code = json.loads(sys.argv[1])
settings.configure(
    DATABASES={"default": database}, INSTALLED_APPS=["django_celery_beat"], USE_TZ=True,
    TIME_ZONE="Asia/Tokyo", DEFAULT_AUTO_FIELD="django.db.models.AutoField",
)
django.setup()
from django.core.management import call_command
call_command("migrate", "django_celery_beat", *migration, verbosity=0)
from django_celery_beat.models import *
exec(code)
"""


def run_django(url: str, code: str = "", migration: tuple[str, ...] = ()) -> None:
    """Let Django make its tables, and fill them."""
    parts = make_url(url)
    database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.database}
    if parts.get_backend_name() == "postgresql":
        database |= {
            "ENGINE": "django.db.backends.postgresql",
            "USER": parts.username,
            "PASSWORD": parts.password,
            "HOST": parts.host,
            "PORT": parts.port,
        }
    given = json.dumps([database, migration, code])
    done = subprocess.run(
        [sys.executable, "-c", _MANAGE, given], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def noted(url: str, name: str, what: str = "date_changed") -> datetime:
    """Return a moment that Django has written."""
    statement = f"select {what} from django_celery_beat_periodictask where name = '{name}'"
    ((found,),) = query(url, statement)
    at: datetime = datetime.fromisoformat(found) if isinstance(found, str) else found
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


_ALL = """
at = datetime(2026, 1, 5, 7, 30, tzinfo=timezone.utc)
hourly = IntervalSchedule.objects.create(every=1, period="hours")
quick = IntervalSchedule.objects.create(every=250_000, period="microseconds")
cron = CrontabSchedule.objects.create(minute="5", hour="*/2", timezone="America/New_York")
sun = SolarSchedule.objects.create(event="sunset", latitude="52.52", longitude="13.405")
once = ClockedSchedule.objects.create(clocked_time=datetime(2040, 1, 1, tzinfo=timezone.utc))
late = ClockedSchedule.objects.create(clocked_time=at)
make = PeriodicTask.objects.create
make(name="ran", task="note", interval=hourly, last_run_at=at, total_run_count=7,
     args='["x", 1]', kwargs='{"y": [2]}', queue="q", exchange="e", routing_key="r", priority=3,
     headers='{"h": "v"}', expire_seconds=60)
make(name="new", task="note", interval=quick)
make(name="off", task="note", interval=hourly, enabled=False)
make(name="ends", task="note", interval=hourly, last_run_at=at,
     expires=datetime(2040, 1, 1, tzinfo=timezone.utc))
make(name="ended", task="note", interval=hourly, last_run_at=at, expires=at + timedelta(days=3))
make(name="starts", task="note", interval=hourly,
     start_time=datetime(2040, 1, 1, tzinfo=timezone.utc))
make(name="cron", task="note", crontab=cron, last_run_at=at)
make(name="sun", task="note", solar=sun, last_run_at=at)
make(name="once", task="note", clocked=once, one_off=True)
make(name="late", task="note", clocked=late, one_off=True)
make(name="done", task="note", clocked=late, one_off=True, enabled=False)
make(name="ran once", task="note", interval=hourly, one_off=True, total_run_count=1)
"""


def test_entries_of_django_go_on(app: Celery, database: str) -> None:
    run_django(database, _ALL)

    said = results(app, django.entries(app, database))

    skipped = {name for name, what in said.items() if what == "skipped"}
    assert skipped == {"ended", "done", "ran once"}
    assert set(said.values()) == {"added", "skipped"}
    at, then = datetime(2026, 1, 5, 7, 30, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
    new, ms, end = noted(database, "new"), ms_of(at), ms_of(then)

    def of(name: str, when: BaseSchedule, **given: Any) -> Definition:
        given.setdefault("options", {"headers": {"periodic_task_name": name}})
        return Definition(name=name, task="note", schedule=when, **given)

    hour = schedule(3600)
    sent = {"queue": "q", "exchange": "e", "routing_key": "r", "priority": 3, "expires": 60}
    sent |= {"headers": {"h": "v", "periodic_task_name": "ran"}}
    ran = of("ran", hour, args=("x", 1), kwargs={"y": [2]}, options=sent)
    cron = of("cron", crontab("5", "*/2"), timezone="America/New_York")
    by_name = {entry.name: entry for entry in entries(app)}
    off = moment_of(by_name["off"].state.anchor)
    sunset = by_name["sun"].state.tick
    assert sunset is not None
    assert moment_of(sunset).replace(minute=0, second=0, microsecond=0) == at.replace(
        hour=15, minute=0
    ), "in Berlin, in winter"
    assert entries(app) == [
        state(cron, at, ms + 95 * MINUTE, at),
        state(of("ends", hour, end=then), at, ms + HOUR, at),
        state(of("late", clocked(at), max_runs=1), at - timedelta(milliseconds=1), ms, None),
        state(of("new", schedule(0.25)), new, ms_of(new) + 250, None),
        state(of("off", hour), off, None, None, status="paused"),
        state(of("once", clocked(then), max_runs=1), noted(database, "once"), end, None),
        state(ran, at, ms + HOUR, at, 7),
        state(of("starts", hour, start=then), then - timedelta(hours=1), end, None),
        state(of("sun", solar("sunset", 52.52, 13.405)), at, sunset, at),
    ]  # fmt: skip
    again = results(app, django.entries(app, database))
    assert {name: "kept" if what == "added" else what for name, what in said.items()} == again


def test_code_entries_in_django_are_as_the_code_says(make_app: MakeApp, database: str) -> None:
    app = make_app(a=TASK, off=TASK, broken={**TASK, "schedule": 0})
    run_django(
        database,
        "from celery_delayq.testing import *\n"
        "every = IntervalSchedule.objects.create(every=1, period='days')\n"
        "at = datetime(2026, 1, 5, 7, 30, tzinfo=timezone.utc)\n"
        "for name in ('a', 'off', 'broken', 'celery.backend_cleanup'):\n"
        "    PeriodicTask.objects.create(name=name, task='t', interval=every,\n"
        "        enabled=name != 'off', args='nothing', last_run_at=at)\n"
        "PeriodicTask.objects.filter(name='celery.backend_cleanup').update(args='[]')\n",
    )

    said = results(app, django.entries(app, database))

    at = datetime(2026, 1, 5, 7, 30, tzinfo=UTC)
    assert said["a"] == "added"
    assert said["broken"] == "refused"
    assert said["celery.backend_cleanup"] == "skipped"
    a = entries(app)[0]
    assert a == state(a.definition, at, ms_of(at) + HOUR, at)
    assert (a.definition.source, a.definition.task) == ("code shop", "note")


@pytest.mark.parametrize("migration", ["0001", "0005", "0009"])
def test_tables_of_older_versions(app: Celery, tmp_path: Path, migration: str) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    run_django(url, migration=(f"{migration}",))
    query(url, "insert into django_celery_beat_intervalschedule values (1, 5, 'minutes')")
    columns = [row[1] for row in query(url, "pragma table_info(django_celery_beat_periodictask)")]
    row = dict.fromkeys(columns, "null") | {
        "id": "1", "name": "'a'", "task": "'note'", "args": "'[]'", "kwargs": "'{}'",
        "interval_id": "1", "enabled": "1", "last_run_at": "'2026-01-05 07:30:00'",
        "total_run_count": "3", "date_changed": "'2026-01-05 07:30:00.25'", "description": "''",
    }  # fmt: skip
    row |= {each: "'{}'" for each in ("headers",) if each in columns}
    row |= {each: "0" for each in ("one_off",) if each in columns}
    query(
        url,
        f"insert into django_celery_beat_periodictask ({', '.join(row)}) "
        f"values ({', '.join(row.values())})",
    )

    assert results(app, django.entries(app, url)) == {"a": "added"}
    at = datetime(2026, 1, 5, 7, 30, tzinfo=UTC)
    definition = Definition(
        name="a",
        task="note",
        schedule=schedule(300),
        options={"headers": {"periodic_task_name": "a"}},
    )
    assert entries(app) == [state(definition, at, ms_of(at) + 5 * MINUTE, at, 3)]


def test_what_is_wrong_in_django_is_told_and_the_others_go_on(app: Celery, database: str) -> None:
    run_django(
        database,
        "made = dict(task='note', interval=IntervalSchedule.objects.create(every=5, "
        "period='minutes'))\n"
        "names = 'good args list headers taskless period never crontab'.split()\n"
        "for name in names: PeriodicTask.objects.create(name=name, **made)\n"
        "def change(name, **fields): PeriodicTask.objects.filter(name=name).update(**fields)\n"
        "change('args', args='{nothing')\n"
        "change('list', kwargs='[1]')\n"
        "change('headers', headers='x')\n"
        "change('taskless', task='')\n"
        "change('period', interval=IntervalSchedule.objects.create(every=5, period='moons'))\n"
        "never = CrontabSchedule(minute='0', day_of_month='31', month_of_year='2')\n"
        "never.save(); change('never', interval=None, crontab=never)\n"
        "wrong = CrontabSchedule(minute='often'); wrong.save()\n"
        "change('crontab', interval=None, crontab=wrong)\n"
        "PeriodicTask(name='none', task='note').save_base()\n",
    )

    said = results(app, django.entries(app, database))

    assert {name for name, what in said.items() if what != "refused"} == {"good"}
    told = problems(django.entries(app, database))
    for name, match in {
        "args": "args='{nothing': expected JSON", "list": "kwargs='[1]': expected an object",
        "headers": "headers='x': expected JSON", "taskless": "task='': expected a text",
        "period": "period='moons': expected one of days", "never": "31", "crontab": "often",
        "none": "it has no schedule: expected one of interval",
    }.items():  # fmt: skip
        assert match in told[name], name


def test_a_database_without_such_tables(app: Celery, database: str, tmp_path: Path) -> None:
    query(database, "create table x (id int)")

    with pytest.raises(
        TransferError, match="there is no table django_celery_beat_periodictask"
    ) as e:
        django.entries(app, database)
    assert "hunter2" not in str(e.value)
    with pytest.raises(TransferError, match="no such file"):
        django.entries(app, f"sqlite:///{tmp_path}/missing.db")


# -- then


def test_entries_that_were_taken_over_are_fired(
    app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    diary = Diary(delayq_redis)
    # The last of its ticks is half an hour ago: one of this second would not be missed, but due.
    at, ancient = ago(seconds=100), ago(days=900, minutes=30)
    save(app, "often", schedule(0.5), at)
    save(app, "ancient", schedule(3600), ancient)
    save(app, "off", schedule(0.5), at, enabled=False)
    assert set(results(app, redbeat.entries(app)).values()) == {"added"}

    start(delayq_worker)
    wait_until(lambda: len(diary.ticks("often")) >= 5, TIMEOUT, "five ticks")

    assert {(tick - ms_of(at)) % 500 for tick in diary.ticks("often")} == {0}
    (caught_up,) = diary.ticks("ancient")
    assert (caught_up - ms_of(ancient)) % HOUR == 0
    assert 0 <= diary.now() * 1000 - caught_up <= HOUR + MINUTE
    assert diary.ticks("off") == []


def test_one_takes_the_place_of_another_only_when_told_to(app: Celery) -> None:
    mine = DelayQ.of(app).periodic.add("a", 60, "note", ["mine"])
    at = ago(minutes=30)
    save(app, "a", schedule(3600), at)

    assert results(app, redbeat.entries(app)) == {"a": "kept"}
    assert entries(app) == [mine]
    assert results(app, redbeat.entries(app), replace=True, dry_run=True) == {"a": "replaced"}
    assert entries(app) == [mine]
    assert results(app, redbeat.entries(app), replace=True) == {"a": "replaced"}

    definition = Definition(name="a", task="note", schedule=schedule(3600))
    assert entries(app) == [state(definition, at, ms_of(at) + HOUR, at)]


def test_what_was_fired_here_already_is_not_fired_again(
    app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> None:
    diary = Diary(delayq_redis)
    at = ago(seconds=100)
    save(app, "a", schedule(0.5), at)
    results(app, redbeat.entries(app))
    start(delayq_worker)
    wait_until(lambda: len(diary.ticks("a")) >= 3, TIMEOUT, "three ticks")

    DelayQ.of(app).periodic.update("a", args=["x"])
    (before,) = entries(app)
    assert results(app, redbeat.entries(app), replace=True) == {"a": "replaced"}
    (after,) = entries(app)
    seen = len(diary.ticks("a"))
    wait_until(lambda: len(diary.ticks("a")) >= seen + 8, TIMEOUT, "more ticks")

    assert after.definition.args == ()
    assert after.state.anchor == before.state.anchor
    ticks = diary.ticks("a")
    assert len(ticks) == len({*ticks})
    assert {after - before for before, after in pairwise(ticks[1:])} == {500}


# -- on the command line


def test_the_file_of_beat_is_taken_over_by_a_command(make_app: MakeApp, file: Path) -> None:
    run_beat(make_app(gone=TASK, stays=TASK), file)
    cli = CommandLine(app := make_app(stays=TASK))
    command = ("periodic", "import", "--from", "beat", str(file))

    dry = cli(*command, "--dry-run")
    assert (dry.code, entries(app)) == (0, [])
    assert "1 skipped" in dry.out
    assert "A dry run, nothing was changed." in dry.out
    done = cli(*command)

    assert done.code == 0
    assert "added  stays  every 1h" in done.out
    assert [entry.name for entry in entries(app)] == ["stays"]
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
    run_django(database, _ALL)
    cli = CommandLine(app)

    done = cli("periodic", "import", "--from", "django-celery-beat", database, "--json")

    told = [json.loads(line) for line in done.out.splitlines()]
    assert {each["name"] for each in told if each["result"] == "added"} == {
        entry.name for entry in entries(app)
    }
    without = cli("periodic", "import", "--from", "django-celery-beat")
    assert (without.code, "give the URL of Django's database" in without.err) == (2, True)


def test_a_list_is_a_backup(make_app: MakeApp, delayq_redis: RedisUnderTest, file: Path) -> None:
    delayq = DelayQ.of(app := make_app())
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
    make_app: MakeApp, delayq_redis: RedisUnderTest, file: Path
) -> None:
    cleanup = {"celery.backend_cleanup": TASK}
    older, other = make_app(stays=TASK, gone=TASK), make_app(billing=TASK, **cleanup)
    other.main = "billing"
    for app in (older, other):
        Deployment(app).keep(DelayQ.of(app).store)
    periodic = DelayQ.of(older).periodic
    periodic.add("mine", 10, "note", max_runs=9)
    for name in ("stays", "billing", "mine"):
        periodic.pause(name)
    before = {entry.name: entry for entry in entries(older)}
    file.write_text(CommandLine(older)("periodic", "list", "--json").out)
    delayq_redis.client.flushdb()
    # The code has changed since, and has an entry of the name of one that a call made.
    app = make_app(stays={**TASK, "schedule": 60.0}, mine=TASK)

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
    ("source", "place", "told"),
    [
        ("list", "missing", "missing"),
        ("beat", "missing", "missing"),
        ("redbeat", "redis://127.0.0.1:1/0", "127.0.0.1:1"),
        ("django-celery-beat", "sqlite:///missing.db", "missing.db"),
        ("django-celery-beat", "mysql://root:hunter2@localhost/shop", "mysql"),
    ],
)
def test_a_place_where_there_is_none_is_told(
    app: Celery, source: str, place: str, told: str
) -> None:
    done = CommandLine(app)("periodic", "import", "--from", source, place)

    assert (done.code, done.out) == (1, "")
    assert told in done.err
    assert "hunter2" not in done.err
