"""Schedules as JSON and as text for people. A class is stored by its import path, never pickled."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedule, solar
from kombu.utils.json import dumps, loads

from celery_delayq.errors import InvalidSchedule, ScheduleNotImportable
from celery_delayq.periodic.crontab import crontab_text, read_crontab
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import clocked, path_of, register, registered

_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}


def dumps_form(given: BaseSchedule) -> dict[str, Any]:
    """Return the JSON form of a schedule.

    Raises
    ------
    InvalidSchedule
        ``__reduce__`` of the app's own class does not return the class and arguments of JSON.
    """
    kind = type(given)
    if kind is schedule:
        if not isinstance(given.run_every, timedelta):
            raise InvalidSchedule(f"every {given.run_every!r}: expected seconds or a timedelta")
        every = given.run_every.total_seconds()
        seconds = int(every) if every == int(every) else every
        return {"every": seconds, **({"relative": True} if given.relative else {})}
    if kind is crontab:
        return {"crontab": crontab_text(given)}
    if kind is solar:
        return {"solar": [given.event, given.lat, given.lon]}
    if kind is clocked:
        return {"clocked": given.at.isoformat()}
    if kind is rrule:
        start = {} if given.start is None else {"start": given.start.isoformat()}
        return {"rrule": given.text, **start}
    return _form_of_class(given)


def loads_form(data: Any) -> BaseSchedule:
    """Undo :func:`dumps_form`.

    Raises
    ------
    ScheduleNotImportable
        The class of the schedule is not registered in this process.
    InvalidSchedule
        *data* is not the form of a schedule, or its class refuses the arguments.
    """
    if not isinstance(data, Mapping):
        raise InvalidSchedule(f"{data!r}: expected the form of a schedule")
    try:
        if "every" in data:
            every = data["every"]
            if isinstance(every, bool) or not isinstance(every, (int, float)):
                raise InvalidSchedule(f"every {every!r}: expected a number of seconds")
            return schedule(every, bool(data.get("relative")))
        if "crontab" in data:
            return read_crontab(data["crontab"])
        if "solar" in data:
            return solar(*data["solar"])
        if "clocked" in data:
            return clocked(datetime.fromisoformat(data["clocked"]))
        if "rrule" in data:
            start = data.get("start")
            return rrule(data["rrule"], None if start is None else datetime.fromisoformat(start))
        if "class" in data:
            return _class(data["class"])(*data.get("args", ()), **data.get("kwargs", {}))
    except InvalidSchedule:
        raise
    except (Exception, SystemExit) as exc:  # classes are user code
        raise InvalidSchedule(f"{dict(data)!r}: {type(exc).__name__}: {exc}") from exc
    raise InvalidSchedule(
        f"{dict(data)!r}: expected every, crontab, solar, clocked, rrule or class"
    )


def describe(given: BaseSchedule) -> str:
    """Return a text about a schedule for people."""
    form = dumps_form(given)
    if "every" in form:
        return f"every {_span(given.run_every)}" + (", rounded" if form.get("relative") else "")
    if "solar" in form:
        event, lat, lon = form["solar"]
        return f"{event} at {lat:g}, {lon:g}"
    if "clocked" in form:
        return f"at {form['clocked']}"
    return str(form.get("crontab") or form.get("rrule") or form["class"])


def _span(every: timedelta) -> str:
    """Return an exact duration in the syntax of command options: ``1h 30m``, ``0.25s``."""
    if every < timedelta(0):
        return f"{every.total_seconds():g}s"
    rest = every
    parts = []
    for unit, size in _UNITS.items():
        number, rest = divmod(rest, size)
        parts += [f"{number}{unit}"] if number else []
    # Not as a float, which would lose digits.
    seconds = f"{rest.seconds}.{rest.microseconds:06}".rstrip("0").rstrip(".")
    if rest or not parts:
        parts.append(f"{seconds}s")
    return " ".join(parts)


def _form_of_class(given: BaseSchedule) -> dict[str, Any]:
    kind = type(given)
    path = path_of(kind)
    there = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None)
    if there is not None and there is not kind:
        raise InvalidSchedule(f"{path} is another class than that of {given!r}")
    if there is None:
        raise ScheduleNotImportable(
            f"{path}: expected a class that can be imported; {_TOP_LEVEL_ADVICE}"
        )
    register(kind)
    try:
        made_by, args = given.__reduce__()[:2]
        form = {"class": path, "args": list(args)}
        again = loads(dumps(form))
    except (Exception, SystemExit) as exc:
        raise InvalidSchedule(f"{given!r} cannot be kept, {_REDUCE_ADVICE}: {exc}") from exc
    if made_by is not kind or again != form:
        raise InvalidSchedule(f"{given!r} cannot be kept, {_REDUCE_ADVICE}")
    loads_form(again)
    return form


_TOP_LEVEL_ADVICE = "define it at the top of a module"

_REDUCE_ADVICE = "its __reduce__ must return (class, arguments), the arguments as JSON"


def _class(path: Any) -> type[BaseSchedule]:
    """Return the registered class of a path. Never imports the path."""
    if not isinstance(path, str) or "<" in path:
        raise InvalidSchedule(f"{path}: expected a class that can be imported; {_TOP_LEVEL_ADVICE}")
    found = registered(path)
    if found is None:
        raise ScheduleNotImportable(
            f"{path} is not registered here: let the app do so, by celery_delayq.schedules.register"
        )
    return found
