"""Filling what periodic entries are imported from, and what an import makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import redbeat as rb  # type: ignore[import-untyped]
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import BaseSchedule
from sqlalchemy.engine import make_url

from celery_delayq import DelayQ
from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.entries import Periodic, PeriodicState, Status
from celery_delayq.periodic.importers import FoundEntry, take_over
from celery_delayq.periodic.wall_clock import ms_of_datetime
from celery_delayq.store.session import Session
from tests.support import TIMEOUT
from tests.support.periodic import UTC

TASK = {"task": "note", "schedule": 3600.0}


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


def defined(name: str, when: BaseSchedule, **given: Any) -> Definition:
    return Definition(name=name, task="note", schedule=when, **given)


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
            anchor=ms_of_datetime(anchor),
            next_tick=tick,
            last_tick=None if last is None else ms_of_datetime(last),
            count=count,
            status=status,
        ),
    )


def run_beat(app: Celery, file: Path, **last_run_at: datetime) -> None:
    """Let beat note its entries, and run those that are due since their last run."""
    scheduler = PersistentScheduler(app, schedule_filename=str(file))
    for name, at in last_run_at.items():
        scheduler.schedule[name].last_run_at = at
    while scheduler.tick() == 0:
        pass
    scheduler.close()


def save(app: Celery, name: str, every: Any, at: datetime | None = None, **given: Any) -> Any:
    """Add an entry to RedBeat's, as its users do."""
    entry = rb.RedBeatSchedulerEntry(name, "note", every, app=app, **given)
    entry.save()
    if at is not None:
        entry.reschedule(at)
    return entry


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
        database |= {"ENGINE": "django.db.backends.postgresql", "USER": parts.username}
        database |= {"PASSWORD": parts.password, "HOST": parts.host, "PORT": parts.port}
    given = json.dumps([database, migration, code])
    done = subprocess.run(
        [sys.executable, "-c", _MANAGE, given], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr


EVERY_KIND = """
at = datetime(2026, 1, 5, 7, 30, tzinfo=timezone.utc)
hourly = IntervalSchedule.objects.create(every=1, period="hours")
quick = IntervalSchedule.objects.create(every=250_000, period="microseconds")
cron = CrontabSchedule.objects.create(minute="5", hour="*/2", timezone="America/New_York")
sun = SolarSchedule.objects.create(event="sunset", latitude="52.52", longitude="13.405")
once = ClockedSchedule.objects.create(clocked_time=datetime(2040, 1, 1, tzinfo=timezone.utc))
late = ClockedSchedule.objects.create(clocked_time=at)
make = PeriodicTask.objects.create
make(name="ran", task="note", interval=hourly, last_run_at=at, total_run_count=7,
     args='["x"]', kwargs='{"seconds": [2]}', queue="q", exchange="e", routing_key="r", priority=3,
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
