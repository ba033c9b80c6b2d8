"""Definitions of periodic entries: task, schedule and options, validated and as JSON. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import MAXYEAR, datetime, timedelta, tzinfo
from datetime import timezone as timezones
from hashlib import blake2b
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import BaseSchedule, maybe_schedule
from kombu.utils.json import dumps, loads

from celery_delayq.errors import ConfigError, InvalidSchedule, RecordError
from celery_delayq.integration.send_task import task_of
from celery_delayq.model import unique
from celery_delayq.model.compat.binding import check_arguments, has_own_apply_async
from celery_delayq.model.names import OWN_KEY_TEXT, is_by_name, is_own_key, renames_of
from celery_delayq.model.retries import options as retry_options
from celery_delayq.model.retries.policy import MAX_WAIT_SECONDS
from celery_delayq.model.task_options import CELERY_HEADERS
from celery_delayq.periodic.schedules import Rule, clocked, rule_of
from celery_delayq.periodic.serialization import dumps_form, loads_form
from celery_delayq.periodic.wall_clock import datetime_of_ms, ms_of_datetime, ms_of_wall_time
from celery_delayq.utils.numbers import is_finite, is_integer
from celery_delayq.utils.text import UTF8_TEXT, did_you_mean, is_utf8

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip", "queue_one"]

CATCH_UPS: tuple[str, ...] = get_args(CatchUp)
OVERLAPS: tuple[str, ...] = get_args(Overlap)

#: The source of entries that calls have added.
API_SOURCE = "api"

#: Ticks are scheduled this many ms before they are due. So neither many ticks at once nor a
#: dispatcher that dies makes a tick late.
TICK_AHEAD_MS = 2000

#: Options of ``apply_async`` that an entry cannot have, because its schedule decides them.
_RESERVED_OPTIONS = frozenset(
    {"eta", "countdown", "task_id", "producer", "connection", "publisher", "args", "kwargs"}
)

#: Common options of ``apply_async``. An unknown name that is similar to one of them is refused.
_KNOWN_OPTIONS = (
    *("exchange", "expires", "headers", "priority", "queue", "routing_key", "serializer"),
    *("soft_time_limit", "time_limit", *unique.OPTIONS, *retry_options.OPTIONS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The task of a periodic entry, its schedule and its options.

    Attributes
    ----------
    name, task : str
    schedule : BaseSchedule
    args, kwargs : Sequence[Any], Mapping[str, Any]
        Values of JSON.
    options : Mapping[str, Any]
        Options of ``apply_async``, such as ``queue``, ``priority``, ``headers``, or ``expires`` in
        seconds after the tick.
    source : str
        ``"api"``, or ``"code <name of the app>"`` for an entry in code.
    timezone : str | None
        Time zone of the schedule, such as ``"Europe/Berlin"``; None for the app's.
    start, end : datetime | None
        No tick is before *start* or after *end*. With a time zone.
    max_runs : int | None
        Number of ticks after which the entry ends.
    catch_up, catch_up_max : CatchUp, int
        Which missed ticks run: none, the last one, or all. A tick is missed if no dispatcher runs
        when it is due. With ``"all"``, at most the last *catch_up_max* missed ticks run.
    overlap : Overlap
        What a tick does while the task of an earlier tick waits or runs. ``"allow"``: the tick runs
        too. ``"skip"``: the tick does not run. ``"queue_one"``: the tick waits until that task has
        ended, and replaces a tick that waits already.
    """

    name: str
    task: str
    schedule: BaseSchedule
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = API_SOURCE
    timezone: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    max_runs: int | None = None
    catch_up: CatchUp = "one"
    catch_up_max: int = 100
    overlap: Overlap = "allow"
    #: The last rule with its anchor and time zone: making a rule takes longer than using it. A list
    #: of at most one, because the dataclass is frozen.
    _cached_rule: list[tuple[int, tzinfo, Rule]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @classmethod
    def from_fields(cls, schedule: Any, *, zone: tzinfo | None = None, **given: Any) -> Definition:
        """Return a valid definition.

        Parameters
        ----------
        schedule : BaseSchedule | timedelta | float | datetime
            A schedule of Celery, seconds, or a datetime for a single run.
        zone : tzinfo | None
            The app's time zone, for datetimes without a time zone if *given* has no ``timezone``.
            If both are None, such datetimes are refused.

        Raises
        ------
        InvalidSchedule
            *schedule* has no ticks, or is not a schedule.
        ConfigError
            Another value is invalid.
        """
        if isinstance(given.get("args"), list):
            given["args"] = tuple(given["args"])
        if isinstance(given.get("timezone"), ZoneInfo):
            given["timezone"] = given["timezone"].key
        given["schedule"] = schedule
        for name in ("schedule", "start", "end"):
            value = given.get(name)
            if isinstance(value, datetime) and value.tzinfo is None:
                given[name] = _moment_in(zone_of(given.get("timezone")) or zone, name, value)
        given["schedule"] = _schedule_of(given["schedule"])
        found = cls(**given)
        found._check_fields()
        if "options" in found.options:
            raise ConfigError(
                "options: no option of a periodic entry; give each by its name, such as "
                "queue='mail'"
            )
        for name in sorted(found.options.keys() - _KNOWN_OPTIONS):
            # Messages may have other options too. Only names that are similar to a known name are
            # refused.
            known = (*(each.name for each in fields(cls)), *_KNOWN_OPTIONS)
            if meant := did_you_mean(name, known, 0.8):
                raise ConfigError(f"{name}: no option of a periodic entry{meant}")
        if "catch_up_max" in given and found.catch_up != "all":
            raise ConfigError(
                f"catch_up_max={found.catch_up_max}: it is for catch_up='all', and has no meaning "
                f"with {found.catch_up!r}"
            )
        dumps_form(found.schedule)
        try:
            cls.loads(found.name, found.dumps())
        except (TypeError, ValueError, RecursionError, RecordError) as exc:
            raise ConfigError(
                f"{found.name}: args, kwargs and options are kept as JSON, {exc}"
            ) from exc
        found.rule(0)  # raises InvalidSchedule if the schedule has no ticks
        return found

    def _check_fields(self) -> None:
        for name, is_valid, expected in _FIELDS:
            value = getattr(self, name)
            if not is_valid(value):
                raise ConfigError(f"{name}={_shown(value)}: expected {expected}")
        if self.start and self.end and self.end < self.start:
            start, end = _shown(self.start), _shown(self.end)
            raise ConfigError(f"end={end}: expected a time after start={start}")
        if wrongly := sorted(_RESERVED_OPTIONS & self.options.keys()):
            raise ConfigError(f"{', '.join(wrongly)}: no option of a periodic entry")
        for name, is_valid, expected in _OPTIONS:
            value = self.options.get(name)
            if value is not None and not is_valid(value):
                raise ConfigError(f"{name}={value!r}: expected {expected}")
        headers = self.options.get("headers") or {}
        if taken := sorted(CELERY_HEADERS & headers.keys()):
            raise ConfigError(
                f"headers={dict(headers)!r}: expected other names than {', '.join(taken)}, of "
                "which Celery tells workers what they need"
            )
        zone_of(self.timezone)

    @property
    def signature(self) -> dict[str, Any]:
        """The task, its arguments and its options."""
        return {name: getattr(self, name) for name in ("task", "args", "kwargs", "options")}

    def dumps(self) -> str:
        """Return the definition as JSON, without its name and without default values."""
        data: dict[str, Any] = {"task": self.task, "schedule": dumps_form(self.schedule)}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("name", "task", "schedule", "_cached_rule") or value in (
                None,
                (),
                [],
                {},
            ):
                continue
            if each.default == value:
                continue
            data[each.name] = value.isoformat() if isinstance(value, datetime) else value
        text: str = dumps(data, separators=(",", ":"))
        return text

    @classmethod
    def loads(cls, name: str, text: str) -> Definition:
        """Undo :meth:`dumps`.

        Raises
        ------
        RecordError
            *text* is not a definition.
        InvalidSchedule
            This process cannot read the schedule.
        """
        try:
            data = loads(text)
            for when in ("start", "end"):
                if isinstance(data.get(when), str):
                    data[when] = datetime.fromisoformat(data[when])
            data["args"] = tuple(data.get("args", ()))
            found = cls(name=name, **{**data, "schedule": loads_form(data["schedule"])})
            found._check_fields()
        except InvalidSchedule:
            raise
        except Exception as exc:  # a value in JSON may have any type
            raise RecordError(f"unreadable periodic entry {name!r}: {exc}") from exc
        return found

    def rule(self, anchor: int, zone: tzinfo = timezones.utc) -> Rule:
        """Return the rule of the entry's ticks; *zone* is the app's time zone."""
        for known_anchor, there, rule in self._cached_rule:
            if known_anchor == anchor and there is zone:
                return rule
        rule = rule_of(self.schedule, zone_of(self.timezone) or zone, anchor)
        self._cached_rule[:] = [(anchor, zone, rule)]
        return rule

    @property
    def ahead(self) -> int:
        """How many ms before its due time a tick is scheduled.

        0 if *overlap* is not ``"allow"``: whether the tick runs is decided when it is due.
        """
        return TICK_AHEAD_MS if self.overlap == "allow" else 0


def definition_hash_of(definition: Definition) -> str:
    """Return the hash of a definition."""
    return blake2b(definition.dumps().encode(), digest_size=6).hexdigest()


def check_call(app: Celery, definition: Definition) -> None:
    """Refuse arguments that the task of an entry does not take.

    Raises
    ------
    ConfigError
        A task of *app* does not take the arguments. A task that *app* does not know may take any,
        and so may a task with an ``apply_async`` of its own, which sends each tick.
    """
    name = renames_of(app).of(definition.task)
    task = task_of(app, name)
    if task is not None and not has_own_apply_async(task):
        check_arguments(name, task, definition.args, definition.kwargs)


def zone_of(name: str | None) -> tzinfo | None:
    """Return the time zone of a name; None for None.

    Raises
    ------
    ConfigError
        There is no time zone of this name.
    """
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, TypeError, OSError) as exc:
        raise ConfigError(
            f"timezone={name!r}: expected the name of a time zone, such as 'Europe/Berlin' or 'UTC'"
        ) from exc


def _moment_in(zone: tzinfo | None, name: str, wall: datetime) -> datetime:
    """Return a time of the wall clock with its UTC offset; without a zone, return *wall*."""
    if zone is None:
        return wall
    try:
        local = datetime_of_ms(ms_of_wall_time(wall, zone)).astimezone(zone)
    except (OverflowError, ValueError) as exc:
        raise ConfigError(f"{name}={_shown(wall)}: expected a time that there is, {exc}") from exc
    # A fixed offset, as in records. Python compares times in a repeated hour as unequal.
    return local.replace(tzinfo=timezones(local.utcoffset() or timedelta(0)))


def _shown(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def _is_seconds(value: Any) -> bool:
    return is_finite(value, 0, MAX_WAIT_SECONDS) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1000 and "\0" not in value


def _is_storable(value: Any) -> bool:
    return not isinstance(value, str) or is_utf8(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _is_moment(value: Any) -> bool:
    return value is None or (isinstance(value, datetime) and value.tzinfo is not None)


_TEXT_RULE = "a text of at most 1,000 characters, without NUL"
_TIME_RULE = "a datetime with a time zone, or None"

#: Checks of fields, each with the text for the error.
_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("name", _is_text, _TEXT_RULE),
    ("name", _is_storable, UTF8_TEXT),
    ("task", _is_text, _TEXT_RULE),
    ("task", _is_storable, UTF8_TEXT),
    ("args", _is_list, "a list of arguments"),
    ("kwargs", is_by_name, "a mapping by names"),
    ("options", is_by_name, "a mapping by names"),
    ("start", _is_moment, _TIME_RULE),
    ("end", _is_moment, _TIME_RULE),
    ("start", lambda at: at is None or at.year < MAXYEAR, f"a time before the year {MAXYEAR}"),
    (
        "start",
        lambda at: at is None or ms_of_datetime(at) >= 0,
        "a time from 1970-01-01T00:00:00+00:00 on",
    ),
    ("catch_up", lambda value: value in CATCH_UPS, f"one of {', '.join(CATCH_UPS)}"),
    ("overlap", lambda value: value in OVERLAPS, f"one of {', '.join(OVERLAPS)}"),
    ("catch_up_max", lambda value: is_integer(value, 1, 1000), "a number from 1 to 1,000"),
    ("max_runs", lambda value: value is None or is_integer(value, 1), "a number from 1, or None"),
)

#: Checks of options, each with the text for the error.
_OPTIONS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("expires", _is_seconds, "seconds after the tick, up to ten years"),
    ("time_limit", _is_seconds, "seconds above 0, up to ten years"),
    ("soft_time_limit", _is_seconds, "seconds above 0, up to ten years"),
    ("queue", lambda value: isinstance(value, str) and value != "", "the name of a queue"),
    ("queue", lambda value: not is_own_key(value), OWN_KEY_TEXT),
    *(
        (name, _is_storable, UTF8_TEXT)
        for name in ("queue", "exchange", "routing_key", "unique_key")
    ),
    ("priority", lambda value: is_integer(value, 0, 255), "a number from 0 to 255"),
    ("headers", is_by_name, "a mapping by names"),
)


def _schedule_of(given: Any) -> BaseSchedule:
    if isinstance(given, datetime):
        return clocked(given)
    if isinstance(given, bool) or not isinstance(given, (int, float, timedelta, BaseSchedule)):
        raise InvalidSchedule(
            f"schedule={given!r}: expected seconds, a timedelta, a datetime for once, or a "
            "schedule such as celery.schedules.crontab(minute=0)"
        )
    if isinstance(given, float) and not math.isfinite(given):
        raise InvalidSchedule(f"schedule={given!r}: expected a finite number of seconds")
    try:
        found: BaseSchedule = maybe_schedule(given)
    except (OverflowError, ValueError) as exc:
        raise InvalidSchedule(f"schedule={given!r}: {exc}") from exc
    return found


#: Fields that *changes* of :func:`changed_definition` may have.
_CHANGEABLE_FIELDS = frozenset(
    each.name for each in fields(Definition) if each.init and each.name not in ("name", "source")
)


def changed_definition(old: Definition, changes: Mapping[str, Any], zone: tzinfo) -> Definition:
    """Return a definition with other fields. A field that is None in *changes* gets its default.

    Raises
    ------
    InvalidSchedule, ConfigError
        As for :meth:`Definition.from_fields`. ConfigError also for an unknown field.
    """
    if unknown := sorted(changes.keys() - _CHANGEABLE_FIELDS):
        raise ConfigError(
            f"unknown: {', '.join(unknown)}; valid are: {', '.join(sorted(_CHANGEABLE_FIELDS))}"
        )
    before = {each: getattr(old, each) for each in ("name", "source", *_CHANGEABLE_FIELDS)}
    given: dict[str, Any] = {**before, **changes}
    for name, value in changes.items():
        # The task and the schedule have no default, so None is refused.
        if value is None and name not in ("task", "schedule"):
            del given[name]
    if given.get("catch_up") != "all" and changes.get("catch_up_max") is None:
        given.pop("catch_up_max", None)
    return Definition.from_fields(zone=zone, **given)
