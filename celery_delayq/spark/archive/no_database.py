"""Refuse a database as the place of an archive."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from celery_delayq.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_DATABASE = re.compile(
    r"jdbc:|(postgres(ql)?|mysql|mariadb|sqlite|oracle|mssql)(\+\w+)?:", re.IGNORECASE
)
_INSTEAD = (
    "archives of Spark are folders of Parquet files: use --folder. Into a database go dead letters "
    "by 'celery -A <app> delayq dead archive' or by workers (dead_letters_archive), and the "
    "schedule by 'celery -A <app> delayq export'"
)


def check_no_database(folder: str) -> None:
    """Raise :class:`ConfigError` where the folder of an archive is the URL of a database."""
    if _DATABASE.match(folder):
        raise ConfigError(f"the folder is the URL of a database; {_INSTEAD}")


def refuse_database_options(command: F) -> F:
    """Let a command say what to use in place of a database."""
    for name in ("--jdbc-url", "--table-prefix", "--user", "--driver"):
        refused = click.option(name, hidden=True, expose_value=False, callback=_refuse)
        command = refused(command)
    return command


def _refuse(_: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(f"no option {option.opts[0]}: {_INSTEAD}")
