"""The unit tests of Celery and kombu: with the changes of this package the same ones fail.

For every change those that fail with the changes run without them; each night all do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support.upstream_plugin import CHANGED, OUTCOMES

ROOT = Path(__file__).parents[3]
#: Not under version control; ``make clean`` removes it.
CACHE = ROOT / ".upstream"

#: Tests of what the changes replace, or beginnings of their names, by the reason.
BY_DESIGN = {
    "half a message is kept with its child, not in a generator of the event loop": (
        "t/unit/concurrency/test_prefork.py::test_AsynPool::test_process_result",
        "t/unit/concurrency/test_prefork.py::test_AsynPool::test_flush_outqueue_",
    ),
    "a child's queue has a method of ours, not the test's": (
        "t/unit/concurrency/test_prefork.py::test_AsynPool::test_Worker",
    ),
    "the event loop raises the prefetch, and the test has none": (
        "t/unit/worker/test_consumer.py::test_Consumer::test_create_task_handler",
    ),
    "an error of the result backend is logged, and does not end the task": (
        "t/unit/worker/test_request.py::test_Request::test_trace_catches_exception",
    ),
}

#: All unit tests, from the folder of a release.
ALL = ("t/unit",)

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


def unpacked(package: str) -> Path:
    """Return the folder with the source of the installed release, which is fetched once."""
    release = f"{package}-{version(package)}"
    folder = CACHE / release
    if not folder.exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(CACHE),
        ]
        pinned = f"{package}=={version(package)}"
        subprocess.run([*pip, "--no-binary", package, pinned], check=True)
        with tarfile.open(CACHE / f"{release}.tar.gz") as archive:
            members = [each for each in archive if each.name.startswith(f"{release}/t/")]
            members += [
                archive.getmember(f"{release}/{name}") for name in ("pyproject.toml", "setup.cfg")
            ]
            archive.extractall(CACHE / f"{release}.new", members, filter="data")
        (CACHE / f"{release}.new" / release).rename(folder)
    return folder


def outcomes(folder: Path, place: Path, changed: str, tests: Sequence[str]) -> dict[str, Any]:
    """Run tests in a process, and return which have failed and how many have passed."""
    shutil.copytree(folder, place / "source")  # some of them write files beside themselves
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    env |= {OUTCOMES: str(place / "outcomes.json"), CHANGED: changed}
    plugins = ["-p", "celery.contrib.pytest", "-p", "tests.support.upstream_plugin"]
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--continue-on-collection-errors"]
    options.append("--ignore=t/unit/transport/SQS")  # its conftest needs botocore
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugins, *tests],
        cwd=place / "source",
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stdout[-4000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads((place / "outcomes.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize(("package", "least"), [("kombu", 1500), ("celery", 4500)])
def test_what_fails_with_the_changes_fails_without_them(
    package: str, least: int, tmp_path: Path
) -> None:
    folder = unpacked(package)

    changed = outcomes(folder, tmp_path / "changed", "1", ALL)
    failed = ours(changed)
    stock = outcomes(folder, tmp_path / "stock", "", failed)["failed"] if failed else []

    assert failed == stock
    assert changed["passed"] > least


@pytest.mark.nightly
@pytest.mark.parametrize("package", ["kombu", "celery"])
def test_the_same_tests_fail_with_the_changes(package: str, tmp_path: Path) -> None:
    folder = unpacked(package)

    with ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(outcomes, folder, tmp_path / f"run-{changed}", changed, ALL)
            for changed in ("", "1")
        ]
        stock, changed = (run.result() for run in runs)

    assert ours(changed) == stock["failed"]


def ours(changed: dict[str, Any]) -> list[str]:
    """Return what has failed, without what the changes replace."""
    replaced = tuple(name for names in BY_DESIGN.values() for name in names)
    return [name for name in changed["failed"] if not name.startswith(replaced)]
