"""Kill and stop processes, and record it for the judge."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from celery_delayq.testing import ManagedProcess, WorkerProcess, wait_until
from tests.support import TIMEOUT
from tests.support.faults.checker import Harm
from tests.support.faults.stage import Stage, wait_dispatching


class Killer:
    """Makes random faults, the same ones for the same *seed*.

    A fault of a worker's main process counts as a fault of the holder of all its tasks.
    """

    def __init__(self, stage: Stage, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.strikes: list[str] = []
        self._stage = stage

    # -- one blow -----------------------------------------------------------------------------

    def power_cut(self, process: ManagedProcess) -> None:
        """Kill a process and its children."""
        with self._harming(process.pid):
            process.kill()

    def kill_main(self, process: ManagedProcess) -> None:
        """Kill only the main process; its children live on for a while."""
        with self._harming(process.pid):
            process.kill_parent()

    def kill_child(self, worker: ManagedProcess) -> None:
        """Kill one process of a worker's pool; first the pool may have to replace all of them."""
        assert isinstance(worker, WorkerProcess)
        pid = self.random.choice(wait_until(worker.child_pids, TIMEOUT, "the pool has a process"))
        with self._harming(pid), suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def kill_at_once(self, process: ManagedProcess) -> None:
        """Kill a process and its children without waiting for their end.

        A proxy calls this at the moment of a request.
        """
        with self._harming(process.pid), suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    @contextmanager
    def stopped(self, *processes: ManagedProcess) -> Iterator[None]:
        """Stop processes and their children during the ``with`` block."""
        since = self._stage.ledger.now_us()
        for process in processes:
            os.killpg(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)
            until = self._stage.ledger.now_us()
            self._stage.harms += [Harm(one.pid, since, until, fatal=False) for one in processes]

    def stop(self, process: ManagedProcess, seconds: float) -> None:
        """Stop a process and its children for *seconds*."""
        with self.stopped(process):
            time.sleep(seconds)

    # -- many ---------------------------------------------------------------------------------

    def strike(
        self,
        processes: Sequence[ManagedProcess],
        ways: Sequence[Callable[[ManagedProcess], None]],
    ) -> None:
        """Hit one of *processes* in one of several ways, and start it again if it has ended.

        A process that does not work yet is awaited first, while the others work. Celery ends a
        worker whose child was killed before the worker has looked whether all children started.
        """
        process = self.random.choice(processes)
        way = self.random.choice(ways)
        restart(process)
        self.strikes.append(f"{getattr(way, '__name__', 'stop')} {process.name}")
        way(process)
        process.start()

    def let_pass(self, shortest: float, longest: float) -> None:
        """Wait for a random time, so that the next fault comes at a random moment."""
        time.sleep(self.random.uniform(shortest, longest))

    @contextmanager
    def _harming(self, pid: int) -> Iterator[None]:
        since = self._stage.ledger.now_us()
        yield
        until = self._stage.ledger.now_us()
        self._stage.harms.append(Harm(pid, since, until))


def wait_at_work(process: ManagedProcess) -> None:
    """Wait until a worker consumes, or a dispatcher dispatches."""
    if isinstance(process, WorkerProcess):
        process.wait_ready()
    else:
        wait_dispatching(process)


def restart(process: ManagedProcess) -> None:
    """Start a process if it has ended, and wait until it works."""
    process.start()
    wait_at_work(process)
