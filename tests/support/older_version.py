"""An older version of the package and its tests, from git.

A fleet of two versions has workers of both: ``Stage.worker(code=…)``.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from tests.support.skips import left_out

ROOT = Path(__file__).parents[2]

#: The commit of the older version: one of 28 November 2026, before limits. From 0.2 on it is the
#: tag of the minor version before.
COMMIT = "6effe9bc"


class MissingHistory(Exception):
    """This checkout has no history of git with the older version."""


def unpack_into(folder: Path) -> Path:
    """Write the older version into a folder, and return the folder; skip a test without it."""
    try:
        return unpack(folder)
    except MissingHistory as exc:
        raise left_out(str(exc)) from exc


def unpack(folder: Path) -> Path:
    """Write the older version into a folder, and return the folder; raises MissingHistory."""
    command = ["git", "archive", "--format=tar", COMMIT, "celery_delayq", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True)
    if done.returncode:
        raise MissingHistory(f"the history of git is missing: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder)
    return folder
