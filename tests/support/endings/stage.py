"""One run of the matrix: a worker, its tasks, and one cut."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, cast
from uuid import uuid4

from celery import Celery, chord
from kombu import Connection

from celery_delayq import DelayQ
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.model.dead_letter import DeadLetterRecord
from celery_delayq.settings import Settings
from celery_delayq.store.store import Store
from celery_delayq.testing import WorkerProcess, wait_until
from tests.support import TIMEOUT
from tests.support.brokers import Broker, OnRabbitMQ
from tests.support.endings.cells import KILLED, Cell, Outcome, World
from tests.support.ledger_desk import LedgerDesk
from tests.support.proxy import Proxy

#: Seconds of a lease that is to end during the test. Until the cut, a busy machine must extend it
#: in time.
EXPIRING_LEASE_SECONDS = 15.0
#: Seconds of a lease that is not to end.
LASTING_LEASE_SECONDS = 240.0
#: Calls wait for Redis during a cut, for `TIMEOUT` at most. Celery's own policy ends after 0.6 s,
#: and kombu connects for 4 s.
PUBLISHING = {
    "max_retries": 5 * TIMEOUT,
    "interval_start": 0,
    "interval_step": 0.2,
    "interval_max": 0.2,
}
#: Scripts that report an end to Redis.
ENDS = ("leases/ack", "leases/dead_letter", "leases/replace", "leases/requeue", "deadletters/add")
#: Tasks that end by a limit, and the option that sets it.
LIMITS = {"soft_limit": "soft_time_limit", "hard_limit": "time_limit"}
#: Seconds after its start when a limited task is ended: by then all others have started.
LIMIT = 10.0
#: Tasks that end only by a call of the test, or by their own limit.
UNGATED = (*LIMITS, "terminate")


class Stage(LedgerDesk):
    """Workers of one world, and the outcomes of their tasks.

    :mod:`tests.support.endings.cells` explains worlds, cells, cuts and when Redis is back.

    Parameters
    ----------
    redis
        Server behind *proxy*. Workers reach it through the proxy only.
    other_broker
        The broker in place of that server, for worlds without a cut.
    """

    module, timeout = "outcome_tasks", TIMEOUT

    def __init__(
        self,
        world: World,
        cells: Collection[Cell],
        start: Callable[..., WorkerProcess],
        redis: EmbeddedRedis,
        proxy: Proxy,
        results_url: str,
        other_broker: Broker | None = None,
    ) -> None:
        super().__init__(start, redis, results_url)
        self.broker = other_broker
        self.world = world
        self.cells = list(cells)
        self._proxy = proxy
        self._app = Celery(
            "sender",
            broker=other_broker.url if other_broker else redis.url_for("delayq+redis"),
            backend=results_url,
            set_as_current=False,
        )
        self._app.conf.update(other_broker.conf if other_broker else {})
        through_proxy = f"delayq+redis://127.0.0.1:{proxy.port}/0"
        self._url = other_broker.url if other_broker else through_proxy
        expires = world.back == "after the lease"
        lease = EXPIRING_LEASE_SECONDS if expires else LASTING_LEASE_SECONDS
        self._settings = {} if isinstance(other_broker, OnRabbitMQ) else {"lease": lease}

    def close(self) -> None:
        """End the workers, and close the connections."""
        super().close()
        if self.broker is not None:
            DelayQ.of(self._app).close()
        self._app.close()
        del self._app
        # Results call their backend when they are collected, and it may be gone later.
        gc.collect()

    def play(self) -> None:
        """Let all tasks end, with the cut of the world."""
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
            # This task waits for a place in the full pool, and may run twice: the pool has it.
            self._app.send_task("outcome.wait", ("blockers",))
        self._send()
        if self.world.pool in (
            "prefork",
            "threads",
        ):  # the other workers take none while all places are full
            ids = {cell.id for cell in self.cells}
            wait_until(lambda: ids <= self.leased_ids(), TIMEOUT, "all are leased")
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
        # Tasks with limits come last, and a slow machine gives them more time. A worker whose limit
        # passes before it has heard of the revocation waits for Redis, and hears nothing.
        limited = self._of(*LIMITS)
        others = [cell for cell in self.cells if cell not in limited]
        began = time.monotonic()
        self._send(others)
        self._wait_started(others)
        self._send(limited, limit=LIMIT + 3 * (time.monotonic() - began))
        self._wait_running(self.cells)
        self._proxy.hold(*ENDS)
        self._revoke()
        self.open("go")
        self._wait_ended()
        # While a prefork worker waits for Redis, it ends no task by a limit. These end after the
        # cut.
        wait_until(lambda: self._proxy.blocked_calls, TIMEOUT, "a call about an end is blocked")
        self._cut(lambda: None)

    def _cut(self, wait_ended: Callable[[], None], *gates: str) -> None:
        """Cut all connections, and let tasks end that wait for *gates*."""
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
        unfinished = self.unfinished()
        assert not unfinished.get("leased"), f"leased by nobody: {unfinished}; {self._logs()}"
        if unfinished.get("ready"):
            self._begin(concurrency=4)  # no task waits for another one any more

    @contextmanager
    def _dispatching(self) -> Iterator[Store]:
        """Let a dispatcher reclaim messages whose lease has ended."""
        options = {"delayq": self._settings}
        with Connection(self._app.conf.broker_url, transport_options=options) as connection:
            channel: Any = connection.channel()
            thread = Dispatcher(channel.new_store(), Settings.from_options(options))
            thread.start()
            yield channel.store
            thread.stop()
            thread.join()

    def _wait_for_a_lease(self, store: Store) -> None:
        """Wait until the leases of the workers have ended, and their messages are reclaimed.

        Leases another message now. When its lease has ended, all earlier leases have ended too.
        """
        queue, me = "canary", uuid4().hex
        store.register(queue)
        self.redis.lpush(queue, json.dumps({"headers": {"id": "canary"}}))
        assert store.leases.acquire(queue, me, EXPIRING_LEASE_SECONDS, "1", 1, 0)
        wait_until(lambda: self.redis.llen(queue), TIMEOUT, "the lease ends")
        # The dispatcher reclaims the messages of one process after the other.
        ids = {cell.id for cell in self.cells}
        wait_until(lambda: not ids & self.leased_ids(), TIMEOUT, "all are reclaimed")
        store.purge(queue)
        self.redis.delete(queue)

    # -- workers

    def _begin(self, concurrency: int = 0) -> None:
        """Start workers so that *concurrency* tasks run at once, by default all.

        With solo, start one worker for each task if all are to run at once, and else one.
        """
        world = self.world
        room = concurrency or len(self.cells) + 3
        several = not concurrency and world.pool == "solo" and world.cut in ("running", "ended")
        late = world.is_late
        settings = {
            "task_acks_late": late,
            "task_reject_on_worker_lost": late,
            "worker_prefetch_multiplier": 1 if several else 60,
            "broker_transport_options": {
                "delayq": self._settings,
                "connect_retries_timeout": TIMEOUT,
            },
            "task_publish_retry_policy": PUBLISHING,
        }
        if world.results:
            settings["task_track_started"] = world.results == "away"
            settings["worker_deduplicate_successful_tasks"] = True
        self.workers = []
        # One more worker runs the other members of chords, and their bodies.
        for _ in range(len(self.cells) + 1 if several else 1):
            self.start(
                world.pool,
                conf=settings,
                # Celery multiplies the concurrency for the prefetch count, even with solo.
                concurrency=1 if several else room,
                broker_url=self._url,
                results_away=world.results,
            )
        for worker in self.workers:
            worker.wait_ready(TIMEOUT)

    def stop(self) -> None:
        """Stop the workers normally."""
        for worker in self.workers:
            if worker.running:
                worker.term()
        for worker in self.workers:
            worker.wait(TIMEOUT)

    # -- tasks

    def _send(self, cells: Collection[Cell] | None = None, limit: float = LIMIT) -> None:
        for cell in self.cells if cells is None else cells:
            is_killed_last = cell.ending in KILLED and self.world.cut in ("", "before")
            gate = "kill" if is_killed_last else "go"
            more = {LIMITS[cell.ending]: limit} if cell.ending in LIMITS else {}
            task = self._app.signature(f"outcome.{cell.ending}", (gate,), **cell.options, **more)
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
        """Revoke and terminate all tasks that are to end in this way."""
        ids = [cell.id for cell in self._of("terminate")]
        if not ids:
            return
        control, seconds = self._app.control, count(1)
        # A worker that has just connected does not listen yet. So the revoke is repeated until a
        # worker replies. A late reply may arrive during the next attempt. So any reply counts, and
        # each attempt waits longer.
        wait_until(
            lambda: (
                control.revoke(ids, terminate=True, reply=True, timeout=next(seconds), limit=1)
                or control.mailbox.unclaimed
            ),
            TIMEOUT,
            lambda: f"a reply to revoke; {self.redis.pubsub_numpat()} listen; {self.stacks()}",
        )

    def stacks(self) -> str:
        """Return the ends of the logs, with the stacks of the workers and of prefork's children."""
        logs = [(worker, len(worker.log)) for worker in self.workers if worker.running]
        for worker, _ in logs:
            if self.world.pool == "prefork":
                for pid in worker.child_pids():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGUSR2)  # `tests.apps.log_stacks`
            worker.send_signal(signal.SIGUSR1)  # Celery then logs the stacks
        with suppress(TimeoutError):
            wait_until(lambda: all("LOCAL VARIABLES" in w.log[n:] for w, n in logs), TIMEOUT)
        return "\n".join(worker.log[-60_000:] for worker in self.workers)

    def _kill(self) -> None:
        """Kill processes after the worker has read which task each of them runs.

        Celery runs a task again, even if it was acknowledged early, if two processes are killed
        within some ms and Celery has not read that the second task had begun
        (``celery.concurrency.asynpool.AsynPool.on_partial_read``).
        """
        self._wait_running(self._of(*KILLED))
        self.open("kill")

    def _wait_started(self, cells: Collection[Cell]) -> None:
        self.wait_started([cell.id for cell in cells], len(cells))

    def _wait_running(self, cells: Collection[Cell]) -> None:
        """Wait until these tasks run, and early acknowledgements are done."""
        self._wait_started(cells)
        if self.world.acks_after_end:
            return
        ids = {cell.id for cell in cells}
        wait_until(lambda: not self.count_leased(ids), TIMEOUT, "early acks")

    def _wait_ended(self) -> None:
        """Wait until all tasks have ended that end when a gate opens."""
        self.wait_finished([cell.id for cell in self.cells if cell.ending not in UNGATED])

    # -- outcomes

    def outcomes(self) -> dict[str, Outcome]:
        """Return the outcome of each task by its id."""
        unfinished, dead = self._unfinished_and_dead()
        starts = self.ledger.starts()
        states = self._states([id for cell in self.cells for id in (cell.id, cell.body)])
        return {
            cell.id: Outcome(
                self._result(cell.id, unfinished, dead, starts.get(cell.id, 0), states[cell.id]),
                starts.get(cell.id, 0),
                states[cell.body] if cell.in_chord else "",
            )
            for cell in self.cells
        }

    def _unfinished_and_dead(self) -> tuple[Mapping[str, Any], dict[str, str]]:
        """Return the ids of the tasks in the broker by state, and the reasons of dead tasks."""
        if self.broker is None:
            return self.unfinished(), {
                id.decode(): DeadLetterRecord.unpack(id.decode(), data).reason
                for id, data in self.redis.hgetall("{celery}:dead").items()
            }
        dead = {each.id: str(each.reason) for each in DelayQ.of(self._app).dead_letters()}
        if isinstance(self.broker, OnRabbitMQ):
            return {"scheduled": self._retried(), "dead": dead.keys()}, dead
        return self.unfinished(), dead

    def _retried(self) -> set[str]:
        states = self._states([cell.id for cell in self.cells])
        return {id for id, state in states.items() if state == "RETRY"}

    def _result(
        self, id: str, unfinished: Mapping[str, Any], dead: dict[str, str], runs: int, state: str
    ) -> str:
        places = sorted(place for place, ids in unfinished.items() if id in ids)
        if places == ["dead"] and id in dead:
            return f"dead: {dead[id]}"
        if places == ["scheduled"]:
            return "retried"
        if places:
            return f"in {' and '.join(places)}"
        if state == "PENDING" and self.world.results and id.startswith(("terminate", "expired")):
            return "unreported"
        if state == "SUCCESS":
            return "done" if runs == 1 else "requeued"
        if state == "REVOKED":
            return "revoked"
        return "ignored" if state == "PENDING" and runs else state

    def others(self) -> set[str]:
        """Return messages in the broker that are not the tasks themselves."""
        if isinstance(self.broker, OnRabbitMQ):
            retried = len(self._retried())
            found = self.unfinished()
            return set() if found == ({"scheduled": retried} if retried else {}) else {f"{found}"}
        beside = {cell.beside for cell in self.cells} if self.world.results else set()
        return set().union(*self.unfinished().values()) - {cell.id for cell in self.cells} - beside

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the state of each task in the result backend."""
        found = cast(
            "list[bytes | None]", self.results.mget([f"celery-task-meta-{id}" for id in ids])
        )
        return {
            id: "PENDING" if data is None else str(json.loads(data)["status"])
            for id, data in zip(ids, found, strict=True)
        }
