"""What the pages of one server share: connections, threads, rates, and hidden arguments."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, tzinfo
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from celery import Celery
from celery.events.state import Task as EventTask

from celery_delayq.admin.web_rights import WebRights
from celery_delayq.app import DelayQ
from celery_delayq.errors import BrokerTimeout, DelayQError
from celery_delayq.model.payload import MessageFields
from celery_delayq.model.scheduled import moment
from celery_delayq.model.totals import Totals
from celery_delayq.store.session import Session
from celery_delayq.web.doctor_looks import DoctorLooks
from celery_delayq.web.jobs import Jobs

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Threads that read for pages. Flower's own threads serve Flower.
THREADS = 4

#: Seconds to wait for Redis, and for a page.
REDIS_TIMEOUT_SECONDS, PAGE_TIMEOUT_SECONDS = 5.0, 20.0

#: Seconds over which rates are averaged.
RATE_SECONDS = 60.0

#: Seconds that a closing server waits for its changes, and then for its doctor.
CLOSING_SECONDS = 1.0

#: Shown in place of what a formatter of tasks failed to format.
_HIDDEN = "(format_task failed)"


class Texts(NamedTuple):
    """Arguments and errors of a task as pages may show them; None if unknown.

    *is_whole* is False if a formatter of the server may have hidden parts: nothing else of the
    message may be shown then.
    """

    args: str | None
    kwargs: str | None
    error: str | None = None
    traceback: str | None = None
    is_whole: bool = True


class Site:
    """What the pages of one server share.

    Parameters
    ----------
    app : Celery
        The app whose tasks the pages show.
    format_task : Callable[[Any], Any] | None
        Flower's formatter of tasks, which may hide arguments.
    """

    def __init__(self, app: Celery, format_task: Callable[[Any], Any] | None = None) -> None:
        self.app = app
        self.delayq = DelayQ()
        # Connections of its own: those of the app may have no timeout.
        self.delayq.session = Session(app, redis_timeout=REDIS_TIMEOUT_SECONDS)
        self.rates = Rates()
        self.doctor = DoctorLooks(self.delayq.session)
        self.jobs = Jobs(app)
        self._format_task = format_task
        self._executor = ThreadPoolExecutor(THREADS, "delayq-web")

    @property
    def rights(self) -> WebRights:
        """Who may change tasks."""
        known = getattr(self.app, "_delayq", None)
        return known.web_rights if known is not None else WebRights()

    @property
    def on_rabbitmq(self) -> bool:
        """Whether the broker is RabbitMQ; False if the broker cannot be used."""
        try:
            return self.delayq.session.on_rabbitmq
        except DelayQError:
            return False

    @property
    def hides(self) -> bool:
        """Whether a formatter may hide arguments: then pages show no texts of exceptions either."""
        return self._format_task is not None

    @property
    def zone(self) -> tzinfo:
        """The zone of the times on pages: that of the app."""
        found: tzinfo = self.app.timezone
        return found

    def now(self) -> datetime:
        """Return the time of the clock that decides what is due."""
        return moment(self.delayq.session.now_ms())

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread of the pages.

        Raises
        ------
        BrokerTimeout
            The function does not return in time.
        """
        call = asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        try:
            return await asyncio.wait_for(call, PAGE_TIMEOUT_SECONDS)
        except asyncio.TimeoutError as exc:
            raise BrokerTimeout(
                f"the broker did not answer within {PAGE_TIMEOUT_SECONDS:g} seconds"
            ) from exc

    def close(self) -> None:
        """Stop all work. While a change or the doctor uses the connections, they stay open."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self.jobs.close(CLOSING_SECONDS) and self.doctor.wait(CLOSING_SECONDS):
            self.delayq.close()

    def texts_of(self, task: MessageFields, **known: Any) -> Texts:
        """Return what may be shown of a task: what Flower's formatter leaves of it.

        Parameters
        ----------
        known : Any
            Fields of the task that Flower's tasks have too: ``uuid``, ``name``, ``exception``,
            ``traceback``.
        """
        return self.formatted(_text_of(task, "args"), _text_of(task, "kwargs"), **known)

    def formatted(self, args: str | None, kwargs: str | None, **known: Any) -> Texts:
        """Return what Flower's formatter leaves of arguments; *known* is as in :meth:`texts_of`."""
        error, traceback = known.get("exception"), known.get("traceback")
        if self._format_task is None:
            return Texts(args, kwargs, error, traceback)
        shown = EventTask(args=args, kwargs=kwargs, **known)
        try:
            shown = self._format_task(copy.copy(shown))
            found = [shown.args, shown.kwargs, shown.exception, shown.traceback]
        except Exception:
            # Flower would show all. Who hides arguments would rather see none.
            logger.exception("format_task failed for task %r", known.get("uuid"))
            found = [_HIDDEN, _HIDDEN, error and _HIDDEN, traceback and _HIDDEN]
        args, kwargs, error, traceback = (None if it is None else str(it) for it in found)
        return Texts(args, kwargs, error, traceback, is_whole=False)


def _text_of(task: MessageFields, name: str) -> str | None:
    """Return arguments as their sender wrote them, or else as the message has them."""
    text = task.headers.get(f"{name}repr")
    if isinstance(text, str) and text:
        return text
    value = getattr(task, name)
    return None if value is None else repr(value)


class Rates:
    """Rates of queues a minute, from the counters at two looks."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[str, Totals]]] = deque()
        self._lock = Lock()

    def add(self, totals: Mapping[str, Totals]) -> Callable[[str, str], float | None]:
        """Note the counters of queues.

        Returns
        -------
        Callable[[str, str], float | None]
            Returns the rate of a queue for the name of a counter, a minute; None if unknown.
        """
        now = time.monotonic()
        with self._lock:
            looks = self._looks
            if not looks or now - looks[-1][0] >= 1:
                looks.append((now, totals))
            while len(looks) > 2 and now - looks[1][0] > RATE_SECONDS:
                looks.popleft()
            began, before = looks[0]

        def rate(queue: str, counter: str) -> float | None:
            old, new = before.get(queue), totals.get(queue)
            if old is None or new is None or old.epoch != new.epoch or now - began < 1:
                return None
            change = float(getattr(new, counter) - getattr(old, counter))
            return max(0.0, change) / (now - began) * 60

        return rate
