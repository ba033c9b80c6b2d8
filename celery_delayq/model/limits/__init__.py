"""Limits over all workers: their definition, and the lane of a call. No I/O, no clock.

A *lane* are the tasks with one limit and one key. Scripts read the definition of a limit from
Redis, and the lane of a message from the message (:func:`~celery_delayq.model.envelope.limit_of`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from celery_delayq.errors import InvalidLimit
from celery_delayq.model.arguments.key import KeyTemplate
from celery_delayq.utils.foreign import FOREIGN_ERRORS
from celery_delayq.utils.numbers import is_finite, is_integer
from celery_delayq.utils.text import UTF8_TEXT, is_utf8, percent

#: The option of a task with its limit.
LIMIT_OPTION = "limit"

#: Microseconds of the unit of a rate.
_UNIT_US = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(?:/\s*([a-z]))?\s*", re.ASCII)

_RATE_TEXT = "expected a text such as '10/s', '100/m', '5/h' or '1/d', or a number per second"

#: Least and most microseconds between two tasks of a lane.
_MIN_INTERVAL_US, _MAX_INTERVAL_US = 1.0, 366 * 86_400_000_000

#: Most tasks of a burst, and most tasks at once.
_MAX_TASKS = 1_000_000

#: Most characters of a name, percent-encoded.
_MAX_NAME_LENGTH = 200


class Definition(NamedTuple):
    """What Redis knows of a limit.

    Attributes
    ----------
    interval_us : float
        Microseconds between two tasks of a lane; 0 without a rate.
    burst : int
        Tasks of a lane that may follow each other without the interval.
    concurrency : int
        Most tasks of a lane at once; 0 without this limit.
    fair : bool
        Whether lanes take turns.
    """

    interval_us: float
    burst: int
    concurrency: int
    fair: bool

    @property
    def text(self) -> str:
        """The value in Redis: ``<interval_us> <burst> <concurrency> <fair 0|1>``."""
        interval = f"{self.interval_us!r}".removesuffix(".0")
        return f"{interval} {self.burst} {self.concurrency} {'1' if self.fair else '0'}"

    @classmethod
    def parse(cls, text: str) -> Definition | None:
        """Read :attr:`text`; None for any other text, which means no limit."""
        match text.split(" "):
            case [interval, burst, concurrency, ("0" | "1") as fair]:
                try:
                    found = cls(float(interval), int(burst), int(concurrency), fair == "1")
                except FOREIGN_ERRORS:
                    return None
                valid = is_finite(found.interval_us, 0) and found.burst > 0 <= found.concurrency
                return found if valid else None
        return None

    def __str__(self) -> str:
        """Return the definition for people: ``100/m, burst 20, 8 at once, fair``."""
        rate, most = self.rate, self.concurrency
        parts = [
            *([rate] if rate else []),
            *([f"burst {self.burst:,}"] if self.burst > 1 else []),
            *([f"{most:,} at once"] if most else []),
            *(["fair"] if self.fair else []),
        ]
        return ", ".join(parts) or "no limit"

    @classmethod
    def shown(cls, text: str) -> str:
        """Return what :meth:`parse` reads, for people."""
        found = cls.parse(text)
        return "no limit" if found is None else str(found)

    def may_go(self, held: int, used: int, used_until_us: float, now_us: int) -> int:
        """Return how many held messages of a lane may be leased now.

        *used* are leased. *used_until_us* is the time up to which the slots of its rate are used,
        as in ``include/limits/permits.lua``; both times are in µs.
        """
        most = held
        if self.concurrency:
            most = min(most, self.concurrency - used)
        if self.interval_us:
            used_slots = max(0.0, used_until_us - now_us) / self._slot_us
            most = min(most, math.floor(self.burst - used_slots + 1e-6))
        return max(0, most)

    def next_us(self, used: int, used_until_us: float, now_us: int) -> float:
        """Return when the next message of a lane may be leased: *now_us* if it may be leased now,
        infinity while all permits are taken. Parameters of :meth:`may_go`.
        """
        if self.concurrency and used >= self.concurrency:
            return math.inf
        if not self.interval_us:
            return now_us
        # A script lowers a time that is further ahead: include/limits/permits.lua.
        used_until_us = min(used_until_us, now_us + self.burst * self._slot_us)
        return max(now_us, used_until_us - (self.burst - 1) * self._slot_us)

    @property
    def _slot_us(self) -> float:
        """The interval in half µs, as scripts count: ``include/limits/lanes.lua``."""
        return math.ceil(self.interval_us * 2) / 2

    @property
    def rate(self) -> str | None:
        """The rate as a text such as ``100/m``; None without a rate."""
        if not self.interval_us:
            return None
        rates = {unit: us / self.interval_us for unit, us in _UNIT_US.items()}
        for unit, number in rates.items():
            if number >= 1 and abs(number - round(number)) < 1e-6 * number:
                return f"{round(number)}/{unit}"
        unit = next((unit for unit, number in rates.items() if number >= 1), "d")
        return f"{rates[unit]:.6g}/{unit}"


@dataclass(frozen=True, eq=False)
class Limit:
    """A limit for tasks, over all workers.

    Several tasks may share a limit. Tasks that have to wait stay scheduled.

    Parameters
    ----------
    name : str
        The name of the limit. All limits of an app with one name must have the same ``rate``,
        ``burst``, ``concurrency`` and ``fair``.
    rate : str | float | None
        Most tasks in a time, such as ``"10/s"``, ``"100/m"``, ``"5/h"`` or ``"1/d"``, or a number
        per second. Counted is the moment at which a worker gets the task.
    burst : int
        Tasks that may start at once after a time without any; between the others there is the
        interval of the rate.
    concurrency : int | None
        Most tasks that workers have at once. Requires late acknowledgement.
    key : str | Callable[..., str] | None
        A template over the arguments such as ``"{customer}"``, or a function of the arguments, as
        for ``unique_key``. Each key has the whole rate and concurrency for itself. None: all tasks
        together.
    fair : bool
        Whether keys take turns, so that many waiting tasks of one key do not delay the others.

    Attributes
    ----------
    definition : Definition
        What Redis knows of the limit.

    Raises
    ------
    InvalidLimit
        A value is invalid, or nothing is limited.

    Examples
    --------
    >>> Limit("stripe", rate="100/m", burst=20, concurrency=8, key="{customer}").definition.text
    '600000 20 8 0'
    """

    name: str
    _: KW_ONLY
    rate: Any = None
    burst: int = 1
    concurrency: int | None = None
    key: Any = None
    fair: bool = False
    definition: Definition = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        given = f"Limit({self.name!r}): "
        interval = 0.0 if self.rate is None else _interval_us(given, self.rate)
        if not is_integer(self.burst, 1, _MAX_TASKS):
            raise InvalidLimit(
                f"{given}burst={self.burst!r}: expected a whole number from 1 to {_MAX_TASKS:,}"
            )
        if self.burst > 1 and self.rate is None:
            raise InvalidLimit(
                f"{given}burst={self.burst!r} without rate=; give a rate, or leave burst out"
            )
        most = self.concurrency
        if most is not None and not is_integer(most, 1, _MAX_TASKS):
            raise InvalidLimit(
                f"{given}concurrency={most!r}: expected a whole number from 1 to {_MAX_TASKS:,}, "
                "or None for no limit"
            )
        if not (self.key is None or callable(self.key) or isinstance(self.key, str)):
            raise InvalidLimit(
                f"{given}key={self.key!r}: expected a template such as '{{customer}}', a callable "
                "that gets the task's arguments, or None"
            )
        if text := key_template(self).unreadable():
            raise InvalidLimit(f"{text}; expected a template such as '{{customer}}'")
        if not isinstance(self.fair, bool):
            raise InvalidLimit(f"{given}fair={self.fair!r}: expected True or False")
        if self.rate is None and most is None and not self.fair:
            raise InvalidLimit(
                f"{given}nothing is limited; give rate='100/m', concurrency=8 or fair=True"
            )
        definition = Definition(interval, self.burst, most or 0, self.fair)
        object.__setattr__(self, "definition", definition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limit) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        return self.name, self.definition, self.key

    def lane_of(
        self, task_name: str, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str:
        """Return the lane of a call: ``<name>:<key>``, both percent-encoded.

        *task* is None if this app does not know the task.

        Raises
        ------
        InvalidLimit
            The key is empty for these arguments, or cannot be computed from them.
        """
        key = ""
        if self.key is not None:
            template = key_template(self)
            text = template.text_of(task_name, task, args, kwargs)
            key = template.encoded(task_name, text)
        return f"{percent(self.name)}:{key}"


def key_template(limit: Limit) -> KeyTemplate:
    """Return the template of a limit's keys."""
    return KeyTemplate(f"key={limit.key!r} of Limit({limit.name!r})", limit.key, InvalidLimit)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InvalidLimit(f"Limit({name!r}): expected a name such as 'stripe' first")
    if not is_utf8(name):
        raise InvalidLimit(f"Limit({name!r}): expected {UTF8_TEXT}")
    if len(percent(name)) > _MAX_NAME_LENGTH:
        raise InvalidLimit(
            f"Limit({name[:40]!r}…): the name has {len(percent(name))} characters, "
            f"percent-encoded; expected at most {_MAX_NAME_LENGTH}"
        )


def _interval_us(given: str, rate: Any) -> float:
    """Return the microseconds between two tasks at a rate."""
    number, unit = rate, "s"
    if isinstance(rate, str):
        found = _RATE.fullmatch(rate)
        if found is None or (found[2] or "s") not in _UNIT_US:
            raise InvalidLimit(f"{given}rate={rate!r}: {_RATE_TEXT}")
        number, unit = float(found[1]), found[2] or "s"
    if not is_finite(number) or number <= 0:
        raise InvalidLimit(f"{given}rate={rate!r}: {_RATE_TEXT}, above 0")
    interval: float = _UNIT_US[unit] / number
    if not _MIN_INTERVAL_US <= interval <= _MAX_INTERVAL_US:
        raise InvalidLimit(
            f"{given}rate={rate!r}: expected at least one task in 366 days, and at most 1,000,000 "
            "in a second"
        )
    return interval
