"""What `reconcile` is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.spark.reconcile.verdicts import OWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TooManyOrphans(DelayQError):
    """There are more tasks without a row than was to be expected; nothing was changed."""


@dataclass(frozen=True)
class ReconcileOptions:
    """What is compared, and what is to be done about it.

    Attributes
    ----------
    task : str
        The name of the task.
    key, eta : str
        The columns that identify a row (text, a whole number or a date), and say when.
    arguments : Sequence[str] | None
        The columns that are keyword arguments; all others but *created*, without it.
    created : str | None
        The column with the time at which a row was made. Without one all rows count as old.
    grace : float
        Seconds for which a new row is left alone.
    finished_within : float
        Seconds for which a row is left alone once its task has ended, as far as the history tells.
    orphans : str
        Whether tasks in the schedule that have no row are told only, or cancelled.
    max_orphans : int | None
        Where there are more, nothing is changed and an error is raised: a query that finds too
        little makes orphans of what is not. None for no limit.
    dry_run : bool
        Tell what would be done.
    queue, priority, batchsize, ratelimit : object
        As :class:`~celery_delayq.spark.options.WriteOptions` has them.
    refused : str | None
        A folder for Parquet files of rows that cannot be scheduled.
    access : Mapping[str, str]
        How the queue is found: the options ``url``, ``app``, ``keyprefix`` of the data source.
    """

    task: str
    key: str
    eta: str
    arguments: Sequence[str] | None = None
    created: str | None = None
    grace: float = 3600.0
    finished_within: float = 86_400.0
    orphans: Literal["report", "cancel"] = "report"
    max_orphans: int | None = None
    dry_run: bool = False
    queue: str | None = None
    priority: int | None = None
    batchsize: int = 500
    ratelimit: float | None = None
    refused: str | None = None
    access: Mapping[str, str] = field(default_factory=dict)

    def writing(self) -> dict[str, str]:
        """Return the options for the writer of the data source."""
        given = {
            **self.access,
            "task": self.task,
            "idcolumn": self.key,
            "etacolumn": self.eta,
            "onconflict": "replace",
            "queue": self.queue,
            "priority": self.priority,
            "batchsize": self.batchsize,
            "ratelimit": self.ratelimit,
            "refused": self.refused or "count",
        }
        return {name: str(value) for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ReconcileSummary:
    """What became of rows, or would.

    Attributes
    ----------
    rows, young : int
        All rows, and those that were left alone since they are new.
    present : Mapping[str, int]
        Rows that were left alone since their task is somewhere: ``leased``, ``ready``, waiting for
        a ``retry``, ``elsewhere`` (scheduled in another queue), ``dead`` or ``finished``.
    new, replaced, kept : int
        Rows that were missing, that had changed, and that are scheduled as they are, or were
        somewhere by the time they were to be written.
    refused : int
        Rows that cannot be scheduled.
    orphans, cancelled : int
        Scheduled tasks without a row, and those of them that were cancelled.
    why : str
        Why one of the refused rows was.
    """

    rows: int = 0
    young: int = 0
    present: Mapping[str, int] = field(default_factory=dict)
    new: int = 0
    replaced: int = 0
    kept: int = 0
    refused: int = 0
    orphans: int = 0
    cancelled: int = 0
    dry_run: bool = False
    why: str = ""

    def sums(self) -> Iterator[tuple[str, int]]:
        """Yield what there is to tell, line by line."""
        yield from (("rows", self.rows), ("young", self.young))
        yield from self.present.items()
        for name in ("new", "replaced", "kept", "refused", "orphans", "cancelled"):
            yield name, getattr(self, name)


def check_columns(rows: DataFrame, options: ReconcileOptions) -> None:
    """Raise :class:`ConfigError` where a column is missing or of a type that does not do."""
    from pyspark.sql import types

    for name, column in (
        ("key", options.key),
        ("eta", options.eta),
        ("created", options.created),
        *(("arguments", each) for each in options.arguments or ()),
    ):
        if column is not None and column not in rows.columns:
            raise ConfigError(
                f"{name}={column!r}: no such column; there are: {', '.join(rows.columns)}"
            )
    own = [name for name in rows.columns if name.startswith(OWN)]
    if own:
        raise ConfigError(f"{', '.join(own)}: names that begin with {OWN} are taken; rename them")
    for name in ("key", "eta"):
        column = getattr(options, name)
        if column in (options.arguments or ()):
            raise ConfigError(
                f"arguments={column!r} is the {name} already: to have it as an argument, too, "
                f"select it once more under another name"
            )
    kind = rows.schema[options.key].dataType
    # What Spark and Python write in the same way.
    if not isinstance(kind, (types.StringType, types.IntegralType, types.DateType)) and not (
        isinstance(kind, types.DecimalType) and kind.scale == 0
    ):
        raise ConfigError(
            f"key={options.key!r} is of type {kind.simpleString()}: expected text, a whole number "
            "or a date; cast it to text where rows are written and here"
        )
    if options.created is not None:
        kind = rows.schema[options.created].dataType
        if not isinstance(kind, (types.TimestampType, types.TimestampNTZType)):
            raise ConfigError(
                f"created={options.created!r} is of type {kind.simpleString()}: "
                "expected a timestamp"
            )
