"""The command lines of jobs: what they refuse before Java is started, and how they print."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

from click.testing import CliRunner

from celery_delayq.spark import archive, jobs, reconcile, report, restore

# Warned of where Python has a newer pandas than PySpark knows.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning")

#: Each command with the options that it needs.
COMMANDS = {
    "archive": (archive.command, "--folder f"),
    "restore": (restore.command, "--folder f"),
    "report": (report.command, ""),
    "reconcile": (
        reconcile.command,
        "--jdbc-url jdbc:derby:x --task mail.remind --key a --eta b --table t",
    ),
}
DATABASE = "the folder is the URL of a database; archives of Spark are folders of Parquet files: "
NO_FOLDER = "--parquet {0}: the archive is in this folder; name another one"


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        *(
            (name, "--url redis://:hunter2@h/0", "the option url has a password")
            for name in COMMANDS
        ),
        *(
            (name, f"--folder {folder}", problem)
            for name in ("archive", "restore")
            for folder, problem in {
                "s3a://me:hunter2@shop/delayq": (
                    "folder 's3a://…@shop/delayq': the URL has a password"
                ),
                "jdbc:derby:hunter2": DATABASE,
                "postgresql+psycopg://shop:hunter2@db/shop": DATABASE,
            }.items()
        ),
        ("archive", "--tables history,leased", "tables='leased'; valid are: history"),
        ("archive", "--tables ,", "tables=''; valid are: history, dead_letters, scheduled"),
        ("archive", "--source=", "source='': expected a name"),
        ("restore", "--since tomorrow", "since='tomorrow': expected a datetime"),
        ("restore", "--queue=", "queue"),
        ("restore", "--table dead_letters --snapshot x", "snapshot and overdue are for the table"),
        ("restore", "--table history", "Invalid value for '--table': 'history' is not one of"),
        ("report", "--since yesterday", "since='yesterday': expected a datetime"),
        ("report", "--since 2026-02-01 --until 2026-01-01", "since='2026-02-01' is not before"),
        ("report", "--ahead -1", "Invalid value for '--ahead': -1.0 is not in the range"),
        ("report", "--ahead nan", "ahead=nan: expected a number"),
        ("report", "--step 0", "Invalid value for '--step': 0 is not in the range"),
        ("report", "--html /none/r.html", "--html /none/r.html: there is no folder /none"),
        ("report", "--history /a --parquet /a/", NO_FOLDER.format("/a/")),
        ("report", "--history /a --parquet /a/x", NO_FOLDER.format("/a/x")),
        ("reconcile", "--query x", "give either --table or --query"),
        ("reconcile", "--grace 60", "--grace needs --created-column"),
        ("reconcile", "--partitions 4", "--partition-column, --lower-bound, --upper-bound and "),
    ],
)
def test_wrong_options_are_reported_in_a_line_before_java_is_started(
    name: str, arguments: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_delayq.spark.jobs.session", pytest.fail)
    command, needed = COMMANDS[name]

    done = CliRunner().invoke(command, [*needed.split(), *arguments.split()])

    *usage, error = done.output.splitlines()
    assert error.startswith(f"Error: {problem}")
    assert not usage or usage[0].startswith("Usage: ")
    assert done.exit_code == 2
    assert "hunter2" not in done.output


@pytest.mark.parametrize(
    "program", [["celery_delayq.spark", "reconcile"], ["celery_delayq.spark.reconcile"]]
)
def test_the_command_is_found(program: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *program, "--help"], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--jdbc-url" in done.stdout


def test_names_and_errors_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    steering = "\x1b[2J\x9b31m\r"
    jobs.show_counts(f"snapshot {steering}", [(f"sum {steering}", 1)])
    jobs.warn(f"1 row(s) refused: {steering}")

    printed = "".join(capsys.readouterr())
    assert printed.replace("\n", "").isprintable()
    assert printed.count(r"\x1b[2J\u009b31m\r") == 3
