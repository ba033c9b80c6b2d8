"""What a measurement declares and returns: rows, targets, figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bench import Bench


class BenchError(Exception):
    """A measurement failed; the message says what did not happen in time."""


class Better(str, Enum):
    """The better direction of a row's value."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True)
class Target:
    """What a figure must reach: ``text`` for people, ``reached`` for ``--check``."""

    text: str
    reached: Callable[[Figure], bool]


def given_fields(values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not their defaults: a process of an older version
    may not know the others.
    """
    return {
        each.name: value
        for each in fields(values)
        if (value := getattr(values, each.name)) != each.default
    }


def ratio_at_least(limit: float) -> Target:
    """Ours divided by stock is at least ``limit``."""
    return Target(f"ratio ≥ {limit:g}", lambda f: f.ratio is not None and f.ratio >= limit)


def at_most(limit: float, unit: str = "") -> Target:
    """Our own value, in the row's unit, is at most ``limit``."""
    return Target(f"≤ {limit:g}{' ' if unit else ''}{unit}", lambda f: f.ours <= limit)


def below(limit: float, unit: str = "") -> Target:
    """Our own value, in the row's unit, is less than ``limit``."""
    return Target(f"< {limit:g}{' ' if unit else ''}{unit}", lambda f: f.ours < limit)


def ratio_at_most(limit: float) -> Target:
    """Ours divided by stock is at most ``limit``."""
    return Target(f"ratio ≤ {limit:g}", lambda f: f.ratio is not None and f.ratio <= limit)


def not_above_stock(factor: float, slack: float, unit: str) -> Target:
    """Our own value is not above stock's, within the noise of the row.

    :param factor: allowed multiple of stock's value.
    :param slack: allowed difference from stock's value; the larger limit counts.
    """
    return Target(
        f"≤ {factor:g} times stock or + {slack:g} {unit}",
        lambda f: f.ours <= max(f.stock * factor, f.stock + slack),
    )


def at_most_above_stock(limit: float, unit: str) -> Target:
    """Our own value, in the row's unit, is at most ``limit`` above stock's in the same run."""
    return Target(f"≤ stock + {limit:g} {unit}", lambda f: f.ours <= f.stock + limit)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    :param name: short and stable, the key in the JSON file.
    :param title: text for people.
    :param unit: of both values.
    :param better: the better direction of a value.
    :param target: target of our side, or None for a row that only informs.
    :param digits: decimals shown.
    """

    name: str
    title: str
    unit: str
    better: Better
    target: Target | None = None
    digits: int = 0

    def titled(self, *parts: object) -> Row:
        """Return the row with the braces of its title filled in."""
        return replace(self, title=self.title.format(*parts))

    def figure(
        self,
        stock: Sequence[float],
        ours: Sequence[float],
        raw: Mapping[str, object] | None = None,
    ) -> Figure:
        """Return a figure: one value for each round and side, paired by round.

        :param raw: other values for the JSON file.
        """
        if not stock or len(stock) != len(ours):
            raise ValueError(f"{self.name}: {len(stock)} rounds of stock, {len(ours)} of ours")
        return Figure(self, tuple(stock), tuple(ours), raw or {})


@dataclass(frozen=True)
class Figure:
    """A row with one value for each round. The table shows the median."""

    row: Row
    stock_rounds: tuple[float, ...]
    ours_rounds: tuple[float, ...]
    raw: Mapping[str, object] = field(default_factory=dict)

    @property
    def stock(self) -> float:
        """Median over the rounds of stock Celery, in the row's unit."""
        return statistics.median(self.stock_rounds)

    @property
    def ours(self) -> float:
        """Median over the rounds of this package, in the row's unit."""
        return statistics.median(self.ours_rounds)

    @property
    def ratio(self) -> float | None:
        """Ours divided by stock: computed in each pair of rounds, then the median."""
        pairs = zip(self.stock_rounds, self.ours_rounds, strict=True)
        ratios = [ours / stock for stock, ours in pairs if stock > 1e-6]
        return statistics.median(ratios) if ratios else None

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None for a row without a target."""
        return None if self.row.target is None else self.row.target.reached(self)

    def with_target(self, limit: float, text: str) -> Figure:
        """Return this figure with the target that our own value is at most ``limit``."""
        target = Target(text, lambda figure: figure.ours <= limit)
        return replace(self, row=replace(self.row, target=target))

    def as_dict(self) -> dict[str, Any]:
        """The figure for the JSON file, with the values of all rounds."""
        return {
            "name": self.row.name,
            "title": self.row.title,
            "unit": self.row.unit,
            "better": self.row.better.value,
            "digits": self.row.digits,
            "stock": self.stock,
            "ours": self.ours,
            "ratio": self.ratio,
            "target": self.row.target.text if self.row.target else None,
            "reached": self.reached,
            "stock_rounds": list(self.stock_rounds),
            "ours_rounds": list(self.ours_rounds),
            "raw": dict(self.raw),
        }


@dataclass(frozen=True)
class Published:
    """The time of publishing: seconds of wall clock and of this process's CPU.

    :param longest: seconds of the longest callback of the event loop.
    :param user_seconds: CPU outside of the kernel, if measured.
    """

    count: int
    seconds: float
    cpu_seconds: float
    longest: float = 0.0
    user_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tasks a second."""
        return self.count / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """CPU of this process for each task."""
        return self.cpu_seconds / self.count * 1e6


MeasureFunction = Callable[["Bench"], Iterator[Figure]]


@dataclass(frozen=True)
class Measurement:
    """A function that yields the figures of one or more rows, with its name."""

    name: str
    summary: str
    order: int
    run: MeasureFunction


_measurements: dict[str, Measurement] = {}


def measurement(name: str, *, order: int) -> Callable[[MeasureFunction], MeasureFunction]:
    """Register the decorated function for ``--only`` and for a whole run.

    :param name: the name for ``--only``.
    :param order: place in the table; gaps leave room for later ones.
    """

    def register(function: MeasureFunction) -> MeasureFunction:
        if name in _measurements:
            raise ValueError(f"two measurements are called {name!r}")
        summary = (function.__doc__ or "").strip().splitlines()[0]
        _measurements[name] = Measurement(name, summary, order, function)
        return function

    return register


def measurements() -> list[Measurement]:
    """Return all registered measurements in the order of the table."""
    return sorted(_measurements.values(), key=lambda m: (m.order, m.name))
