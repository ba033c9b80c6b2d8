"""Common parts of the demonstrations' commands."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console


class WrongSums(Exception):
    """Published and finished tasks do not agree; the message has a line for each reason."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("\n".join(["the sums are wrong:", *(f"  {line}" for line in found)]))


def folder_made(context: click.Context, option: click.Parameter, path: Path) -> Path:
    """Make the folder of an option's file now, and not at the end of the day."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"no folder for it: {error}", context, option) from error
    return path


def end_by_exceptions() -> None:
    """Turn SIGTERM and SIGINT into exceptions, so that all processes are ended."""
    signal.signal(signal.SIGTERM, _leave)
    # A shell starts background commands with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def log_folder(console: Console, prefix: str, keep: bool = False) -> Iterator[Path]:
    """Yield a new folder for logs; it stays if *keep* is true or an error occurs."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except Exception:
        keep = True
        raise
    finally:
        if keep:
            console.print(f"The logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
