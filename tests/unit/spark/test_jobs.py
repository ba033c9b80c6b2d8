"""What the jobs of Spark print."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from celery_delayq.spark import jobs

STEERING = "\x1b[2J\x9b31m\r"


def test_names_and_errors_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    jobs.show(f"snapshot {STEERING}", [(f"sum {STEERING}", 1)])
    jobs.warn(f"1 row(s) refused: {STEERING}")

    printed = "".join(capsys.readouterr())
    assert printed.replace("\n", "").isprintable()
    assert printed.count(r"\x1b[2J\u009b31m\r") == 3
