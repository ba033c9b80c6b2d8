"""A worker outlives each error reply of Redis at each of its calls, and goes on with its tasks.

The replies are those of the product's table, the calls those that the accounts of workers need.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from uuid import uuid4

import pytest
from celery import Celery
from redis.exceptions import ResponseError

from celery_delayq import DelayQ
from celery_delayq.admin import accounts
from celery_delayq.errors import PeriodicExists
from celery_delayq.store.scripting.refusals import REFUSALS, Refusal, refusal_of
from celery_delayq.store.store import Store
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps import shared_locks
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.proxy import Fault, Proxy, Rule
from tests.support.replies import REPLIES
from tests.support.scene import Scene, StartWorker, start_worker

pytestmark = pytest.mark.full

#: Calls that are not made here, and why.
ELSEWHERE = {
    "schedule/add": "what a task sends: tests of publishing",
    "schedule/push_ready": "what a task sends: tests of publishing",
    "leases/use_retry_budget": "in a task: test_retry_budgets.py",
    "control/cancel": "a command of remote control, whose errors it answers",
    "control/find": "a command of remote control, whose errors it answers",
    "control/queues_with": "a command of remote control, whose errors it answers",
    "scan/range": "a command of remote control, whose errors it answers",
    "deadletters/page": "archives: test_archiver.py",
    "deadletters/delete": "archives: test_archiver.py",
    "periodic/compare_and_set": "entries of code that change: test_faults.py of periodic entries",
    "periodic/announce_version": "entries of code: test_faults.py of periodic entries",
    "scan/hash_scan": "reconciliation after a lost reply: test_lost_replies.py",
    "scan/hash_values": "entries of code: test_faults.py of periodic entries",
    "HMGET": "once, when periodic entries of code are read: test_faults.py of periodic entries",
    "dispatch/planned_looks": "each 10 s on duty: test_audit.py",
    "ZSCAN": "each 10 s on duty where there are limits: test_audit.py",
    "repair/permits": "each 10 s on duty where there are permits: test_audit.py",
    "limits/without_permits": "each 10 s on duty where there are limits: test_audit.py",
    "limits/forgotten_lanes": "each 10 s on duty where there are limits: test_audit.py",
    "dispatch/resign": "when a dispatcher stops: errors are ignored",
    "dispatch/defer_queue": "after an error of a promotion",
    "limits/wake_lanes": "at the start of a worker whose limits have changed",
    "leases/acquire+limits": "tasks with limits: tests/acceptance/test_faults_limits.py",
    "leases/ack+limits": "tasks with limits: tests/acceptance/test_faults_limits.py",
    "periodic/fire+limits": "ticks of tasks with limits, as periodic/fire",
    "schedule/add+limits": "what a task sends: tests of publishing",
}

#: What redis-py says of itself to a new connection, and the rest of a transaction.
HANDSHAKE = {"HELLO", "CLIENT", "SELECT", "AUTH", "UNWATCH", "MULTI", "EXEC", "DISCARD"}

LEASE = 3.0

#: Replies by pool: of each meaning, and of those with a class in redis-py. The others, and all on
#: the other pools, come each night: a worker does the same after replies of one meaning.
TELLING = {
    "threads": ("BUSY", "READONLY", "WRONGTYPE"),
    "gevent": ("NOAUTH", "NOPERM of 7", "OOM"),
    "eventlet": ("READONLY", "NOPERM of 8", "WRONGTYPE"),
    "prefork": ("LOADING", "MISCONF", "NOPERM"),
}
#: The others are dealt out to so many tests, each with a worker of its own.
PARTS = 5


@pytest.fixture
def proxy(delayq_redis: RedisUnderTest) -> Iterator[Proxy]:
    with Proxy(delayq_redis.port) as proxy:
        yield proxy


class Play:
    """Has a worker make all of its calls, with tasks of all kinds."""

    def __init__(self, app: Celery, stock: Celery, redis: RedisUnderTest, proxy: Proxy) -> None:
        self._app, self._stock, self._redis, self._proxy = app, stock, redis, proxy
        self._delayq, self._scene = DelayQ.of(app), Scene(redis)
        self.ids: list[str] = []

    def _send(self, name: str, *args: object, by: Celery | None = None, **options: object) -> None:
        id = f"{name}-{uuid4().hex[:8]}"
        (by or self._app).send_task(f"lease.{name}", args, task_id=id, **options)
        self.ids.append(id)

    def __call__(self) -> None:
        store: Store = self._delayq.store
        self._delayq.pause(task="lease.total")
        self._send("total", [1])
        self._send("add", 1, 1, countdown=0.1)
        self._send("again", 1)
        self._send("early")
        self._send("reject", True)
        self._send("reject", False)
        self._send("add", 1, 1, by=self._stock, countdown=0.2)
        self._send("add", 1, 1, queue="brief")
        self._send("add", 1, 1, queue="aside")
        self._send("nap", LEASE / 2)  # a lease is extended each third of it while something is held
        lost = f"lost-{uuid4().hex[:12]}"
        store.leases.acquire("aside", lost, 0.05, "1", 1)
        with self._app.connection_for_write() as connection:  # a message that kombu keeps
            channel = connection.channel()
            tag = uuid4().hex
            self._redis.client.zadd(channel.unacked_index_key, {tag: 1})
            self._redis.client.hset(channel.unacked_key, tag, '[{}, "", "nowhere"]')
        self._redis.client.lpush("brief", "no message")
        self._app.control.broadcast("ping")
        self._stock.control.revoke(uuid4().hex)
        with suppress(PeriodicExists):
            self._delayq.periodic.add("often", 1.0, "lease.total", ([1],))
        self._delayq.resume(task="lease.total")
        self._proxy.cut_all()

    def waiting(self) -> set[str]:
        """Return the tasks that have not ended; ticks of the periodic entry always wait."""
        scene = self._scene
        if scene.client.llen("brief"):
            return {"brief"}
        found = scene.leased_ids()
        for queue in ("celery", "aside"):
            found.update(scene.ready(queue), (id for id, _ in scene.scheduled(queue)))
        return found.intersection(self.ids)


def alive(worker: WorkerProcess) -> WorkerProcess:
    assert worker.returncode is None, worker.log[-5000:]
    return worker


def _is_over(left: Callable[[], str]) -> bool:
    return left().endswith(": ")


def _waiting(code: str, play: Play, worker: WorkerProcess) -> str:
    return f"{code}: {play.waiting()} to end: {worker.log[-5000:]}"


@pytest.fixture
def play(make_app: MakeApp, stock: Celery, delayq_redis: RedisUnderTest, proxy: Proxy) -> Play:
    return Play(make_app(), stock, delayq_redis, proxy)


def test_the_tables_are_complete() -> None:
    assert {*REFUSALS} == {each for each in REPLIES if " " not in each} - {"WRONGTYPE", "ERR"}
    assert not {each for each in ELSEWHERE if "/" in each} - {*accounts.scripts_of("worker")}
    telling = [ResponseError(REPLIES[code]) for codes in TELLING.values() for code in codes]
    assert {*map(refusal_of, telling)} == {*Refusal}


OTHERS = {pool: sorted(REPLIES.keys() - codes) for pool, codes in TELLING.items()}
CASES = [
    *(pytest.param(pool, codes, id=pool) for pool, codes in TELLING.items()),
    *(
        pytest.param(pool, OTHERS[pool][n::PARTS], id=f"{pool}-{n}", marks=pytest.mark.nightly)
        for pool, n in product(TELLING, range(PARTS))
    ),
]


@pytest.mark.parametrize(("pool", "codes"), CASES)
def test_a_worker_outlives_each_refusal_of_each_call(
    delayq_worker: StartWorker, play: Play, proxy: Proxy, pool: str, codes: Sequence[str]
) -> None:
    """Each call is refused once with each reply, also those that it makes as it connects anew."""
    worker = start_worker(
        delayq_worker,
        "lease_tasks",
        pool,
        conf={"temporary": "brief", "watched": pool if pool in shared_locks.LOCKS else None},
        delayq={"lease": LEASE, "history": 100},
        args=["--queues=celery,brief,aside"],
        broker_url=f"delayq+redis://127.0.0.1:{proxy.port}/0",
        concurrency=2,
        loglevel="INFO",
    )

    def play_until(has_happened: Callable[[], object], what: Callable[[], str]) -> None:
        until = time.monotonic() + 2 * TIMEOUT
        while not has_happened():
            assert time.monotonic() < until, what()
            connected = worker.log.count("] Connected to ")
            play()
            # It cuts the connections: not again before the worker was there for a while.
            latest = next_play = time.monotonic() + 20
            while time.monotonic() < next_play and not has_happened():
                if alive(worker).log.count("] Connected to ") > connected and next_play == latest:
                    next_play = min(latest, time.monotonic() + 1.5)
                time.sleep(0.1)

    scripts = {*accounts.scripts_of("worker")} - {*ELSEWHERE}
    play_until(lambda: scripts <= {*proxy.traffic}, lambda: f"{scripts - {*proxy.traffic}}")
    calls = {*proxy.traffic} - HANDSHAKE - {*ELSEWHERE}
    unknown = {each for each in calls if "/" in each} - scripts
    assert not unknown, "calls that are neither in the rules of accounts nor in ELSEWHERE"

    for code in codes:
        rules = [proxy.on(call, Fault.REFUSE, answer=REPLIES[code]) for call in sorted(calls)]

        def left(code: str = code, rules: Sequence[Rule] = rules) -> str:
            return f"{code}: " + " ".join(
                str(rule.what) for rule in rules if not rule.fired.is_set()
            )

        play_until(partial(_is_over, left), left)
        proxy.forget_rules()
        wait_until(
            lambda: alive(worker) and not play.waiting(),
            TIMEOUT,
            partial(_waiting, code, play, worker),
        )
    assert "Unrecoverable error" not in worker.log
    assert shared_locks.FOUND not in worker.log
