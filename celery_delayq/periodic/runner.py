"""Fires periodic entries. Any number of processes can fire them, without a leader.

``periodic/claim_due.lua`` claims due entries. ``periodic/fire.lua`` schedules their ticks, unless
another dispatcher has scheduled them. Ticks are scheduled ahead of their due time. If a dispatcher
dies, another dispatcher gets its entries after :data:`CLAIM_MS`, and no tick is late.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from celery import Celery

from celery_delayq.dispatch import start_gate
from celery_delayq.dispatch.pacing import wait_off_duty
from celery_delayq.errors import BrokerUnavailable, CommandRefused, NotSupported, StoreFull
from celery_delayq.integration import beat_guard
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import register_schedules
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.firing import TickScheduler, cron_deadline, stored
from celery_delayq.periodic.places import move
from celery_delayq.periodic.policy import Firing
from celery_delayq.periodic.state import Periodic, PeriodicState
from celery_delayq.store.periodic import Writing
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.pipelining import LOST_CONNECTION_ERRORS
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

#: Longest time between two looks, with and without notifications about changes, in seconds.
MAX_LOOK_SECONDS, POLL_SECONDS = 30.0, 0.5

#: Seconds between two checks whether to stop: for the only runner of a process, and for one of
#: several.
STOP_POLL_SECONDS, SHARED_STOP_POLL_SECONDS = 0.1, 0.5

#: Most entries of one look, and shortest time between two looks in seconds.
LOOK_ENTRIES = 200
MIN_LOOK_SECONDS = 0.02

#: A runner off duty looks later by a random share of a wait. This is the smallest share.
MIN_WAIT_SHARE = 0.1

#: Time in ms for which other dispatchers do not look at a claimed entry.
CLAIM_MS = 400

#: Seconds until a failed entry is tried again, and until its error is logged again.
RETRY_SECONDS, LOG_AGAIN_SECONDS = 5.0, 60.0

#: Longest time for which :meth:`Ticker.stop` waits for the thread, in seconds.
JOIN_SECONDS = 2.0

#: Most cached definitions. Each takes some KB.
MAX_CACHED_DEFINITIONS = 2000

_MAX_FAILING_ENTRIES = 1000


class Ticker:
    """Fires the periodic entries of one store until :meth:`stop`, in its own thread or greenlet.

    Parameters
    ----------
    app : Celery
        The app of the worker. The runner opens its own connections to the broker.
    deploy : bool
        Whether to write the entries in the code of the app too.
    place : int
        Index of the store in the stores of the broker. The runner of store 0 starts the other
        runners.
    session : Session | None
        The connections of the runner of store 0, for the other runners.
    """

    def __init__(
        self,
        app: Celery,
        *,
        deploy: bool = True,
        place: int = 0,
        session: Session | None = None,
    ) -> None:
        self._app = app
        self._place = place
        self._others: list[Ticker] = []
        self._deploy = Deployment(app) if deploy else None
        register_schedules(app)
        self._stopping = threading.Event()
        self._session = session or Session(app)
        #: Whether to open new connections after a failure.
        self._reopens = True
        self._warned = False
        self._loop = ReconnectingLoop(
            "periodic runner",
            logger,
            go_on=lambda: not self._stopping.is_set(),
            wait=self._stopping.wait,
            retry=POLL_SECONDS,
            retry_error=RETRY_SECONDS,
            outages={"Redis is away": LOST_CONNECTION_ERRORS, "Redis is full": (StoreFull,)},
            on_failure=self._after_failure,
            fatal=(NotSupported,),
        )
        self._thread = threading.Thread(target=self.run, name="delayq-ticker", daemon=True)
        #: Entries that cannot be fired here, with the time of the next attempt and the time at
        #: which the error was logged (monotonic seconds). Until the next attempt other dispatchers
        #: look at them.
        self._failing: dict[str, tuple[float, float]] = {}
        #: Cached, because parsing a definition takes longer than computing its next tick.
        self._definition = lru_cache(MAX_CACHED_DEFINITIONS)(Definition.loads)
        #: Time (ms) of the last look before Redis' clock was set back, if this runner has corrected
        #: the entries since; otherwise empty.
        self._put_right_to = ""
        #: Whether the runner looks as soon as an entry is due. A runner is on duty if its last look
        #: found entries. Runners off duty look later, and find entries only if the runner on duty
        #: is dead.
        self._on_duty = True
        #: Whether the next look is unplanned. An unplanned look that finds nothing does not end the
        #: duty.
        self._is_woken = True
        self._fleet = 0
        self._nap = STOP_POLL_SECONDS
        #: Number of ticks that this runner has scheduled.
        self.fired = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait at most :data:`JOIN_SECONDS` for the thread.

        Killing the process is safe too.
        """
        for each in (self, *self._others):
            each._stopping.set()
        start_gate.let_pass()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)

    def run(self) -> None:
        """Fire entries until :meth:`stop`. Errors do not end the loop."""
        try:
            with suppress(NotSupported):  # another kind of broker, which needs celery beat
                self._loop.run(self._connected)
        finally:
            for each in self._others:  # they use the session of this runner
                each.stop()
            if self._place == 0:
                self._session.close()

    def _connected(self) -> None:
        """Fire entries until the connection fails or :meth:`stop` is called."""
        stores = self._session.stores
        each_store = [*stores]
        store = each_store[self._place]
        self._loop.name = store.keys.named("periodic runner")
        is_alone = len(each_store) == 1
        self._nap = STOP_POLL_SECONDS if is_alone else SHARED_STOP_POLL_SECONDS
        # Connections to several stores find a new master without being reopened. Reopening all of
        # them at each attempt would take much of a CPU core while one store cannot be reached.
        self._reopens = is_alone
        if self._place == 0 and not self._others:
            # Start the others first, because the store of this runner may be unreachable.
            places = range(1, len(each_store))
            self._others = [
                Ticker(self._app, deploy=False, place=each, session=self._session)
                for each in places
            ]
            for each in self._others:
                each.start()
        if not self._warned:
            self._warned = True
            self._warn_of_beats(store)
        with store.client.pubsub(ignore_subscribe_messages=True) as pubsub:
            most = self._listen(store, pubsub)
            with TickScheduler(self._app) as scheduler:
                while not self._stopping.is_set():
                    self._keep(stores)
                    wait = self._turn(stores, store, scheduler, most)
                    self._loop.recovered()
                    self._sleep(pubsub, wait)

    def _after_failure(self, is_outage: bool) -> None:
        if self._reopens:
            self._session.close()
        elif self._deploy is not None:
            start_gate.let_waiting_pass()  # an unreachable shard delays no other
        if is_outage and self._deploy is not None:
            self._deploy.look_again()  # Redis may have restarted without data

    def _warn_of_beats(self, store: Store) -> None:
        try:
            beat_guard.warn(store, self._app)
        except CommandRefused as exc:  # the account may not be allowed to read these keys
            logger.warning("Cannot check whether celery beat runs: %s", exc)

    def _listen(self, store: Store, pubsub: Any) -> float:
        """Subscribe to notifications; return the longest time between two looks, in seconds."""
        try:
            pubsub.subscribe(store.keys.periodic_wake)
            pubsub.get_message(timeout=POLL_SECONDS)
        except CommandRefused as exc:
            logger.warning(
                "This account may not listen to %s (%s): what calls write is seen %s s later",
                store.keys.periodic_wake,
                exc,
                POLL_SECONDS,
            )
            pubsub.reset()
            return POLL_SECONDS
        return MAX_LOOK_SECONDS

    def _sleep(self, pubsub: Any, seconds: float) -> None:
        """Wait *seconds*, or until a notification about changed entries.

        A runner off duty waits a while longer after the notification.
        """
        self._is_woken = False
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0 and not self._stopping.is_set():
            if not pubsub.subscribed:
                self._stopping.wait(remaining)
            elif pubsub.get_message(timeout=min(remaining, self._nap)) is not None:
                # A failing entry may have been corrected.
                self._failing = {
                    name: (0.0, logged_at) for name, (_, logged_at) in self._failing.items()
                }
                if not self._is_woken:
                    self._is_woken = True
                    end = min(end, time.monotonic() + self._later())

    def _keep(self, stores: Stores) -> None:
        """Write the entries in code. An error does not stop the firing of entries."""
        if self._deploy is None:
            return
        try:
            self._deploy.keep(stores)
        except LOST_CONNECTION_ERRORS:
            raise
        except Exception:
            logger.exception("Periodic entries in code are not written, and are tried again later")
        start_gate.let_pass()

    def _turn(self, stores: Stores, store: Store, scheduler: TickScheduler, most: float) -> float:
        """Fire the due entries; return the seconds until the next look."""
        began = time.monotonic()
        failing = {name: until for name, (until, _) in self._failing.items() if until > began}
        looked = store.periodic.claim_due(
            LOOK_ENTRIES, CLAIM_MS, failing, put_right=self._put_right_to
        )
        now, self._put_right_to = looked.now // 1000, ""
        if looked.set_back:
            self._put_right(store, now)
            self._put_right_to = looked.set_back
        looks: list[float] = [] if looked.next is None else [looked.next]
        looks += [now + (until - began) * 1000 for until in failing.values()]
        firings = []
        for name, record in looked.records:
            found = self._look_at(name, record, now)
            if found is not None and not move(self._app, stores, store, found[0], now):
                entry, firing = found
                firings.append(found)
                then = replace(entry, state=firing.then).look
                looks += [then] if then is not None else []
        self.fired += self._fire(stores, store, scheduler, firings)
        if len(looked.records) == LOOK_ENTRIES or looked.set_back:
            return 0.0
        if looked.records or not self._is_woken:
            self._on_duty = bool(looked.records)
        self._fleet = looked.fleet
        remaining = (min(looks, default=math.inf) - now) / 1000 - (time.monotonic() - began)
        return min(max(remaining, MIN_LOOK_SECONDS) + self._later(), most)

    def _later(self) -> float:
        """Return the seconds by which a runner off duty looks later; 0 on duty."""
        if self._on_duty or self._fleet == 1:
            return 0.0
        wait = wait_off_duty(self._fleet)
        return random.uniform(MIN_WAIT_SHARE * wait, wait)

    def _put_right(self, store: Store, now: int) -> None:
        """Correct the intervals after Redis' clock was set back."""

        def right(name: str, record: str) -> Writing | None:
            line, _, text = record.partition("\n")
            try:
                entry = policy.set_back(self._unpacked(name, record), now, self._app.timezone)
            except Exception:  # schedules are user code; the next look logs the error
                return None
            return Writing(name, line, f"{entry.state.line}\n{text}", entry.look)

        logger.warning("Redis' clock was set back: periodic intervals go on from now")
        store.periodic.put_right(now, right)

    def _look_at(self, name: str, record: str, now: int) -> tuple[Periodic, Firing] | None:
        try:
            entry = self._unpacked(name, record)
            firing = policy.fire(entry, now, self._app.timezone, cron_deadline(self._app))
        except Exception as exc:  # schedules are user code
            self._failed(name, exc)
            return None
        if firing is None:
            # The stored time of the next look was too early. Store the correct time.
            firing = Firing((), entry.state, entry.state, now)
        return entry, firing

    def _unpacked(self, name: str, record: str) -> Periodic:
        line, _, text = record.partition("\n")
        return Periodic(self._definition(name, text), PeriodicState.read(line))

    def _fire(
        self,
        stores: Stores,
        store: Store,
        scheduler: TickScheduler,
        firings: list[tuple[Periodic, Firing]],
    ) -> int:
        try:
            return stored(scheduler.fire(store, firings, stores=stores))
        except Exception as exc:
            self._check_there(store, exc)
        # One entry or one queue causes an error. Fire the others.
        fired = 0
        for entry, firing in firings:
            try:
                fired += stored(scheduler.fire(store, [(entry, firing)], stores=stores))
            except Exception as exc:
                self._check_there(store, exc)
                self._failed(entry.name, exc)
        return fired

    def _check_there(self, store: Store, exc: Exception) -> None:
        """Raise if Redis is full or cannot be reached.

        kombu raises the same errors for refused commands.
        """
        if isinstance(exc, StoreFull):
            raise exc
        if isinstance(exc, (*LOST_CONNECTION_ERRORS, BrokerUnavailable, CommandRefused)):
            store.client.ping()

    def _failed(self, name: str, exc: Exception) -> None:
        now = time.monotonic()
        _, logged_at = self._failing.pop(name, (0.0, -math.inf))
        if now - logged_at >= LOG_AGAIN_SECONDS:
            logger.error("Periodic entry %r cannot be fired here: %s", name, exc)
            logged_at = now
        if len(self._failing) >= _MAX_FAILING_ENTRIES:
            del self._failing[next(iter(self._failing))]
        self._failing[name] = now + RETRY_SECONDS, logged_at


def begin(app: Celery) -> Callable[[], None] | None:
    """Start a runner if the worker of *app* dispatches; return a function to stop the runner."""
    if not beat_guard.fires(app):
        return None
    ticker = Ticker(app)
    ticker.start()
    return ticker.stop
