"""Read tasks and keys, start workers, wait for both."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.model.delivery import split_leased
from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT
from tests.support.keyspace import look, now_of

if TYPE_CHECKING:
    from tests.support.brokers import OnCluster, OnRabbitMQ

StartWorker = Callable[..., WorkerProcess]


#: Keys that are empty when all tasks are done.
BUSY = (
    "due",
    "entries",
    "tasks",
    "paused_due",
    "unique",
    "duplicate_ids",
    "ready_index",
    "leased_index",
    "quarantined",
)

#: The records of a schedule in order of due, at one moment.
RECORDS = """
local records = {}
for i, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  records[i] = redis.call('HGET', KEYS[2], name)
end
return records
"""


def start_worker(
    delayq_worker: StartWorker,
    app: str,
    pool: str = "prefork",
    *,
    conf: Mapping[str, Any] | None = None,
    delayq: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> WorkerProcess:
    """Start a worker of ``tests.apps.<app>``; do not wait until it is ready.

    *conf* are Celery's settings, *delayq* ours, and *args* more arguments of the command.
    """
    settings = dict(conf or {})
    if delayq is not None:
        settings["broker_transport_options"] = {"delayq": delayq}
    return delayq_worker(
        f"tests.apps.{app}:app",
        pool=pool,
        extra_args=[*FAST_START, *args],
        env={"APP_SETTINGS": json.dumps(settings), **(env or {})},
        **options,
    )


def answer(app: Celery, hostname: str, what: str, *about: Any) -> Any:
    """Return the answer of a worker to a command of ``inspect``.

    The command is repeated until the worker answers: a worker that has just said "ready" may not
    listen yet.
    """
    with app.connection_for_read() as connection:  # one of the app's may have been closed
        inspect = app.control.inspect([hostname], timeout=5, limit=1, connection=connection)
        # A command of tests has no method.
        ask = getattr(inspect, what, partial(inspect._request, what))
        answers = wait_until(lambda: ask(*about), TIMEOUT, "an answer")
    assert list(answers) == [hostname]
    return answers[hostname]


class Scene:
    """The state of Redis, as tests read it."""

    #: The broker, if it is not this Redis.
    broker: OnCluster | OnRabbitMQ | None = None

    def __init__(self, redis: RedisUnderTest) -> None:
        self.client = redis.client

    def now(self) -> float:
        """Return Redis' clock in seconds."""
        return now_of(self.client)

    def wait_past(self, moment: float) -> None:
        """Wait until Redis' clock is past a moment."""
        wait_until(lambda: self.now() > moment, TIMEOUT, f"{moment} by Redis' clock")

    def read(self, key: str = "log") -> list[dict[str, Any]]:
        """Return the records of tasks."""
        return [json.loads(item) for item in self.client.lrange(key, 0, -1)]

    def runs(self, *fields: str) -> list[Any]:
        """Return from the record of each run one field, or several fields as a tuple."""
        if len(fields) == 1:
            return [run.get(fields[0]) for run in self.read()]
        return [tuple(run.get(name) for name in fields) for run in self.read()]

    def wait_runs(self, count: int, timeout: float = TIMEOUT) -> None:
        """Wait until *count* runs have begun."""
        wait_until(
            lambda: self.client.llen("log") >= count,
            timeout,
            lambda: (
                f"{count} runs: {self.runs('id', 'task', 'key', 'retries')}, {self.unfinished()}"
            ),
        )

    def open(self, gate: str, times: int = 0) -> None:
        """Let *times* tasks pass a gate; 0 opens the gate for all."""
        if not times:
            self.client.set(f"open:{gate}", 1)
        for _ in range(times or 20):
            self.client.rpush(f"gate:{gate}", "")

    def ready(self, queue: str = "celery") -> list[str]:
        """Return the ids in a ready list; the next to be taken comes first."""
        items = self.client.lrange(queue, 0, -1)
        return [json.loads(item)["headers"]["id"] for item in reversed(items)]

    def scheduled(self, queue: str = "celery") -> list[tuple[str, int]]:
        """Return id and attempt of all scheduled entries, in the order of due."""
        keys = (f"{{{queue}}}:due", f"{{{queue}}}:entries")
        records = self.client.eval(RECORDS, 2, *keys)
        headers = [json.loads(record.partition(b"\n")[2])["headers"] for record in records]
        return [(each["id"], each["retries"]) for each in headers]

    def leased_ids(self) -> set[str]:
        """Return the ids of leased messages."""
        values = [item for key in self.client.keys("*:leased:*") for item in self.client.hvals(key)]
        messages = [split_leased(item)[1] for item in values]
        return {json.loads(item)["headers"]["id"] for item in messages if item}

    def owners(self, queue: str = "celery") -> dict[str, str]:
        """Return the id that has each unique key, without the task's name."""
        return {
            key.decode().partition(":")[2]: owner.decode().partition("=")[2].partition("\0")[0]
            for key, owner in self.client.hgetall(f"{{{queue}}}:unique").items()
        }

    def unfinished(self, queue: str = "celery") -> dict[str, Any]:
        """Return all unfinished tasks, by the end of their key."""
        if self.broker is not None:
            return self.broker.unfinished(queue)
        keys = {f"{{{queue}}}:{name}": name for name in BUSY} | {queue: "ready"}
        stored = look(self.client, *keys, "*:leased:*")
        leased = [
            record
            for key, records in stored.items()
            if b":leased:" in key
            for record in records.values()
        ]
        found = {name: stored[key.encode()] for key, name in keys.items() if key.encode() in stored}
        return found | ({"leased": leased} if leased else {})

    def wait_empty(self, queue: str = "celery") -> None:
        """Wait until all tasks are done, and no key of them is left."""
        wait_until(
            lambda: not self.unfinished(queue),
            TIMEOUT,
            lambda: f"nothing to be left: {self.unfinished(queue)}",
        )


class AppScene(Scene):
    """An app, its workers, and their state in Redis."""

    #: The module in ``tests.apps`` with the workers' app.
    module: str
    #: Options of workers if a test gives none.
    pool, concurrency, prefetch = "prefork", 1, 1

    def __init__(self, redis: RedisUnderTest, app: Celery, delayq_worker: StartWorker) -> None:
        super().__init__(redis)
        self.app, self._delayq_worker = app, delayq_worker

    @property
    def delayq(self) -> DelayQ:
        """The object of the app."""
        return DelayQ.of(self.app)

    @property
    def queues(self) -> Sequence[str]:
        """The queues of tasks that are sent to no named queue."""
        if self.broker is None:  # the Redis of the test
            return ("celery",)
        return self.broker.queues

    @property
    def tasks(self) -> Any:
        """The tasks of the app by name."""
        return self.app.tasks

    def start(self, pool: str = "", **options: Any) -> WorkerProcess:
        """Start a worker; see `start_worker`. *prefetch* is its multiplier."""
        prefetch = options.pop("prefetch", self.prefetch)
        conf = {"worker_prefetch_multiplier": prefetch, **options.pop("conf", {})}
        options = {"concurrency": self.concurrency, "conf": conf, **options}
        if self.broker is not None:
            options = self.broker.for_worker(options)
        return start_worker(self._delayq_worker, self.module, pool or self.pool, **options)

    def listeners(self) -> int:
        """Return the number of connections that listen to events and remote control."""
        return int(self.client.pubsub_numpat())

    @contextmanager
    def watching(self) -> Iterator[list[tuple[str, str]]]:
        """Collect events (type and task) during the ``with`` block."""
        events: list[tuple[str, str]] = []
        with self.app.connection_for_read() as connection:

            def note(event: dict[str, Any]) -> None:
                events.append((event["type"], event.get("uuid", "")))

            receiver = self.app.events.Receiver(connection, handlers={"*": note})
            before = self.listeners()

            def receive() -> None:
                for _ in receiver.consume(
                    limit=None, timeout=None, wakeup=False, safety_interval=0.1
                ):
                    pass

            thread = threading.Thread(target=receive)
            thread.start()
            try:
                wait_until(lambda: self.listeners() > before, TIMEOUT, "somebody listens")
                yield events
            finally:
                receiver.should_stop = True
                thread.join()


class Control(AppScene):
    """Sends tasks that are revoked, paused, replaced and delayed, and starts their workers."""

    module = "control_tasks"


class Leases(AppScene):
    """Starts workers that record their leased messages; they prefetch as Celery does by default."""

    module, pool, prefetch = "lease_tasks", "solo", 4
