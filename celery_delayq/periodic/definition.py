"""What a periodic entry is: what is to be done, and when. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import MAXYEAR, datetime, timedelta, tzinfo
from datetime import timezone as timezones
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Literal
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, maybe_schedule
from kombu.utils.json import dumps, loads

from celery_delayq.errors import ConfigError, InvalidSchedule, RecordError
from celery_delayq.model.names import NOT_OWN_KEY, UTF8, is_own_key, is_utf8
from celery_delayq.model.retry_policy import LONGEST
from celery_delayq.periodic.schedules import Rule, clocked, rule_of
from celery_delayq.periodic.serialization import dumps_form, loads_form
from celery_delayq.periodic.wall_clock import moment_of, ms_of, tick_at

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip", "queue_one"]

CATCH_UPS = ("skip", "one", "all")
OVERLAPS = ("allow", "skip", "queue_one")

#: The source of entries that were made by calls, and not in code.
API = "api"

#: A tick is scheduled so many ms before it is due, so that it is in time however many are due with
#: it, and whichever dispatcher dies.
AHEAD = 2000

_MOST_CATCH_UP = 1000


#: What is not for a periodic entry to say: it says when, and its messages have ids of their own.
_NOT_OPTIONS = frozenset(
    {"eta", "countdown", "task_id", "producer", "connection", "publisher", "args", "kwargs"}
)

#: What Celery itself says in the headers of a task's message: others there would take its place.
_NOT_HEADERS = frozenset(
    {
        *("argsrepr", "eta", "expires", "group", "group_index", "id", "ignore_result"),
        *("kwargsrepr", "lang", "origin", "parent_id", "replaced_task_nesting", "retries"),
        *("root_id", "shadow", "stamped_headers", "stamps", "task", "timelimit"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What is to be done, and when.

    Attributes
    ----------
    name, task : str
    schedule : BaseSchedule
    args, kwargs : Sequence[Any], Mapping[str, Any]
        JSON.
    options : Mapping[str, Any]
        Those of ``apply_async``, such as ``queue``, ``priority``, ``headers``, or ``expires`` in
        seconds after the tick.
    source : str
        ``"api"``, or of entries in code ``"code <name of the app>"``.
    timezone : str | None
        Whose wall clock counts, such as ``"Europe/Berlin"``; None for the app's.
    start, end : datetime | None
        No tick is before the one or after the other; aware.
    max_runs : int | None
        Most ticks that are fired.
    catch_up, catch_up_max : CatchUp, int
        Which of the ticks run that were missed while no dispatcher was there: none, the last one,
        or all up to so many, the last ones. The number is for ``"all"`` only.
    overlap : Overlap
        What becomes of a tick while the task of an earlier one waits to start or runs: it runs
        beside it, it does not run, or it waits and runs after it, in place of any that waits.
    """

    name: str
    task: str
    schedule: BaseSchedule
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = API
    timezone: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    max_runs: int | None = None
    catch_up: CatchUp = "one"
    catch_up_max: int = 100
    overlap: Overlap = "allow"
    #: The rule that was asked for last: to make one takes longer than to ask it.
    _rules: list[tuple[int, tzinfo, Rule]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @classmethod
    def checked(cls, schedule: Any, *, zone: tzinfo | None = None, **given: Any) -> Definition:
        """Return a definition that can be kept and fired.

        Parameters
        ----------
        schedule : BaseSchedule | timedelta | float | datetime
            Seconds, or a moment for once.
        zone : tzinfo | None
            The app's, by whose wall clock a datetime without a time zone is read where *given* has
            no ``timezone``; None to refuse it then.

        Raises
        ------
        InvalidSchedule
            It has no ticks, or is no schedule.
        ConfigError
            Something else is wrong; the text says what, and what would be right.
        """
        if isinstance(given.get("args"), list):
            given["args"] = tuple(given["args"])
        if isinstance(given.get("timezone"), ZoneInfo):
            given["timezone"] = given["timezone"].key
        moments = {"schedule": schedule, "start": given.get("start"), "end": given.get("end")}
        for what, value in moments.items():
            if isinstance(value, datetime) and value.tzinfo is None:
                given[what] = _moment_in(zone_of(given.get("timezone")) or zone, what, value)
        found = cls(**{**given, "schedule": _schedule_of(given.get("schedule", schedule))})
        found._check()
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
        found.rule(0)
        return found

    def _check(self) -> None:
        def wrong(what: str, expected: str) -> ConfigError:
            return ConfigError(f"{what}={_shown(getattr(self, what))}: expected {expected}")

        for what in ("name", "task"):
            value = getattr(self, what)
            if not isinstance(value, str) or not value or "\0" in value or len(value) > 1000:
                raise wrong(what, "a text of at most 1,000 characters, without NUL")
            _check_text(what, value)
        if isinstance(self.args, (str, bytes)) or not isinstance(self.args, Sequence):
            raise wrong("args", "a list of arguments")
        for what in ("kwargs", "options"):
            value = getattr(self, what)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise wrong(what, "a mapping by names")
        if wrongly := sorted(_NOT_OPTIONS & self.options.keys()):
            raise ConfigError(f"{', '.join(wrongly)}: no option of a periodic entry")
        for name in sorted(self.options.keys() - {"queue", "priority", "headers", "expires"}):
            # Others may be anything that a message is sent with.
            meant = get_close_matches(name, [each.name for each in fields(self)], 1, 0.8)
            if meant:
                raise ConfigError(f"{name}: no option of a periodic entry; is {meant[0]} meant?")
        for what in ("start", "end"):
            value = getattr(self, what)
            if value is not None and not (isinstance(value, datetime) and value.tzinfo):
                raise wrong(what, "a datetime with a time zone, or None")
        if self.start is not None and self.start.year == MAXYEAR:
            raise wrong("start", f"a time before the year {MAXYEAR}")
        if self.start is not None and ms_of(self.start) < 0:
            raise wrong("start", "a time from 1970-01-01T00:00:00+00:00 on")
        if self.start and self.end and self.end < self.start:
            raise wrong("end", f"a time after start={_shown(self.start)}")
        for what, known in (("catch_up", CATCH_UPS), ("overlap", OVERLAPS)):
            if getattr(self, what) not in known:
                raise wrong(what, f"one of {', '.join(known)}")
        if not _is_number(self.catch_up_max) or self.catch_up_max > _MOST_CATCH_UP:
            raise wrong("catch_up_max", f"a number from 1 to {_MOST_CATCH_UP:,}")
        if self.max_runs is not None and not _is_number(self.max_runs):
            raise wrong("max_runs", "a number from 1, or None")
        for what, means in (
            ("expires", "seconds after the tick"),
            ("time_limit", "seconds above 0"),
            ("soft_time_limit", "seconds above 0"),
        ):
            value = self.options.get(what)
            if value is not None and not _is_seconds(value):
                raise ConfigError(f"{what}={value!r}: expected {means}, up to ten years")
        queue, priority = self.options.get("queue"), self.options.get("priority")
        if queue is not None and (not isinstance(queue, str) or not queue):
            raise ConfigError(f"queue={queue!r}: expected the name of a queue")
        if queue is not None and is_own_key(queue):
            raise ConfigError(f"queue={queue!r}: expected {NOT_OWN_KEY}")
        for what in ("queue", "exchange", "routing_key", "unique_key"):
            _check_text(what, self.options.get(what))
        if priority is not None and not (
            isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= 255
        ):
            raise ConfigError(f"priority={priority!r}: expected a number from 0 to 255")
        _check_headers(self.options.get("headers"))
        zone_of(self.timezone)

    def dumps(self) -> str:
        """Return what a record has of it."""
        data: dict[str, Any] = {"task": self.task, "schedule": dumps_form(self.schedule)}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("name", "task", "schedule", "_rules") or value in (None, (), [], {}):
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
            It is no definition.
        InvalidSchedule
            The schedule is none that is known here.
        """
        try:
            data = loads(text)
            for when in ("start", "end"):
                if isinstance(data.get(when), str):
                    data[when] = datetime.fromisoformat(data[when])
            data["args"] = tuple(data.get("args", ()))
            found = cls(name=name, **{**data, "schedule": loads_form(data["schedule"])})
            found._check()
        except InvalidSchedule:
            raise
        except Exception as exc:  # types in JSON are anybody's
            raise RecordError(f"unreadable periodic entry {name!r}: {exc}") from exc
        return found

    def rule(self, anchor: int, zone: tzinfo = timezones.utc) -> Rule:
        """Return when its ticks are; *zone* is the app's."""
        for asked, there, rule in self._rules:
            if asked == anchor and there is zone:
                return rule
        rule = rule_of(self.schedule, zone_of(self.timezone) or zone, anchor)
        self._rules[:] = [(anchor, zone, rule)]
        return rule

    @property
    def ahead(self) -> int:
        """How many ms before it is due a tick is scheduled.

        What looks at whether an earlier one runs cannot be known before.
        """
        return AHEAD if self.overlap == "allow" else 0


def source_in(text: str) -> str | None:
    """Return the source that a definition in JSON names; None where it is none."""
    try:
        found = json.loads(text).get("source", API)
    except (ValueError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def definition_hash_of(definition: Definition) -> str:
    """Return what tells a definition from others."""
    return blake2b(definition.dumps().encode(), digest_size=6).hexdigest()


def zone_of(name: str | None) -> tzinfo | None:
    """Return the zone of a name, None for None.

    Raises
    ------
    ConfigError
        There is none of that name.
    """
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, TypeError, OSError) as exc:
        raise ConfigError(
            f"timezone={name!r}: expected the name of a time zone, such as 'Europe/Berlin' or 'UTC'"
        ) from exc


def _moment_in(zone: tzinfo | None, what: str, wall: datetime) -> datetime:
    """Return when a wall clock shows that; as it is, without a zone."""
    if zone is None:
        return wall
    try:
        local = moment_of(tick_at(wall, zone)).astimezone(zone)
    except (OverflowError, ValueError) as exc:
        raise ConfigError(f"{what}={_shown(wall)}: expected a time that there is, {exc}") from exc
    # With its offset, as records have it: in the hour that comes twice zones make nothing equal.
    return local.replace(tzinfo=timezones(local.utcoffset() or timedelta(0)))


def _shown(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else repr(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_seconds(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value <= LONGEST


def _check_headers(headers: Any) -> None:
    """Refuse what messages cannot have as their headers."""
    if headers is None:
        return
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise ConfigError(f"headers={headers!r}: expected a mapping by names")
    if taken := sorted(_NOT_HEADERS & headers.keys()):
        raise ConfigError(
            f"headers={dict(headers)!r}: expected other names than {', '.join(taken)}, of which "
            "Celery tells workers what they need"
        )


def _check_text(what: str, value: Any) -> None:
    if isinstance(value, str) and not is_utf8(value):
        raise ConfigError(f"{what}={value!r}: expected {UTF8}")


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


#: What a definition says, but for what has its own parameter and what it is known by.
_CHANGEABLE = frozenset(
    each.name
    for each in fields(Definition)
    if each.init and each.name not in ("name", "source", "schedule")
)


def changed_definition(
    old: Definition, schedule: tuple[Any] | None, changes: Mapping[str, Any], zone: tzinfo
) -> Definition:
    """Return a definition with another schedule (None: the same) and other fields.

    A field that is changed to None gets its default.

    Raises
    ------
    InvalidSchedule, ConfigError
        As :meth:`Definition.checked`; ConfigError also for an unknown field.
    """
    if unknown := sorted(changes.keys() - _CHANGEABLE):
        raise ConfigError(
            f"unknown: {', '.join(unknown)}; valid are: schedule, {', '.join(sorted(_CHANGEABLE))}"
        )
    given = {each: getattr(old, each) for each in ("name", "source", *_CHANGEABLE)}
    for what, value in changes.items():
        given[what] = _default(what) if value is None else value
    if given["catch_up"] != "all" and changes.get("catch_up_max") is None:
        del given["catch_up_max"]
    [new] = schedule or [old.schedule]
    return Definition.checked(new, zone=zone, **given)


def _default(what: str) -> Any:
    """Return what a field of a definition is by default; None where it has to be said."""
    [found] = [each for each in fields(Definition) if each.name == what]
    if found.default_factory is not MISSING:
        return found.default_factory()
    return None if found.default is MISSING else found.default
