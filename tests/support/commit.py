"""The commit of this checkout, which long runs name beside their results."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit_name() -> str | None:
    """Return the short name of the commit, with ``-dirty`` if files differ; None outside git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=8"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
