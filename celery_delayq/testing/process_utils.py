"""The ``utils`` module of a worker that runs as a process: it sees that worker's processes only."""

from __future__ import annotations

import json
import os

import psutil

_COLUMNS = ["pid", "name", "username", "cmdline", "cpu_percent", "memory_percent", "create_time"]


def get_running_processes_info(columns: list[str] | None = None) -> str:
    """Return what psutil says of the worker and its children, as JSON."""
    worker = psutil.Process(int(os.environ["DELAYQ_WORKER_PID"]))
    processes = [worker, *worker.children(recursive=True)]
    return json.dumps([process.as_dict(columns or _COLUMNS) for process in processes])
