"""The command line of ``reconcile``: what it refuses before Java is started."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

from click.testing import CliRunner

from celery_delayq.spark.reconcile import command

# Warned of where Python has a newer pandas than PySpark knows.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give either --table or --query"),
        (["--table", "t", "--grace", "60"], "--grace needs --created-column"),
        (["--table", "t", "--partitions", "4"], "go together"),
        (["--table", "t", "--url", "redis://:hunter2@h/0"], "the option url has a password"),
    ],
)
def test_the_command_says_what_is_wrong_before_java_is_started(
    arguments: list[str], problem: str
) -> None:
    given = [
        "--jdbc-url",
        "jdbc:derby:x",
        "--task",
        "mail.remind",
        "--key",
        "a",
        "--eta",
        "b",
        *arguments,
    ]
    done = CliRunner().invoke(command, given)
    assert done.exit_code in (1, 2)
    assert problem in done.output
    assert "hunter2" not in done.output


@pytest.mark.parametrize(
    "program", [["celery_delayq.spark", "reconcile"], ["celery_delayq.spark.reconcile"]]
)
def test_the_command_is_found(program: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *program, "--help"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--jdbc-url" in done.stdout
