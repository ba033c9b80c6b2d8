"""One run of the matrix: a worker, every task that can end there, and one cut."""

from __future__ import annotations

import gc
import json
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any
from uuid import uuid4

from celery import Celery, chord
from kombu import Connection

from celery_delayq import DelayQ
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.dead_letter import DeadLetterRecord
from celery_delayq.settings import Settings
from celery_delayq.store.schedule import Store
from celery_delayq.testing import WorkerProcess, wait_until
from tests.support import TIMEOUT
from tests.support.brokers import Broker, OnRabbitMQ
from tests.support.endings.cells import KILLED, Cell, Outcome, World
from tests.support.ledger_desk import LedgerDesk
from tests.support.proxy import Proxy

#: Seconds of a lease that is to end, which a busy machine must extend in time before, and of one
#: that is not.
SHORT, LONG = 15.0, 240.0
#: What is sent meanwhile waits for Redis, for `TIMEOUT` at most: Celery's own policy ends in 0.6 s,
#: and kombu connects for 4 s.
PUBLISHING = {
    "max_retries": 5 * TIMEOUT,
    "interval_start": 0,
    "interval_step": 0.2,
    "interval_max": 0.2,
}
#: What tells Redis of an end.
ENDS = ("leases/ack", "leases/dead_letter", "leases/replace", "leases/requeue", "deadletters/add")
#: Tasks that end only by a call of the test, or by their own limit.
UNGATED = ("soft_limit", "hard_limit", "terminate")


class Stage(LedgerDesk):
    """Workers of one world, and what becomes of the tasks that they are sent.

    Parameters
    ----------
    broker
        Server that is only reached through *proxy*.
    other
        The broker in place of that server, for worlds without a cut.
    """

    module, timeout = "outcome_tasks", TIMEOUT

    def __init__(
        self,
        world: World,
        cells: Collection[Cell],
        start: Callable[..., WorkerProcess],
        broker: EmbeddedRedis,
        proxy: Proxy,
        results_url: str,
        other: Broker | None = None,
    ) -> None:
        super().__init__(start, broker, results_url)
        self.broker = other
        self.world = world
        self.cells = list(cells)
        self._proxy = proxy
        self._app = Celery(
            "sender",
            broker=other.url if other else broker.url_for("delayq+redis"),
            backend=results_url,
            set_as_current=False,
        )
        self._app.conf.update(other.conf if other else {})
        self._url = other.url if other else f"delayq+redis://127.0.0.1:{proxy.port}/0"
        lease = SHORT if world.back == "after the lease" else LONG
        self._delayq = {} if isinstance(other, OnRabbitMQ) else {"lease": lease}

    def close(self) -> None:
        """End the workers, and close the connections."""
        super().close()
        if self.broker is not None:
            DelayQ.of(self._app).close()
        self._app.close()
        del self._app
        # Results talk to their backend when they are collected; it may be gone by then.
        gc.collect()

    def play(self) -> None:
        """Have all tasks end, with the cut of the world."""
        {
            "": self._without_a_cut,
            "before": self._cut_before,
            "running": self._cut_running,
            "ended": self._cut_ended,
        }[self.world.cut]()

    # -- the cuts

    def _without_a_cut(self) -> None:
        self.open("go")
        self._begin()
        self._send()
        self._wait_started(self._of("terminate"))
        self._revoke()
        self._kill()

    def _cut_before(self) -> None:
        self.open("go")
        self._begin(concurrency=4)
        blockers = self._send_blockers(1 if self.world.pool == "solo" else 4)
        if self.world.pool in ("gevent", "eventlet"):
            # It waits for a place in the full pool, and may run twice: it is the pool's already.
            self._app.send_task("outcome.wait", ("blockers",))
        self._send()
        if self.world.pool in (
            "prefork",
            "threads",
        ):  # the others take none while all places are full
            ids = {cell.id for cell in self.cells}
            wait_until(lambda: ids <= self.held(), TIMEOUT, "all are taken")
        self._revoke()
        self._cut(lambda: self.wait_finished(blockers), "blockers")
        self._kill()

    def _cut_running(self) -> None:
        self._begin()
        self._send()
        self._wait_running(self.cells)
        self._cut(self._wait_ended, "go")
        self._revoke()

    def _cut_ended(self) -> None:
        self._begin()
        # The limited ones last: a limit that passes before the worker has heard of the revocation
        # has it wait for Redis, and hear of nothing.
        limited = self._of("soft_limit", "hard_limit")
        others = [cell for cell in self.cells if cell not in limited]
        self._send(others)
        self._wait_started(others)
        self._send(limited)
        self._wait_running(self.cells)
        self._proxy.hold(*ENDS)
        self._revoke()
        self.open("go")
        self._wait_ended()
        # A prefork worker that waits for Redis ends no task by a limit: those end after the cut.
        wait_until(lambda: self._proxy.held, TIMEOUT, "an end that Redis is not told")
        self._cut(lambda: None)

    def _cut(self, wait_ended: Callable[[], None], *gates: str) -> None:
        """Cut all connections, and have tasks end that wait for *gates*."""
        back = self.world.back
        if back == "at once":
            self._proxy.cut_all()
            self.open(*gates)
            for worker in self.workers:
                self.wait_connected(worker, 2)
            return
        self._proxy.refuse()
        if back == "after the lease":
            with self._dispatching() as store:
                if self.world.cut != "before":
                    self.open(*gates)
                self._wait_for_a_lease(store)
                self._proxy.accept()
                self.open(*gates)
                wait_ended()
                for worker in self.workers:
                    self.wait_connected(worker, 2)
            return
        for worker in self.workers:
            worker.term()
        self.open(*gates)
        wait_ended()
        self._proxy.accept()
        for worker in self.workers:
            worker.wait(TIMEOUT)
        left = self.left()
        assert not left.get("leased"), f"held by nobody: {left}; {self._logs()}"
        if left.get("ready"):
            self._begin()

    @contextmanager
    def _dispatching(self) -> Iterator[Store]:
        """Have somebody give to others what is not heard of for a lease."""
        options = {"delayq": self._delayq}
        with Connection(self._app.conf.broker_url, transport_options=options) as connection:
            channel: Any = connection.channel()
            thread = Dispatcher(channel.new_store(), Settings.from_options(options))
            thread.start()
            yield channel.store
            thread.stop()
            thread.join()

    def _wait_for_a_lease(self, store: Store) -> None:
        """Wait until a lease has ended that begins now."""
        queue, me = "canary", uuid4().hex
        store.register(queue)
        self.redis.lpush(queue, json.dumps({"headers": {"id": "canary"}}))
        taken = store.leases.acquire(queue, me, SHORT, "1", 1, 0)
        assert taken
        wait_until(lambda: self.redis.llen(queue), TIMEOUT, "the lease ends")
        # Those of the workers have ended before, and are taken back one after the other.
        ids = {cell.id for cell in self.cells}
        wait_until(lambda: not ids & self.held(), TIMEOUT, "all are taken")
        store.purge(queue)
        self.redis.delete(queue)

    # -- workers

    def _begin(self, concurrency: int = 0) -> None:
        """Start what runs all tasks side by side: workers, where each runs one."""
        world = self.world
        room = concurrency or len(self.cells) + 3
        several = world.pool == "solo" and world.cut in ("running", "ended")
        late = world.is_late
        settings = {
            "task_acks_late": late,
            "task_reject_on_worker_lost": late,
            "worker_proc_alive_timeout": TIMEOUT,
            "worker_prefetch_multiplier": 1 if several else 60,
            "broker_transport_options": {
                "delayq": self._delayq,
                "connect_retries_timeout": TIMEOUT,
            },
            "task_publish_retry_policy": PUBLISHING,
        }
        if world.results:
            settings["task_track_started"] = world.results == "away"
            settings["worker_deduplicate_successful_tasks"] = True
        self.workers = []
        for _ in range(room if several else 1):
            self.start(
                world.pool,
                conf=settings,
                # Celery multiplies it for the prefetch count, also where solo runs one at a time.
                concurrency=1 if several else room,
                broker_url=self._url,
                results_away=world.results,
            )
        for worker in self.workers:
            worker.wait_ready(TIMEOUT)

    def stop(self) -> None:
        """End the workers in good order."""
        for worker in self.workers:
            if worker.running:
                worker.term()
        for worker in self.workers:
            worker.wait(TIMEOUT)

    # -- tasks

    def _send(self, cells: Collection[Cell] | None = None) -> None:
        for cell in self.cells if cells is None else cells:
            is_apart = cell.ending in KILLED and self.world.cut in ("", "before")
            gate = "kill" if is_apart else "go"
            task = self._app.signature(f"outcome.{cell.ending}", (gate,), **cell.options)
            if cell.in_chord:
                beside = self._app.signature("outcome.beside", task_id=cell.beside)
                body = self._app.signature("outcome.body", task_id=cell.body)
                chord([beside, task], app=self._app)(body)
            else:
                task.apply_async()

    def _send_blockers(self, number: int) -> list[str]:
        ids = [f"blocker-{n}" for n in range(number)]
        for id in ids:
            self._app.send_task("outcome.wait", ("blockers",), task_id=id)
        wait_until(lambda: set(ids) <= set(self.ledger.starts()), TIMEOUT, "blockers run")
        return ids

    def _of(self, *endings: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.ending in endings]

    def _revoke(self) -> None:
        """Have all tasks revoked and terminated that are to end so."""
        ids = [cell.id for cell in self._of("terminate")]
        if not ids:
            return
        control, seconds = self._app.control, count(1)
        # Again until it is heard: a worker that has connected hears of nothing yet. A late answer
        # comes to the next question, or is dropped with the queue of its own. So it counts for any
        # question, and each question waits longer: else all questions may miss their answers, each
        # one getting that of the one before, for as long as somebody asks.
        wait_until(
            lambda: (
                control.revoke(ids, terminate=True, reply=True, timeout=next(seconds), limit=1)
                or control.mailbox.unclaimed
            ),
            TIMEOUT,
            lambda: f"an answer to revoke; {self._subscribed_and_stacks()}",
        )

    def _subscribed_and_stacks(self) -> str:
        """Tell whether workers are subscribed to remote control, and what their threads do."""
        subscribed = self.redis.pubsub_numpat()
        before = [len(worker.log) for worker in self.workers]
        for worker in self.workers:
            worker.send_signal(signal.SIGUSR1)  # Celery then logs the stacks
        logs = [*zip(self.workers, before, strict=True)]
        with suppress(TimeoutError):
            wait_until(lambda: all("LOCAL VARIABLES" in w.log[n:] for w, n in logs), TIMEOUT)
        told = "\n".join(worker.log[-20_000:] for worker in self.workers)
        return f"{subscribed} pattern subscriptions; {told}"

    def _kill(self) -> None:
        """Have processes killed, when the worker has read which task each of them runs.

        Celery runs a task again, also one that is acknowledged early, if two processes are killed
        within some ms and it has not read that the second had begun
        (``celery.concurrency.asynpool.AsynPool.on_partial_read``).
        """
        self._wait_running(self._of(*KILLED))
        self.open("kill")

    def _wait_started(self, cells: Collection[Cell]) -> None:
        self.wait_started([cell.id for cell in cells], len(cells))

    def _wait_running(self, cells: Collection[Cell]) -> None:
        """Wait until these run, and their messages are acknowledged where that is early."""
        self._wait_started(cells)
        is_held = self.world.is_late or self.world.pool == "solo"
        if is_held:
            return
        ids = {cell.id for cell in cells}
        wait_until(lambda: not self.held_of(ids), TIMEOUT, "early acks")

    def _wait_ended(self) -> None:
        """Wait until all have ended that end when a gate opens."""
        self.wait_finished([cell.id for cell in self.cells if cell.ending not in UNGATED])

    # -- what came of them

    def outcomes(self) -> dict[str, Outcome]:
        """Return what came of each task, by its id."""
        left, dead = self._left_and_dead()
        starts = self.ledger.starts()
        return {
            cell.id: Outcome(
                self._result(cell.id, left, dead, starts.get(cell.id, 0)),
                starts.get(cell.id, 0),
                self._state(cell.body) if cell.in_chord else "",
            )
            for cell in self.cells
        }

    def _left_and_dead(self) -> tuple[Mapping[str, Any], dict[str, str]]:
        """Return the ids of the tasks that the broker has, by state, and why tasks are dead."""
        if self.broker is None:
            return self.left(), {
                id.decode(): DeadLetterRecord.unpack(id.decode(), data).reason
                for id, data in self.redis.hgetall("{celery}:dead").items()
            }
        dead = {each.id: str(each.reason) for each in DelayQ.of(self._app).dead_letters()}
        if isinstance(self.broker, OnRabbitMQ):
            return {"scheduled": self._retried(), "dead": dead.keys()}, dead
        return self.left(), dead

    def _retried(self) -> set[str]:
        return {cell.id for cell in self.cells if self._state(cell.id) == "RETRY"}

    def _result(self, id: str, left: Mapping[str, Any], dead: dict[str, str], runs: int) -> str:
        places = sorted(place for place, ids in left.items() if id in ids)
        if places == ["dead"] and id in dead:
            return f"dead: {dead[id]}"
        if places == ["scheduled"]:
            return "retried"
        if places:
            return f"in {' and '.join(places)}"
        state = self._state(id)
        if state == "PENDING" and self.world.results and id.startswith(("terminate", "expired")):
            return "unreported"
        if state == "SUCCESS":
            return "done" if runs == 1 else "requeued"
        if state == "REVOKED":
            return "revoked"
        return "ignored" if state == "PENDING" and runs else state

    def others(self) -> set[str]:
        """Return what is left in the broker beside the tasks themselves."""
        if isinstance(self.broker, OnRabbitMQ):
            retried = len(self._retried())
            left = self.left()
            return set() if left == ({"scheduled": retried} if retried else {}) else {f"{left}"}
        beside = {cell.beside for cell in self.cells} if self.world.results else set()
        return set().union(*self.left().values()) - {cell.id for cell in self.cells} - beside

    def _state(self, id: str) -> str:
        found = self.results.get(f"celery-task-meta-{id}")
        return "PENDING" if found is None else str(json.loads(found)["status"])
