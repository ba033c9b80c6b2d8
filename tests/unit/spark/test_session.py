"""What jobs ask of a session, as far as it needs no Spark."""

from __future__ import annotations

import pytest

from celery_delayq.spark.session import interrupts


def call_java(inner: type[BaseException], made: Exception) -> None:
    """Fail as py4j does where ending a call fails as well."""
    try:
        try:
            raise inner
        finally:
            raise OSError("the socket is gone")
    finally:
        raise made


def test_ctrl_c_in_a_call_of_java_is_an_interrupt() -> None:
    made = RuntimeError("Gateway must be connected to send cancel cmd.")

    with pytest.raises(KeyboardInterrupt) as raised, interrupts():
        call_java(KeyboardInterrupt, made)

    assert raised.value.__cause__ is made


def test_other_errors_are_as_they_were() -> None:
    made = RuntimeError("no such column")

    with pytest.raises(RuntimeError) as raised, interrupts():
        call_java(ValueError, made)
    assert raised.value is made

    with pytest.raises(SystemExit), interrupts():
        raise SystemExit
