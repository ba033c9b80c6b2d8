"""Settings: ``broker_transport_options={"delayq": {...}}``, validated once and strictly.

>>> Settings.from_options({"delayq": {"dispatch_batch": 50}}).dispatch_batch
50
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from celery_delayq.errors import ConfigError
from celery_delayq.utils.credentials import hide


def _range(low: float, high: float) -> dict[str, float]:
    return {"low": low, "high": high}


class Hidden:
    """A text that is shown to nobody: Celery tells settings to whoever asks a worker for them."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "'********'"

    def __json__(self) -> str:
        return "********"


class Limits(NamedTuple):
    """How much of one queue there may be; 0 is no limit.

    *archived* says that its dead letters go to a database, and none is forgotten; *history* is
    about how many runs of all queues are kept, where 0 is none.
    """

    promote_rate: float = 0.0
    max_ready: int = 0
    max_scheduled: int = 0
    dead_letters_age: float = 0.0
    dead_letters_max: int = 0
    archived: bool = False
    history: int = 0

    @staticmethod
    def options() -> tuple[str, ...]:
        """Return the names of the settings that a queue may override."""
        return Limits._fields[:-2]


@dataclass(frozen=True, slots=True)
class Settings:
    """What a team may tune; every default is meant to be left alone.

    Durations are seconds. Kombu's own transport options (``global_keyprefix``,
    ``priority_steps``, ``socket_timeout``, …) stand beside ``delayq``, not in it.
    """

    dispatch: bool = True
    """Whether a process that consumes also moves due entries to the ready lists."""

    dispatch_interval: float = field(default=1.0, metadata=_range(0.01, 1.0))
    """Longest time between two looks at the schedule, in seconds: what a lost wake-up costs."""

    dispatch_batch: int = field(default=100, metadata=_range(1, 1000))
    """Most entries that one script call moves: more of them keep Redis busy for longer at once."""

    registry_refresh: float = field(default=30.0, metadata=_range(1.0, 3600.0))
    """Seconds between two readings of the registry of queues and their priority steps."""

    min_delay: float = field(default=0.0, metadata=_range(0.0, 60.0))
    """Delays shorter than this many seconds skip the schedule and are timed by the worker."""

    lease: float = field(default=30.0, metadata=_range(1.0, 86_400.0))
    """Seconds without a sign of life after which what a process held is given to others."""

    max_deliveries: int = field(default=5, metadata=_range(0, 1_000_000))
    """How often a message may end the process that holds it before it is a dead letter, 0: ever."""

    block_timeout: float = field(default=1.05, metadata=_range(0.01, 1.05))
    """Longest wait of an idle consumer between two looks at its queues, in seconds."""

    wait_replicas: int = field(default=0, metadata=_range(0, 100))
    """How many replicas must have a message before a publish returns (``WAIT``)."""

    wait_timeout: float = field(default=1.0, metadata=_range(0.01, 60.0))
    """Seconds to wait for them."""

    promote_rate: float = field(default=0.0, metadata=_range(0.0, 1_000_000.0))
    """Most entries of a queue that become ready in a second, 0: no limit."""

    max_ready: int = field(default=0, metadata=_range(0, 1_000_000_000))
    """Ready messages of a queue beyond which its entries stay scheduled, 0: no limit."""

    max_scheduled: int = field(default=0, metadata=_range(0, 1_000_000_000))
    """Most entries of a queue; more are refused with ``QueueFull``, 0: no limit."""

    dead_letters: bool = True
    """Whether a task that has failed for good is kept as a dead letter; others always are."""

    dead_letters_age: float = field(default=7_776_000.0, metadata=_range(0.0, 3_153_600_000.0))
    """For how many seconds dead letters are kept, 0: for ever."""

    dead_letters_max: int = field(default=100_000, metadata=_range(0, 1_000_000_000))
    """Most dead letters of a queue; the oldest go first, 0: no limit."""

    dead_letters_archive: str = field(default="", repr=False)
    """The database, as a SQLAlchemy URL, to which workers move dead letters, "": none."""

    dead_letters_archive_after: float = field(default=3600.0, metadata=_range(0.0, 3_153_600_000.0))
    """Seconds after which they do."""

    history: int = field(default=0, metadata=_range(0, 100_000_000))
    """About how many runs of tasks are kept, of all queues; the oldest go first, 0: none."""

    revoke_expires: float = field(default=86_400.0, metadata=_range(1.0, 31_536_000.0))
    """For how many seconds Redis remembers a revoked id."""

    queues: Mapping[str, Limits] = field(default_factory=dict)
    """By queue: a mapping with its own ``promote_rate``, ``max_ready``, ``max_scheduled``,
    ``dead_letters_age`` and ``dead_letters_max``.
    """

    def limits(self, queue: str) -> Limits:
        """Return the limits of a queue."""
        own = self.queues.get(queue)
        return own or Limits(
            self.promote_rate,
            self.max_ready,
            self.max_scheduled,
            self.dead_letters_age,
            self.dead_letters_max,
            bool(self.dead_letters_archive),
            self.history,
        )

    @classmethod
    def from_options(cls, transport_options: Mapping[str, Any] | None) -> Settings:
        """Read the ``delayq`` part of *transport_options*.

        Raises
        ------
        ConfigError
            A name is unknown (the message lists the valid ones), or a value has the wrong
            type or lies outside its range.
        """
        given = (transport_options or {}).get("delayq", {})
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"broker_transport_options['delayq'] is {hide(given)}; it must be a mapping "
                f"with some of: {', '.join(f.name for f in fields(cls))}"
            )
        known = {f.name: f for f in fields(cls)}
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            raise ConfigError(
                f"unknown delayq setting(s): {', '.join(unknown)}{_meant(unknown, known)}; "
                f"valid are: {', '.join(known)}"
            )
        values = {
            name: _checked(name, given[name], known[name].default, known[name].metadata)
            for name in given
            if name != "queues"
        }
        settings = cls(**values)
        queues = given.get("queues", {})
        if not isinstance(queues, Mapping):
            raise ConfigError(
                f"delayq setting queues is {hide(queues)}: expected a mapping of queue names to "
                "limits, such as {'mail': {'max_ready': 1000}}"
            )
        own = {name: _limits(settings, name, limits) for name, limits in queues.items()}
        return replace(settings, queues=own)


def misplaced(transport_options: Mapping[str, Any] | None, others: Collection[str]) -> list[str]:
    """Return a warning for each transport option that was most likely meant for us.

    *others* are options that kombu knows. What nobody knows is left alone: it may be one of a
    newer kombu.
    """
    names = [field.name for field in fields(Settings)]
    warnings = []
    for name, value in (transport_options or {}).items():
        if not isinstance(name, str) or name == "delayq" or name in others:
            continue
        inner = value if isinstance(value, Mapping) else {}
        if _close(re.sub("[_-]", "", name), ["delayq"], 0.8) and any(
            _close(str(each), names, 0.85) for each in inner
        ):
            meant = "'delayq'"
        elif own := _close(name, names, 0.85):
            meant = f"['delayq'][{own[0]!r}]"
        else:
            continue
        warnings.append(
            f"broker_transport_options[{name!r}] has no effect; did you mean {meant}? Our settings "
            "stand in broker_transport_options['delayq']"
        )
    return warnings


def _meant(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Return what may have been meant by unknown names, as the end of a sentence."""
    known = [*known]
    close = [found[0] for name in unknown if (found := _close(name, known, 0.7))]
    return f" (did you mean {', '.join(close)}?)" if close else ""


def _close(name: str, names: Sequence[str], cutoff: float) -> list[str]:
    return get_close_matches(name.lower(), names, 1, cutoff)


def _limits(settings: Settings, queue: str, given: Any) -> Limits:
    """Return the limits of one queue, the general ones where it has none of its own."""
    if not isinstance(given, Mapping) or not set(given) <= set(Limits.options()):
        # Names alone: a value may be a URL with a password.
        told = f"is {hide(given)}"
        if isinstance(given, Mapping):
            told = f"has {', '.join(sorted({*map(str, given)} - {*Limits.options()}))}"
        raise ConfigError(
            f"delayq setting queues[{queue!r}] {told}: expected a mapping with some of "
            f"{', '.join(Limits.options())}"
        )
    known = {f.name: f for f in fields(Settings)}
    values = {
        name: _checked(
            f"queues[{queue!r}]: {name}", value, known[name].default, known[name].metadata
        )
        for name, value in given.items()
    }
    return settings.limits(queue)._replace(**values)


def _checked(name: str, value: Any, default: Any, bounds: Mapping[str, float]) -> Any:
    """Return *value* with the type of *default*, or say what would be right."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"delayq setting {name}={_told(value)}: expected True or False")
        return value
    if isinstance(default, str):
        return _url(name, value.text if isinstance(value, Hidden) else value)
    whole = isinstance(default, int)
    right_type = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or not bounds["low"] <= value <= bounds["high"]:
        per_second = name.endswith("promote_rate")
        kind = "a whole number" if whole else "a number" if per_second else "a number of seconds"
        raise ConfigError(
            f"delayq setting {name}={_told(value)}: expected {kind} "
            f"from {bounds['low']:g} to {bounds['high']:g}"
        )
    return value if whole else float(value)


def _told(value: Any) -> str:
    """Return a value of the wrong type as errors show it: one may have got where a URL belongs."""
    return hide(value) if isinstance(value, (str, bytes)) else repr(value)


def _url(name: str, value: Any) -> str:
    """Return a URL, or ""; an error does not show it, as it may hold a password."""
    if isinstance(value, str) and (not value or "://" in value):
        return value
    got = "a text that is none" if isinstance(value, str) else type(value).__name__
    raise ConfigError(
        f"delayq setting {name}: expected a URL such as 'sqlite:////var/lib/shop/dead.db' or "
        f"'postgresql://shop@db/shop', got {got}"
    )
