"""Run the unit, Lua and integration tests on the oldest and newest supported versions.

``python -m tests.matrix``; each combination has an environment of its own below ``.matrix``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TIERS = ("unit", "lua", "contract", "integration")


@dataclass(frozen=True)
class Versions:
    """What is pinned beside the package; pip chooses the rest."""

    name: str
    pins: tuple[str, ...]


OLDEST = Versions(
    "oldest",
    (
        "celery==5.5.0",
        "kombu==5.5.2",
        "redis==4.6.0",
        "pandas==2.2.3",
        "pyarrow==20.0.0",
        "pyspark==4.1.0",
    ),
)
BETWEEN = Versions("between", ("celery==5.6.2", "kombu==5.6.2", "redis==6.4.0"))
NEWEST = Versions("newest", ("celery", "kombu", "redis"))


def interpreter(version: str) -> str | None:
    """Return the Python of that version that is installed and works, if any."""
    candidates = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    for candidate in filter(None, candidates):
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip() == version:
            return candidate
    return None


def prepare(python: str, version: str, versions: Versions) -> Path:
    """Make the environment and return its interpreter."""
    folder = ENVIRONMENTS / f"py{version}-{versions.name}"
    executable = folder / "bin" / "python"
    if not executable.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [str(executable), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--upgrade", "--editable", f"{ROOT}[matrix]", *versions.pins], check=True)
    return executable


def combinations() -> list[tuple[str, str, Versions]]:
    """Return interpreter, its version and pins: every Python with the newest, one with the rest."""
    found = [(python, v) for v in PYTHONS if (python := interpreter(v))]
    if not found:
        sys.exit(f"none of Python {', '.join(PYTHONS)} is installed")
    oldest_python = found[0]
    return [
        (*oldest_python, OLDEST),
        (*oldest_python, BETWEEN),
        *((python, v, NEWEST) for python, v in found),
    ]


def main(options: list[str]) -> int:
    """Run all combinations and print what came of each."""
    results = []
    for python, version, versions in combinations():
        executable = prepare(python, version, versions)
        code = (
            "import celery as c, kombu as k, redis as r; print(*(m.__version__ for m in (c, k, r)))"
        )
        installed = subprocess.run(
            [executable, "-c", code], capture_output=True, text=True, check=True
        )
        celery, kombu, redis = installed.stdout.split()
        title = f"Python {version}, Celery {celery}, kombu {kombu}, redis-py {redis}"
        print(f"== {title}", flush=True)
        tests = subprocess.run(
            [executable, "-m", "pytest", "-q", *(f"tests/{tier}" for tier in TIERS), *options],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"},
            check=False,
        )
        results.append((title, tests.returncode))
    print()
    for title, failed in results:
        print(f"{'FAILED' if failed else 'passed'}  {title}")
    return int(any(failed for _, failed in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
