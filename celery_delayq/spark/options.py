"""Options of the data source and of jobs. An option is described once, as a field of a dataclass.

Names are lower case, because Spark ignores the case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

import click

from celery_delayq.errors import ConfigError
from celery_delayq.spark import access
from celery_delayq.spark.access import Access

OnConflict = Literal["keep", "replace", "error", "later"]
OnLoss = Literal["warn", "fail"]
Table = Literal["scheduled", "ready", "leased", "dead_letters", "periodic", "history"]

#: Options that Spark itself adds for a stream.
_SPARK_OPTIONS = frozenset({"checkpointlocation", "path"})

T = TypeVar("T")


class Names(click.ParamType):  # type: ignore[type-arg]
    """Names with commas between them, or a collection of names."""

    name = "names"

    def convert(self, value: Any, *_: Any) -> Any:
        """Return the names."""
        texts = value.split(",") if isinstance(value, str) else value
        return [name for name in map(str.strip, texts) if name]


#: The type of sizes and numbers of parts.
COUNT_TYPE = click.IntRange(1, 10_000)


def one_of(choices: Any) -> Any:
    """Return the type of an option whose values are the arguments of a ``Literal``."""
    return click.Choice(get_args(choices))


def option(
    default: Any = MISSING,
    help: str = "",
    metavar: str | None = None,
    *,
    type: Any = click.STRING,
    flag: str | None = None,
) -> Any:
    """Return the field of a dataclass for an option.

    Parameters
    ----------
    help, metavar, type
        As for ``click.option``. For a required option of the data source *help* says what is
        missing.
    flag : str | None
        The name on the command line, if it differs.
    """
    described = {"help": help, "metavar": metavar, "type": type, "flag": flag}
    return field(default=default, metadata=described)


def checked(option: Field[Any], given: Any) -> Any:
    """Return the value of an option for a value or its text.

    Raises
    ------
    ConfigError
        The value is not of the type of the option.
    """
    if given is None:
        if option.default is not None:
            raise ConfigError(f"{option.name}=None: expected a value")
        return None
    try:
        value = option.metadata["type"].convert(given, None, None)
    except click.BadParameter as exc:
        raise ConfigError(f"{option.name}={given!r}: {exc.message}") from exc
    if value != value:  # NaN
        raise ConfigError(f"{option.name}={given!r}: expected a number")
    if isinstance(given, float) and value != given:
        raise ConfigError(f"{option.name}={given!r}: expected a whole number")
    return value


@dataclass(frozen=True)
class JobOptions:
    """Options of each job.

    Attributes
    ----------
    access : Mapping[str, str]
        The options ``url``, ``app`` and ``keyprefix`` of the data source.
    """

    access: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def check(self) -> None:
        """Raise :class:`ConfigError` if an option is wrong."""
        for each in fields(self):
            if each.metadata:
                given = getattr(self, each.name)
                value = checked(each, given)
                if isinstance(given, str) and not isinstance(value, (str, list)):
                    raise ConfigError(f"{each.name}={given!r}: expected a number, not a text")
        Access.of(self.access)


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
    task: str = option(help="the name of a Celery task, such as mail.remind")
    idcolumn: str = option(help="the column that identifies a row")
    etacolumn: str | None = option(None)
    delaycolumn: str | None = option(None)
    queue: str | None = option(None)
    priority: int | None = option(None, type=click.IntRange(0, 255))
    onconflict: OnConflict = option("keep", type=one_of(OnConflict))
    batchsize: int = option(500, type=COUNT_TYPE)
    ratelimit: float | None = option(None, type=click.FloatRange(0.001))
    refused: str = option("fail")
    report: str | None = option(None)

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
    table: Table = option("scheduled", type=one_of(Table))
    queue: str | None = option(None)
    task: str | None = option(None)
    since: str | None = option(None)
    until: str | None = option(None)
    partitions: int = option(8, type=COUNT_TYPE)
    batchsize: int = option(1000, type=COUNT_TYPE)
    after: str | None = option(None)
    onloss: OnLoss = option("warn", type=one_of(OnLoss))

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of a read; raises the errors of :meth:`WriteOptions.of`."""
        return _parse_options("reading", options, cls)


def _parse_options(what: str, options: Mapping[str, str], kind: type[T]) -> T:
    """Parse options from Spark, which are texts with names in any case."""
    given = {name.lower(): text for name, text in options.items()}
    own = {each.name: each for each in fields(kind) if each.metadata}  # type: ignore[arg-type]
    valid = sorted([*own, *access.ACCESS_OPTIONS])
    unknown = sorted(given.keys() - {*valid} - _SPARK_OPTIONS)
    if unknown:
        raise ConfigError(
            f"unknown option(s) for {what}: {', '.join(unknown)}; valid are: {', '.join(valid)}"
        )
    values: dict[str, Any] = {"access": Access.of(given)}
    for name, each in own.items():
        if text := given.get(name):
            values[name] = checked(each, text)
        elif each.default is MISSING:
            raise ConfigError(f"the option {name} is missing: {each.metadata['help']}")
    return kind(**values)
