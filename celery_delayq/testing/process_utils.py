"""The ``utils`` module of a worker node: it lists the processes of that worker only."""

from __future__ import annotations

import json
import os
from contextlib import suppress

import psutil

_COLUMNS = ["pid", "name", "username", "cmdline", "cpu_percent", "memory_percent", "create_time"]


def get_running_processes_info(columns: list[str] | None = None) -> str:
    """Return psutil's data of the worker, its children and this process, as JSON.

    During ``exec_run`` these are the processes of a worker's container.
    """
    worker = psutil.Process(int(os.environ["DELAYQ_WORKER_PID"]))
    found = []
    for process in (worker, *worker.children(recursive=True), psutil.Process()):
        with suppress(psutil.NoSuchProcess):
            found.append(process.as_dict(columns or _COLUMNS))
    return json.dumps(found)
