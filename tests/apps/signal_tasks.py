"""An app, with or without the extension, that writes down each signal of Celery."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals
from celery._state import get_current_task
from celery.exceptions import Ignore, Reject
from celery.utils.dispatch.signal import Signal
from click import Option

from tests.support import TIMEOUT

#: Every signal that Celery has.
SIGNALS: dict[str, Signal] = {
    name: each for name, each in vars(signals).items() if isinstance(each, Signal)
}

#: With a receiver Celery sets no logging up, and sends none of the signals of that.
SETS_LOGGING_UP = "setup_logging"

app = Celery("signals")
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_proc_alive_timeout=TIMEOUT,
    beat_schedule={"entry": {"task": "signals.ok", "schedule": 3600.0}},
)
app.user_options["preload"].add(Option(["--shop"], default="ours"))
if os.environ["KIND"] == "ours":
    from celery_delayq import DelayQ

    DelayQ(app)
MAIN = os.getpid()


def shown(value: Any) -> Any:
    """Return what a value of a signal is, without what differs from run to run."""
    if value is None or isinstance(value, (bool, int, str)):
        return value if not isinstance(value, str) or len(value) < 100 else "a long text"
    if isinstance(value, Task):
        return f"task {value.name} of {value.request.id}"
    if isinstance(value, Mapping):
        return {
            str(name): "a time" if name == "eta" and each else shown(each)
            for name, each in value.items()
            if name not in LEFT_OUT
        }
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    if isinstance(value, BaseException):
        return repr(value)
    kind = type(value).__name__
    if kind == "Request":
        sent = [value.id, value.name, value.argsrepr, value.kwargsrepr, value.eta is not None]
        return [kind, *sent, value.acknowledged, value.time_start is None]
    if kind == "Context":
        return [kind, value.id, value.task, value.retries, value.eta is not None]
    if kind == "Message":
        return [kind, shown(dict(value.headers)), value.acknowledged]
    if kind == "Queue":
        return [kind, value.name]
    if kind == "ExceptionInfo":
        return [kind, value.type.__name__, value.internal]
    if isinstance(value, type):
        return f"class {value.__name__}"
    return kind if not callable(value) else getattr(value, "__name__", kind)


#: What differs from run to run, or is ours.
LEFT_OUT = {
    *("delayq", "delivery_tag", "reply_to", "origin", "pid", "signal"),
    *("expiration", "hostname"),
    *("broker_url", "broker_read_url", "broker_write_url", "broker_transport_options"),
    *("result_backend", "conf", "instance", "options", "loglevel", "logfile", "format"),
}


def note(name: str, sender: Any, given: Mapping[str, Any]) -> None:
    """Write one signal down."""
    about = id_of(given)
    state = None
    if about is not None and name.startswith("task_"):
        state = app.AsyncResult(about).state
    line = {
        "signal": name,
        "process": "main" if os.getpid() == MAIN else "child",
        "sender": shown(sender),
        "names": sorted(given.keys() - {"signal"}),
        "given": shown(given),
        "about": about,
        "state": state,
        "running": shown(get_current_task()),
    }
    with Path(os.environ["SIGNALS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def id_of(given: Mapping[str, Any]) -> Any:
    """Return the id of the task that a signal is about, None for none."""
    for name in ("task_id", "id"):
        if given.get(name):
            return given[name]
    message, sender = given.get("message"), given.get("sender")
    headers = given.get("headers") or getattr(message, "headers", None) or {}
    request = given.get("request") or (sender.request if isinstance(sender, Task) else None)
    return headers.get("id") or getattr(request, "id", None)


def receiver_of(signal_name: str) -> Callable[..., None]:
    """Return a receiver of one signal, among whose arguments may be a name."""

    def receive(**given: Any) -> None:
        if signal_name == SETS_LOGGING_UP:
            logging.basicConfig(level="INFO", format="%(message)s")
        note(signal_name, given.get("sender"), given)

    return receive


def connect() -> None:
    """Connect to each signal, as a module of an app does."""
    for name, each in SIGNALS.items():
        if name == SETS_LOGGING_UP and "SETS_LOGGING_UP" not in os.environ:
            continue

        each.connect(receiver_of(name), weak=False)


connect()


# -- a task for each way to end -------------------------------------------------------------------


@app.task(name="signals.ok")
def ok(x: int = 0) -> int:
    """End well."""
    return x


@app.task(name="signals.fail")
def fail() -> None:
    """Fail."""
    raise ValueError("no luck")


@app.task(name="signals.retry", bind=True)
def retry(self: Any) -> int:
    """Be tried again once."""
    if not self.request.retries:
        raise self.retry(exc=ValueError("not now"), countdown=0.1)
    return 1


@app.task(
    name="signals.autoretry",
    autoretry_for=(ValueError,),
    retry_kwargs={"countdown": 0, "max_retries": 1},
)
def autoretry() -> None:
    """Fail each time."""
    raise ValueError("never")


@app.task(name="signals.reject")
def reject() -> None:
    """Reject the message."""
    raise Reject("not mine", requeue=False)


@app.task(name="signals.ignore")
def ignore() -> None:
    """End without a result."""
    raise Ignore()


@app.task(name="signals.send")
def send(x: int) -> None:
    """Send another task."""
    ok.apply_async((x,), task_id="sent by a task")


class BeforeStart(Task):
    """A task whose first hook fails."""

    def before_start(self, *_: Any) -> None:
        raise LookupError("before the start")


@app.task(name="signals.before", base=BeforeStart)
def before() -> None:
    """Do not begin."""


@app.task(name="signals.unserialisable")
def unserialisable() -> object:
    """Return what cannot be sent back."""
    return object()


@app.task(name="signals.killed")
def killed() -> None:
    """End the process."""
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="signals.limited", time_limit=1)
def limited() -> None:
    """Run for too long."""
    time.sleep(60)


@app.task(name="signals.soft", soft_time_limit=1)
def soft() -> None:
    """Run until the soft time limit."""
    time.sleep(60)


@app.task(name="signals.wait")
def wait() -> None:
    """Run until it is terminated."""
    time.sleep(60)
