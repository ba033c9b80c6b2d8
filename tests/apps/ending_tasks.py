"""An app whose tasks run until a gate opens, and the desk from which a test has all that.

Gates and the ledger of runs are in a second Redis, which no fault touches.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, cast

from billiard.pool import Worker as PoolWorker
from celery.worker import state as worker_state
from celery.worker.control import inspect_command
from kombu import Connection

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import WorkerProcess, wait_until
from tests.apps.ledgers import gates, ledger, wait_for
from tests.apps.settings import new_app
from tests.support import TIMEOUT
from tests.support.brokers import Broker, OnCluster, OnRabbitMQ, OnRedis
from tests.support.faults.leftovers import ids_in
from tests.support.ledger_desk import LedgerDesk

app = new_app("ending", task_ignore_result=True, task_store_errors_even_if_ignored=False)


_REDELIVERED = "redelivered"


def _run(request: Any, gate: str) -> None:
    id = request.id
    if request.deliveries > 1:
        gates.sadd(_REDELIVERED, id)
    number = ledger.started(id)
    wait_for(gate)
    ledger.ended(id, number)


@app.task(bind=True, name="ending.late", acks_late=True, shared=False)
def late(self: Any, gate: str = "") -> None:
    """Run until *gate* is open, or no time at all; acknowledged after it."""
    _run(self.request, gate)


@app.task(bind=True, name="ending.early", acks_late=False, shared=False)
def early(self: Any, gate: str = "") -> None:
    """Run until *gate* is open, or no time at all; acknowledged before it."""
    _run(self.request, gate)


@app.task(bind=True, name="ending.half_sent", acks_late=True, shared=False)
def half_sent(self: Any, gate: str) -> None:
    """Run until *gate* is open, then be killed with half of a result sent."""
    _run(self.request, gate)
    frame: Any = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), PoolWorker):
        frame = frame.f_back
    os.write(frame.f_locals["self"].outq._writer.fileno(), struct.pack("!i", 100) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


@inspect_command()
def ending_timers(state: Any) -> list[str]:
    """Name what the timer of the event loop is to call."""
    queue = state.consumer.timer.queue
    return sorted(each.entry.fun.__qualname__ for each in queue if not each.entry.canceled)


@inspect_command()
def ending_quit(state: Any) -> None:
    """Send QUIT, whose handler runs inside this command, to which Celery replies any error."""
    signal.raise_signal(signal.SIGQUIT)


#: Functions of a broker's client, in which a worker is in the middle of a call.
BROKER_CALLS = {
    "write": {("amqp.transport", "write"), ("redis.connection", "send_packed_command")},
    "read": {("amqp.transport", "_read"), ("redis.connection", "read_response")},
}


@inspect_command(args=[("call", str)])
def ending_quit_in(state: Any, call: str) -> None:
    """Send QUIT when the consumer is in the middle of *call*. In a ``write``, wait for a TERM."""
    connection = state.consumer.connection.connection
    mine = getattr(connection, "transport", None)  # Redis: any connection

    def quit_once(frame: Any, event: str, _arg: Any) -> None:
        is_there = (frame.f_globals.get("__name__"), frame.f_code.co_name) in BROKER_CALLS[call]
        if event != "call" or not is_there or mine not in (None, frame.f_locals["self"]):
            return
        waits = frame.f_locals.get("initial")  # py-amqp waits for a frame
        if not waits and (call == "read" or worker_state.should_stop is not None):
            sys.setprofile(None)
            signal.raise_signal(signal.SIGQUIT)

    sys.setprofile(quit_once)


class Desk(LedgerDesk):
    """Workers of the app, what they are sent, and what came of it.

    Parameters
    ----------
    url, options
        Broker URL and transport options where they are not the plain ones.
    other
        Another broker than that server.
    """

    module = "ending_tasks"

    def __init__(
        self,
        start: Callable[..., WorkerProcess],
        broker: EmbeddedRedis,
        ledger_url: str,
        *,
        url: str = "",
        options: Mapping[str, Any] | None = None,
        other: Broker | None = None,
    ) -> None:
        super().__init__(start, broker, ledger_url)
        if other is not None and not isinstance(other, OnRedis):
            self.broker, url = other, other.url
        self.queues = self.broker.queues if self.broker else ("celery",)
        #: The queue of each task that was sent.
        self.queue_of: dict[str, str] = {}
        self._turns = cycle(self.queues)
        self.url = url or broker.url_for("delayq+redis")
        self.options = dict(options or {})

    # -- what a test does ---------------------------------------------------------------------

    def worker(
        self,
        pool: str,
        *,
        url: str = "",
        lease: float | None = None,
        wait_ready: bool = True,
        concurrency: int = 2,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        results_away: str = "",
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker with the given settings of Celery."""
        delayq = {**({} if lease is None else {"lease": lease}), **self.options.get("delayq", {})}
        settings.setdefault("broker_transport_options", {**self.options, "delayq": delayq})
        worker = self.start(
            pool,
            env,
            results_away=results_away,
            conf=settings,
            args=args,
            concurrency=concurrency,
            broker_url=url or self.url,
        )
        return worker.wait_ready() if wait_ready else worker

    def connection(self) -> Connection:
        """Return a new connection to the broker."""
        return Connection(self.url, transport_options=self.options)

    def send(
        self,
        count: int,
        gate: str = "",
        *,
        acks: str = "late",
        connection: Connection | None = None,
        **options: Any,
    ) -> list[str]:
        """Send tasks that wait for *gate*, if it has a name; return their ids in this order.

        *acks* is ``late``, ``early``, or ``mixed`` for both in turn.
        """
        if connection is None:
            with self.connection() as connection:
                return self.send(count, gate, acks=acks, connection=connection, **options)
        kinds = {"late": [late], "early": [early], "mixed": [late, early]}[acks]
        sent = []
        for n in range(count):
            task = kinds[n % len(kinds)]
            kind = task.name.rpartition(".")[2]
            id = f"{gate or 'quick'}-{n}-{kind}-{uuid.uuid4().hex[:12]}"
            to = {"queue": next(self._turns), **options}
            task.apply_async((gate,), task_id=id, connection=connection, **to)
            sent.append(id)
            self.queue_of[id] = to["queue"]
        return sent

    # -- what came of it ----------------------------------------------------------------------

    def wait_empty(self, timeout: float = TIMEOUT) -> None:
        """Wait until the broker has no task any more."""
        wait_until(
            lambda: not self.unfinished(),
            timeout,
            lambda: f"nothing to be left: {self.unfinished()}",
        )

    def wait_done(self, ids: Sequence[str], twice: Iterable[str] = ()) -> None:
        """Wait until all of *ids* have ended and nothing is left; only *twice* have run twice."""
        self.wait_finished(ids)
        self.wait_empty()
        assert self.twice() == dict.fromkeys(twice, 2)

    def ready(self, queue: str = "celery") -> list[str]:
        """Return the ids in a ready list, the next to be taken first; on a cluster in all."""
        if isinstance(self.broker, OnRabbitMQ):
            return self.broker.ready(queue)
        if isinstance(self.broker, OnCluster):
            return self.broker.ready()
        items = cast("list[bytes]", self.redis.lrange(queue, 0, -1))
        return [id for item in reversed(items) for id in ids_in(item)]

    def count(self, state: str) -> int:
        """Return how many tasks the broker has in a state."""
        found = self.unfinished().get(state, 0)
        return found if isinstance(found, int) else len(found)

    def has_leased_more_than(self, quick: Collection[str]) -> bool:
        """Return whether workers hold tasks that have not started, beside two that run."""
        if isinstance(self.broker, OnRabbitMQ):
            return self.ledger.finished().issuperset(quick) and self.count("leased") > 2
        return bool(self.leased_ids().difference(self.started()))

    def twice(self) -> dict[str, int]:
        """Return how often those have started that started more than once."""
        return {id: count for id, count in self.ledger.starts().items() if count > 1}

    def acknowledged_once(self) -> set[str]:
        """Return the ids of tasks that were delivered once, and acknowledged after they had run.

        The others may run twice: a task whose lease has ended before it was acknowledged, as on a
        busy machine, is ready again, or another worker has run it meanwhile.
        """
        done = set(self.ledger.finished())
        unfinished = set().union(*self.unfinished().values())
        again = {id.decode() for id in cast("set[bytes]", self.results.smembers(_REDELIVERED))}
        return done - unfinished - again

    def tell(
        self, worker: WorkerProcess, command: str, *, reply: bool = True, **arguments: Any
    ) -> Any:
        """Give a worker a command by remote control, and return its answer."""
        with self.connection() as connection:
            mailbox = app.control.mailbox(connection)
            mailbox.producer_pool = None  # that of the app, which knows no broker
            to = {"destination": [worker.hostname], "reply": reply, "limit": 1, "timeout": 60}
            replies = mailbox._broadcast(command, arguments, **to)
        if not reply:
            return None
        assert replies, f"no answer to {command}"
        return replies[0][worker.hostname]

    def timers(self, worker: WorkerProcess) -> list[str]:
        """Return what the timer of a worker's event loop is to call."""
        return cast("list[str]", self.tell(worker, "ending_timers"))
