"""What jobs share: their session, their command lines, and how they tell what they did."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.admin.reporting import Refused, WrongUse, reporting_errors
from celery_delayq.errors import ConfigError
from celery_delayq.spark import check, check_java, register
from celery_delayq.spark.jdbc import IN_UTC
from celery_delayq.spark.session import interrupts
from celery_delayq.utils.text import spelled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])

#: The last line of a traceback of Python.
_RAISED = re.compile(r"([a-z_]\w*\.)*[A-Z]\w*(Error|Exception|Invalid|NotImplemented\w*): ")

#: The options by which a job finds the queue: those of the data source, without secrets.
_ACCESS = ("url", "app", "keyprefix")


def session(name: str, jars: str | None = None) -> SparkSession:
    """Return the session of ``spark-submit``, or a new one, which knows the data source.

    Parameters
    ----------
    jars : str | None
        Files for Java, such as the JDBC driver of a database, with commas between them.
    """
    check()
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not under spark-submit: all runs here
        try:
            check_java()
        except ConfigError as exc:  # of this machine, not of what was asked
            raise Refused(str(exc)) from exc
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        java = os.environ.get("SPARK_SUBMIT_OPTS", "")
        if "-Duser.timezone" not in java:
            os.environ["SPARK_SUBMIT_OPTS"] = f"{java} {IN_UTC}".strip()
    builder = SparkSession.builder.appName(name)
    if jars is not None:
        builder = builder.config("spark.jars", jars)
    # In a log a bar would be noise.
    builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    spark = builder.getOrCreate()
    register(spark)
    return spark


def options(command: F) -> F:
    """Give a command what all jobs can be told, and tell what went wrong in one line."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--jars", metavar="FILES", help="JDBC driver, where no spark-submit adds it."),
        click.option("--keyprefix", metavar="PREFIX", help="The apps' global_keyprefix."),
        click.option("--app", metavar="APP", help="The Celery app, as celery -A takes it."),
        click.option(
            "--url",
            metavar="URL",
            help="The broker's URL without its password, or env:NAME; else DELAYQ_URL or "
            "CELERY_BROKER_URL say it. DELAYQ_PASSWORD is the password.",
        ),
    ):
        command = option(command)
    return _telling_errors_of_spark(command)


def access_of(given: dict[str, Any]) -> dict[str, str]:
    """Take what was said of the queue out of the options of a command."""
    return {name: value for name in _ACCESS if (value := given.pop(name)) is not None}


def show(title: str, sums: Iterable[tuple[str, int]]) -> None:
    """Print what a job did as a table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=False)
    table.add_column("what")
    table.add_column("number", justify="right", no_wrap=True)
    for what, number in sums:
        table.add_row(Text(spelled(what)), f"{number:,}")
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        Text(spelled(title), "bold")
    )  # on a line of its own, so that names in it can be copied
    console.print(table)


def warn(text: str) -> None:
    """Print what went wrong; names and errors in it may be anybody's."""
    click.echo(spelled(text), err=True)


def show_json(said: Mapping[str, Any]) -> None:
    """Print what a job did as JSON."""
    print(json.dumps(said))


def _telling_errors_of_spark(command: F) -> F:
    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            # spark-submit puts warnings where JSON is to be.
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
            check()
            from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
            from pyspark.errors import PySparkException

            try:
                with interrupts():
                    return command(*args, **kwargs)
            except ConfigError as exc:  # it says which option is wrong
                raise WrongUse(spelled(str(exc))) from exc
            except Py4JJavaError as exc:
                raise Refused(_one_line(str(exc.java_exception))) from exc
            except PySparkException as exc:
                raise Refused(_one_line(str(exc))) from exc

    return reporting_errors(wrapper)  # type: ignore[return-value]


def _one_line(text: str) -> str:
    """Return the line of an error of Spark that says most: the last one of a Python traceback."""
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line.startswith(("celery_delayq.", "redis.", "kombu."))]
    raised = said or [line for line in lines if _RAISED.match(line)]
    line = raised[-1] if raised else next(filter(None, lines), "Spark failed")
    return spelled(re.sub(r"^celery_delayq(\.\w+)+: ", "", line))
