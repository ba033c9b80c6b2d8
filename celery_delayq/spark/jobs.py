"""The shared part of the jobs' command lines: session, options, output and errors."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_delayq.admin.exit_codes import Refused, WrongUse, reporting_errors
from celery_delayq.errors import ConfigError
from celery_delayq.spark import check, check_java, register
from celery_delayq.spark.jdbc import UTC_OPTION
from celery_delayq.spark.options import JobOptions
from celery_delayq.spark.session import interrupts
from celery_delayq.utils.text import spelled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])

#: The last line of a Python traceback.
_RAISED_LINE = re.compile(r"([a-z_]\w*\.)*[A-Z]\w*(Error|Exception|Invalid|NotImplemented\w*): ")


def session(name: str, jars: str | None = None) -> SparkSession:
    """Return the session of ``spark-submit``, or a new one, with the data source registered.

    Parameters
    ----------
    jars : str | None
        Jar files with commas between them, such as a JDBC driver.
    """
    check()
    from pyspark.sql import SparkSession

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # no spark-submit: Spark runs on this machine
        try:
            check_java()
        except ConfigError as exc:  # an error of this machine, not of the options
            raise Refused(str(exc)) from exc
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        java = os.environ.get("SPARK_SUBMIT_OPTS", "")
        if "-Duser.timezone" not in java:
            os.environ["SPARK_SUBMIT_OPTS"] = f"{java} {UTC_OPTION}".strip()
    builder = SparkSession.builder.appName(name)
    if jars is not None:
        builder = builder.config("spark.jars", jars)
    # No progress bar in a log file.
    builder = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    spark = builder.getOrCreate()
    register(spark)
    return spark


def options(kind: type[JobOptions]) -> Callable[[F], F]:
    """Return a decorator for the command of a job, which prints errors in one line.

    The command has the options of *kind* and those of all jobs. It is called with *options*, which
    were checked before Java is started, *jars* and *as_json*.
    """

    def decorate(command: F) -> F:
        described = [each for each in fields(kind) if each.metadata]

        @functools.wraps(command)
        def run(*, url: str | None, app: str | None, keyprefix: str | None, **given: Any) -> Any:
            texts = {"url": url, "app": app, "keyprefix": keyprefix}
            access = {name: text for name, text in texts.items() if text is not None}
            own = {each.name: given.pop(each.name) for each in described}
            checked = kind(**own, access=access)
            checked.check()
            return command(options=checked, **given)

        wrapper = _print_errors(run)
        for add in reversed([*map(_click_option, described), *_OPTIONS_OF_ALL_JOBS]):
            wrapper = add(wrapper)
        return wrapper  # type: ignore[return-value]

    return decorate


#: The options of all jobs: the options of :class:`.access.Access` without secrets, and others.
_OPTIONS_OF_ALL_JOBS = (
    click.option(
        "--url",
        metavar="URL",
        help="The broker's URL without its password, or env:NAME; default: DELAYQ_URL or "
        "CELERY_BROKER_URL. DELAYQ_PASSWORD is the password.",
    ),
    click.option("--app", metavar="APP", help="The Celery app, as celery -A takes it."),
    click.option("--keyprefix", metavar="PREFIX", help="The apps' global_keyprefix."),
    click.option(
        "--jars", metavar="FILES", help="Jar files such as a JDBC driver, without spark-submit."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def _click_option(option: Field[Any]) -> Callable[[Any], Any]:
    """Return the option of a command line."""
    described = {**option.metadata}
    flag = described.pop("flag") or f"--{option.name.replace('_', '-')}"
    if option.default is MISSING:
        described["required"] = True
    elif option.default is False:
        described["is_flag"] = True
    else:
        described |= {"default": option.default, "show_default": option.default is not None}
    return click.option(flag, option.name, **described)


def show_summary(
    summary: Any, title: str, sums: Iterable[tuple[str, int]], *, as_json: bool
) -> None:
    """Print the summary of a job, which is a dataclass, as JSON, or its counts as a table."""
    if as_json:
        click.echo(json.dumps(asdict(summary)))
    else:
        is_dry = getattr(summary, "dry_run", False)
        show_counts(f"{title} (dry run: nothing was changed)" if is_dry else title, sums)


def show_counts(title: str, sums: Iterable[tuple[str, int]]) -> None:
    """Print counts as a table."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=False)
    table.add_column("what")
    table.add_column("number", justify="right", no_wrap=True)
    for what, number in sums:
        table.add_row(Text(spelled(what)), f"{number:,}")
    console = Console(highlight=False, soft_wrap=True)
    # The title is a single line, so that users can copy names.
    console.print(Text(spelled(title), "bold"))
    console.print(table)


def warn(text: str) -> None:
    """Print a warning; control characters become visible."""
    click.echo(spelled(text), err=True)


def _print_errors(command: F) -> F:
    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            # spark-submit prints warnings to standard output, where the JSON is.
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
            check()
            from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
            from pyspark.errors import PySparkException

            try:
                with interrupts():
                    return command(*args, **kwargs)
            except ConfigError as exc:  # its message names the wrong option
                raise WrongUse(spelled(str(exc))) from exc
            except Py4JJavaError as exc:
                raise Refused(_one_line(str(exc.java_exception))) from exc
            except PySparkException as exc:
                raise Refused(_one_line(str(exc))) from exc

    return reporting_errors(wrapper)  # type: ignore[return-value]


def _one_line(text: str) -> str:
    """Return the most useful line of a Spark error: the last of a Python traceback."""
    lines = [line.strip() for line in text.splitlines()]
    ours = [line for line in lines if line.startswith(("celery_delayq.", "redis.", "kombu."))]
    raised = ours or [line for line in lines if _RAISED_LINE.match(line)]
    line = raised[-1] if raised else next(filter(None, lines), "Spark failed")
    return spelled(re.sub(r"^celery_delayq(\.\w+)+: ", "", line))
