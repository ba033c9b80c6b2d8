"""Reads entries from the tables of django-celery-beat. Needs SQLAlchemy, but not Django."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from sqlalchemy import Connection, column, inspect, select, table, text

from celery_delayq.errors import ConfigError, TransferError
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.importers import FoundEntry, found_by, in_utc
from celery_delayq.periodic.schedules import clocked
from celery_delayq.periodic.wall_clock import MILLISECOND
from celery_delayq.utils import foreign
from celery_delayq.utils.sql import Database

_PREFIX = "django_celery_beat_"
_TASKS = "periodictask"

#: Kinds of schedules by the prefix of their column, in the order in which django-celery-beat
#: checks.
_SCHEDULES = ("interval", "crontab", "solar", "clocked")

_PERIODS = ("days", "hours", "minutes", "seconds", "microseconds")
_CRONTAB = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")

Row = Mapping[str, Any]


def entries(app: Celery, url: str) -> Iterator[FoundEntry]:  # noqa: ARG001 - as of all sources
    """Read the tables of django-celery-beat, and leave them unchanged.

    Parameters
    ----------
    url : str
        URL of the database, such as ``postgresql://user:password@host/shop`` or
        ``sqlite:////srv/shop/db.sqlite3``. Times without a time zone count as UTC.

    Raises
    ------
    TransferError
        The database or its tables do not exist.
    """
    database = Database.of(url)
    database.expect_file()
    with database.connected() as connection:
        there = set(inspect(connection).get_table_names())
        if f"{_PREFIX}{_TASKS}" not in there:
            raise TransferError(
                f"{database}: there is no table {_PREFIX}{_TASKS}; expected the database in which "
                "django-celery-beat keeps its entries"
            )
        rows = _rows(connection, _TASKS, there, "name")
        schedules = {
            kind: {row["id"]: row for row in _rows(connection, f"{kind}schedule", there)}
            for kind in _SCHEDULES
        }
    return (found_by(partial(_read, row, schedules), str(row.get("name"))) for row in rows)


def _rows(connection: Connection, name: str, there: set[str], order: str = "id") -> list[Row]:
    """Return the rows of a table with raw values, so that a bad value affects only its row."""
    full = f"{_PREFIX}{name}"
    if full not in there:
        return []
    statement = select(text("*")).select_from(table(full)).order_by(column(order))
    return [dict(row._mapping) for row in connection.execute(statement)]


def _read(row: Row, schedules: Mapping[str, Mapping[Any, Row]], found: FoundEntry) -> None:
    found.enabled = bool(row.get("enabled", True))
    found.problem = _why_finished(row, found.enabled)
    found.over = found.problem is not None
    if found.over:
        return
    # All values are read before the first is set: a row that cannot be read must look as if it had
    # never run.
    changed, last_run_at = _moment(row, "date_changed"), _moment(row, "last_run_at")
    total_run_count = int(row.get("total_run_count") or 0)
    found.last_run_at, found.total_run_count = last_run_at, total_run_count
    found.since = changed if found.enabled and last_run_at is None else None
    when, zone = _schedule(row, schedules)
    start = _moment(row, "start_time")
    found.definition = Definition.from_fields(
        when,
        name=found.name,
        task=row.get("task"),
        args=_json(row, "args", []),
        kwargs=_json(row, "kwargs", {}),
        options=_options(row, found.name),
        timezone=zone,
        start=start,
        end=_moment(row, "expires"),
        max_runs=1 if row.get("one_off") else None,
    )
    found.since = _start_of_intervals(found, when, start)


def _why_finished(row: Row, enabled: bool) -> str | None:
    """Return the reason why an entry that runs once is never due again, or None."""
    if not row.get("one_off"):
        return None
    if row.get("total_run_count"):
        return "it was to run once, and has run"
    # django-celery-beat disables the entry after the run, and may reset the number of runs.
    return None if enabled else "it was to run once, and is disabled, as it is when it has run"


def _start_of_intervals(
    found: FoundEntry, when: BaseSchedule, start: datetime | None
) -> datetime | None:
    """Return the start of the intervals, so that one tick is exactly at *start*."""
    if start is not None and (found.last_run_at is None or found.last_run_at < start):
        return start - (when.run_every if isinstance(when, schedule) else MILLISECOND)
    if isinstance(when, clocked) and found.since is not None:
        return min(found.since, when.at - MILLISECOND)
    return found.since


def _schedule(
    row: Row, schedules: Mapping[str, Mapping[Any, Row]]
) -> tuple[BaseSchedule, str | None]:
    """Return a schedule and the name of its time zone; None for the app's time zone."""
    kind = next((each for each in _SCHEDULES if row.get(f"{each}_id") is not None), None)
    if kind is None:
        raise ConfigError(f"it has no schedule: expected one of {', '.join(_SCHEDULES)}")
    given = schedules[kind].get(row[f"{kind}_id"])
    if given is None:
        raise ConfigError(f"its {kind} is not there any more: expected a row of {kind}schedule")
    if kind == "interval":
        if given["period"] not in _PERIODS:
            raise ConfigError(f"period={given['period']!r}: expected one of {', '.join(_PERIODS)}")
        return schedule(timedelta(**{given["period"]: given["every"]})), None
    if kind == "crontab":
        zone = given.get("timezone")
        return crontab(**{each: given[each] for each in _CRONTAB}), zone and str(zone)
    if kind == "solar":
        return solar(given["event"], float(given["latitude"]), float(given["longitude"])), None
    at = _moment(given, "clocked_time")
    if at is None:
        raise ConfigError("clocked_time=None: expected a moment")
    return clocked(at), None


def _options(row: Row, name: str) -> dict[str, Any]:
    given = {each: row.get(each) for each in ("queue", "exchange", "routing_key", "priority")}
    options = {each: value for each, value in given.items() if value not in (None, "")}
    if row.get("expire_seconds"):
        options["expires"] = row["expire_seconds"]
    # django-celery-beat sends this header, and django-celery-results stores it.
    options["headers"] = {**_json(row, "headers", {}), "periodic_task_name": name}
    return options


def _json(row: Row, field: str, expected: Any) -> Any:
    """Return the JSON in a column, or *expected* if the field is empty."""
    try:
        found = foreign.loads(row.get(field) or "null")
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"{field}={row.get(field)!r}: expected JSON, {exc}") from exc
    if found is None:
        return expected
    if not isinstance(found, type(expected)):
        kind = "a list" if isinstance(expected, list) else "an object"
        raise ConfigError(f"{field}={row.get(field)!r}: expected {kind} in JSON")
    return found


def _moment(row: Row, field: str) -> datetime | None:
    """Return the moment in a column, in UTC."""
    found = row.get(field)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError as exc:
            raise ConfigError(f"{field}={found!r}: expected a date and time, {exc}") from exc
    if found is None:
        return None
    if not isinstance(found, datetime):
        raise ConfigError(f"{field}={found!r}: expected a date and time")
    return in_utc(found)
