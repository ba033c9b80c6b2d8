"""Entries of django-celery-beat go on where they were."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_delayq.errors import TransferError
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.importers import django
from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.wall_clock import datetime_of_ms, ms_of_datetime
from tests.integration.conftest import query
from tests.integration.periodic.conftest import MakeShop
from tests.integration.periodic.importing import (
    EVERY_KIND,
    TASK,
    defined,
    entries,
    problems,
    results,
    run_django,
    state,
)
from tests.support.periodic import HOUR, MINUTE, UTC


def noted(url: str, name: str, what: str = "date_changed") -> datetime:
    """Return a moment that Django has written."""
    statement = f"select {what} from django_celery_beat_periodictask where name = '{name}'"
    ((found,),) = query(url, statement)
    at: datetime = datetime.fromisoformat(found) if isinstance(found, str) else found
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def test_entries_of_django_go_on(app: Celery, database: str) -> None:
    run_django(database, EVERY_KIND)

    said = results(app, django.entries(app, database))

    skipped = {name for name, what in said.items() if what == "skipped"}
    assert skipped == {"ended", "done", "ran once"}
    assert set(said.values()) == {"added", "skipped"}
    at, then = datetime(2026, 1, 5, 7, 30, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
    new, ms, end = noted(database, "new"), ms_of_datetime(at), ms_of_datetime(then)

    def of(name: str, when: BaseSchedule, **given: Any) -> Definition:
        given.setdefault("options", {"headers": {"periodic_task_name": name}})
        return defined(name, when, **given)

    hour = schedule(3600)
    sent = {"queue": "q", "exchange": "e", "routing_key": "r", "priority": 3, "expires": 60}
    sent |= {"headers": {"h": "v", "periodic_task_name": "ran"}}
    ran = of("ran", hour, args=("x",), kwargs={"seconds": [2]}, options=sent)
    cron = of("cron", crontab("5", "*/2"), timezone="America/New_York")
    by_name = {entry.name: entry for entry in entries(app)}
    off = datetime_of_ms(by_name["off"].state.anchor)
    sunset = by_name["sun"].state.next_tick
    assert sunset is not None
    assert f"{datetime_of_ms(sunset):%F %H}" == "2026-01-05 15", "in Berlin, in winter"
    assert entries(app) == [
        state(cron, at, ms + 95 * MINUTE, at),
        state(of("ends", hour, end=then), at, ms + HOUR, at),
        state(of("late", clocked(at), max_runs=1), at - timedelta(milliseconds=1), ms, None),
        state(of("new", schedule(0.25)), new, ms_of_datetime(new) + 250, None),
        state(of("off", hour), off, None, None, status="paused"),
        state(of("once", clocked(then), max_runs=1), noted(database, "once"), end, None),
        state(ran, at, ms + HOUR, at, 7),
        state(of("starts", hour, start=then), then - timedelta(hours=1), end, None),
        state(of("sun", solar("sunset", 52.52, 13.405)), at, sunset, at),
    ]  # fmt: skip
    again = results(app, django.entries(app, database))
    assert {name: "kept" if what == "added" else what for name, what in said.items()} == again


def test_code_entries_in_django_are_as_the_code_says(make_shop: MakeShop, database: str) -> None:
    app = make_shop(a=TASK, off=TASK, broken={**TASK, "schedule": 0})
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
    assert a == state(a.definition, at, ms_of_datetime(at) + HOUR, at)
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
    options = {"headers": {"periodic_task_name": "a"}}
    definition = defined("a", schedule(300), options=options)
    assert entries(app) == [state(definition, at, ms_of_datetime(at) + 5 * MINUTE, at, 3)]


def test_an_invalid_row_is_refused_and_the_others_are_imported(app: Celery, database: str) -> None:
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

    told = "there is no table django_celery_beat_periodictask"
    with pytest.raises(TransferError, match=told) as e:
        django.entries(app, database)
    assert "hunter2" not in str(e.value)
    with pytest.raises(TransferError, match="no such file"):
        django.entries(app, f"sqlite:///{tmp_path}/missing.db")
