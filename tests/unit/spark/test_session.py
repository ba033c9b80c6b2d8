"""Ctrl-C while Java works: one error, and no traceback of py4j."""

from __future__ import annotations

import logging

import pytest

from celery_delayq.spark.session import interrupts


def _send_command() -> None:
    """Fail as py4j does when Ctrl-C ends a call and Java cannot be told."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        logging.exception("KeyboardInterrupt while sending command.")
        raise RuntimeError("Error while sending or receiving")  # noqa: B904


def _fail() -> None:
    try:
        raise ValueError("other")
    except ValueError:
        logging.exception("it failed")
        raise


def test_ctrl_c_in_a_call_of_java_is_that_and_logs_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts():
        _send_command()

    assert caplog.records == []


def test_other_errors_are_logged_and_raised(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="other"), interrupts():
        _fail()

    assert [record.message for record in caplog.records] == ["it failed"]
