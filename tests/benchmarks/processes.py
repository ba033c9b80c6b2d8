"""Real worker and publisher processes, each ended by its own process id."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from .app import Settings
from .model import BenchError
from .publisher import Order, Published
from .records import Records

ROOT = Path(__file__).resolve().parents[2]
#: Switched off on both sides, so that only the way of the tasks is compared.
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


class Pool(Enum):
    """The kind of worker; the same on both sides."""

    SOLO = ("-P", "solo")
    PREFORK = ("-P", "prefork", "-c", "2")
    THREADS = ("-P", "threads", "-c", "4")

    @property
    def arguments(self) -> tuple[str, ...]:
        """What ``celery worker`` is told."""
        value: tuple[str, ...] = self.value
        return value

    def __str__(self) -> str:
        return " ".join(self.value[1:])


class _Process:
    """A child with a log file, killed when its ``with`` block ends.

    Killed, not asked: a stock worker that holds 100,000 ETA tasks takes half a minute to hand
    them back, and the database is dropped afterwards anyway.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    def _start(self, arguments: list[str], settings: Settings, **options: object) -> None:
        environment = os.environ | settings.to_environment()
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(  # type: ignore[call-overload]
                [sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=environment,
                stderr=log,
                **({"stdout": log, "stdin": subprocess.DEVNULL} | options),
            )

    @property
    def child(self) -> subprocess.Popen[bytes]:
        """The running child."""
        if self._child is None:
            raise BenchError("the process was not started")
        return self._child

    def check(self) -> None:
        """Raise with the end of the log when the child has ended by itself."""
        if self.child.poll() is not None:
            log = self._log.read_text(errors="replace")
            raise BenchError(f"process ended with code {self.child.returncode}:\n{log[-3000:]}")

    def stop(self) -> None:
        """Kill the child and what it has forked, and wait for their end."""
        if self._child is None:
            return
        forked: list[psutil.Process] = []
        if self._child.poll() is None:
            with suppress(psutil.NoSuchProcess):
                forked = psutil.Process(self._child.pid).children(recursive=True)
        self._child.kill()
        self._child.wait()
        for process in forked:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(forked, timeout=10)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Worker(_Process):
    """One ``celery -A … worker``; inside ``with`` it is ready to consume."""

    def __init__(self, settings: Settings, log: Path, pool: Pool, queues: tuple[str, ...]) -> None:
        super().__init__(log)
        self._settings = settings
        self._pool = pool
        self._queues = queues

    def __enter__(self) -> Worker:
        reader, writer = os.pipe()
        try:
            arguments = ["celery", "-A", "tests.benchmarks.app", "worker", *self._pool.arguments]
            arguments += ["-l", "WARNING", *QUIET]
            if self._queues:
                arguments += ["-Q", ",".join(self._queues)]
            settings = replace(self._settings, ready_fd=writer)
            self._start(arguments, settings, pass_fds=(writer,))
            os.close(writer)
            writer = -1
            ready, _, _ = select.select([reader], [], [], 60.0)
            if not ready or os.read(reader, 1) != b"r":
                self.child.kill()
                self.child.wait()
                self.check()
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        return self

    def rss(self) -> float:
        """Resident memory of the main process, in MiB; a solo worker has no other."""
        self.check()
        return float(psutil.Process(self.child.pid).memory_info().rss) / 2**20

    def settled_rss(self, quiet: float = 2.0, timeout: float = 20.0) -> float:
        """Resident memory in MiB once it moved less than a quarter MiB in ``quiet`` seconds.

        After ``timeout`` seconds the last value stands.
        """
        deadline = time.monotonic() + timeout
        value, since = self.rss(), time.monotonic()
        while time.monotonic() - since < quiet and time.monotonic() < deadline:
            time.sleep(0.1)
            now = self.rss()
            if abs(now - value) >= 0.25:
                value, since = now, time.monotonic()
        return value

    def terminate(self, timeout: float) -> float:
        """Send SIGTERM; seconds until the main process has ended, and ended well.

        :param timeout: seconds until :class:`BenchError` is raised.
        """
        self.check()
        began = time.perf_counter()
        self.child.terminate()
        while self.child.poll() is None:
            if time.perf_counter() - began > timeout:
                raise BenchError(f"the worker had not ended {timeout:g} s after TERM")
            time.sleep(0.002)
        seconds = time.perf_counter() - began
        if self.child.returncode:
            self.check()
        return seconds


class Firer(_Process):
    """What fires periodic entries and does nothing else: ``celery beat``, or a dispatcher.

    Parameters
    ----------
    notes : Path
        Where beat keeps what it has fired.
    """

    def __init__(self, settings: Settings, log: Path, notes: Path) -> None:
        super().__init__(log)
        self._settings = settings
        self._notes = notes

    def __enter__(self) -> Firer:
        how = ["delayq", "dispatch"] if self._settings.delayq else ["beat", "-s", str(self._notes)]
        arguments = ["celery", "-A", "tests.benchmarks.app", *how]
        self._start(arguments, self._settings)
        return self

    def busy(self, seconds: float) -> float:
        """How much of a core it takes while so many seconds pass, 0 to 1."""
        self.check()
        process = psutil.Process(self.child.pid)
        before = process.cpu_times()
        time.sleep(seconds)
        self.check()
        after = process.cpu_times()
        return float(after.user + after.system - before.user - before.system) / seconds

    def rest(self, timeout: float = 300.0) -> None:
        """Wait until it has begun and has little to do."""
        deadline = time.monotonic() + timeout
        time.sleep(3.0)
        while self.busy(2.0) > 0.1:
            if time.monotonic() > deadline:
                raise BenchError(f"it was not idle within {timeout:g} s")

    def rss(self) -> float:
        """Resident memory, in bytes."""
        self.check()
        return float(psutil.Process(self.child.pid).memory_info().rss)


class Publisher(_Process):
    """The publishing process of one side."""

    def __init__(self, settings: Settings, log: Path) -> None:
        super().__init__(log)
        self._settings = settings

    def __enter__(self) -> Publisher:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        self._start(["tests.benchmarks.publisher"], self._settings, **pipes)
        # Connects, and imports what a first publish imports; nobody consumes this queue.
        self.publish(Order(count=1, queues=("bench-warm-up",)))
        return self

    def publish(self, order: Order, timeout: float = 120.0) -> Published:
        """Publish and return how long it took.

        :param timeout: seconds until :class:`BenchError` is raised.
        """
        stdin, stdout = self.child.stdin, self.child.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        except BrokenPipeError:
            self.child.wait(5)
            self.check()
        return Published(**json.loads(self._answer(stdout, timeout)))

    def _answer(self, stdout: IO[bytes], timeout: float) -> bytes:
        ready, _, _ = select.select([stdout], [], [], timeout)
        line = stdout.readline() if ready else b""
        if not line:
            if ready:
                self.child.wait(5)
            self.check()
            raise BenchError(f"the publisher did not answer within {timeout:g} s")
        return line


def probe(
    worker: Worker,
    publisher: Publisher,
    records: Records,
    timeout: float,
    queue: str | None = None,
) -> float:
    """Send one immediate task; milliseconds from the send to its start.

    :param timeout: seconds until :class:`BenchError` is raised.
    """
    before = len(records)
    publisher.publish(Order(count=1, recorded=True, queues=(queue,) if queue else ()))
    records.wait_for(before + 1, timeout, worker.check)
    return records.read(before)[0].lateness_ms
