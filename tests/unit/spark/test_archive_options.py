"""What the commands of archives refuse, before Java is started."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from click.testing import CliRunner

from celery_delayq.errors import ConfigError
from celery_delayq.spark import archive, restore
from celery_delayq.spark.archive.commits import ArchiveError, Commit
from celery_delayq.spark.archive.job import ArchiveOptions
from celery_delayq.spark.restore.job import RestoreOptions


@pytest.mark.parametrize("command", [archive.command, restore.command])
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "Missing option '--folder'"),
        (
            ["--folder", "s3a://me:hunter2@shop/delayq"],
            "folder 's3a://…@shop/delayq': it has",
        ),
        (["--folder", "f", "--url", "redis://:hunter2@h/0"], "the option url has a password"),
        (["--folder", "f", "--frobnicate"], "No such option"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(
    command: Any, arguments: list[str], problem: str
) -> None:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2
    assert problem in done.output
    assert "hunter2" not in done.output


@pytest.mark.parametrize("command", [archive.command, restore.command])
@pytest.mark.parametrize(
    "folder", ["jdbc:derby:hunter2", "postgresql+psycopg://shop:hunter2@db/shop"]
)
def test_a_database_is_refused_with_what_to_use(command: Any, folder: str) -> None:
    done = CliRunner().invoke(command, ["--folder", folder])
    assert done.exit_code == 2
    for expected in ("archives of Spark are folders", "--folder", "dead archive", "delayq export"):
        assert expected in done.output
    assert "hunter2" not in done.output


@pytest.mark.parametrize(
    ("command", "arguments", "problem"),
    [
        (archive.command, ["--tables", "history,leased"], "tables='leased'; valid are: history"),
        (archive.command, ["--tables", ""], "valid are: history, dead_letters, scheduled"),
        (archive.command, ["--source", ""], "source='': expected a name"),
        (restore.command, ["--since", "tomorrow"], "tomorrow"),
        (restore.command, ["--queue", ""], "queue"),
        (restore.command, ["--table", "dead_letters", "--snapshot", "x"], "are for the table"),
        (restore.command, ["--table", "history"], "'history' is not one of"),
    ],
)
def test_options_that_are_wrong_are_told(command: Any, arguments: list[str], problem: str) -> None:
    done = CliRunner().invoke(command, ["--folder", "f", *arguments])
    assert done.exit_code == 2
    assert problem in done.output


@pytest.mark.parametrize(
    "options",
    [
        ArchiveOptions(on_loss="ignore"),  # type: ignore[arg-type]
        ArchiveOptions(partitions=0),
        ArchiveOptions(older_than=-1),
        RestoreOptions(table="history"),  # type: ignore[arg-type]
        RestoreOptions(connections=0),
    ],
)
def test_options_of_the_functions_are_checked(options: Any) -> None:
    with pytest.raises(ConfigError):
        options.check()


def test_a_commit_is_read_as_it_was_written() -> None:
    commit = Commit("history", 3, "now", "shop", 5, 1, {"shop": "1-0"}, files={"a": 1})
    assert Commit.unpack(commit.pack(), "here", "history") == commit
    later = json.dumps({**json.loads(commit.pack()), "version": 2})
    for text, problem in (
        (later, "here: version 2 of the format; this version of the package reads 1"),
        (commit.pack()[:-9], "here: it cannot be read"),
        (commit.pack().replace("history", "scheduled"), "here: it is no archive of history"),
        ("[]", "it is damaged"),
        ('{"format": "celery_delayq.archive", "version": 1, "table": "history"}', "is damaged"),
    ):
        with pytest.raises(ArchiveError, match=problem):
            Commit.unpack(text, "here", "history")
