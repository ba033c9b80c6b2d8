"""The error for a missing requirement of Spark says how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from celery_delayq.errors import ConfigError
from celery_delayq.spark import check, check_java, register
from tests.support import TIMEOUT

ARGUMENTS = [
    *("--jdbc-url", "jdbc:derby:x", "--table", "t", "--url", "redis://127.0.0.1/0"),
    *("--task", "mail.remind", "--key", "a", "--eta", "b"),
]


def job(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Start a job as a person does."""
    command = [sys.executable, "-m", "celery_delayq.spark", "reconcile", *ARGUMENTS]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **env}
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A JAVA_HOME, whose Java tells the version that a test writes into `version`."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/version >&2\n")
    program.chmod(0o755)
    return tmp_path


# -- the extra


@pytest.mark.parametrize("name", ["pyspark", "pyarrow"])
def test_without_the_extra_it_is_said_how_to_install_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(ConfigError, match=rf'{name} is missing; .*"celery-delayq\[spark\]"'):
        register(None)  # type: ignore[arg-type]


def test_a_pyspark_that_is_too_old_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")

    with pytest.raises(ConfigError, match=r"PySpark 4\.0\.1 is too old, expected 4\.1 or newer"):
        check()


def test_a_job_without_the_extra_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('no', name='pyspark')\n")

    done = job({"PYTHONPATH": str(tmp_path)})

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        'Error: pyspark is missing; install it with: pip install "celery-delayq[spark]"\n'
    )


# -- Java


@pytest.mark.parametrize(
    ("told", "too_old"),
    [
        ('openjdk version "11.0.22" 2024-01-16', "11"),
        ('java version "1.8.0_392"', "8"),
        ('openjdk version "16" 2021-03-16', "16"),
        ('openjdk version "17.0.15"', None),
        ('java version "25"', None),
        ("whatever", None),
    ],
)
def test_a_java_that_is_too_old_is_reported_and_others_will_do(
    home: Path, told: str, too_old: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "version").write_text(told)
    monkeypatch.setenv("JAVA_HOME", str(home))
    problem = rf"Java {too_old} \({home}/bin/java\) is too old"

    with pytest.raises(ConfigError, match=problem) if too_old else nullcontext():
        check_java()


def test_without_java_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match="there is none on PATH; install Java 17 or newer"):
        check_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"there is none in JAVA_HOME, {tmp_path}; correct that"):
        check_java()


def test_a_job_with_an_old_java_says_so_in_one_line(home: Path) -> None:
    pytest.importorskip("pyspark")
    (home / "version").write_text('openjdk version "11.0.22" 2024-01-16\n')

    done = job({"JAVA_HOME": str(home)})

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: Java 11 ({home}/bin/java) is too old for Spark; install Java 17 or newer "
        "(apt install openjdk-17-jre-headless), and set JAVA_HOME to it\n"
    )
