"""The process from which `tests.support.warm` forks workers of one kind.

A worker of gevent or eventlet is forked from a process with their patches. This module binds the
functions that it needs before they are patched: the process itself never switches greenlets, so it
has no hub that a worker would share.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from os import fork, read, waitpid, write
from pathlib import Path
from select import select
from signal import (
    SIG_DFL,
    SIG_IGN,
    SIGCHLD,
    SIGINT,
    default_int_handler,
    set_wakeup_fd,
    signal,
)
from socket import recv_fds, socket
from typing import Any

#: Modules that are imported before the fork: those that every worker imports.
PRELOADED = (
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.consumer",
    "celery_delayq",
    "celery_delayq.transport",
    "kombu.transport.redis",
)

#: Without greenlets, Celery is imported as on a machine without greenlet. When a thread ends,
#: greenlet asks the garbage collector which objects refer to the thread's own greenlet. The
#: collector does not name frozen objects, so greenlet frees an object to which frozen objects still
#: refer.
HIDDEN = "greenlet"


def serve(descriptor: int, pool: str) -> None:
    """Fork a worker for each request on a socket, and report its end.

    *pool* is ``gevent``, ``eventlet``, or "" for all other pools.
    """
    requests = socket(fileno=descriptor)
    _import_all(pool)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    set_wakeup_fd(wake)
    signal(SIGCHLD, lambda *_: None)
    signal(SIGINT, SIG_IGN)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select([requests.fileno(), woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                read(woken, 1024)
            for pid in [*running]:
                found, status = waitpid(pid, os.WNOHANG)
                if found:
                    _tell(running.pop(pid), os.waitstatus_to_exitcode(status))
        if requests.fileno() in ready:
            message, fds, _, _ = recv_fds(requests, 16, 3)
            if not message:
                return
            text, log, ended = fds
            pid = fork()
            if pid == 0:
                set_wakeup_fd(-1)
                signal(SIGCHLD, SIG_DFL)
                signal(SIGINT, default_int_handler)
                with open(text, "rb", closefd=False) as file:
                    file.seek(0)
                    given = json.load(file)
                keep_out = {requests.detach(), woken, wake, text, ended, *running.values()}
                _become(given, log, keep_out)
                return
            running[pid] = ended
            os.close(text)
            os.close(log)
            requests.send(b"%d" % pid)


def _import_all(pool: str) -> None:
    """Import what each worker imports, in its order: patches come before all else."""
    modules: dict[str, Any] = sys.modules
    if not pool:
        assert HIDDEN not in modules, "it was imported already"
        modules[HIDDEN] = None
    import celery

    celery.maybe_patch_concurrency(["celery", "worker", "--pool", pool])
    if pool == "eventlet":  # it already has a hub, whose epoll would be that of all workers
        from eventlet import hubs

        hubs.use_hub()
    from celery_delayq.utils.lazy import import_all
    from tests.support.versions import read_once

    for name in PRELOADED:
        __import__(name)
    import_all()
    read_once()
    if not pool:
        del modules[HIDDEN]  # tasks may use it
        # Imported objects are shared with the workers until a process writes to them, as the
        # garbage collector does. Without this freeze, copying them is most of a worker's cost, at
        # the latest at its end.
        gc.collect()
        gc.freeze()


def _tell(ended: int, code: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for the code
        write(ended, b"%d" % code)
    os.close(ended)


def _become(given: Mapping[str, Any], log: int, closed: set[int]) -> None:
    """Run ``celery`` in this process, as ``python -m celery`` does."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for fd in {nothing, log, *closed}:
        os.close(fd)
    env = given["env"]
    before = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    mine = {str(Path.cwd()), "", *map(os.path.abspath, before)}
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(given["cwd"])
    first = [str(Path.cwd()), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = [*map(os.path.abspath, first), *(path for path in sys.path if path not in mine)]
    sys.argv = ["celery", *given["argv"]]
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(line_buffering=True)
    runpy.run_module("celery", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
