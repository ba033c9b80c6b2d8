"""An app whose tasks fail as the test says, and are tried again in many ways."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery, Task, signals
from celery.exceptions import Ignore, Reject
from celery.result import AsyncResult
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.model.retries.policy import Exponential
from celery_delayq.testing import wait_until
from tests.apps.settings import SETTINGS, new_app
from tests.support import TIMEOUT
from tests.support.keyspace import now_of
from tests.support.scene import AppScene

#: Where tasks write down what they do, if not where their results go.
NOTES = os.environ.get("RETRY_NOTES", "")

#: What a task shall do in one attempt: a word, or a word and what goes with it.
Act = str | Sequence[Any]


def act(self: Any, acts: Sequence[Act] = ("done",), result: Any = "done") -> Any:
    """Write down that it runs, and end as *acts* say for this attempt; the last is for all later.

    The name of a built-in exception is raised. Times are those of Redis' clock.
    """
    request = self.request
    what = acts[min(request.retries, len(acts) - 1)]
    word, more = (what, None) if isinstance(what, str) else what
    with Redis.from_url(NOTES or self.app.conf.result_backend, socket_timeout=None) as client:
        run = {
            "id": request.id,
            "task": self.name,
            "retries": request.retries,
            "deliveries": getattr(request, "deliveries", None),
            "redelivered": bool((request.delivery_info or {}).get("redelivered")),
            "queue": (request.delivery_info or {}).get("routing_key"),
            "group": request.group,
            "at": now_of(client),
        }
        client.rpush("log", json.dumps(run))
        if word == "wait":
            client.blpop([f"gate:{request.id}"], timeout=TIMEOUT)
            word, more = more or "done", None
        client.hset("ends", f"{request.id} {request.retries}", now_of(client))
    return end(self, request, word, more, result)


def end(self: Any, request: Any, word: str, more: Any, result: Any) -> Any:
    """End an attempt."""
    if word == "done":
        return result
    if word == "return":
        return more
    if word == "retry":
        raise self.retry(**(more or {}))
    if word == "caught":  # as people write it
        try:
            raise OSError("as told")
        except OSError as exc:
            raise self.retry(exc=exc, **(more or {})) from exc
    if word == "reject":
        raise Reject(more or "as told", requeue=False)
    if word == "requeue":
        raise Reject("as told", requeue=True)
    if word == "ignore":
        raise Ignore()
    if word == "send":
        task, id, acts = more
        return self.app.tasks[task].apply_async((acts,), task_id=id).id
    if word == "call":
        return self.app.tasks[more](["ValueError"])
    if word == "die" or (word == "die once" and request.deliveries == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "nap":
        time.sleep(more)
    if word == "long text":
        raise ValueError("é" * more)
    if word == "deep":
        return deep(more)
    if word == "unpicklable":
        raise Unpicklable(1, 2)
    if word in ("die once", "nap"):
        return result
    raise getattr(builtins, word)(more or "as told")


def deep(levels: int) -> None:
    """Fail far down."""
    if not levels:
        raise ValueError("at the bottom")
    deep(levels - 1)


class Unpicklable(Exception):
    """An exception that no process can hand to another."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("as told")
        self.one, self.two, self.lock = one, two, threading.Lock()


def half_a_tenth_more(retries: int) -> float:
    """Return the wait after so many retries."""
    return 0.05 + 0.05 * retries


class Telling(Task):
    """A task that writes down what Celery tells it."""

    def on_retry(self, _: Any, task_id: str, *__: Any) -> None:
        tell(self.app, "on_retry", self.request)
        with Redis.from_url(self.app.conf.result_backend, socket_timeout=None) as client:
            if client.exists(f"hold:{task_id}"):
                client.blpop([f"gate:{task_id}"], timeout=TIMEOUT)

    def on_failure(self, *_: Any) -> None:
        tell(self.app, "on_failure", self.request)

    def on_success(self, *_: Any) -> None:
        tell(self.app, "on_success", self.request)


class Clumsy(Task):
    """A task whose handlers fail."""

    def on_retry(self, *_: Any) -> None:
        raise KeyError("on_retry")

    def on_failure(self, *_: Any) -> None:
        raise KeyError("on_failure")


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "steps": {"retry_intervals": (0.1, 0.3, 0.2)},
    "quick": {"retry_intervals": (0, 0, 0)},
    "far": {"retry_intervals": (3600, 3600, 3600)},
    "early": {"retry_intervals": (0.1, 0.3, 0.2), "acks_late": False},
    "longer": {"retry_intervals": (0.05, 0.15), "max_retries": 4},
    "fixed": {"retry_intervals": 0.1},
    "growing": {"retry_intervals": Exponential(0.05, 2, 0.15), "max_retries": 4},
    "computed": {"retry_intervals": half_a_tenth_more, "max_retries": 2},
    "jittery": {"retry_intervals": (0.4, 0.4, 0.4, 0.4), "retry_jitter": 0.5},
    "choosy": {
        "retry_intervals": 0,
        "max_retries": 2,
        "retry_for": (OSError,),
        "dont_retry_for": [FileNotFoundError],
    },
    "strict": {"retry_intervals": (0, 0), "false_is_failure": True},
    "strict.plain": {"false_is_failure": True},
    "never": {"retry_intervals": (0, 0), "max_retries": 0},
    "exempt": {"retry_intervals": False},
    "auto": {"autoretry_for": (OSError,), "retry_intervals": (0.1, 0.3)},
    "auto.plain": {
        "autoretry_for": (OSError,),
        "retry_kwargs": {"max_retries": 2, "countdown": 0.1},
        "dont_retry_for": (FileNotFoundError,),
        "dont_autoretry_for": (ConnectionError,),
    },
    "auto.kwargs": {
        "autoretry_for": (OSError,),
        "retry_kwargs": {"max_retries": 2, "countdown": 0.1},
        "retry_intervals": (0, 0, 0, 0),
    },
    "auto.backoff": {
        "autoretry_for": (OSError,),
        "retry_backoff": 4,
        "retry_jitter": False,
        "retry_intervals": (0.1,),
    },
    "auto.refusing": {
        "autoretry_for": (OSError,),
        "dont_autoretry_for": (FileNotFoundError,),
        "dont_retry_for": (ConnectionError,),
        "retry_intervals": (0, 0),
    },
    "telling": {"base": Telling, "retry_intervals": (0.1, 0.1)},
    "clumsy": {"base": Clumsy, "retry_intervals": (0.1, 0.1)},
    "clumsy.early": {"base": Clumsy, "retry_intervals": (0.1, 0.1), "acks_late": False},
    "unkept": {"retry_intervals": (0,), "dead_letter": False},
    "limited": {"retry_intervals": (0,), "soft_time_limit": 2, "time_limit": TIMEOUT},
    "unique": {
        "retry_intervals": (0.2,),
        "unique_key": "mine",
        "unique_scope": "done",
        "on_conflict": "error",
    },
    "brief": {"skip_after": 0.5},
}


def together(self: Any, results: Sequence[Any]) -> Any:
    """Stand for the body of a chord."""
    return results


def tasks_of(app: Celery) -> Celery:
    """Give *app* the tasks."""
    for name, options in OPTIONS.items():
        # Not shared: other tests give other apps tasks of these names.
        app.task(name=name, bind=True, shared=False, **options)(act)
    app.task(name="together", bind=True, shared=False)(together)
    return app


@signals.task_retry.connect(dispatch_uid="retry_tasks.task_retry")
def note_retry(sender: Any, request: Any, **_: Any) -> None:
    tell(sender.app, "task_retry", request)


@signals.task_failure.connect(dispatch_uid="retry_tasks.task_failure")
def note_failure(sender: Any, **_: Any) -> None:
    tell(sender.app, "task_failure", sender.request)


def tell(app: Celery, what: str, request: Any) -> None:
    """Write down what Celery tells, for the tasks of this module that want it."""
    if request.task == "telling":
        with Redis.from_url(app.conf.result_backend) as client:
            client.rpush("told", json.dumps([what, request.id, request.retries]))


invalid = SETTINGS.pop("invalid", None)
app = tasks_of(new_app("retries", at_least_once=True, worker_send_task_events=True))
if invalid is not None:
    app.task(name="invalid", shared=False, **invalid)(deep)


#: Numbers of requests for messages: each is higher than the one before.
REQUESTS = itertools.count(1)


class RetryScene(AppScene):
    """Sends tasks that are tried again, starts their workers, and shows their attempts."""

    module, pool, concurrency = "retry_tasks", "solo", 2

    def send(self, task: str, *acts: Act, id: str = "a", **options: Any) -> AsyncResult:
        """Send a task that does these acts, one in each attempt; without any it is done."""
        return self.app.tasks[task].apply_async((acts or ["done"],), task_id=id, **options)

    def state(self, id: str) -> str:
        """Return the state of a task; each result object keeps the state that it has read."""
        return str(AsyncResult(id, app=self.app).state)

    def wait_state(self, id: str, wanted: str = "SUCCESS") -> Any:
        """Wait for the state of a task, and return its result."""
        wait_until(
            lambda: self.state(id) == wanted,
            TIMEOUT,
            lambda: f"{wanted} of {id}: {self.state(id)}",
        )
        return AsyncResult(id, app=self.app).result

    def dead_letter_ready(self) -> list[str]:
        """Dead-letter all ready tasks, as a worker does it; return their ids."""
        leases, ids = DelayQ.of(self.app).store.leases, []
        while messages := leases.acquire("celery", "me", 600, str(next(REQUESTS)), 100).messages:
            for field, message, _ in messages:
                ids.append(str(json.loads(message)["headers"]["id"]))
                leases.dead_letter("celery", "me", field, ids[-1], "failed")
        return ids

    def attempts(self, id: str) -> list[int]:
        """Return the attempts of a task in the order in which they began, by their retries."""
        return [retries for each, retries in self.runs("id", "retries") if each == id]

    def groups(self, id: str) -> str:
        """Return the id of the group to which a task belongs."""
        [found] = {group for each, group in self.runs("id", "group") if each == id}
        return str(found)

    def waits(self, id: str) -> list[float]:
        """Return the seconds from the end of each attempt to the beginning of the next."""
        began = {
            retries: at for each, retries, at in self.runs("id", "retries", "at") if each == id
        }
        ends = {name.decode(): float(at) for name, at in self.client.hgetall("ends").items()}
        return [at - ends[f"{id} {n - 1}"] for n, at in sorted(began.items()) if n]

    def assert_waits(self, waits: dict[str, list[float]]) -> None:
        """Check that no attempt was early; the benchmark ``retries`` shows that none is late."""
        late = []
        for id, expected in waits.items():
            found = self.waits(id)
            assert len(found) == len(expected), (id, found)
            late += [after - wait for after, wait in zip(found, expected, strict=True)]
        assert min(late) >= 0, late

    def ends(self, results: list[AsyncResult]) -> dict[str, str]:
        """Wait for the end of tasks, and return the result or the exception of each."""
        for each in results:
            each.get(timeout=TIMEOUT, propagate=False)
        return {
            each.id: repr(each.result) if each.failed() else str(each.result) for each in results
        }

    def wait(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Wait until a condition holds."""
        wait_until(condition, TIMEOUT, what)

    def told(self) -> list[tuple[str, str, int]]:
        """Return what tasks were told by Celery."""
        return [tuple(json.loads(item)) for item in self.client.lrange("told", 0, -1)]

    def wait_dead(self, *ids: str) -> None:
        """Wait until tasks are dead letters."""
        delayq = DelayQ.of(self.app)
        wait_until(
            lambda: {dead_letter.task_id for dead_letter in delayq.dead_letters()} >= set(ids),
            TIMEOUT,
            lambda: f"{ids} to be dead: {self.runs('id', 'retries')}, {self.unfinished()}",
        )

    def wait_only_dead(self, *ids: str) -> None:
        """Wait until tasks are dead letters, and nothing else is left."""
        self.wait_dead(*ids)
        self.wait_empty()
