"""Run ``celery -A app delayq …`` inside the test process, with a real Redis."""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_delayq.cli import delayq
from tests.support.output import check_passwords

#: The first words of a command that is to be interrupted. A shell starts background commands with
#: SIGINT ignored. The low priority lets the test run first on a busy machine.
INTERRUPTIBLE = ("env", "--default-signal=INT", "nice")

#: A time in a text, and the form in which commands show times to people.
TIME = re.compile(r"\b\d{4}-\d\d-\d\d\S*")
_EXACT_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?[+-]\d\d:\d\d")


def times_in(text: str) -> set[datetime]:
    """Return all times in a text; each must be exact, one word, and have its offset."""
    found = [each.rstrip(",.:;") for each in TIME.findall(text)]
    assert [each for each in found if not _EXACT_TIME.fullmatch(each)] == []
    return {datetime.fromisoformat(each) for each in found}


@contextmanager
def clock_of(zone: str) -> Iterator[None]:
    """Set the time zone of this process, as TZ names it."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@dataclass(frozen=True)
class Ran:
    """How a command ended, and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The whole output as JSON."""
        return json.loads(self.out)


class CommandLine:
    """Runs commands without a terminal, so that no command can ask questions.

    Checks all times in what a command prints, unless foreign messages, which may contain any text,
    are among it.
    """

    def __init__(self, app: Celery, zone: str = "UTC", *, shows_foreign: bool = False) -> None:
        self.app = app
        self.zone = zone
        self._shows_foreign = shows_foreign

    def __call__(self, *args: str, columns: int | None = 80) -> Ran:
        # Before click 8.2, the runner mixes both streams by default.
        mixed = "mix_stderr" in inspect.signature(CliRunner).parameters
        runner = CliRunner(**({"mix_stderr": False} if mixed else {}))  # type: ignore[arg-type]
        with clock_of(self.zone):
            result = runner.invoke(
                delayq,
                args,
                obj=CLIContext(self.app, no_color=True, workdir=None),
                env={"COLUMNS": None if columns is None else str(columns)},
            )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        check_passwords(f"delayq {' '.join(args)}", f"{result.stdout}\n{result.stderr}")
        has_other_times = self._shows_foreign or {"--json", "--help", "-"} & {*args}
        if (columns or 80) >= 80 and not has_other_times:
            times_in(result.stdout)
        return Ran(result.exit_code, result.stdout, result.stderr)


def leaves(group: click.Group = delayq, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands that are not groups, each with its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield " ".join((*path, name)), command
