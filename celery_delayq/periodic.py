"""Periodic entries: what they are, how they stand, and which ticks are to be fired. No I/O.

A *tick* is a moment at which an entry is due, in ms since 1970. Dispatchers schedule ticks some
time ahead, as entries with the id ``<name>:<tick>``, and note in the same step up to which they
have done so: each tick is scheduled once, whoever comes first.

Records are ``<line>\\n<definition in JSON>``, of which scripts compare and replace the line:
``1 <edition> <anchor> <tick> <last tick> <ticks fired> <state>``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, tzinfo
from datetime import timezone as timezones
from hashlib import blake2b
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, maybe_schedule
from kombu.utils.json import dumps, loads

from celery_delayq.errors import ConfigError, RecordError
from celery_delayq.retry import LONGEST
from celery_delayq.schedule_forms import describe, dumps_form, loads_form
from celery_delayq.schedules import InvalidSchedule, Rule, clocked, latest, rule_of

CatchUp = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip", "queue_one"]
#: Fired; not fired until it is resumed; never again, by its end or its number of runs.
Status = Literal["on", "paused", "ended"]

CATCH_UPS = ("skip", "one", "all")
OVERLAPS = ("allow", "skip", "queue_one")

#: The source of entries that were made by calls, and not in code.
API = "api"

#: A tick is scheduled so many ms before it is due, so that it is in time however many are due with
#: it, and whichever dispatcher dies.
AHEAD = 2000

#: A tick that nobody has scheduled so many ms after it was due is one that was missed.
GRACE = 1000

#: Most ticks of one entry that are scheduled at once, beside those that were missed.
BURST = 1000

#: After how many ms what was held back for one that runs is tried again.
HOLD = 500

_VERSION = "1"
_MOST_CATCH_UP = 1000


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
        or all up to so many, the last ones.
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

    @classmethod
    def checked(cls, schedule: Any, **given: Any) -> Definition:
        """Return a definition that can be kept and fired.

        Parameters
        ----------
        schedule : BaseSchedule | timedelta | float | datetime
            Seconds, or a moment for once.

        Raises
        ------
        InvalidSchedule
            It has no ticks, or is no schedule.
        ConfigError
            Something else is wrong; the text says what, and what would be right.
        """
        if isinstance(given.get("args"), list):
            given["args"] = tuple(given["args"])
        found = cls(schedule=_schedule_of(schedule), **given)
        found._check()
        try:
            found.dumps()
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                f"{found.name}: args, kwargs and options are kept as JSON, {exc}"
            ) from exc
        found.rule(0)
        return found

    def _check(self) -> None:
        def wrong(what: str, expected: str) -> ConfigError:
            return ConfigError(f"{what}={getattr(self, what)!r}: expected {expected}")

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
        for what in ("start", "end"):
            value = getattr(self, what)
            if value is not None and not (isinstance(value, datetime) and value.tzinfo):
                raise wrong(what, "a datetime with a time zone, or None")
        if self.start and self.end and self.end < self.start:
            raise wrong("end", f"a time after start={self.start!r}")
        for what, known in (("catch_up", CATCH_UPS), ("overlap", OVERLAPS)):
            if getattr(self, what) not in known:
                raise wrong(what, f"one of {', '.join(known)}")
        if not _is_number(self.catch_up_max) or self.catch_up_max > _MOST_CATCH_UP:
            raise wrong("catch_up_max", f"a number from 1 to {_MOST_CATCH_UP:,}")
        if self.max_runs is not None and not _is_number(self.max_runs):
            raise wrong("max_runs", "a number from 1, or None")
        expires = self.options.get("expires")
        if expires is not None and not (
            isinstance(expires, (int, float)) and 0 < expires <= LONGEST
        ):
            raise ConfigError(
                f"expires={expires!r}: expected seconds after the tick, up to ten years"
            )
        zone_of(self.timezone)

    def dumps(self) -> str:
        """Return what a record has of it."""
        data: dict[str, Any] = {"task": self.task, "schedule": dumps_form(self.schedule)}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("name", "task", "schedule") or value in (None, (), [], {}):
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
            return cls(name=name, **{**data, "schedule": loads_form(data["schedule"])})
        except InvalidSchedule:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise RecordError(f"unreadable periodic entry {name!r}: {exc}") from exc

    def rule(self, anchor: int, zone: tzinfo = timezones.utc) -> Rule:
        """Return when its ticks are; *zone* is the app's."""
        return rule_of(self.schedule, zone_of(self.timezone) or zone, anchor)

    @property
    def ahead(self) -> int:
        """How many ms before it is due a tick is scheduled.

        What looks at whether an earlier one runs cannot be known before.
        """
        return AHEAD if self.overlap == "allow" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How an entry stands.

    Attributes
    ----------
    edition : str
        Of the definition: another one, another edition.
    anchor : int
        A moment from which intervals are counted (ms).
    tick, last : int | None
        The next tick that is not scheduled yet, and the last one that was (ms).
    count : int
        How many ticks were scheduled.
    """

    edition: str
    anchor: int
    tick: int | None = None
    last: int | None = None
    count: int = 0
    status: Status = "on"

    @property
    def line(self) -> str:
        """The first line of its record."""
        tick, last = ("-" if each is None else each for each in (self.tick, self.last))
        return f"{_VERSION} {self.edition} {self.anchor} {tick} {last} {self.count} {self.status}"

    @classmethod
    def read(cls, line: str) -> Standing:
        """Undo :attr:`line`.

        Raises
        ------
        RecordError
            It is no line of ours.
        """
        try:
            version, edition, anchor, tick, last, count, status = line.split(" ")
            if version != _VERSION or status not in ("on", "paused", "ended"):
                raise ValueError("another version")
            return cls(
                edition=edition,
                anchor=int(anchor),
                tick=None if tick == "-" else int(tick),
                last=None if last == "-" else int(last),
                count=int(count),
                status=status,  # type: ignore[arg-type]
            )
        except ValueError as exc:
            raise RecordError(f"unreadable line {line!r} of a periodic entry: {exc}") from exc


@dataclass(frozen=True, slots=True)
class Periodic:
    """A periodic entry."""

    definition: Definition
    standing: Standing

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    @property
    def next(self) -> datetime | None:
        """The next tick that is not scheduled yet."""
        return _moment(self.standing.tick)

    @property
    def last_run_at(self) -> datetime | None:
        """The last tick that was scheduled: it may still be some time ahead."""
        return _moment(self.standing.last)

    @property
    def total_run_count(self) -> int:
        """How many ticks were scheduled."""
        return self.standing.count

    @property
    def status(self) -> Status:
        """Whether it is fired."""
        return self.standing.status

    @property
    def look(self) -> int | None:
        """When dispatchers are to look at it (ms), None for never."""
        tick = self.standing.tick
        return None if tick is None else tick - self.definition.ahead

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can have it."""
        data = loads(self.definition.dumps())
        return {
            "name": self.name,
            "source": self.definition.source,
            "when": describe(self.definition.schedule),
            **data,
            "status": self.status,
            "next": self.next and self.next.isoformat(),
            "last_run_at": self.last_run_at and self.last_run_at.isoformat(),
            "total_run_count": self.total_run_count,
        }

    def pack(self) -> str:
        """Return its record."""
        return f"{self.standing.line}\n{self.definition.dumps()}"

    @classmethod
    def unpack(cls, name: str, record: str) -> Periodic:
        """Undo :meth:`pack`; raises what reading its parts does."""
        line, _, text = record.partition("\n")
        return cls(Definition.loads(name, text), Standing.read(line))


class Firing(NamedTuple):
    """What a look at an entry comes to.

    Attributes
    ----------
    ticks : tuple[int, ...]
        What is to be scheduled (ms).
    then : Standing
        How the entry stands with that.
    refused : Standing
        How it stands when that was refused, since another of its ticks runs.
    now : int
        When it was looked at (ms).
    """

    ticks: tuple[int, ...]
    then: Standing
    refused: Standing
    now: int


def source_in(text: str) -> str | None:
    """Return the source that a definition in JSON names; None where it is none."""
    try:
        found: str = loads(text).get("source", API)
    except (ValueError, AttributeError):
        return None
    return found


def edition_of(definition: Definition) -> str:
    """Return what tells a definition from others."""
    return blake2b(definition.dumps().encode(), digest_size=6).hexdigest()


def begin(definition: Definition, now: int, zone: tzinfo) -> Periodic:
    """Return a new entry, *now* in ms by Redis' clock."""
    anchor = now if definition.start is None else ms_of(definition.start)
    standing = Standing(edition=edition_of(definition), anchor=anchor)
    tick = _next(definition, definition.rule(anchor, zone), standing, now)
    return Periodic(definition, _with(standing, tick))


def change(entry: Periodic, definition: Definition, now: int, zone: tzinfo) -> Periodic:
    """Return an entry with another definition; its ticks that were scheduled stay so.

    Another interval goes on from the last tick; a schedule that stays keeps its phase and count.
    """
    old = entry.standing
    kept = dumps_form(definition.schedule) == dumps_form(entry.definition.schedule)
    anchor = old.anchor if kept or old.last is None else old.last
    if definition.start is not None and definition.start != entry.definition.start:
        anchor = ms_of(definition.start)
    standing = replace(old, edition=edition_of(definition), anchor=anchor, tick=None)
    if old.status == "paused":
        return Periodic(definition, standing)
    tick = _next(definition, definition.rule(anchor, zone), standing, max(now, old.last or now))
    return Periodic(definition, _with(standing, tick))


def pause(entry: Periodic, unfired: Sequence[int] = ()) -> Periodic:
    """Return it paused; the ticks *unfired* were taken out of the schedule again."""
    old = entry.standing
    last = min(unfired) - 1 if unfired else old.last
    count = old.count - len(unfired)
    return replace(entry, standing=replace(old, tick=None, last=last, count=count, status="paused"))


def resume(entry: Periodic, now: int, zone: tzinfo) -> Periodic:
    """Return it going on with the next tick; those since it was paused were not missed."""
    standing = replace(entry.standing, status="on")
    rule = entry.definition.rule(standing.anchor, zone)
    tick = _next(entry.definition, rule, standing, max(now, standing.last or now))
    return replace(entry, standing=_with(standing, tick))


def fire(entry: Periodic, now: int, zone: tzinfo) -> Firing | None:
    """Return what is to be scheduled of an entry at *now*; None when it is not time yet.

    Raises
    ------
    InvalidSchedule
        The next tick cannot be worked out.
    """
    definition, standing = entry.definition, entry.standing
    tick, until = standing.tick, now + definition.ahead
    if tick is None or tick > until:
        return None
    if definition.end is not None:
        until = min(until, ms_of(definition.end))
    rule = definition.rule(standing.anchor, zone)
    missed_most = definition.catch_up_max if definition.catch_up == "all" else 1
    # From the tick itself: what asks a schedule may come to others from another moment.
    most = missed_most + BURST
    due = [tick, *latest(rule, tick, until, most)][-most:]
    missed = [each for each in due if each < now - GRACE]
    others = due[len(missed) :]
    if definition.overlap == "queue_one":
        ticks = due[-1:]
    elif definition.catch_up == "skip":
        ticks = others
    else:
        ticks = missed[-missed_most:] + others
    if definition.overlap == "skip":
        ticks = ticks[-1:]
    if definition.max_runs is not None:
        ticks = ticks[: max(0, definition.max_runs - standing.count)]
    passed = _next(definition, rule, standing, due[-1])
    if not ticks:
        then = _with(standing, passed)
        return Firing((), then, then, now)
    fired = replace(standing, last=ticks[-1], count=standing.count + len(ticks))
    then = _with(fired, _next(definition, rule, fired, due[-1]))
    held = definition.overlap == "queue_one"
    return Firing(tuple(ticks), then, standing if held else _with(standing, passed), now)


def upcoming(entry: Periodic, count: int, zone: tzinfo) -> list[int]:
    """Return its next ticks that are not scheduled yet, at most *count* of them."""
    definition, standing = entry.definition, entry.standing
    rule = definition.rule(standing.anchor, zone)
    found: list[int] = []
    tick = standing.tick
    while tick is not None and len(found) < count:
        found.append(tick)
        standing = replace(standing, count=standing.count + 1)
        tick = _next(definition, rule, standing, tick)
    return found


def ahead_of(entry: Periodic, now: int, zone: tzinfo) -> list[int]:
    """Return its ticks that are scheduled and not due yet."""
    last = entry.standing.last
    if last is None or last <= now:
        return []
    return latest(entry.definition.rule(entry.standing.anchor, zone), now, last, BURST)


def tick_id(name: str, tick: int) -> str:
    """Return the id of the task of a tick."""
    return f"{name}:{tick}"


def ms_of(moment: datetime) -> int:
    """Return an aware moment in ms since 1970, rounded up: nothing is early."""
    return -((_EPOCH - moment) // _MILLISECOND)


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


def _next(definition: Definition, rule: Rule, standing: Standing, after: int) -> int | None:
    """Return the first tick after that, None when there is to be none any more."""
    if definition.max_runs is not None and standing.count >= definition.max_runs:
        return None
    if definition.start is not None:
        after = max(after, ms_of(definition.start) - 1)
    tick = rule.after(after)
    if tick is not None and definition.end is not None and tick > ms_of(definition.end):
        return None
    return tick


def _with(standing: Standing, tick: int | None) -> Standing:
    if standing.status == "paused":
        return replace(standing, tick=None)
    return replace(standing, tick=tick, status="ended" if tick is None else "on")


#: What is not for a periodic entry to say: it says when, and its messages have ids of their own.
_NOT_OPTIONS = frozenset(
    {"eta", "countdown", "task_id", "producer", "connection", "publisher", "args", "kwargs"}
)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezones.utc)
_MILLISECOND = timedelta(milliseconds=1)


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else _EPOCH + ms * _MILLISECOND


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_text(what: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{what}={value!r}: expected a text that can be sent, {exc}") from exc


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
