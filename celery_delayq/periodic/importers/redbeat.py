"""Reads entries of RedBeat from Redis: hashes with JSON. Does not need RedBeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule
from dateutil.rrule import FREQNAMES, weekday
from dateutil.rrule import rrule as dateutil_rrule
from redis import Redis
from redis.sentinel import Sentinel

from celery_delayq.errors import ConfigError
from celery_delayq.integration.beat_guard import redbeat_setting
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.importers import FoundEntry, code_of, found_by
from celery_delayq.periodic.rrule import rrule
from celery_delayq.store.session import Session
from celery_delayq.utils import foreign
from celery_delayq.utils.credentials import hide
from celery_delayq.utils.portions import batches

#: The default of RedBeat.
PREFIX = "redbeat:"

_PAGE_ENTRIES = 500

#: Most entries of one round trip, because the arguments of entries may be large.
_FEW_ENTRIES = 10


def entries(app: Celery, url: str | None = None) -> Iterator[FoundEntry]:
    """Read the keys of RedBeat, and leave them unchanged.

    Parameters
    ----------
    url : str | None
        URL of RedBeat's Redis, such as ``redis://localhost:6379/0``. None for the setting
        ``redbeat_redis_url``; without this setting, the Redis of the broker.

    Raises
    ------
    ConfigError
        *url* is invalid. Or there is no URL, and the app's broker is a Redis Cluster or not of this
        package.
    redis.exceptions.RedisError
        Redis cannot be reached, or refuses a command.
    """
    prefix = redbeat_setting(app, "redbeat_key_prefix") or PREFIX
    code = code_of(app)
    client = _client(app, url or redbeat_setting(app, "redbeat_redis_url"))
    session = Session(app)
    if client is None:
        stores = session.stores
        if not stores.has_one:
            raise ConfigError(
                "the broker is a Redis Cluster, where RedBeat has no entries: give the URL of its "
                "Redis, or set redbeat_redis_url"
            )
        client = stores.only.client
    try:
        statics = {_text(name) for name in client.smembers(f"{prefix}:statics")}
        keys = sorted(
            {key for key, _ in client.zscan_iter(f"{prefix}:schedule", count=_PAGE_ENTRIES)}
        )
        for page in batches(keys, _FEW_ENTRIES):
            with client.pipeline(transaction=False) as pipe:
                for key in page:
                    pipe.hmget(key, "definition", "meta")
                records = pipe.execute(raise_on_error=False)
            for key, record in zip(page, records, strict=True):
                name = _text(key).removeprefix(prefix)
                found = found_by(partial(_read, record, app.timezone), name)
                if found.name in statics and found.name not in code:
                    problem = "it is not in the code any more; RedBeat forgets it, too"
                    found = FoundEntry(name=found.name, problem=problem, over=True)
                yield found
    finally:
        client.close()
        session.close()


def _client(app: Celery, url: str | None) -> Any:
    """Return a client for a URL, with the settings of RedBeat; None without a URL."""
    if url is None:
        return None
    scheme, _, rest = url.removeprefix("delayq+").partition("://")
    options = dict(redbeat_setting(app, "redbeat_redis_options") or {})
    ssl = redbeat_setting(app, "redbeat_redis_use_ssl")
    options |= ssl if isinstance(ssl, Mapping) else {}
    sentinels, service = options.pop("sentinels", None), options.pop("service_name", "master")
    for name in ("retry_period", "cluster", "startup_nodes"):
        options.pop(name, None)
    if scheme == "redis-sentinel" and sentinels:
        return Sentinel(sentinels, **options).master_for(service)
    try:
        return Redis.from_url(f"{scheme.replace('redis+socket', 'unix')}://{rest}", **options)
    except ValueError:  # the error's text may have a part of a password
        raise ConfigError(
            f"{hide(url)}: expected the URL of RedBeat's Redis, such as redis://localhost:6379/0, "
            "or redis-sentinel:// with sentinels in redbeat_redis_options"
        ) from None


def _text(given: bytes | str) -> str:
    return given if isinstance(given, str) else given.decode("utf-8", "replace")


# -- records


def _read(record: Any, zone: tzinfo, found: FoundEntry) -> None:
    if isinstance(record, Exception):
        raise ConfigError(f"it is not a key of RedBeat: {record}")
    text, meta_text = record
    if text is None:
        found.problem, found.over = "its key is gone; RedBeat forgets it, too", True
        return
    data = _decoded(text)
    found.name = str(data.get("name") or found.name)
    found.enabled = bool(data.get("enabled", True))
    meta = _decoded(meta_text) if meta_text else {}
    last_run_at, count = meta.get("last_run_at"), meta.get("total_run_count") or 0
    if not (last_run_at is None or isinstance(last_run_at, datetime)) or not isinstance(count, int):
        raise ConfigError(f"meta={meta!r}: expected last_run_at and total_run_count")
    found.last_run_at, found.total_run_count = last_run_at, max(0, count)
    when, zone_name = _schedule(data.get("schedule"), zone)
    found.definition = Definition.from_fields(
        when,
        name=found.name,
        task=data.get("task"),
        args=data.get("args") or (),
        kwargs=data.get("kwargs") or {},
        options=data.get("options") or {},
        timezone=zone_name,
    )


def _decoded(text: bytes | str) -> dict[str, Any]:
    data = foreign.loads(text, object_hook=_hook)
    if not isinstance(data, dict):
        raise ValueError(f"{data!r}: expected an object")
    return data


def _hook(data: dict[str, Any]) -> Any:
    """Return the datetime of an object that RedBeat wrote for a datetime; else the object."""
    if data.get("__type__") != "datetime":
        return data
    given = {name: value for name, value in data.items() if name != "__type__"}
    zone = given.pop("timezone", "UTC")
    tz = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
    return datetime(**given, tzinfo=tz)


def _schedule(data: Any, zone: tzinfo) -> tuple[BaseSchedule, str | None]:
    """Return a schedule and the name of its time zone; None for the app's time zone."""
    if not isinstance(data, dict):
        raise ConfigError(f"schedule={data!r}: expected a schedule as RedBeat writes it")
    fields = {name: value for name, value in data.items() if name != "__type__"}
    kind = data.get("__type__")
    if kind == "interval":
        return schedule(fields["every"], bool(fields.get("relative"))), None
    if kind == "crontab":
        return crontab(**fields), None
    if kind == "rrule":
        return _rrule(fields, zone)
    raise ConfigError(f"schedule of the type {kind!r}: expected interval, crontab or rrule")


def _rrule(given: Mapping[str, Any], zone: tzinfo) -> tuple[rrule, str | None]:
    rule = {name: value for name, value in given.items() if value is not None}
    rule.pop("until_tz", None)
    offset = timedelta(minutes=rule.pop("dtstart_tz", 0))
    start, until = _moment(rule.pop("dtstart", None)), _moment(rule.pop("until", None))
    if isinstance(rule["freq"], str):
        rule["freq"] = FREQNAMES.index(rule["freq"].upper())
    for name in {"wkst", "byweekday"} & rule.keys():
        rule[name] = _day(rule[name])
    text = str(dateutil_rrule(**rule)).rpartition("RRULE:")[2]
    if until is not None:
        text += f";UNTIL={until:%Y%m%dT%H%M%SZ}"
    return rrule(text, start), None if start is None else _zone_name(offset, zone, start)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def _day(given: Any) -> Any:
    """Return a weekday, or a list of weekdays, as values of dateutil."""
    if isinstance(given, list):
        return [_day(each) for each in given]
    return weekday(given["wkday"], given.get("n") or None) if isinstance(given, dict) else given


def _zone_name(offset: timedelta, zone: tzinfo, start: datetime) -> str | None:
    """Return the name of a time zone with a constant *offset*; None for the app's time zone.

    RedBeat stores the offset of a start, but not the time zone. So its rules ignore daylight
    saving.
    """
    if not offset:
        return "UTC"
    months = [start.replace(month=month, day=1) for month in (1, 7)]
    if all(zone.utcoffset(each.astimezone(zone)) == offset for each in (start, *months)):
        return None
    hours = offset / timedelta(hours=1)
    if hours != int(hours):
        raise ConfigError(
            f"dtstart is {hours:g} hours from UTC, and no zone is so all the year: add it by "
            "delayq.periodic.add with the timezone that is meant"
        )
    return f"Etc/GMT{-int(hours):+d}"  # names of Etc zones have the opposite sign
