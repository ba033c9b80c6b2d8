"""The processes of the demonstration: workers, Flower and the receiver of the webhooks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from celery_delayq.embedded.parent_watch import Lifeline

_CHECKOUT = Path(__file__).resolve().parent.parent
_APP = "example_project.app"
_WARM_SHUTDOWN_S = 15.0
_LOG_TAIL = 15
_LOOK_EVERY_S = 0.1


class ServiceError(Exception):
    """A process of the demonstration did not start, or ended before its time."""


def free_port() -> int:
    """Give a port of the loopback interface on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """One child process in its own session; what it prints goes to ``<name>.log``."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        with self.log.open("wb") as output:
            # Its own session: Ctrl-C reaches the demonstration only, which then ends the others
            # in order, the workers while Redis is still there.
            self._process = subprocess.Popen(
                command,
                cwd=_CHECKOUT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._lifeline = Lifeline(self._process.pid, "KILL")

    def check(self) -> None:
        """Raise `ServiceError` with the end of the log when the process has ended."""
        code = self._process.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
            raise ServiceError("\n".join([f"{self.name} ended with exit code {code}:", *lines]))

    def terminate(self) -> None:
        """Ask the process to end, as ``kill`` does; a worker finishes its tasks first."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; `False` when it is still there after `seconds`."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process and its children at once if it is still there."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._lifeline.release()


class Services:
    """All child processes; leaving the context ends them, whatever the reason."""

    def __init__(self, environment: Mapping[str, str], logs: Path, app: str = _APP) -> None:
        self._environment = environment
        self._logs = logs
        self._app = app
        self._running: list[Service] = []

    def __enter__(self) -> Services:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start_worker(self, name: str, concurrency: int) -> None:
        """Start an ordinary ``celery worker`` with `concurrency` threads.

        Threads, since the tasks mostly wait for an answer: there is one free when the next is due.
        """
        self._start_celery(
            name,
            *("worker", "--hostname", f"{name}@%h"),
            *("--pool", "threads", "--concurrency", str(concurrency)),
            *("--loglevel", "INFO"),
        )

    def start_flower(self) -> str:
        """Start ``celery flower`` on a free port of the loopback interface and give its URL."""
        port = free_port()
        self._start_celery("flower", "flower", "--address=127.0.0.1", f"--port={port}")
        return f"http://127.0.0.1:{port}"

    def start_receiver(self) -> None:
        """Start the HTTP server that the webhooks go to, where the environment says."""
        self._start("receiver", sys.executable, "-m", "example_project.receiver")

    def wait_until_reachable(self, url: str, deadline: float) -> None:
        """Wait until something listens at `url`; `deadline` is in `time.monotonic` seconds."""
        parts = urlsplit(url)
        while True:
            try:
                socket.create_connection((parts.hostname, parts.port), timeout=1).close()
                return
            except OSError as error:
                self.check()
                if time.monotonic() > deadline:
                    raise ServiceError(f"nothing answers at {url}") from error
                time.sleep(_LOOK_EVERY_S)

    def check(self) -> None:
        """Raise `ServiceError` when one of the processes has ended."""
        for service in self._running:
            service.check()

    def stop(self) -> None:
        """End all processes: politely, and after some seconds at once."""
        deadline = time.monotonic() + _WARM_SHUTDOWN_S
        try:
            for service in self._running:
                service.terminate()
            for service in self._running:
                service.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for service in self._running:
                service.kill()
            self._running.clear()

    def _start_celery(self, name: str, *arguments: str) -> None:
        self._start(name, sys.executable, "-m", "celery", "-A", self._app, *arguments)

    def _start(self, name: str, *command: str) -> None:
        self._running.append(Service(name, command, self._environment, self._logs))
