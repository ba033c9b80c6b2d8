"""Periodic entries in code: ``beat_schedule`` and ``add_periodic_task``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone, tzinfo
from hashlib import blake2b
from typing import Any

from celery import Celery
from celery.backends.base import DisabledBackend
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, maybe_schedule

from celery_delayq.errors import ConfigError, DelayQError, InvalidSchedule
from celery_delayq.periodic.definition import Definition, definition_hash_of
from celery_delayq.periodic.schedules import Interval, Once, register

logger = logging.getLogger(__name__)

#: Fields that celery beat does not have. An entry in code may also give them in ``options``.
OWN_OPTIONS = ("timezone", "start", "end", "max_runs", "catch_up", "catch_up_max", "overlap")

#: Fields of beat's entries that are ignored, because their values are in Redis.
_IGNORED_FIELDS = frozenset({"name", "app", "last_run_at", "total_run_count"})


def source_of(app: Celery) -> str:
    """Return the source of the entries in the code of an app."""
    return f"code {app.main or ''}".strip()


def register_schedules(app: Celery) -> None:
    """Register the classes of schedules in the code of an app."""
    for entry in dict(app.conf.beat_schedule or {}).values():
        given = entry.get("schedule") if isinstance(entry, Mapping) else None
        if isinstance(given, BaseSchedule):
            with suppress(InvalidSchedule):  # reported when the entry is written
                register(type(given))


def definitions_of(app: Celery) -> Iterator[tuple[str, Definition | DelayQError]]:
    """Yield the name of each entry in code, with its definition or error."""
    given = dict(app.conf.beat_schedule or {})
    keeps_results = not isinstance(app.backend, DisabledBackend)
    if keeps_results and app.conf.result_expires and not app.backend.supports_autoexpire:
        # Celery beat adds the same entry.
        given.setdefault(
            "celery.backend_cleanup",
            {
                "task": "celery.backend_cleanup",
                "schedule": crontab("0", "4", "*"),
                "options": {"expires": 12 * 3600},
            },
        )
    for key, entry in given.items():
        name = str(key)
        try:
            yield name, definition_of(name, entry, source_of(app), app.timezone)
        except DelayQError as exc:
            yield name, exc
        except Exception as exc:  # entries are user code
            yield name, ConfigError(f"{type(exc).__name__}: {exc}")


def definition_of(name: str, entry: Any, source: str, zone: tzinfo) -> Definition:
    """Return the definition of an entry of ``beat_schedule``; *zone* is the app's time zone.

    Raises
    ------
    ConfigError
        The entry is invalid.
    """
    if isinstance(entry, ScheduleEntry):
        entry = {
            each: getattr(entry, each) for each in ("task", "schedule", "args", "kwargs", "options")
        }
    if not isinstance(entry, Mapping):
        raise ConfigError(f"expected a mapping with task and schedule, got {entry!r}")
    fields = {field: value for field, value in entry.items() if field not in _IGNORED_FIELDS}
    options = fields.pop("options", None) or {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"options={options!r}: expected a mapping by names")
    options = dict(options)
    given = {field: options.pop(field) for field in OWN_OPTIONS if field in options}
    relative = fields.pop("relative", False)
    schedule = fields.pop("schedule", None)
    known = {"task", "args", "kwargs", *OWN_OPTIONS}
    if unknown := sorted(str(field) for field in fields if field not in known):
        raise ConfigError(
            f"unknown: {', '.join(unknown)}; valid are: "
            f"{', '.join(sorted({*known, 'schedule', 'options', 'relative'}))}"
        )
    if relative:
        schedule = maybe_schedule(schedule, relative)
    given |= {field: value for field, value in fields.items() if value is not None}
    return Definition.from_fields(
        schedule,
        zone=zone,
        **{"task": "", **given, "name": name, "options": options, "source": source},
    )


def code_hash_of(definition: Definition, zone: tzinfo) -> str:
    """Return a hash that changes when the code of an entry changes; *zone* is the app's time zone.

    The hash depends on *zone* if the entry has no time zone and its ticks depend on the time zone.
    """
    definition_hash = definition_hash_of(definition)
    if definition.timezone is not None or isinstance(definition.rule(0, zone), (Interval, Once)):
        return definition_hash
    return blake2b(f"{definition_hash} {_named(zone)}".encode(), digest_size=6).hexdigest()


def _named(zone: tzinfo) -> str:
    """Return a text for a time zone that is the same in all processes."""
    if isinstance(zone, timezone):
        return str(zone)
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # zone: pytz
    if name:
        return str(name)
    # The local time zone of a host has no name. Use its UTC offsets in January and July.
    offsets = [zone.utcoffset(datetime(2024, month, 1)) for month in (1, 7)]
    return f"{type(zone).__qualname__} {offsets[0]} {offsets[1]}"
