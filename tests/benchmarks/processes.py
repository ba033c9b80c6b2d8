"""Real worker and publisher processes; each is ended by its own process id."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from celery_delayq.testing import ManagedProcess

from .app import Settings
from .model import BenchError, Published, given_fields
from .publisher import Order
from .records import Records

if TYPE_CHECKING:
    from typing_extensions import Self

ROOT = Path(__file__).resolve().parents[2]
APP = ("celery", "-A", "tests.benchmarks.app")
#: Switched off on both sides, so that only the handling of tasks is compared.
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


class Pool(Enum):
    """The kind of worker, the same on both sides."""

    SOLO = ("-P", "solo")
    PREFORK = ("-P", "prefork", "-c", "2")
    THREADS = ("-P", "threads", "-c", "4")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of ``celery worker``."""
        value: tuple[str, ...] = self.value
        return value

    def __str__(self) -> str:
        return " ".join(self.value[1:])


class _Process(ManagedProcess):
    """A child process with a log file, killed when its ``with`` block ends.

    SIGTERM would take too long: a stock worker with 100,000 ETA tasks needs half a minute to return
    them, and the database is dropped afterwards.
    """

    def __init__(self, settings: Settings, log: Path, *arguments: str, code: Path = ROOT) -> None:
        command = [sys.executable, "-m", *arguments]
        super().__init__(command, env=settings.to_environment(), cwd=code, log_file=log)

    def __exit__(self, *_: object) -> None:
        self.kill()

    def check(self) -> None:
        """Raise with the end of the log if the child has ended by itself."""
        if not self.running:
            raise self._failure(f"ended with code {self.returncode}")

    def rss(self) -> int:
        """Resident memory of the main process in bytes; a solo worker has only this process."""
        self.check()
        return int(psutil.Process(self.pid).memory_info().rss)


class Worker(_Process):
    """One ``celery -A … worker``; inside ``with`` it is ready to consume."""

    def __init__(
        self,
        settings: Settings,
        log: Path,
        pool: Pool,
        queues: tuple[str, ...],
        code: Path = ROOT,
    ) -> None:
        consumed = ("-Q", ",".join(queues)) if queues else ()
        arguments = ("worker", *pool.arguments, "-l", "WARNING", *QUIET, *consumed)
        super().__init__(settings, log, *APP, *arguments, code=code)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.wait_log("^ready$")
        except BaseException:
            self.kill()
            raise
        return self

    def settled_rss(self, quiet: float = 2.0, timeout: float = 20.0) -> float:
        """Resident memory in MiB, after it changed by less than 0.25 MiB in ``quiet`` seconds.

        After ``timeout`` seconds the last value counts.
        """
        deadline = time.monotonic() + timeout
        value, since = self.rss() / 2**20, time.monotonic()
        while time.monotonic() - since < quiet and time.monotonic() < deadline:
            time.sleep(0.1)
            now = self.rss() / 2**20
            if abs(now - value) >= 0.25:
                value, since = now, time.monotonic()
        return value

    def terminate(self, timeout: float) -> float:
        """Send SIGTERM; return the seconds until the main process has ended with success.

        :param timeout: seconds until :class:`BenchError` is raised.
        """
        self.check()
        began = time.perf_counter()
        self.term()
        while self.running:
            if time.perf_counter() - began > timeout:
                raise BenchError(f"the worker had not ended {timeout:g} s after TERM")
            time.sleep(0.002)
        seconds = time.perf_counter() - began
        if self.returncode:
            self.check()
        return seconds


class Firer(_Process):
    """A process that only fires periodic entries: ``celery beat``, or a dispatcher.

    Parameters
    ----------
    notes : Path
        File in which beat stores its last runs.
    """

    def __init__(self, settings: Settings, log: Path, notes: Path) -> None:
        how = ("delayq", "dispatch") if settings.delayq else ("beat", "-s", str(notes))
        super().__init__(settings, log, *APP, *how)

    def busy(self, seconds: float) -> float:
        """Return the share of a core that the process uses in *seconds*, 0 to 1."""
        self.check()
        process = psutil.Process(self.pid)
        before = process.cpu_times()
        time.sleep(seconds)
        self.check()
        after = process.cpu_times()
        return float(after.user + after.system - before.user - before.system) / seconds

    def rest(self, timeout: float = 300.0) -> None:
        """Wait until the process has begun and has little to do."""
        deadline = time.monotonic() + timeout
        time.sleep(3.0)
        while self.busy(2.0) > 0.1:
            if time.monotonic() > deadline:
                raise BenchError(f"it was not idle within {timeout:g} s")


class Publisher(_Process):
    """The publishing process of one side."""

    def __init__(self, settings: Settings, log: Path, code: Path = ROOT) -> None:
        super().__init__(settings, log, "tests.benchmarks.publisher", code=code)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            env={**os.environ, **self.env},
            cwd=self.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        super().__enter__()
        # Connects, and imports the modules of a first publish; nobody consumes this queue.
        self.publish(Order(count=1, queues=("bench-warm-up",)))
        return self

    def publish(self, order: Order, timeout: float = 120.0) -> Published:
        """Publish; return the time that it took.

        :param timeout: seconds until :class:`BenchError` is raised.
        """
        process = self._popen()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # A publisher of an older version reads the queues of each order.
            fields = {"queues": order.queues, **given_fields(order)}
            process.stdin.write(json.dumps(fields).encode() + b"\n")
            answers, _, _ = select.select([process.stdout], [], [], timeout)
            line = process.stdout.readline() if answers else b""
        except BrokenPipeError:
            answers, line = [process.stdout], b""
        if not line:
            if answers:
                self.wait(5)
            self.check()
            raise BenchError(f"the publisher did not answer within {timeout:g} s")
        return Published(**json.loads(line))


def probe(
    worker: Worker,
    publisher: Publisher,
    records: Records,
    timeout: float,
    queue: str | None = None,
) -> float:
    """Send one immediate task; return the milliseconds from the send to its start.

    :param timeout: seconds until :class:`BenchError` is raised.
    """
    before = len(records)
    publisher.publish(Order(count=1, recorded=True, queues=(queue,) if queue else ()))
    records.wait_for(before + 1, timeout, worker.check)
    return records.read(before)[0].lateness_ms
