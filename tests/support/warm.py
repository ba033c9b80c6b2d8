"""Fork workers from a process that has imported Celery.

A short test costs 2.2 s of a core. Of these, its worker's imports of Celery, kombu and redis cost
1.3 s. A worker that is forked from a process with only these imports behaves as ``python -m
celery``: it has its own session, variables, folder, output and exit code.

Tests in ``integration`` and ``contract`` and fault tests use it. Python reads some variables only
when it starts: a worker that has one of them starts as users start it. With
``DELAYQ_TESTS_COLD=1`` all do.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from celery_delayq.testing import ManagedProcess

_ROOT = Path(__file__).parents[2]

#: Variables that Python reads at its start, but that a forked process can still apply.
_OBEYED = {"PYTHONPATH", "PYTHONUNBUFFERED"}
_READ = ("PYTHON", "LD_", "FAKETIME", "EVENTLET", "GEVENT")

#: Pools for which Celery patches modules before it imports all else.
PATCHED = ("gevent", "eventlet")


class ForkServer:
    """A process that has imported Celery, and forks workers of a pool; "": of one without patches.

    The process is `tests.support.fork_server`.
    """

    def __init__(self, pool: str = "") -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.fork_server", str(other.fileno()), pool]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(_added_folders())}
        with other:
            self._process = subprocess.Popen(command, pass_fds=[other.fileno()], cwd=_ROOT, env=env)

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


#: Returns the fork server of a pool.
ForkServers = Callable[[str], ForkServer]


class Forked:
    """A forked worker. The fork server reports its end."""

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


def _added_folders() -> list[str]:
    """Return the folders of ``PYTHONPATH`` without Python's own, such as those of packages.

    A worker removes them from its path, and adds those of its own ``PYTHONPATH``. The fork server
    itself needs them: one may have a ``sitecustomize`` (see `tests.support.faults.clocks`).
    """
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return [
        folder
        for folder in map(os.path.abspath, folders)
        if not any(Path(folder).is_relative_to(own) for own in (sys.prefix, sys.base_prefix))
    ]


def spawning(fork_server: ForkServers) -> Callable[[ManagedProcess, IO[bytes]], Any]:
    """Return a replacement of ``ManagedProcess._spawn`` for workers and dispatchers."""
    cold = ManagedProcess._spawn

    def spawn(process: ManagedProcess, log: IO[bytes]) -> Any:
        if not _may_be_warm(process):
            return cold(process, log)
        pool = getattr(process, "pool", "")
        return fork_server(pool if pool in PATCHED else "").fork(process, log)

    return spawn


def _may_be_warm(process: ManagedProcess) -> bool:
    mine, its = ({n: v for n, v in env.items() if _is_read(n)} for env in (os.environ, process.env))
    return (
        process.command[:3] == [sys.executable, "-m", "celery"]
        and {**mine, **its} == mine
        # Another folder with the package has another version.
        and (process.cwd == _ROOT or not (process.cwd / "celery_delayq").exists())
        and "DELAYQ_TESTS_COLD" not in os.environ
    )


def _is_read(name: str) -> bool:
    return name.startswith(_READ) and name not in _OBEYED
