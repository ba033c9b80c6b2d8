"""Options and summary of `reconcile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import click
from pyspark.sql import DataFrame, types

from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.spark.options import JobOptions, Names, WriteOptions, one_of, option
from celery_delayq.spark.reconcile.verdicts import OWN_PREFIX

Orphans = Literal["report", "cancel"]

#: Up to a hundred years.
_SECONDS_TYPE = click.FloatRange(0, 100 * 366 * 86_400)


class TooManyOrphans(DelayQError):
    """More tasks have no row than ``max_orphans`` allows; nothing was changed."""


@dataclass(frozen=True)
class ReconcileOptions(JobOptions):
    """Options of the comparison and of the changes.

    Attributes
    ----------
    task : str
        The name of the task.
    key, eta : str
        The column that identifies a row (text, a whole number or a date), and the column with the
        ETA.
    arguments : Sequence[str] | None
        The columns that are keyword arguments; None: all other columns except *created*.
    created : str | None
        The column with the time of creation. None: all rows count as old.
    grace : float
        Rows newer than this number of seconds stay unchanged.
    finished_within : float
        Rows stay unchanged if, by the history, their task ended less than this many seconds ago.
    orphans : str
        ``report`` or ``cancel`` scheduled tasks without a row.
    max_orphans : int | None
        With more orphans an error is raised and nothing is changed: the query may have found too
        few rows. None: no limit.
    dry_run : bool
        Only count, change nothing.
    queue, priority, batchsize, ratelimit : object
        As in :class:`~celery_delayq.spark.options.WriteOptions`.
    refused : str | None
        Folder for Parquet files of refused rows.
    """

    task: str = option(help="The task, such as mail.remind.", metavar="NAME")
    key: str = option(help="Column that identifies a row.", metavar="COLUMN")
    eta: str = option(help="Column with the ETA.", metavar="COLUMN")
    arguments: Sequence[str] | None = option(
        None, "Columns that are arguments; default: all others.", "COLUMNS", type=Names()
    )
    created: str | None = option(
        None, "Column with the time of creation.", "COLUMN", flag="--created-column"
    )
    grace: float = option(
        3600.0,
        "Leave rows unchanged that are newer than this, by --created-column.",
        "SECONDS",
        type=_SECONDS_TYPE,
    )
    finished_within: float = option(
        86_400.0,
        "Leave rows unchanged whose task ended less than this ago, by the history.",
        "SECONDS",
        type=_SECONDS_TYPE,
    )
    orphans: Orphans = option("report", "Action for tasks without a row.", type=one_of(Orphans))
    max_orphans: int | None = option(
        None, "With more orphans, change nothing and fail.", "NUMBER", type=click.IntRange(0)
    )
    dry_run: bool = option(False, "Only show the outcomes, change nothing.", type=click.BOOL)
    queue: str | None = option(None, "The queue; default: by the app's routes.")
    priority: int | None = option(None, "Priority of the tasks.", type=click.INT)
    batchsize: int = option(500, "Rows per round trip.", type=click.INT)
    ratelimit: float | None = option(
        None, "Most rows per second and Spark task.", "ROWS", type=click.FLOAT
    )
    refused: str | None = option(None, "Folder for rows that cannot be scheduled.", "FOLDER")

    def check(self) -> None:
        """Raise :class:`ConfigError` if an option is wrong."""
        super().check()
        WriteOptions.of(self.writing())

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


@dataclass
class ReconcileSummary:
    """Outcomes of rows, or of a dry run.

    Attributes
    ----------
    rows, young : int
        All rows, and rows that stay unchanged because they are new.
    present : Mapping[str, int]
        Rows that stay unchanged because of the state of their task: ``leased``, ``ready``,
        ``retry`` (waits for a retry), ``elsewhere`` (scheduled in another queue), ``dead`` or
        ``finished``.
    new, replaced, kept : int
        Missing rows, changed rows, and rows that need no change. A row is *kept*, too, if its task
        appeared during the job.
    refused : int
        Rows that cannot be scheduled.
    orphans, cancelled : int
        Scheduled tasks without a row, and cancelled ones of them.
    why : str
        Why one of the refused rows was refused.
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
        """Yield names and counts, line by line."""
        yield from (("rows", self.rows), ("young", self.young))
        yield from self.present.items()
        for name in ("new", "replaced", "kept", "refused", "orphans", "cancelled"):
            yield name, getattr(self, name)


def check_columns(rows: DataFrame, options: ReconcileOptions) -> None:
    """Raise :class:`ConfigError` if a column is missing or has a wrong type."""
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
    own = [name for name in rows.columns if name.startswith(OWN_PREFIX)]
    if own:
        raise ConfigError(
            f"{', '.join(own)}: names that begin with {OWN_PREFIX} are taken; rename them"
        )
    for name in ("key", "eta"):
        column = getattr(options, name)
        if column in (options.arguments or ()):
            raise ConfigError(
                f"arguments={column!r} is the {name} already: to use the column as an argument, "
                "too, select it once more under another name"
            )
    kind = rows.schema[options.key].dataType
    # Types whose text is the same in Spark and in Python.
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
