"""Helpers for tests of an app that uses ``celery_delayq``, and for this project's own tests.

=========================================  =======================================================
`WorkerProcess`, `ManagedProcess`          a real ``celery worker``, or any program, as a process
`wait_until`                               wait for a condition, with a deadline
``celery_delayq.testing.fixtures``         pytest plugin: a private Redis and workers
``celery_delayq.testing.pytest_celery``    pytest plugin: suites for pytest-celery without Docker
=========================================  =======================================================

Needs ``pip install "celery-delayq[testing]"``.
"""

from __future__ import annotations

from celery_delayq.testing.processes import ManagedProcess, ProcessFailed, has_ended
from celery_delayq.testing.wait import wait_until
from celery_delayq.testing.workers import FAST_START, POOLS, WorkerProcess

__all__ = [
    "FAST_START",
    "POOLS",
    "ManagedProcess",
    "ProcessFailed",
    "WorkerProcess",
    "has_ended",
    "wait_until",
]
