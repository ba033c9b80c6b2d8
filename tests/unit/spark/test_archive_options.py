"""Options of archives, and their commits."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from celery_delayq.errors import ConfigError
from celery_delayq.spark.archive.commits import ArchiveError, Commit
from celery_delayq.spark.archive.job import ArchiveOptions
from celery_delayq.spark.report.job import ReportOptions
from celery_delayq.spark.restore.job import RestoreOptions


@pytest.mark.parametrize(
    "options",
    [
        ArchiveOptions(on_loss="ignore"),  # type: ignore[arg-type]
        ArchiveOptions(partitions=0),
        ArchiveOptions(older_than=-1),
        RestoreOptions(table="history"),  # type: ignore[arg-type]
        RestoreOptions(connections=0),
        ReportOptions(step=2.5),  # type: ignore[arg-type]
        ReportOptions(ahead=-1),
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
        (commit.pack().replace("history", "scheduled"), "here: this is no archive of history"),
        ("[]", "it is damaged"),
        ('{"format": "celery_delayq.archive", "version": 1, "table": "history"}', "is damaged"),
    ):
        with pytest.raises(ArchiveError, match=problem):
            Commit.unpack(text, "here", "history")
