"""Workers whose tasks write to a ledger and wait at gates.

Gates and the ledger of runs are in a second Redis without faults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import WorkerProcess, wait_until
from tests.support import TIMEOUT
from tests.support.brokers import Broker, OnCluster, OnRabbitMQ
from tests.support.faults.ledger import Ledger
from tests.support.faults.leftovers import unfinished_in
from tests.support.scene import start_worker

#: A result backend that is away; the rest of its URL follows.
AWAY = "tests.support.endings.away:Backend+"


class LedgerDesk:
    """Starts workers of an app whose tasks use the ledger.

    Parameters
    ----------
    start
        The fixture ``delayq_worker``.
    broker
        Server whose database 0 is the broker.
    ledger_url
        Database for results, the ledger and the gates.
    """

    #: The module in ``tests.apps`` with the workers' app.
    module: str
    #: Seconds to wait for an event.
    timeout: float = TIMEOUT
    #: The broker, if it is not the Redis server.
    broker: Broker | None = None

    def __init__(
        self, start: Callable[..., WorkerProcess], broker: EmbeddedRedis, ledger_url: str
    ) -> None:
        self.redis = broker.client()
        self.ledger = Ledger(ledger_url)
        self.results = Redis.from_url(ledger_url)
        self.ledger_url = ledger_url
        self._start = start
        self.workers: list[WorkerProcess] = []

    def close(self) -> None:
        """Stop the workers without patience, and close the connections."""
        for worker in self.workers:
            worker.kill()
        self.ledger.close()
        self.results.close()
        self.redis.close()

    def start(
        self,
        pool: str,
        env: Mapping[str, str] | None = None,
        *,
        results_away: str = "",
        **options: Any,
    ) -> WorkerProcess:
        """Start a worker; do not wait; takes the arguments of `start_worker`.

        *results_away* is the part of its result backend that is away: `tests.support.endings.away`.
        """
        if self.broker is not None:
            options = self.broker.for_worker(options)
        worker = start_worker(
            self._start,
            self.module,
            pool,
            env={"APP_LEDGER": self.ledger_url, "APP_RESULTS": results_away, **(env or {})},
            result_backend=f"{AWAY if results_away else ''}{self.ledger_url}",
            wait_ready=False,
            **options,
        )
        self.workers.append(worker)
        return worker

    def open(self, *gates: str) -> None:
        """Let the tasks go on that wait at these gates."""
        for gate in gates:
            self.results.set(f"gate:{gate}", 1)

    def wait_started(self, ids: Collection[str], count: int) -> list[str]:
        """Wait until *count* of *ids* have started; return them in the order of their starts."""
        wait_until(
            lambda: len(self.ledger.starts().keys() & set(ids)) >= count,
            self.timeout,
            lambda: f"{count} of {ids} to start; started have {self.started()}; {self._logs()}",
        )
        return [id for id in self.started() if id in ids]

    def wait_finished(self, ids: Collection[str], timeout: float = 0.0) -> None:
        """Wait until all of *ids* have ended."""
        wait_until(
            lambda: self.ledger.finished().issuperset(ids),
            timeout or self.timeout,
            lambda: (
                f"{sorted(set(ids) - self.ledger.finished())} to end; "
                f"unfinished: {self.unfinished()}; {self._logs()}"
            ),
        )

    def wait_connected(self, worker: WorkerProcess, times: int) -> None:
        """Wait until a worker has connected *times* times."""
        wait_until(
            lambda: worker.log.count("] Connected to ") >= times,
            self.timeout,
            lambda: f"connection number {times}:\n{worker.log[-3000:]}",
        )

    def started(self) -> list[str]:
        """Return the ids of all runs in the order of their starts."""
        return [run.key for run in sorted(self.ledger.read()[0], key=lambda run: run.start_us)]

    def unfinished(self) -> Mapping[str, Any]:
        """Return the ids of the broker's tasks by state; on RabbitMQ, their numbers."""
        if isinstance(self.broker, OnRabbitMQ):
            return self.broker.unfinished()
        if isinstance(self.broker, OnCluster):
            found = self.broker.unfinished_ids()
        else:
            found = unfinished_in(self.redis)
        return {state: ids for state, ids in found.items() if ids}

    def leased_ids(self) -> set[str]:
        """Return the ids of all leased tasks."""
        ids: set[str] = self.unfinished().get("leased", set())
        return ids

    def count_leased(self, ids: Collection[str]) -> int:
        """Return how many of some tasks are leased; on RabbitMQ, how many of all tasks."""
        if isinstance(self.broker, OnRabbitMQ):
            return self.broker.unfinished().get("leased", 0)
        return len(self.leased_ids().intersection(ids))

    def backend_calls(self) -> set[str]:
        """Return where Celery has called the result backend while it was away: module and line."""
        return {
            each.decode() for each in cast("set[bytes]", self.results.smembers("backend calls"))
        }

    def _logs(self) -> str:
        return "\n".join(worker.log[-2000:] for worker in self.workers)
