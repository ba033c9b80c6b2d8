"""Real ``celery worker`` processes."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_delayq.testing.processes import ManagedProcess, ProcessFailed
from celery_delayq.testing.wait import wait_until

if TYPE_CHECKING:
    from typing_extensions import Self

#: Every pool that the package supports.
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")

#: Arguments that make a worker ready about a second earlier: it does not look for other workers.
FAST_START = ("--without-gossip", "--without-mingle")

READY_LINE = r"\bready\.$"


class WorkerProcess(ManagedProcess):
    """``celery -A app worker`` as a process of its own.

    `stop` is Celery's warm shutdown. Without `stop` the worker ends with this Python process.

    Parameters
    ----------
    app
        The app as for ``celery -A``: ``module`` or ``module:attribute``.
    pool
        One of `POOLS`.
    concurrency
        Processes, threads or greenlets; without effect on ``solo``.
    queues
        Queues to consume; the default are those of the app.
    broker_url, result_backend
        Given to the worker as ``CELERY_BROKER_URL`` and ``CELERY_RESULT_BACKEND``, which take
        precedence over the app's settings.
    name
        First part of the node name; the default is a unique one.
    loglevel
        INFO or lower: a worker logs at INFO that it is ready.
    env
        Variables in addition to those of this process.
    extra_args
        More arguments for ``celery worker``, such as ``["--max-tasks-per-child=1"]``.
    cwd
        Folder to run in, from which `app` is imported.
    log_file
        File for its output; the default is a temporary one.
    python
        Python to run it with.

    Raises
    ------
    ValueError
        The pool is unknown, or the log level hides the line that the worker is ready.
    """

    def __init__(
        self,
        app: str,
        *,
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        broker_url: str | None = None,
        result_backend: str | None = None,
        name: str | None = None,
        loglevel: str = "INFO",
        env: Mapping[str, str] | None = None,
        extra_args: Sequence[str] = (),
        cwd: str | os.PathLike[str] | None = None,
        log_file: str | os.PathLike[str] | None = None,
        python: str = sys.executable,
    ) -> None:
        if pool not in POOLS:
            raise ValueError(f"pool {pool!r} is unknown; expected one of {', '.join(POOLS)}")
        if logging.getLevelName(loglevel.upper()) not in range(1, logging.INFO + 1):
            raise ValueError(f"loglevel {loglevel!r} hides the line 'ready.': use INFO or DEBUG")
        self.app = app
        self.pool = pool
        self.hostname = f"{name or f'worker-{uuid.uuid4().hex[:8]}'}@{socket.gethostname()}"
        command = [python, "-m", "celery", "-A", app, "worker"]
        command += ["--pool", pool, "--concurrency", str(concurrency)]
        command += ["--hostname", self.hostname, "--loglevel", loglevel]
        if queues:
            command += ["--queues", ",".join(queues)]
        urls = {"CELERY_BROKER_URL": broker_url, "CELERY_RESULT_BACKEND": result_backend}
        variables = {**(env or {}), **{name: url for name, url in urls.items() if url is not None}}
        super().__init__(
            [*command, *extra_args], env=variables, cwd=cwd, log_file=log_file, name=self.hostname
        )

    def __enter__(self) -> Self:
        self.start()
        try:
            return self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def wait_ready(self, timeout: float | None = None) -> Self:
        """Wait until the worker consumes.

        Parameters
        ----------
        timeout
            Seconds, as for `wait_until`.

        Raises
        ------
        ProcessFailed
            The worker ended or was not ready in time. The message ends with its output.
        """
        self.wait_log(READY_LINE, timeout)
        return self

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the main process has ended, and return its exit code.

        Raises
        ------
        ProcessFailed
            The worker still runs after `timeout` seconds. The message ends with the stacks of its
            threads.
        """
        try:
            return super().wait(timeout)
        except ProcessFailed as error:
            before = len(self.log)
            self.send_signal(signal.SIGUSR1)  # Celery then logs the stacks
            with suppress(TimeoutError):
                wait_until(lambda: "LOCAL VARIABLES" in self.log[before:], 5)
            raise ProcessFailed(f"{error}\n{self.log[before:]}") from None

    def child_pids(self) -> list[int]:
        """Return the process ids of the pool's processes (none in a pool without processes)."""
        import psutil  # imported late: only tests of pools need psutil

        return [child.pid for child in psutil.Process(self.pid).children(recursive=True)]

    def kill_children(self) -> list[int]:
        """End the pool's processes alone (SIGKILL), and return their ids."""
        killed = []
        for pid in self.child_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return killed
