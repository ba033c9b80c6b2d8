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
from celery_delayq.periodic.entries import Periodic, PeriodicState
from celery_delayq.periodic.firing import TickScheduler, cron_deadline, stored
from celery_delayq.periodic.places import move_to_own_store
from celery_delayq.periodic.policy import Firing
from celery_delayq.store.periodic import EntryWrite
from celery_delayq.store.scripting.pipelining import LOST_CONNECTION_ERRORS
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
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

#: What :meth:`PeriodicRunner.fire_due` returns if there is more to do.
LOOK_AT_ONCE = 0.0

#: A runner off duty looks later by a random share of a wait. This is the smallest share.
MIN_WAIT_SHARE = 0.1

#: Time in ms for which other dispatchers do not look at a claimed entry.
CLAIM_MS = 400

#: Seconds until a failed entry is tried again, and until its error is logged again.
RETRY_SECONDS, LOG_AGAIN_SECONDS = 5.0, 60.0

#: Longest time for which :meth:`PeriodicRunner.stop` waits for the thread, in seconds.
JOIN_SECONDS = 2.0

#: Most cached definitions. Each takes some KB.
MAX_CACHED_DEFINITIONS = 2000

_MAX_FAILING_ENTRIES = 1000


class PeriodicRunner:
    """Fires the periodic entries of one store until :meth:`stop`, in its own thread or greenlet.

    Parameters
    ----------
    app : Celery
        The app of the worker. The runner opens its own connections to the broker.
    deploy : bool
        Whether to write the entries in the code of the app too.
    store_index : int
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
        store_index: int = 0,
        session: Session | None = None,
    ) -> None:
        self._app = app
        self._store_index = store_index
        self._others: list[PeriodicRunner] = []
        self._deploy = Deployment(app) if deploy else None
        register_schedules(app)
        self._stopping = threading.Event()
        self._session = session or Session(app)
        #: Whether this is the only runner of the process, as far as known.
        self._is_alone = True
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
        self._thread = threading.Thread(target=self.run, name="delayq-periodic-runner", daemon=True)
        #: Entries that cannot be fired here, with the time of the next attempt and the time at
        #: which the error was logged (monotonic seconds). Until the next attempt other dispatchers
        #: look at them.
        self._failing: dict[str, tuple[float, float]] = {}
        #: Cached, because parsing a definition takes longer than computing its next tick.
        self._definition = lru_cache(MAX_CACHED_DEFINITIONS)(Definition.loads)
        #: `set_back` of the last claim if this runner has corrected the entries since; else "". The
        #: next claim passes it on, so that no other runner corrects them again.
        self._corrected_set_back = ""
        #: Whether the runner looks as soon as an entry is due. A runner is on duty if its last look
        #: found entries. Runners off duty look later, and find entries only if the runner on duty
        #: is dead.
        self._on_duty = True
        #: Whether a notification caused the next look. If that look finds nothing, a runner on duty
        #: stays on duty.
        self._is_woken = True
        self._fleet = 0
        #: Number of ticks that this runner has scheduled.
        self.fired = 0

    @property
    def failing(self) -> list[str]:
        """The entries that cannot be fired here, and are not tried at the next look."""
        now = time.monotonic()
        return [name for name, (until, _) in self._failing.items() if until > now]

    def try_failing_again(self) -> None:
        """Try entries that could not be fired at the next look: one may have been corrected."""
        self._failing = {name: (0.0, logged_at) for name, (_, logged_at) in self._failing.items()}

    def look_again(self) -> None:
        """Let the next :meth:`keep` write the entries in code: Redis may have lost them."""
        if self._deploy is not None:
            self._deploy.look_again()

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
            if self._store_index == 0:
                self._session.close()

    def _connected(self) -> None:
        """Fire entries until the connection fails or :meth:`stop` is called."""
        stores = self._session.stores
        each_store = [*stores]
        store = each_store[self._store_index]
        self._loop.name = store.keys.named("periodic runner")
        self._is_alone = len(each_store) == 1
        if self._store_index == 0 and not self._others:
            # Start the others first, because the store of this runner may be unreachable.
            self._others = [
                PeriodicRunner(self._app, deploy=False, store_index=index, session=self._session)
                for index in range(1, len(each_store))
            ]
            for each in self._others:
                each.start()
        if not self._warned:
            self._warned = True
            self._warn_of_beats(store)
        with store.client.pubsub(ignore_subscribe_messages=True) as pubsub:
            longest_wait = self._listen(store, pubsub)
            with TickScheduler(self._app, stores) as scheduler:
                while not self._stopping.is_set():
                    self.keep(stores)
                    wait = self.fire_due(stores, store, scheduler, longest_wait)
                    self._loop.recovered()
                    self._sleep(pubsub, wait)

    def _after_failure(self, is_outage: bool) -> None:
        # Connections to several stores find a new master without being reopened. Reopening all of
        # them at each attempt would take much of a CPU core while one store cannot be reached.
        if self._is_alone:
            self._session.close()
        elif self._deploy is not None:
            start_gate.let_waiting_pass()  # an unreachable shard delays no other
        if is_outage:
            self.look_again()

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
        stop_poll = STOP_POLL_SECONDS if self._is_alone else SHARED_STOP_POLL_SECONDS
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0 and not self._stopping.is_set():
            if not pubsub.subscribed:
                self._stopping.wait(remaining)
            elif pubsub.get_message(timeout=min(remaining, stop_poll)) is not None:
                self.try_failing_again()
                if not self._is_woken:
                    self._is_woken = True
                    end = min(end, time.monotonic() + self._off_duty_wait())

    def keep(self, stores: Stores) -> None:
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

    def fire_due(
        self,
        stores: Stores,
        store: Store,
        scheduler: TickScheduler,
        longest_wait: float = MAX_LOOK_SECONDS,
    ) -> float:
        """Fire the due entries; return the seconds until the next look, or :data:`LOOK_AT_ONCE`."""
        began = time.monotonic()
        failing = {name: until for name, (until, _) in self._failing.items() if until > began}
        claim = store.periodic.claim_due(
            LOOK_ENTRIES, CLAIM_MS, failing, corrected=self._corrected_set_back
        )
        now = claim.now // 1000
        self._corrected_set_back = ""
        if claim.set_back:
            self._correct_intervals(store, now)
            self._corrected_set_back = claim.set_back
        next_looks: list[float] = [] if claim.next is None else [claim.next]
        next_looks += [now + (until - began) * 1000 for until in failing.values()]
        firings = []
        for name, record in claim.records:
            found = self._firing_of(name, record, now)
            if found is not None and not move_to_own_store(self._app, stores, store, found[0], now):
                entry, firing = found
                firings.append(found)
                next_look = replace(entry, state=firing.then).next_look_ms
                next_looks += [next_look] if next_look is not None else []
        self.fired += self._fire(store, scheduler, firings)
        if len(claim.records) == LOOK_ENTRIES or claim.set_back:
            return LOOK_AT_ONCE
        if claim.records or not self._is_woken:
            self._on_duty = bool(claim.records)
        self._fleet = claim.fleet
        remaining = (min(next_looks, default=math.inf) - now) / 1000 - (time.monotonic() - began)
        return min(max(remaining, MIN_LOOK_SECONDS) + self._off_duty_wait(), longest_wait)

    def _off_duty_wait(self) -> float:
        """Return the seconds by which a runner off duty looks later; 0 on duty."""
        if self._on_duty or self._fleet == 1:
            return 0.0
        wait = wait_off_duty(self._fleet)
        return random.uniform(MIN_WAIT_SHARE * wait, wait)

    def _correct_intervals(self, store: Store, now: int) -> None:
        """Correct the intervals after Redis' clock was set back."""

        def correct(name: str, record: str) -> EntryWrite | None:
            line, _, text = record.partition("\n")
            try:
                entry = policy.set_back(self._unpacked(name, record), now, self._app.timezone)
            except Exception:  # schedules are user code; the next look logs the error
                return None
            return EntryWrite(name, line, f"{entry.state.line}\n{text}", entry.next_look_ms)

        logger.warning("Redis' clock was set back: periodic intervals go on from now")
        store.periodic.correct_looks(now, correct)

    def _firing_of(self, name: str, record: str, now: int) -> tuple[Periodic, Firing] | None:
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
        self, store: Store, scheduler: TickScheduler, firings: list[tuple[Periodic, Firing]]
    ) -> int:
        try:
            return stored(scheduler.fire(store, firings))
        except Exception as exc:
            self._check_there(store, exc)
        # One entry or one queue causes the error, or a connection was lost. Fire each entry alone.
        fired = 0
        for entry, firing in firings:
            try:
                fired += stored(scheduler.fire(store, [(entry, firing)]))
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
    runner = PeriodicRunner(app)
    runner.start()
    return runner.stop
