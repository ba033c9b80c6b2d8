"""An app whose tasks are revoked, paused, replaced and held back, and what its tests look at."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.keyspace import look

SETTINGS = json.loads(os.environ.get("CONTROL_SETTINGS", "{}"))
#: Seconds to wait for what is about to happen.
TIMEOUT = 60
#: Seconds until a retry.
RETRY = 1.0

#: Of which keys there is nothing left once all tasks are done.
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

StartWorker = Callable[..., WorkerProcess]


class TryAgain(Exception):
    """What a task is retried for by itself."""


def _now(client: Redis) -> float:
    seconds, micros = client.time()
    return float(seconds + micros / 1e6)


def work(self: Any, key: Any = "", do: str = "", gate: str = "") -> Any:
    """Write down that it runs, wait until *gate* opens, and *do* what comes to mind.

    Retries are for the first attempt only, death for the first delivery.
    """
    request = self.request
    with Redis.from_url(self.app.conf.result_backend, socket_timeout=None) as client:
        run = {
            "id": request.id,
            "key": key,
            "task": self.name,
            "retries": request.retries,
            "deliveries": request.deliveries,
            "eta": request.eta,
            "at": _now(client),
        }
        client.rpush("log", json.dumps(run))
        if gate and not client.exists(f"open:{gate}"):
            client.blpop([f"gate:{gate}"], timeout=60)
    if do == "fail":
        raise RuntimeError("as told")
    if do == "reject":
        raise Reject("as told", requeue=False)
    if do == "die" or (do == "die once" and request.deliveries == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "retry" and not request.retries:
        raise self.retry(countdown=RETRY)
    if do == "autoretry" and not request.retries:
        raise TryAgain()
    return key


def total(self: Any, numbers: list[int]) -> int:
    """Stand for the body of a chord."""
    with Redis.from_url(self.app.conf.result_backend) as client:
        client.rpush("log", json.dumps({"id": self.request.id, "task": self.name}))
    return sum(numbers)


def tick(key: Any = "") -> None:
    """Take no time."""


def parent(self: Any, name: str, key: str) -> str:
    """Call another task, and return the id of what is to run."""
    return str(self.app.tasks[name].apply_async((key,), countdown=RETRY).id)


def tasks_of(app: Celery) -> Celery:
    """Give *app* the tasks: ``work``, and one for each policy and scope of a unique key."""
    again: dict[str, Any] = {
        "bind": True,
        "autoretry_for": (TryAgain,),
        "retry_kwargs": {"max_retries": 1, "countdown": RETRY},
    }
    app.task(name="work", **again, shared=False)(work)
    app.task(name="other", **again, shared=False)(work)
    app.task(name="total", bind=True, shared=False)(total)
    app.task(name="parent", bind=True, shared=False)(parent)
    app.task(name="tick", ignore_result=True, shared=False)(tick)
    for policy in ("replace", "error", "keep", "later"):
        for scope in ("scheduled", "done"):
            unique: dict[str, Any] = {"unique_key": "{key}", "on_conflict": policy}
            app.task(name=f"{policy}.{scope}", unique_scope=scope, **unique, **again, shared=False)(
                work
            )
    return app


app = Celery("control")
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_send_task_events = True
DelayQ(app, at_least_once=SETTINGS.pop("at_least_once", True))
app.conf.update(SETTINGS)
tasks_of(app)


def start(delayq_worker: StartWorker, pool: str = "prefork", **options: Any) -> WorkerProcess:
    """Start a worker; *conf* are Celery's settings, and *delayq* ours."""
    conf = {"worker_prefetch_multiplier": 1, **options.pop("conf", {})}
    if "delayq" in options:
        conf["broker_transport_options"] = {"delayq": options.pop("delayq")}
    return delayq_worker(
        "tests.apps.control_tasks:app",
        pool=pool,
        concurrency=options.pop("concurrency", 1),
        extra_args=FAST_START,
        env={"CONTROL_SETTINGS": json.dumps(conf)},
        **options,
    )


class Scene:
    """What tests see in Redis."""

    def __init__(self, redis: RedisUnderTest) -> None:
        self.client = redis.client

    def now(self) -> float:
        """Return Redis' clock in seconds."""
        return _now(self.client)

    def wait_past(self, moment: float) -> None:
        """Wait until Redis' clock is past a moment."""
        wait_until(lambda: self.now() > moment, TIMEOUT, f"{moment} by Redis' clock")

    def runs(self, *fields: str) -> list[Any]:
        """Return what tasks wrote down: of each run the field, or the fields as a tuple."""
        found = [json.loads(item) for item in self.client.lrange("log", 0, -1)]
        if len(fields) == 1:
            return [run.get(fields[0]) for run in found]
        return [tuple(run.get(name) for name in fields) for run in found]

    def wait_runs(self, count: int, timeout: float = TIMEOUT) -> None:
        """Wait until so many runs have begun."""
        wait_until(
            lambda: self.client.llen("log") >= count,
            timeout,
            lambda: f"{count} runs: {self.runs('id', 'task', 'key', 'retries')}, {self.left()}",
        )

    def open(self, gate: str, times: int = 0) -> None:
        """Let so many tasks go on that wait at a gate, or all of them from now on."""
        if not times:
            self.client.set(f"open:{gate}", 1)
        for _ in range(times or 20):
            self.client.rpush(f"gate:{gate}", "")

    def ready(self, queue: str = "celery") -> list[str]:
        """Return the ids in a ready list, the next to be taken first."""
        items = self.client.lrange(queue, 0, -1)
        return [json.loads(item)["headers"]["id"] for item in reversed(items)]

    def scheduled(self, queue: str = "celery") -> list[tuple[str, int]]:
        """Return id and attempt of all entries of a schedule, in order of due."""
        keys = (f"{{{queue}}}:due", f"{{{queue}}}:entries")
        records = self.client.eval(RECORDS, 2, *keys)
        headers = [json.loads(record.partition(b"\n")[2])["headers"] for record in records]
        return [(each["id"], each["retries"]) for each in headers]

    def held(self) -> set[str]:
        """Return the ids of what processes hold."""
        values = [item for key in self.client.keys("*:leased:*") for item in self.client.hvals(key)]
        messages = [item.partition(b"\n")[2] for item in values]
        return {json.loads(item)["headers"]["id"] for item in messages if item}

    def owners(self, queue: str = "celery") -> dict[str, str]:
        """Return the id that has each unique key, without the task's name."""
        return {
            key.decode().partition(":")[2]: owner.decode().partition("=")[2].partition("\0")[0]
            for key, owner in self.client.hgetall(f"{{{queue}}}:unique").items()
        }

    def left(self, queue: str = "celery") -> dict[str, Any]:
        """Return all that is not done yet, by the end of its key."""
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
        """Wait until all is done, and nothing is remembered of it."""
        wait_until(
            lambda: not self.left(queue), TIMEOUT, lambda: f"nothing to be left: {self.left(queue)}"
        )


@contextmanager
def watching(app: Celery, client: Redis) -> Iterator[list[tuple[str, str]]]:
    """Collect what is told by event meanwhile: type and task."""
    told: list[tuple[str, str]] = []
    with app.connection_for_read() as connection:

        def note(event: dict[str, Any]) -> None:
            told.append((event["type"], event.get("uuid", "")))

        receiver = app.events.Receiver(connection, handlers={"*": note})
        before = client.pubsub_numpat()

        def receive() -> None:
            for _ in receiver.consume(limit=None, timeout=None, wakeup=False, safety_interval=0.1):
                pass

        thread = threading.Thread(target=receive)
        thread.start()
        try:
            wait_until(lambda: client.pubsub_numpat() > before, TIMEOUT, "somebody listens")
            yield told
        finally:
            receiver.should_stop = True
            thread.join()
