"""An app with one task for each way in which a task can end; each waits for its gate first."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from celery import Task
from celery.exceptions import Ignore, Reject

from celery_delayq.dispatch import lease_keeper
from tests.apps import log_stacks  # noqa: F401, so that a worker which does not end says why
from tests.apps.ledgers import ledger, wait_for
from tests.apps.settings import new_app

# Where solo workers end side by side, the connection comes back when the last has ended its task.
lease_keeper.SHUTDOWN_SECONDS = 60.0

#: Seconds until a retry: it is only to be seen in the schedule.
RETRY = 3600

app = new_app("outcome")


class Failed(Exception):
    """What the tasks here raise."""


def _task(name: str, *, gated: bool = True, **options: Any) -> Callable[..., Any]:
    """Make a task of a function of the task and the number of its run."""

    def decorate(end: Callable[[Any, int], Any]) -> Any:
        def run(self: Any, gate: str = "") -> Any:
            number = ledger.started(self.request.id)
            if gated:
                wait_for(gate)
                ledger.ended(self.request.id, number)
            return end(self, number)

        run.__doc__ = end.__doc__
        return app.task(bind=True, name=f"outcome.{name}", shared=False, **options)(run)

    return decorate


@_task("success")
def success(self: Any, number: int) -> str:
    """End well."""
    return str(self.request.id)


@_task("retry")
def retry(self: Any, number: int) -> None:
    """Be tried again later."""
    raise self.retry(countdown=RETRY)


@_task("failure")
def failure(self: Any, number: int) -> None:
    """Fail; nothing says that it is tried again."""
    raise Failed("no luck")


@_task("exhausted", retry_for=(Failed,), max_retries=0)
def exhausted(self: Any, number: int) -> None:
    """Fail for the last time by a policy: its chord waits for a replay."""
    raise Failed("no luck")


@_task("reject")
def reject(self: Any, number: int) -> None:
    """Reject the message."""
    raise Reject("not mine", requeue=False)


@_task("requeue")
def requeue(self: Any, number: int) -> str:
    """Reject the first delivery, and have it back."""
    if number == 1:
        raise Reject("not now", requeue=True)
    return str(self.request.id)


@_task("ignore")
def ignore(self: Any, number: int) -> None:
    """End without a result."""
    raise Ignore()


@_task("soft_limit", gated=False)
def soft_limit(self: Any, number: int) -> None:
    """Run until the soft time limit, with which it is sent."""
    wait_for("never")


@_task("hard_limit", gated=False)
def hard_limit(self: Any, number: int) -> None:
    """Run until the hard time limit, with which it is sent."""
    wait_for("never")


@_task("terminate", gated=False)
def terminate(self: Any, number: int) -> None:
    """Run until it is revoked and terminated."""
    wait_for("never")


@_task("killed")
def killed(self: Any, number: int) -> str:
    """Kill the pool's process, at the first time."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return str(self.request.id)


@_task("retried_killed", retry_on_worker_lost=True, default_retry_delay=RETRY)
def retried_killed(self: Any, number: int) -> None:
    """Kill the pool's process, and be tried again later."""
    os.kill(os.getpid(), signal.SIGKILL)


@_task("expired")
def expired(self: Any, number: int) -> None:
    """Never run: it is sent too late."""


@_task("unserialisable")
def unserialisable(self: Any, number: int) -> object:
    """Return what no serializer takes."""
    return object()


class NotStarting(Task):
    """A task that fails before its function is called."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        number = ledger.started(task_id)
        wait_for(*args, **kwargs)
        ledger.ended(task_id, number)
        raise Failed("no start")


@app.task(name="outcome.before_start", shared=False, base=NotStarting)
def before_start(gate: str = "") -> None:
    """Never run."""


@_task("wait")
def wait(self: Any, number: int) -> None:
    """Keep a place in the pool until a gate opens."""


@app.task(name="outcome.beside", shared=False)
def beside() -> str:
    """End at once, as the other member of a chord."""
    return "beside"


@app.task(name="outcome.body", shared=False)
def body(results: Any) -> str:
    """Be the body of a chord."""
    return "body"
