"""Options of the data source. Names are lower case, as Spark ignores the case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from celery_delayq.errors import ConfigError
from celery_delayq.spark import access
from celery_delayq.spark.access import Access

OnConflict = Literal["keep", "replace", "error", "later"]
OnLoss = Literal["warn", "fail"]
Table = Literal["scheduled", "ready", "leased", "dead_letters", "periodic", "history"]

#: Options that Spark itself adds for a stream.
_OF_SPARK = frozenset({"checkpointlocation", "path"})

T = TypeVar("T")


@dataclass(frozen=True)
class WriteOptions:
    """How rows become tasks. All other columns are keyword arguments.

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
        What to do with a row whose task waits or runs with another ETA or arguments. A row with
        the same ETA and arguments is always left alone.
    batchsize : int
        Rows per round trip.
    ratelimit : float | None
        Most rows per second of each Spark task.
    refused : str
        What to do with refused rows: ``"fail"`` the job, ``"count"`` them, or write them as
        Parquet files to this folder.
    report : str | None
        A file on the driver for the counts, as JSON.
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
            One is missing, unknown (the valid ones are listed) or wrong.
        """
        given = _Given("writing", options, cls)
        chosen = cls(
            access=Access.of(given.options),
            task=given.needed("task", "the name of a Celery task, such as mail.remind"),
            idcolumn=given.needed("idcolumn", "the column that identifies a row"),
            etacolumn=given.text("etacolumn"),
            delaycolumn=given.text("delaycolumn"),
            queue=given.text("queue"),
            priority=given.number("priority", int, None, 0, 255),
            onconflict=given.one_of("onconflict", get_args(OnConflict), "keep"),
            batchsize=given.number("batchsize", int, 500, 1, 10_000),
            ratelimit=given.number("ratelimit", float, None, 0.001, math.inf),
            refused=given.text("refused") or "fail",
            report=given.text("report"),
        )
        if chosen.etacolumn is not None and chosen.delaycolumn is not None:
            raise ConfigError("etacolumn and delaycolumn are given: expected one of them")
        return chosen


@dataclass(frozen=True)
class ReadOptions:
    """Which table and rows to read.

    Attributes
    ----------
    table : str
        ``scheduled``, ``ready``, ``leased``, ``dead_letters``, ``periodic`` or ``history``.
    queue, task : str | None
        Only this queue, only this task.
    since, until : str | None
        Only entries due at this time or later, and before that one. ISO 8601, UTC without
        offset. For dead letters it is the time of death, for the history the end of the run.
    partitions : int
        About how many parts to read in parallel.
    batchsize : int
        Entries per round trip.
    after : str | None
        The offset after which a new stream begins; None: at the first run.
    onloss : str
        ``"warn"`` or ``"fail"`` when Redis dropped runs before a stream has read them.
    """

    access: Access
    table: Table
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
        """Read the options of a read; raises what :meth:`WriteOptions.of` does."""
        given = _Given("reading", options, cls)
        return cls(
            access=Access.of(given.options),
            table=given.one_of("table", get_args(Table), "scheduled"),
            queue=given.text("queue"),
            task=given.text("task"),
            since=given.text("since"),
            until=given.text("until"),
            partitions=given.number("partitions", int, 8, 1, 10_000),
            batchsize=given.number("batchsize", int, 1000, 1, 10_000),
            after=given.text("after"),
            onloss=given.one_of("onloss", get_args(OnLoss), "warn"),
        )


class _Given:
    """Options as Spark gives them: texts, by names of any case."""

    def __init__(self, what: str, options: Mapping[str, str], kind: Any) -> None:
        self.options = {name.lower(): value for name, value in options.items()}
        fields = [name for name in kind.__dataclass_fields__ if name != "access"]
        valid = sorted([*fields, *access.OPTIONS])
        unknown = sorted(self.options.keys() - {*valid} - _OF_SPARK)
        if unknown:
            raise ConfigError(
                f"unknown option(s) for {what}: {', '.join(unknown)}; valid are: {', '.join(valid)}"
            )

    def text(self, name: str) -> str | None:
        return self.options.get(name) or None

    def needed(self, name: str, what: str) -> str:
        value = self.text(name)
        if value is None:
            raise ConfigError(f"the option {name} is missing: {what}")
        return value

    def one_of(self, name: str, valid: tuple[T, ...], default: T) -> T:
        value: Any = self.text(name) or default
        if value not in valid:
            raise ConfigError(f"{name}={value!r}; valid are: {', '.join(map(str, valid))}")
        return value  # type: ignore[no-any-return]

    def number(
        self, name: str, kind: Callable[[str], Any], default: Any, least: float, most: float
    ) -> Any:
        text = self.text(name)
        if text is None:
            return default
        try:
            value = kind(text)
            if least <= value <= most:
                return value
        except ValueError:
            pass
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name}={text!r}: expected {what} from {least:g} to {most:g}")
