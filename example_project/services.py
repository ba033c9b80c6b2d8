"""The processes of the demonstration: workers, Flower and the receiver of the webhooks."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from celery_delayq.embedded import free_port
from celery_delayq.testing import ManagedProcess, ProcessFailed

_CHECKOUT = Path(__file__).resolve().parent.parent
_APP = "example_project.app"
_WARM_SHUTDOWN_S = 15.0
_LOG_TAIL = 15
_POLL_INTERVAL_S = 0.1


class ServiceError(Exception):
    """A process of the demonstration did not start, or ended too early."""


class Services:
    """All child processes; leaving the context always ends them."""

    def __init__(self, environment: Mapping[str, str], logs: Path, app: str = _APP) -> None:
        self._environment = environment
        self._logs = logs
        self._app = app
        self._running: list[ManagedProcess] = []

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

        Threads, since the tasks mostly wait for an answer: one is free when the next task is due.
        """
        self._start_celery(
            name,
            *("worker", "--hostname", f"{name}@%h"),
            *("--pool", "threads", "--concurrency", str(concurrency)),
            *("--loglevel", "INFO"),
        )

    def start_flower(self, *options: str) -> str:
        """Start ``celery flower`` on a free port of the loopback interface; return its URL."""
        port = free_port()
        self._start_celery("flower", "flower", "--address=127.0.0.1", f"--port={port}", *options)
        return f"http://127.0.0.1:{port}"

    def start_receiver(self) -> None:
        """Start the HTTP server for the webhooks, at the URL in the environment."""
        self._start("receiver", sys.executable, "-m", "example_project.receiver")

    def wait_until_reachable(self, url: str, deadline: float) -> None:
        """Wait until a server listens at `url`; `deadline` is in `time.monotonic` seconds."""
        parts = urlsplit(url)
        while True:
            try:
                socket.create_connection((parts.hostname, parts.port), timeout=1).close()
                return
            except OSError as error:
                self.check()
                if time.monotonic() > deadline:
                    raise ServiceError(f"nothing answers at {url}") from error
                time.sleep(_POLL_INTERVAL_S)

    def check(self) -> None:
        """Raise `ServiceError` if a process has ended."""
        for process in self._running:
            if not process.running:
                lines = process.log.splitlines()[-_LOG_TAIL:]
                ended = f"{process.name} ended with exit code {process.returncode}:"
                raise ServiceError("\n".join([ended, *lines]))

    def stop(self) -> None:
        """Stop all processes; kill them after some seconds."""
        deadline = time.monotonic() + _WARM_SHUTDOWN_S
        try:
            for process in self._running:
                if process.running:
                    process.term()
            for process in self._running:
                with suppress(ProcessFailed):  # it still runs
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._running:
                process.kill()
            self._running.clear()

    def _start_celery(self, name: str, *arguments: str) -> None:
        self._start(name, sys.executable, "-m", "celery", "-A", self._app, *arguments)

    def _start(self, name: str, *command: str) -> None:
        log_file = self._logs / f"{name}.log"
        log_file.unlink(missing_ok=True)
        # Its own session: Ctrl-C reaches only the demonstration, which then ends the others in
        # order, the workers while Redis still runs.
        process = ManagedProcess(
            command, env=self._environment, cwd=_CHECKOUT, log_file=log_file, name=name
        )
        self._running.append(process.start())
