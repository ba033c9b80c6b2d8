"""Fork workers from a process that has imported Celery.

A short test costs 2.2 s of a core. Of these, its worker's imports of Celery, kombu and redis cost
1.3 s. A worker that is forked from a process with only these imports behaves as ``python -m
celery``: it has its own session, variables, folder, output and exit code.

Tests in ``integration`` and ``contract`` and fault tests use it, with two exceptions. A worker that
needs greenlet must import greenlet before Celery. Python reads some variables only when it starts.
With ``DELAYQ_TESTS_COLD=1`` no test uses it.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any

from celery_delayq.testing import ManagedProcess
from celery_delayq.utils.lazy import import_all
from tests.support.versions import read_once

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

#: Celery is imported as on a machine without greenlet. When a thread ends, greenlet asks the
#: garbage collector which objects refer to the thread's own greenlet. The collector does not name
#: frozen objects, so greenlet frees an object to which frozen objects still refer.
HIDDEN = "greenlet"

#: The program of the process. The import of this module already imports Celery.
_PROGRAM = f"""
import sys
sys.modules[{HIDDEN!r}] = None
from tests.support import warm
warm.serve(int(sys.argv[1]))
"""

_ROOT = Path(__file__).parents[2]

#: Variables that Python reads at its start, but that a forked process can still apply.
_OBEYED = {"PYTHONPATH", "PYTHONUNBUFFERED"}
_READ = ("PYTHON", "LD_", "FAKETIME", "EVENTLET", "GEVENT")


class Nursery:
    """A process that has imported Celery, and forks workers."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(other.fileno())], pass_fds=[other.fileno()]
            )

    def fork(self, process: ManagedProcess, log: IO[bytes]) -> Forked:
        """Start a worker; return an object with the needed methods of ``subprocess.Popen``."""
        given = {
            "argv": process.command[3:],  # behind "python -m celery"
            "env": {**os.environ, **process.env},
            "cwd": str(process.cwd),
        }
        # The text may be longer than a packet, and the reader need not read at the same time.
        text, ended = os.memfd_create("given"), os.pipe()
        try:
            os.write(text, json.dumps(given).encode())
            fds = [text, log.fileno(), ended[1]]
            socket.send_fds(self._socket, [b"fork"], fds)
            return Forked(int(self._socket.recv(32)), ended[0])
        finally:
            os.close(text)
            os.close(ended[1])

    def close(self) -> None:
        """End the process when it has no worker."""
        self._socket.close()
        self._process.wait()


class Forked:
    """A forked worker. The nursery reports its end."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended: int | None = ended

    def __del__(self) -> None:
        if self._ended is not None:
            os.close(self._ended)

    def poll(self) -> int | None:
        """Return the exit code, None while the worker runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises the errors of ``subprocess.Popen``."""
        if self.returncode is None:
            assert self._ended is not None
            ready, _, _ = select.select([self._ended], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0)
            self.returncode = int(os.read(self._ended, 32) or -signal.SIGKILL)
            os.close(self._ended)
            self._ended = None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if the worker still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def spawning(nursery: Callable[[], Nursery]) -> Callable[[ManagedProcess, IO[bytes]], Any]:
    """Return a replacement of ``ManagedProcess._spawn`` for workers and dispatchers."""
    cold = ManagedProcess._spawn

    def spawn(process: ManagedProcess, log: IO[bytes]) -> Any:
        return nursery().fork(process, log) if _may_be_warm(process) else cold(process, log)

    return spawn


def _may_be_warm(process: ManagedProcess) -> bool:
    mine, its = ({n: v for n, v in env.items() if _is_read(n)} for env in (os.environ, process.env))
    return (
        getattr(process, "pool", "") in ("", "prefork", "threads", "solo")
        and process.command[:3] == [sys.executable, "-m", "celery"]
        and {**mine, **its} == mine
        # Another folder with the package has another version.
        and (process.cwd == _ROOT or not (process.cwd / "celery_delayq").exists())
        and "DELAYQ_TESTS_COLD" not in os.environ
    )


def _is_read(name: str) -> bool:
    return name.startswith(_READ) and name not in _OBEYED


# -- in the process itself ------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Fork a worker for each request on a socket, and report its end."""
    requests = socket.socket(fileno=descriptor)
    assert sys.modules[HIDDEN] is None, "it was imported already"
    for name in PRELOADED:
        __import__(name)
    import_all()
    del sys.modules[HIDDEN]  # tasks may use it
    read_once()
    # Imported objects are shared with the workers until a process writes to them, as the garbage
    # collector does. Without this freeze, copying them is most of a worker's cost, at the latest at
    # its end.
    gc.collect()
    gc.freeze()
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 1024)
            for pid in [*running]:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    _tell(running.pop(pid), os.waitstatus_to_exitcode(status))
        if requests.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(requests, 16, 3)
            if not message:
                return
            text, log, ended = fds
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
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


def _tell(ended: int, code: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for the code
        os.write(ended, b"%d" % code)
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
