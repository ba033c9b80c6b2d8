"""`wait_until`."""

from __future__ import annotations

import itertools
import sys

import pytest

from celery_delayq.testing import ManagedProcess, ProcessFailed, wait, wait_until


def test_wait_until_returns_what_became_true() -> None:
    answers = itertools.chain([0, None, ""], itertools.repeat("ready"))

    assert wait_until(lambda: next(answers), 5, interval=0) == "ready"


def test_wait_until_says_what_it_waited_for() -> None:
    for what in ("the gate to open", lambda: "the gate to open"):
        with pytest.raises(TimeoutError, match=r"waited 0\.01 s in vain for the gate to open"):
            wait_until(lambda: False, 0.01, what, interval=0.001)
    assert wait_until(lambda: True, 0, pytest.fail)


def test_wait_until_asks_less_often_the_longer_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("celery_delayq.testing.wait.time.sleep", pauses.append)
    monkeypatch.setattr("celery_delayq.testing.wait.time.monotonic", lambda: sum(pauses))

    wait_until(lambda: sum(pauses) > 4, 5)

    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.02, 0.1)
    assert len(pauses) < 80


def test_wait_until_passes_errors_on() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, 5)


def test_a_suite_sets_the_default_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait, "DEFAULT_TIMEOUT", 0.01)

    with pytest.raises(TimeoutError, match=r"waited 0\.01 s"):
        wait_until(lambda: False, interval=0.001)
    with (
        ManagedProcess([sys.executable, "-c", "import time; time.sleep(600)"]) as process,
        pytest.raises(ProcessFailed, match=r"still runs after 0\.01 s"),
    ):
        process.wait()
