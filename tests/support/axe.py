"""axe-core, which finds what keeps people from reading a page. It is fetched once, by npm."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.support.left_out import left_out

RELEASE = "4.14.1"

#: Not under version control; ``make clean`` removes it.
CACHE = Path(__file__).parents[2] / ".upstream"


@cache
def axe() -> str:
    """Return the script."""
    file = CACHE / f"axe-core-{RELEASE}" / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise left_out("no npm on PATH: apt install npm")
        folder = CACHE / f"axe-core-{RELEASE}"
        folder.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--silent", "--no-save", "--ignore-scripts", "--prefix"]
        subprocess.run([*install, str(folder), f"axe-core@{RELEASE}"], check=True)
    return file.read_text("utf-8")
