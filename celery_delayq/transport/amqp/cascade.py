"""Writes a delay as hops from delay queue to delay queue in RabbitMQ. No I/O, no clock.

A delay is a number of units in base 4. Each digit except 0 is one hop: the message waits in the
queue of that digit for ``digit * 4**level`` units. Headers of the message contain the digits. The
routing key does not change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from celery_delayq.errors import InvalidETA

BASE = 4

#: Number of digits of the longest delay: 3.4 years in units of 25 ms.
LEVELS = 16

#: The longest delay in units.
MAX_DELAY_UNITS = BASE**LEVELS - 1

#: No header begins with ``x-``: RabbitMQ's headers exchanges ignore such headers.
_DIGIT_HEADERS = tuple(f"delayq-digit-{level}" for level in range(LEVELS))

#: The header with the exchange to which a due message goes; "" sends it to a queue by its name.
TARGET_HEADER = "delayq-target"

#: The header with the due time in ISO 8601. Only people read it.
DUE_HEADER = "delayq-due"

#: Headers that this package and RabbitMQ add to a message in the cascade.
_ROUTING_HEADERS = frozenset(
    {
        *_DIGIT_HEADERS,
        TARGET_HEADER,
        DUE_HEADER,
        "x-death",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
    }
)


class Hop(NamedTuple):
    """One delay queue: for messages with *digit* at *level*."""

    level: int
    digit: int

    @property
    def units(self) -> int:
        """Units for which a message waits in the queue."""
        return self.digit << (2 * self.level)  # digit * BASE**level


class Delay(NamedTuple):
    """A delay of at least one unit."""

    units: int

    @classmethod
    def of(cls, ms: float, unit_ms: int, longest: int = MAX_DELAY_UNITS) -> Delay | None:
        """Return *ms* as a delay in units of *unit_ms*, rounded up; None for no delay.

        Raises
        ------
        InvalidETA
            The delay is longer than *longest* units.
        """
        units = -(-math.ceil(ms) // unit_ms)
        if units > longest:
            raise InvalidETA(
                f"a delay of {round(ms) / 1000:.15g} s is longer than max_delay, which is "
                f"{longest * unit_ms / 1000:.15g} s here"
            )
        return cls(units) if units > 0 else None

    @property
    def entry(self) -> Hop:
        """The first delay queue: that of the highest digit."""
        level = (self.units.bit_length() - 1) // 2
        return Hop(level, self.units >> (2 * level))

    def headers(self) -> dict[str, str]:
        """Return the headers that route a message through its delay queues after the first."""
        units, found = self.units, {}
        for name in _DIGIT_HEADERS[: self.entry.level]:
            found[name] = "0123"[units & 3]
            units >>= 2
        return found


def has_digit(level: int, digit: int) -> dict[str, str]:
    """Return the arguments of a binding for messages with *digit* at *level*."""
    return {"x-match": "all", _DIGIT_HEADERS[level]: str(digit)}


def target_headers(exchange: str) -> dict[str, str]:
    """Return the arguments of a binding for messages whose target is *exchange*."""
    return {"x-match": "all", TARGET_HEADER: exchange}


def original_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a message without the headers of the cascade.

    If a message is published again with its former ``x-death``, RabbitMQ takes the message for one
    in a cycle, and does not route it.
    """
    if _ROUTING_HEADERS.isdisjoint(headers):
        return dict(headers)
    return {name: value for name, value in headers.items() if name not in _ROUTING_HEADERS}
