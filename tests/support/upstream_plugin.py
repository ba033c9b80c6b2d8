"""A pytest plugin for unit tests of Celery and kombu.

It makes the changes of this package, and notes which tests fail.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

from kombu.transport import redis
from kombu.utils import eventio

#: Names the file for the outcomes.
OUTCOMES = "UPSTREAM_OUTCOMES"
#: Set if the plugin makes the changes.
CHANGED = "UPSTREAM_CHANGED"

_failed: set[str] = set()
_passed: set[str] = set()

if os.environ.get(CHANGED):
    import celery_delayq  # noqa: F401  (makes the changes of TRANSPORT)
    from celery_delayq.integration import install
    from celery_delayq.integration.replace import make

    # Changes of a single app, task or worker are not made.
    make((*install.PROCESS, *install.worker_changes(), *install.EXTENDED_WORKER))


def pytest_collection_finish() -> None:
    """Let kombu's transport use the poller that its tests set before they import it."""
    redis.poll = eventio.poll
    _freeze()


def pytest_runtest_teardown(item: Any, nextitem: Any) -> None:
    """Freeze what a file leaves behind."""
    if nextitem is not None and nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Keep the garbage collector away from what stays: the tests, and the reports of each.

    Celery calls the collector for each process that it starts, and its tests start hundreds.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: Any) -> None:
    """Note the outcome of a test, also errors of its fixtures."""
    if report.failed:
        _failed.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    found = {"failed": sorted(_failed), "passed": len(_passed - _failed)}
    Path(os.environ[OUTCOMES]).write_text(json.dumps(found), "utf-8")
