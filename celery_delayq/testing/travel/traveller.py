"""Moves the clocks to each moment at which something is due, and runs what is due there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery, current_app

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import TravelError
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.testing.travel.app_on_server import app_on_server
from celery_delayq.testing.travel.clock import MovedClock, moment_of_us
from celery_delayq.testing.travel.inline_worker import InlineWorker
from celery_delayq.testing.travel.ordered_ids import ordered_ids
from celery_delayq.testing.travel.outlook import Outlook, look
from celery_delayq.testing.travel.periodic_entries import PeriodicEntries
from celery_delayq.testing.travel.progress import Progress
from celery_delayq.testing.travel.refusals import (
    check_broker,
    check_no_worker_here,
    check_no_worker_on,
    check_server,
    checked_app,
)
from celery_delayq.testing.travel.result_waits import refused_waits

if TYPE_CHECKING:
    from typing_extensions import Self

#: Runs after which a call gives up, by default.
MOST_RUNS = 10_000

#: The last moment of Python's clock.
_LAST_US = due_of_eta("9999-12-31T23:59:59+00:00").ms * 1000

#: Most entries of one promotion.
PROMOTED_ENTRIES = 50


class TimeTravel:
    """Both clocks of a test, and the tasks that are due while they move.

    The clocks of Python and of the private Redis show the same time. They stand still until
    :meth:`travel` or :meth:`travel_to` moves them. On the way they stop at each moment at which an
    entry, a retry, a periodic tick or the slot of a limit is due. All tasks that are due then run
    in the caller's thread, in their order. A task may schedule others, which run on the same way.

    Parameters
    ----------
    app : Celery | None
        The app; None for Celery's current app. Until the end of the block its broker is the
        private Redis. A result backend on Redis moves there too.
    server : EmbeddedRedis
        A private server. It is started if it does not run.
    scheme : str
        The suite's scheme of broker URLs: ``delayq+redis`` or ``redis``. The broker of the block is
        always ``delayq+redis``.
    empty : bool
        Whether to delete all keys of the server first.

    Raises
    ------
    TravelError
        A test cannot travel with this app, server or scheme, travels already, or has a worker.

    Attributes
    ----------
    most_runs : int
        Most runs of one call, besides polls of a chord (``celery.chord_unlock``). A tenth of them
        may be a chain of tasks that start each other while the clock stands still. One chord may
        have ten times as many polls.
    """

    #: The object whose block has begun.
    active: ClassVar[TimeTravel | None] = None

    def __init__(
        self,
        app: Celery | None,
        server: EmbeddedRedis,
        scheme: str = "delayq+redis",
        *,
        empty: bool = False,
    ) -> None:
        self.app: Celery = checked_app(app)
        self.most_runs = MOST_RUNS
        check_server(server, scheme)
        self._server = server
        self._empty = empty
        self._block = ExitStack()
        self._progress: Progress | None = None
        self._lock = threading.Lock()
        #: The threads that run the tasks: that of the block, and that of the present call.
        self._threads: set[int] = set()

    def __enter__(self) -> Self:
        if TimeTravel.active is not None:
            raise TravelError(
                "this test travels already: use either the fixture delayq_time or time_travel()"
            )
        check_no_worker_here()
        self._broker_url = self._server.start().url_for("delayq+redis")
        with ExitStack() as block:
            self._client = block.enter_context(self._server.client())
            check_no_worker_on(self._client)
            if self._empty:
                self._client.flushall()
            self._clock = MovedClock(self._client)
            block.callback(self._clock.stop)
            self._clock.start()
            block.enter_context(app_on_server(self.app, self._broker_url, self._server.url))
            block.enter_context(ordered_ids())
            block.enter_context(refused_waits(self.app, lambda: self._threads))
            self.app.set_current()
            self._worker = InlineWorker(self.app, self._note_run)
            block.callback(self._worker.close)
            self._store = self._worker.store
            self._periodic = PeriodicEntries.of(self.app)
            if self._periodic is not None:
                block.callback(self._periodic.close)
            self._threads = {threading.get_ident()}
            TimeTravel.active = self
            block.callback(_end)
            self._block = block.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._block.close()

    def __repr__(self) -> str:
        return f"<TimeTravel of {self.app.main or 'an app'}, now {self.now.isoformat()}>"

    @property
    def now(self) -> datetime:
        """The time of both clocks, in UTC."""
        return self._clock.now

    def travel(self, by: timedelta | None = None, /, **parts: float) -> int:
        """Move the clocks forward, and run what is due on the way.

        Parameters
        ----------
        by : timedelta | None
            By how much.
        parts : float
            The same as the arguments of a timedelta: ``travel(days=1, hours=2)``.

        Returns
        -------
        int
            Number of runs. A retry is a run too.

        Raises
        ------
        TravelError
            The way is negative, the tasks never come to rest, other code has moved a clock, or a
            task called this method.
        """
        if (by is None) is (not parts) or not isinstance(by, (timedelta, type(None))):
            raise TypeError("travel() needs either a timedelta or parts such as hours=24")
        return self._travel(self._clock.now_us + _in_us(timedelta(**parts) if by is None else by))

    def travel_to(self, when: datetime | str) -> int:
        """Move the clocks forward to a moment, and run what is due on the way.

        Parameters
        ----------
        when : datetime | str
            The moment, or its ISO 8601 form. Without a time zone it is in UTC, like an ``eta``.

        Returns
        -------
        int
            Number of runs.

        Raises
        ------
        InvalidETA
            *when* is no moment.
        TravelError
            As for :meth:`travel`.
        """
        return self._travel(due_of_eta(when).ms * 1000)

    def drain(self, queue: str | None = None) -> int:
        """Run what is ready or due now; the clocks stand still.

        Parameters
        ----------
        queue : str | None
            The only queue; None for all queues.

        Returns
        -------
        int
            Number of runs.

        Raises
        ------
        TravelError
            As for :meth:`travel`.
        """
        if not isinstance(queue, (str, type(None))):
            raise TypeError(f"drain({queue!r}): expected the name of a queue, or nothing for all")
        with self._call() as progress:
            self._settle(progress, queue)
            return progress.runs

    # -- the way

    def _travel(self, target_us: int) -> int:
        if target_us < self._clock.now_us:
            raise TravelError(
                f"{moment_of_us(max(0, target_us)).isoformat()} has passed, the clocks show "
                f"{self.now.isoformat()}: they only go forward, since what has run cannot be undone"
            )
        if target_us > _LAST_US:
            raise TravelError(
                f"the clocks end with the year 9999, they show {self.now.isoformat()}"
            )
        with self._call() as progress:
            next_ms = self._settle(progress)
            while next_ms is not None and next_ms * 1000 <= target_us:
                self._clock.move_to(next_ms * 1000)
                progress.note_move()
                self._try_failing_again()
                next_ms = self._settle(progress)
            self._clock.move_to(target_us)
            return progress.runs

    def _settle(self, progress: Progress, only: str | None = None) -> int | None:
        """Run until nothing is ready or due at the present moment, perhaps in one queue *only*.

        Return the next moment at which something is due, in ms since 1970; None for none.
        """
        before: Outlook | None = None
        now_ms = self._clock.now_us // 1000
        while True:
            changed = self._worker.run_kept(now_ms, only)
            outlook = self._look(only)
            progress.check(self.now.isoformat())
            ready = outlook.ready.copy()
            is_at_rest = not (ready or outlook.due or outlook.has_due_tick)
            # The same again: what is left is held or paused.
            if is_at_rest or (outlook == before and not changed):
                moments = outlook.next_ms, self._worker.next_kept_ms
                return min((each for each in moments if each is not None), default=None)
            if outlook.has_due_tick and self._periodic is not None and only is None:
                changed += self._periodic.fire_due()
            for queue in outlook.due:
                if only in (None, queue):
                    moved = self._promote(queue)
                    changed += moved
                    ready[queue] = ready.get(queue, 0) + moved
            for queue, number in ready.items():
                for _ in range(number):
                    if not self._worker.run_next(queue):
                        break
                    changed += 1
                    progress.check(self.now.isoformat())
            before = None if changed else outlook

    def _look(self, only: str | None) -> Outlook:
        """Return what there is to do now."""
        failing = () if self._periodic is None else self._periodic.failing
        while True:
            queues = self._worker.queues() if only is None else [only]
            outlook = look(self._store, queues, self._clock.now_us // 1000, failing)
            if only is not None or not self._worker.learn_queues(outlook.queues):
                return outlook

    def _try_failing_again(self) -> None:
        if self._periodic is not None:
            self._periodic.try_failing_again()

    def _promote(self, queue: str) -> int:
        """Move due entries of a queue to its ready lists; return their number."""
        layout, total = self._store.layout_of(queue), 0
        while True:
            promoted = self._store.promote(queue, layout, PROMOTED_ENTRIES, note=True)
            total += promoted.moved + promoted.dead_lettered
            if not promoted.moved:
                return total

    # -- one call

    @contextmanager
    def _call(self) -> Iterator[Progress]:
        """Check that the clocks may move, and collect the runs of a call.

        The test may have defined tasks, or have emptied the server.
        """
        if self is not TimeTravel.active:
            raise TravelError("the clocks move only inside the block of time_travel()")
        if not self._lock.acquire(blocking=False):
            raise TravelError(
                "a task has called travel() or drain(): a task cannot move the clock that it runs "
                "by; call it in the test"
            )
        former: Any = current_app._get_current_object()
        threads = self._threads
        try:
            self._clock.check()
            if not self._server.running:
                raise TravelError("the private Redis has ended: start it again in the test")
            check_broker(self.app, self._broker_url)
            check_no_worker_on(self._client)
            self.app.set_current()  # for a thread of its own
            self._threads = {*threads, threading.get_ident()}
            is_emptied = not self._clock.write()
            self._worker.prepare()
            self._try_failing_again()
            if is_emptied and self._periodic is not None:
                self._periodic.write_again()
            self._progress = Progress(self.most_runs)
            yield self._progress
        finally:
            self._progress = None
            self._threads = threads
            former.set_current()
            self._lock.release()

    def _note_run(self, request: Any) -> None:
        if self._progress is not None:
            self._progress.note_run(request)


def _end() -> None:
    TimeTravel.active = None


def _in_us(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1)
