"""``celery -A app delayq …`` inside the test, on a real app and a real Redis."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import Any

from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_delayq.cli import delayq

#: Begins the command of a process that is to be interrupted: shells start what runs in their
#: background with SIGINT ignored. Whoever watches it comes first, on a busy machine too.
INTERRUPTIBLE = ("env", "--default-signal=INT", "nice")


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote, all of it, as JSON."""
        return json.loads(self.out)


class CommandLine:
    """Runs commands; nobody sits there who could be asked."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def __call__(self, *args: str, columns: int = 80) -> Ran:
        # Before click 8.2, the runner mixes both streams unless it is told not to.
        mixed = "mix_stderr" in inspect.signature(CliRunner).parameters
        runner = CliRunner(**({"mix_stderr": False} if mixed else {}))  # type: ignore[arg-type]
        result = runner.invoke(
            delayq,
            args,
            obj=CLIContext(self.app, no_color=True, workdir=None),
            env={"COLUMNS": str(columns), "TZ": "UTC"},
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)
