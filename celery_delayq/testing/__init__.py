"""Helpers for tests of an app that uses ``celery_delayq``, and for this project's own tests.

=========================================  =======================================================
`WorkerProcess`, `ManagedProcess`          a real ``celery worker``, or any program, as a process
`wait_until`                               wait for a condition, with a deadline
`time_travel`                              "a day later" without a worker, as a context manager
`assert_scheduled`, `assert_not_scheduled` assertions about scheduled tasks
`scheduled`, `dead_letters`                the scheduled tasks and the dead letters
`drain`                                    run what is due now, in the test
``celery_delayq.testing.fixtures``         pytest plugin: a private Redis and workers
``celery_delayq.testing.pytest_celery``    pytest plugin: suites for pytest-celery without Docker
=========================================  =======================================================

Needs ``pip install "celery-delayq[testing]"``.
"""

from __future__ import annotations

from celery_delayq.testing.asserts import (
    assert_not_scheduled,
    assert_scheduled,
    dead_letters,
    drain,
    scheduled,
)
from celery_delayq.testing.processes import ManagedProcess, ProcessFailed, has_ended
from celery_delayq.testing.travel import time_travel
from celery_delayq.testing.wait import wait_until
from celery_delayq.testing.workers import FAST_START, POOLS, WorkerProcess

__all__ = [
    "FAST_START",
    "POOLS",
    "ManagedProcess",
    "ProcessFailed",
    "WorkerProcess",
    "assert_not_scheduled",
    "assert_scheduled",
    "dead_letters",
    "drain",
    "has_ended",
    "scheduled",
    "time_travel",
    "wait_until",
]
