"""How command lines say where an archive is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from celery_delayq.spark.archives.commits import Target
from celery_delayq.spark.archives.databases import DatabaseTarget, check_prefix
from celery_delayq.spark.archives.folders import FolderTarget
from celery_delayq.spark.jdbc import PASSWORD, connecting
from celery_delayq.utils.credentials import check_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """Give a command what says where an archive is; see :func:`taken`."""
    for option in (
        click.option("--table-prefix", metavar="PREFIX", default="delayq_", show_default=True,
                     help="Of tables of the database; a schema may be before it."),
        click.option("--driver", metavar="CLASS", help="Of JDBC, for databases not known here."),
        click.option("--user", help=f"Of the database; its password is {PASSWORD} in the "
                     "environment."),
        click.option("--jdbc-url", metavar="URL", help="Or a database, without a password."),
        click.option("--folder", metavar="PATH", help="A folder of Parquet files, on any file "
                     "system that Spark knows."),
    ):  # fmt: skip
        command = option(command)
    return command


def taken(given: dict[str, Any]) -> Callable[[SparkSession], Target]:
    """Take what was said of the archive out of the options, and return what opens it.

    Raises
    ------
    click.UsageError
        Neither a folder nor a database was given, or both.
    ConfigError
        The URL has a password, or the prefix is none.
    """
    folder, url, prefix = given.pop("folder"), given.pop("jdbc_url"), given.pop("table_prefix")
    user, driver = given.pop("user"), given.pop("driver")
    if bool(folder) == bool(url):
        raise click.UsageError("give either --folder or --jdbc-url")
    if url:
        connecting(url)
        check_prefix(prefix)
        return lambda spark: DatabaseTarget(spark, url, user=user, driver=driver, prefix=prefix)
    check_folder(folder)
    return lambda spark: FolderTarget(spark, folder)
