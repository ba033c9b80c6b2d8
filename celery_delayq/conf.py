"""Settings: ``broker_transport_options={"delayq": {...}}``, validated once and strictly.

>>> Settings.from_options({"delayq": {"dispatch_batch": 50}}).dispatch_batch
50
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from celery_delayq.errors import ConfigError


def _range(low: float, high: float) -> dict[str, float]:
    return {"low": low, "high": high}


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
                f"broker_transport_options['delayq'] is {given!r}; it must be a mapping "
                f"with some of: {', '.join(f.name for f in fields(cls))}"
            )
        known = {f.name: f for f in fields(cls)}
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            raise ConfigError(
                f"unknown delayq setting(s): {', '.join(unknown)}; valid are: {', '.join(known)}"
            )
        return cls(
            **{
                name: _checked(name, given[name], known[name].default, known[name].metadata)
                for name in given
            }
        )


def _checked(name: str, value: Any, default: Any, bounds: Mapping[str, float]) -> Any:
    """Return *value* with the type of *default*, or say what would be right."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"delayq setting {name}={value!r}: expected True or False")
        return value
    whole = isinstance(default, int)
    right_type = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right_type or not math.isfinite(value) or not bounds["low"] <= value <= bounds["high"]:
        kind = "a whole number" if whole else "a number of seconds"
        raise ConfigError(
            f"delayq setting {name}={value!r}: expected {kind} "
            f"from {bounds['low']:g} to {bounds['high']:g}"
        )
    return value if whole else float(value)
