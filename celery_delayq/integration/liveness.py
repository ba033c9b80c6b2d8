"""The file named by the setting ``liveness_file``. The loop of a worker touches the file."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ReferenceType, ref

from celery.utils.nodenames import node_format
from celery.worker import state

from celery_delayq.errors import ConfigError
from celery_delayq.integration.replace import Promise, Replace
from celery_delayq.settings import Settings
from celery_delayq.utils import native_threads

logger = logging.getLogger(__name__)

#: Seconds between two touches.
TOUCH_SECONDS = 1.0

#: Modules that wait for a broker, and modules that implement the waiting.
_BROKER_MODULES = ("redis", "amqp", "celery_delayq.transport.amqp.waiting")
_WAITING_MODULES = ("socket", "ssl", "selectors", "gevent", "eventlet", "greenlet")


class LivenessFile:
    """A file that the loop of a worker touches.

    Parameters
    ----------
    path : str
        The file, which is created if it is missing. Its folder must exist.

    Raises
    ------
    OSError
        The file cannot be created.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._next = 0.0
        self._failed = False
        self._path.touch()

    def touch(self) -> None:
        """Set the time of the file to now, at most once a second. Errors are only logged."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + TOUCH_SECONDS
        try:
            self._path.touch()
        except OSError as exc:
            if not self._failed:
                logger.error("liveness_file is not touched, probes will fail: %s", exc)
            self._failed = True
        else:
            self._failed = False


_file: LivenessFile | None = None
#: The native thread of the loop, and its greenlet if the module ``greenlet`` is imported.
_loop: tuple[int, Any] = (0, None)


def begin(controller: Any) -> None:
    """Have the worker of this process touch its file, if the setting names a file."""
    global _file
    try:
        path = Settings.from_options(controller.app.conf.broker_transport_options).liveness_file
    except ConfigError:
        return  # the worker ends with this error when it connects
    if not path:
        return
    try:
        _file = LivenessFile(node_format(path, controller.hostname))
    except OSError as exc:
        # Celery would only log this error.
        raise SystemExit(f"The worker cannot start: liveness_file: {exc}") from exc
    native_threads.start(partial(_touch_meanwhile, ref(controller), _file))


def touch_file(_owner: Any, maybe_shutdown: Callable[[], None]) -> Callable[[], None]:
    """Wrap ``maybe_shutdown``: touch the file.

    Celery calls it in each turn of the loop, and every second while the worker reconnects.
    """

    def touch_and_ask() -> None:
        if _file is not None:
            _note_loop()
            _file.touch()
        maybe_shutdown()

    return touch_and_ask


#: Made when a worker starts.
CHANGES = tuple(
    Replace(
        target=f"celery.worker.{module}:maybe_shutdown",
        by=touch_file,
        without="Celery does not touch the file of `liveness_file`, neither in its loop nor while "
        "it waits for a broker that is away.",
        promise=Promise.LIVENESS,
        upstream="celery: a setting `worker_liveness_file` that the loop touches.",
    )
    for module in ("state", "consumer.consumer")
)


def _note_loop() -> None:
    """Store the thread and greenlet of the caller, in which the loop runs."""
    global _loop
    greenlets = sys.modules.get("greenlet")
    _loop = native_threads.ident(), greenlets and greenlets.getcurrent()


def _touch_meanwhile(controller: ReferenceType[Any], file: LivenessFile) -> None:
    """Touch the file while the loop is blocked for a known reason.

    The reasons are a task in a solo worker and a broker that does not answer. A task counts only
    until its time limit, which a solo pool does not enforce.
    """
    since: dict[str, float] = {}
    while (worker := controller()) is not None:
        active = [each for each in [*state.requests.values()] if each in state.active_requests]
        if worker.pool.__class__.__module__ != "celery.concurrency.solo":
            active = []
        now = time.monotonic()
        since = {request.id: since.get(request.id, now) for request in active}
        limits = {each.id: each.time_limits[0] or each.task.time_limit for each in active}
        in_task = any(not limit or now - since[id] < limit for id, limit in limits.items())
        if in_task or _waits_for_broker():
            file.touch()
        del worker
        native_threads.sleep(TOUCH_SECONDS)


def _waits_for_broker() -> bool:
    """Return whether the stack of the loop shows that it waits for a broker."""
    thread, greenlet = _loop
    frame: FrameType | None = getattr(greenlet, "gr_frame", None)  # None while the greenlet runs
    frame = frame or sys._current_frames().get(thread)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in _WAITING_MODULES:
            return name.partition(".")[0] in _BROKER_MODULES or name in _BROKER_MODULES
        frame = frame.f_back
    return False
