"""Options of the data source. Their names are lower case, because Spark ignores the case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from celery_delayq.errors import ConfigError
from celery_delayq.spark import access
from celery_delayq.spark.access import Access

OnConflict = Literal["keep", "replace", "error", "later"]
OnLoss = Literal["warn", "fail"]
Table = Literal["scheduled", "ready", "leased", "dead_letters", "periodic", "history"]

#: Options that Spark itself adds for a stream.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "path"})

#: Descriptions of the options without a default.
_REQUIRED_OPTIONS = {
    "task": "the name of a Celery task, such as mail.remind",
    "idcolumn": "the column that identifies a row",
}

_CHOICES: Mapping[str, Any] = {"onconflict": OnConflict, "onloss": OnLoss, "table": Table}

#: Type, least and greatest value of numbers.
_NUMBERS: Mapping[str, tuple[Callable[[str], float], float, float]] = {
    "priority": (int, 0, 255),
    "batchsize": (int, 1, 10_000),
    "partitions": (int, 1, 10_000),
    "ratelimit": (float, 0.001, math.inf),
}

T = TypeVar("T")


@dataclass(frozen=True)
class WriteOptions:
    """Options for writing rows as tasks. All other columns are keyword arguments.

    Attributes
    ----------
    task : str
        The name of the task.
    idcolumn : str
        The column that identifies a row. The task's id is ``<task>:<value>``.
    etacolumn, delaycolumn : str | None
        The column with the ETA (a timestamp), or with the delay in seconds from the write.
    queue, priority : str | None, int | None
        As for ``apply_async``.
    onconflict : str
        Action for a row whose task waits or runs with another ETA or other arguments. A row with
        the same ETA and arguments changes nothing.
    batchsize : int
        Rows per round trip.
    ratelimit : float | None
        Most rows per second of each Spark task.
    refused : str
        Action for refused rows: ``"fail"`` the job, or ``"count"`` them. Any other text is a
        folder, to which they are written as Parquet files.
    report : str | None
        File on the driver for the counts, as JSON.
    """

    access: Access
    task: str
    idcolumn: str
    etacolumn: str | None = None
    delaycolumn: str | None = None
    queue: str | None = None
    priority: int | None = None
    onconflict: OnConflict = "keep"
    batchsize: int = 500
    ratelimit: float | None = None
    refused: str = "fail"
    report: str | None = None

    @property
    def keeps_refused(self) -> bool:
        """Whether refused rows are written to files."""
        return self.refused not in ("fail", "count")

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        """Read the options of a write.

        Raises
        ------
        ConfigError
            An option is missing, unknown (the message lists the valid ones) or invalid.
        """
        chosen = _parse_options("writing", options, cls)
        if chosen.etacolumn is not None and chosen.delaycolumn is not None:
            raise ConfigError("etacolumn and delaycolumn are given: expected one of them")
        return chosen


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading rows of a table.

    Attributes
    ----------
    table : str
        ``scheduled``, ``ready``, ``leased``, ``dead_letters``, ``periodic`` or ``history``.
    queue, task : str | None
        Only this queue, only this task.
    since, until : str | None
        Only entries with ``since <= due < until``. ISO 8601, UTC if there is no offset. Compared
        is the time of death for dead letters, and the end of the run for the history.
    partitions : int
        Approximate number of parts to read in parallel.
    batchsize : int
        Entries per round trip.
    after : str | None
        The offset after which a new stream begins; None: the stream begins with the first run.
    onloss : str
        ``"warn"`` or ``"fail"`` if Redis dropped runs before a stream read them.
    """

    access: Access
    table: Table = "scheduled"
    queue: str | None = None
    task: str | None = None
    since: str | None = None
    until: str | None = None
    partitions: int = 8
    batchsize: int = 1000
    after: str | None = None
    onloss: OnLoss = "warn"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of a read; raises the errors of :meth:`WriteOptions.of`."""
        return _parse_options("reading", options, cls)


def _parse_options(what: str, options: Mapping[str, str], kind: type[T]) -> T:
    """Parse options from Spark, which are texts with names in any case."""
    given = {name.lower(): text for name, text in options.items()}
    own = {field.name: field for field in fields(kind) if field.name != "access"}  # type: ignore[arg-type]
    valid = sorted([*own, *access.ACCESS_OPTIONS])
    unknown = sorted(given.keys() - {*valid} - _SPARK_OPTIONS)
    if unknown:
        raise ConfigError(
            f"unknown option(s) for {what}: {', '.join(unknown)}; valid are: {', '.join(valid)}"
        )
    values: dict[str, Any] = {"access": Access.of(given)}
    for name, field in own.items():
        if text := given.get(name):
            values[name] = _parse_value(name, text)
        elif field.default is MISSING:
            raise ConfigError(f"the option {name} is missing: {_REQUIRED_OPTIONS[name]}")
    return kind(**values)


def _parse_value(name: str, text: str) -> Any:
    if name in _CHOICES:
        check_choice(name, text, _CHOICES[name])
    if name not in _NUMBERS:
        return text
    kind, least, most = _NUMBERS[name]
    try:
        value = kind(text)
        if least <= value <= most:
            return value
    except ValueError:
        pass
    expected = "a whole number" if kind is int else "a number"
    raise ConfigError(f"{name}={text!r}: expected {expected} from {least:g} to {most:g}")


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise :class:`ConfigError` if a value is not one of the arguments of a ``Literal``."""
    valid = get_args(choices)
    if value not in valid:
        raise ConfigError(f"{name}={value!r}; valid are: {', '.join(valid)}")
