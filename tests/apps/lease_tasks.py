"""An app that has its settings from the environment; its tasks end in many ways."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from typing import Any

from celery.exceptions import Reject
from kombu import Queue
from redis import Redis

from celery_delayq.model.delivery import split_leased
from celery_delayq.testing import wait_until
from tests.apps.settings import SETTINGS, new_app
from tests.support import TIMEOUT

#: The name of a queue that goes with its consumer, and from which nothing is leased.
temporary = SETTINGS.pop("temporary", None)
app = new_app("leases", at_least_once=True)
if temporary is not None:
    app.conf.task_queues = [Queue("celery"), Queue(temporary, auto_delete=True)]


#: What each process holds, and what is written down, at one moment.
LEASED = """
local held = {}
for _, key in ipairs(redis.call('KEYS', '*:leased:*')) do
  held[#held + 1] = {string.match(key, ':leased:(.*)$'), unpack(redis.call('HVALS', key))}
end
return {redis.call('LRANGE', 'log', 0, -1), unpack(held)}
"""


def held(client: Redis) -> dict[str, int]:
    """Return how many messages each process holds at this moment."""
    return _count(client.eval(LEASED, 0)[1:], but=set())


def unfinished(client: Redis) -> dict[str, int]:
    """Return how many messages each process holds whose task has not come to its end."""
    log, *found = client.eval(LEASED, 0)
    entries = [json.loads(item) for item in log]
    return _count(found, but={entry["id"] for entry in entries if entry["event"] == "ended"})


def _count(found: list[Any], but: set[str]) -> dict[str, int]:
    number: dict[str, int] = {}
    for name, *messages in found:
        count = sum(_id(message) not in but for message in messages)
        number[name.decode()] = number.get(name.decode(), 0) + count
    return number


def _id(message: bytes) -> str | None:
    """Return the id of the task behind what stands in a lease; empty once a retry replaced it."""
    try:
        return str(json.loads(split_leased(message)[1])["headers"]["id"])
    except (ValueError, KeyError, TypeError):
        return None


def log(client: Redis, event: str, request: Any, **more: Any) -> None:
    """Write down what a task has to tell; *held* is what all processes hold now."""
    entry = {
        "event": event,
        "task": request.task.removeprefix("lease."),
        "id": request.id,
        "worker": request.hostname.partition("@")[0],
        "args": request.args,
        "retries": request.retries,
        "deliveries": request.deliveries,
        "redelivered": bool((request.delivery_info or {}).get("redelivered")),
        "queue": (request.delivery_info or {}).get("routing_key"),
        "at": time.time(),
        "held": sum(held(client).values()),
        **more,
    }
    client.rpush("log", json.dumps(entry))


def note(request: Any, event: str = "ran", **more: Any) -> None:
    with Redis.from_url(app.conf.result_backend) as client:
        log(client, event, request, **more)


@app.task(bind=True, name="lease.add", shared=False)
def add(self: Any, x: Any, y: Any) -> Any:
    note(self.request)
    return x + y


@app.task(bind=True, name="lease.nap", shared=False)
def nap(self: Any, seconds: float) -> None:
    note(self.request, "started")
    time.sleep(seconds)
    note(self.request, "ended")


def wait_to_go(request: Any, event: str) -> None:
    """Say so, and wait until the test lets it go on."""
    with Redis.from_url(app.conf.result_backend, socket_timeout=None) as client:
        log(client, event, request)
        client.blpop(["go"], timeout=TIMEOUT)


@app.task(bind=True, name="lease.wait", shared=False)
def wait(self: Any) -> None:
    wait_to_go(self.request, "started")
    note(self.request, "ended")


@app.task(bind=True, name="lease.die", shared=False)
def die(self: Any, deliveries: int = 1_000_000) -> str:
    """Kill the process that runs this, as long as it was not delivered more often."""
    note(self.request)
    if self.request.deliveries <= deliveries:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.task(bind=True, name="lease.die_with_worker", shared=False)
def die_with_worker(self: Any) -> None:
    """Kill the worker, once it has had the time to take others beside this."""
    with Redis.from_url(app.conf.result_backend) as client, suppress(TimeoutError):
        wait_until(lambda: sum(held(client).values()) > 1, timeout=3.0)
    note(self.request)
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="lease.close", shared=False)
def close(descriptor: int) -> None:
    """Close a file of this process."""
    os.close(descriptor)


@app.task(bind=True, name="lease.reject", shared=False)
def reject(self: Any, requeue: bool) -> str:
    """Reject the first delivery."""
    note(self.request)
    if self.request.deliveries == 1:
        raise Reject("not to my taste", requeue=requeue)
    return "accepted"


@app.task(bind=True, name="lease.again", max_retries=2, shared=False)
def again(self: Any, x: Any, times: int = 1, **options: Any) -> Any:
    """Retry so many times, then return *x*."""
    note(self.request)
    if self.request.retries < times:
        raise self.retry(**{"countdown": 0.2, **options})
    return x


@app.task(bind=True, name="lease.early", acks_late=False, max_retries=1, shared=False)
def early(self: Any) -> str:
    note(self.request)
    if not self.request.retries:
        raise self.retry(countdown=0.2)
    return "at last"


@app.task(
    bind=True,
    name="lease.auto",
    autoretry_for=(ValueError,),
    retry_kwargs={"max_retries": 1, "countdown": 0.2},
    shared=False,
)
def auto(self: Any) -> str:
    note(self.request)
    if not self.request.retries:
        raise ValueError("once")
    return "at last"


@app.task(bind=True, name="lease.total", shared=False)
def total(self: Any, numbers: list[int]) -> int:
    note(self.request)
    return sum(numbers)


@app.task(bind=True, name="lease.unsendable", max_retries=3, shared=False)
def unsendable(self: Any, x: Any = None) -> None:
    """Retry with what cannot be serialized."""
    note(self.request)
    raise self.retry(args=(object(),), countdown=0.1)


@app.task(bind=True, name="lease.retry_and_wait", max_retries=1, shared=False)
def retry_and_wait(self: Any, countdown: float) -> None:
    """Send the retry, and be not done for a while after that."""
    note(self.request)
    if not self.request.retries:
        self.retry(countdown=countdown, throw=False)
        wait_to_go(self.request, "retried")


@app.task(bind=True, name="lease.wait_and_retry", max_retries=1, shared=False)
def wait_and_retry(self: Any, countdown: float) -> None:
    """Be at work for a while before the retry is sent."""
    if not self.request.retries:
        wait_to_go(self.request, "ran")
        raise self.retry(countdown=countdown)
    note(self.request)


class Long(Exception):
    """An error that a pool's process cannot tell of in one go."""

    more = b""

    @classmethod
    def new(cls) -> Long:
        """Make one: its arguments alone are what Celery shows."""
        error = cls("long")
        error.more = b"x" * 1_000_000
        return error


@app.task(bind=True, name="lease.wait_and_fail_at_length", shared=False)
def wait_and_fail_at_length(self: Any) -> None:
    """Be at work for a while, and fail with a result that fills the pool's pipe."""
    wait_to_go(self.request, "started")
    raise Long.new()
