"""Broker, ledger, proxies, workers and dispatchers of a fault test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from celery_delayq import Limit
from celery_delayq.testing import FAST_START, ManagedProcess, ProcessFailed, WorkerProcess
from celery_delayq.testing.servers import new_server
from celery_delayq.testing.wait import wait_until
from tests.support import TIMEOUT
from tests.support.faults.checker import Harm, Promise, Rollback, Verdict, judge
from tests.support.faults.ledger import Ledger
from tests.support.faults.leftovers import unfinished_in
from tests.support.faults.producer import Producer
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[3]
APP = "tests.apps.fault_tasks"
DISPATCH = ("celery", "-A", f"{APP}:app", "delayq", "dispatch")
#: Seconds of a lease: longer than a busy machine delays a process that extends its leases.
LEASE = 3.0


#: The type of the fixtures ``make_stage`` and ``passes``.
MakeStage = Callable[..., "Stage"]
Passes = Callable[[Verdict], None]


class Stage:
    """Everything that a fault test on Redis needs; a context manager that ends its processes.

    Parameters
    ----------
    folder
        For the workers' logs.
    lease
        Seconds: the ``delayq`` setting.
    delayq
        More ``delayq`` settings of workers and dispatchers.
    broker_options
        Arguments of ``EmbeddedRedis`` for the broker.
    limits
        Arguments of `Limit` by pattern of task names, for workers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lease: float = LEASE,
        delayq: Mapping[str, Any] | None = None,
        broker_options: Mapping[str, Any] | None = None,
        limits: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.lease = lease
        self.harms: list[Harm] = []
        self.broker = self._new_broker(broker_options or {})
        self._folder = folder
        self._ledger_server = new_server(appendonly=False)
        self._delayq = {"lease": lease, **(delayq or {})}
        self._conf: dict[str, Any] = {} if limits is None else {"limits": limits}
        self._resources = ExitStack()
        self._producers: list[Producer] = []
        self._processes: list[ManagedProcess] = []

    def __enter__(self) -> Stage:
        with self._resources as stack:
            self._enter_broker(stack)
            stack.enter_context(self._ledger_server)
            self.ledger = Ledger(self._ledger_server.url)
            stack.callback(self.ledger.close)
            self.producer = self.new_producer()
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # All work is done, or the test has failed already.
        self.kill_processes()
        self._resources.close()

    # -- its processes ------------------------------------------------------------------------

    def proxy(self) -> Proxy:
        """Return a new proxy before the broker."""
        return self._resources.enter_context(Proxy(self.broker.port))

    def new_producer(
        self,
        through: Proxy | None = None,
        *,
        stock: bool = False,
        limits: Mapping[str, Limit] | None = None,
    ) -> Producer:
        """Return another producer; a *stock* one does not use this package."""
        url = self.broker.url if stock else self._url(through)
        producer = Producer(url, self.ledger, stock=stock, limits=limits)
        self._resources.callback(producer.close)
        self._producers.append(producer)
        return producer

    def worker(self, **options: Any) -> WorkerProcess:
        """Start a worker and wait until it is ready; takes the arguments of `start_worker`."""
        return self.start_worker(**options).wait_ready()

    def workers(self, count: int, **options: Any) -> list[WorkerProcess]:
        """Start *count* workers, and wait until all are ready."""
        started = [self.start_worker(**options) for _ in range(count)]
        return [worker.wait_ready() for worker in started]

    def start_worker(
        self,
        *,
        through: Proxy | None = None,
        delayq: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        code: Path = ROOT,
        **options: Any,
    ) -> WorkerProcess:
        """Start a worker; do not wait.

        Parameters
        ----------
        through
            Proxy to connect to instead of the broker.
        delayq
            More ``delayq`` settings.
        code
            The folder with the package and its tests; another one has another version.
        env, options
            Arguments of `WorkerProcess`.
        """
        worker = WorkerProcess(
            f"{APP}:app",
            broker_url=self._url(through),
            env={**self._env(delayq or {}), **(env or {})},
            cwd=code,
            log_file=self._folder / f"worker-{len(self._processes)}.log",
            extra_args=FAST_START,
            **options,
        )
        self._processes.append(worker)
        return worker.start()

    def dispatchers(
        self,
        count: int,
        *,
        through: Proxy | None = None,
        env: Mapping[str, str] | None = None,
        module: Sequence[str] = DISPATCH,
        code: Path = ROOT,
        **delayq: Any,
    ) -> list[ManagedProcess]:
        """Start *count* ``celery delayq dispatch``, and wait until all dispatch."""
        env = {**self._env(delayq), "CELERY_BROKER_URL": self._url(through), **(env or {})}
        command = [sys.executable, "-m", *module]
        started = []
        for _ in range(count):
            log = self._folder / f"dispatcher-{len(self._processes)}.log"
            process = ManagedProcess(command, env=env, cwd=code, log_file=log, name=log.stem)
            self._processes.append(process)
            started.append(process.start())
        return [wait_dispatching(process) for process in started]

    def stop_processes(self) -> None:
        """Stop workers and dispatchers together by TERM; kill those that do not end."""
        for process in self._processes:
            if process.running:
                process.term()
        for process in self._processes:
            with suppress(ProcessFailed):
                process.wait(timeout=60)
        self.kill_processes()

    def kill_processes(self) -> None:
        """Kill workers and dispatchers."""
        for process in self._processes:
            process.kill()
        self._processes.clear()

    # -- its end ------------------------------------------------------------------------------

    def promises(self) -> list[Promise]:
        """Return all promises of producers and tasks."""
        sent = [promise for producer in self._producers for promise in producer.promises]
        return [*sent, *self.ledger.read()[1]]

    def wait_for(
        self, condition: Callable[[], object], timeout: float, *, interval: float = 0.05
    ) -> bool:
        """Wait until *condition* is true; return whether it became true."""
        try:
            wait_until(lambda: bool(condition()), timeout, interval=interval)
        except TimeoutError:
            return False
        return True

    def finished(
        self, keys: Collection[str] | None = None, *, forgotten: Collection[str] = ()
    ) -> bool:
        """Return whether all of *keys*, or all certain promises, have run."""
        # Read before the promises: a run promises its retry before it ends.
        finished = self.ledger.finished().union(forgotten)
        if keys is None:
            keys = {promise.key for promise in self.promises() if promise.certain}
        return finished.issuperset(keys)

    def settle(self, rollback: Rollback | None = None) -> None:
        """Wait until all promised tasks have run and the broker has none left.

        `verdict` reports tasks that do not end in time. The wait ignores tasks that Redis has lost.
        """
        forgotten = rollback.forgotten if rollback else ()
        if self.wait_for(lambda: self.finished(forgotten=forgotten), TIMEOUT, interval=0.1):
            self.wait_for(lambda: not self.unfinished(), TIMEOUT, interval=0.1)

    def unfinished(self) -> dict[str, set[str]]:
        """Return the ids that the broker still has, by state, without dead letters."""
        return {s: ids for s, ids in self._left_in().items() if ids and s != "dead"}

    def verdict(self, *, rollback: Rollback | None = None) -> Verdict:
        """Wait for the end of all tasks, stop all processes, and judge."""
        self.settle(rollback)
        self.stop_processes()
        return self.judge(rollback=rollback)

    def judge(self, *, rollback: Rollback | None = None) -> Verdict:
        """Judge the runs so far."""
        return judge(
            self.promises(),
            self.ledger.read()[0],
            self._left_in(),
            self.harms,
            lease=self.lease,
            rollback=rollback,
        )

    # -- its setup ----------------------------------------------------------------------------

    def _new_broker(self, options: Mapping[str, Any]) -> Any:
        """Return the broker, not started yet."""
        return new_server(**options)

    def _enter_broker(self, stack: ExitStack) -> None:
        """Start the broker, and let *stack* end it."""
        stack.enter_context(self.broker)
        # One reply has all keys, which takes long on a busy machine.
        self.redis = stack.enter_context(self.broker.client(socket_timeout=TIMEOUT))

    def _url(self, through: Proxy | None) -> str:
        """Return the URL of the broker, or of a proxy before it."""
        port = self.broker.port if through is None else through.port
        return f"delayq+redis://127.0.0.1:{port}/0"

    def _left_in(self) -> dict[str, set[str]]:
        """Return the ids that the broker still has, by state."""
        return unfinished_in(self.redis)

    def _env(self, delayq: Mapping[str, Any]) -> dict[str, str]:
        options = {"delayq": {**self._delayq, **delayq}}
        settings = {**self._conf, "broker_transport_options": options}
        return {
            "APP_LEDGER": self._ledger_server.url,
            "APP_SETTINGS": json.dumps(settings),
        }


def wait_dispatching(process: ManagedProcess) -> ManagedProcess:
    """Wait until a dispatcher process dispatches."""
    process.wait_log("dispatching")
    return process
