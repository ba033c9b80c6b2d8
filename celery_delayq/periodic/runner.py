"""Fire periodic entries: any number of processes may, without a leader.

``periodic/claim_due.lua`` claims entries, ``periodic/fire.lua`` schedules their ticks unless
another dispatcher has. Ticks are scheduled ahead: when a dispatcher dies, another one gets its
entries after :data:`LEAVE` and no tick is late.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from celery import Celery

from celery_delayq.errors import BrokerUnavailable, CommandRefused, NotSupported, StoreFull
from celery_delayq.integration import beat_guard
from celery_delayq.periodic import policy
from celery_delayq.periodic.code_entries import register_schedules
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.firing import TickScheduler, stored
from celery_delayq.periodic.policy import Firing
from celery_delayq.periodic.state import Periodic, PeriodicState
from celery_delayq.settings import Settings
from celery_delayq.store.periodic import PeriodicStore, Writing
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.pipelining import LOST
from celery_delayq.store.session import Session
from celery_delayq.utils.reconnecting import ReconnectingLoop

logger = logging.getLogger(__name__)

#: Most seconds between two looks, and where nobody may tell what calls have written.
LOOK, POLL = 30.0, 0.5

#: Seconds after which one that waits sees that it is to stop.
NAP = 0.1

#: Most entries that are looked at together, and seconds between two looks in which they gather.
BATCH = 200
GATHER = 0.02

#: For how many ms others leave alone what one looks at.
LEAVE = 400

#: Seconds after which an entry that failed is tried again, and after which it is logged again.
AGAIN, TELL = 5.0, 60.0

#: Seconds for which one that goes waits for what is under way.
FAREWELL = 2.0

#: Most definitions that are remembered, of some KB each.
KNOWN = 2000

_MOST_FAILING = 1000


class Ticker:
    """Fires periodic entries until :meth:`stop`, in a thread or greenlet of its own.

    Parameters
    ----------
    app : Celery
        The app of the worker, of whose broker it has connections of its own.
    deploy : bool
        Whether it knows all entries in the code of the app, and writes them.
    """

    def __init__(self, app: Celery, *, deploy: bool = True) -> None:
        self._app = app
        self._deploy = Deployment(app) if deploy else None
        register_schedules(app)
        self._stopping = threading.Event()
        self._warned = False
        self._loop = ReconnectingLoop(
            "periodic runner",
            logger,
            go_on=lambda: not self._stopping.is_set(),
            wait=self._stopping.wait,
            retry=POLL,
            retry_error=AGAIN,
            outages={"Redis is away": LOST, "Redis is full": (StoreFull,)},
            on_failure=self._after_failure,
            fatal=(NotSupported,),
        )
        self._thread = threading.Thread(target=self.run, name="delayq-ticker", daemon=True)
        #: Entries that cannot be fired here: when to try again, when it was told. Till then they
        #: are left to others.
        self._failing: dict[str, tuple[float, float]] = {}
        #: Definitions by name and text: to read one takes longer than to find the next tick.
        self._known: dict[tuple[str, str], Definition] = {}
        #: Up to which look of anybody it has put right what the clock has left behind.
        self._put_right_to = ""
        #: How many ticks it has scheduled.
        self.fired = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after a moment for what is under way; it may be killed as well."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(FAREWELL)

    def run(self) -> None:
        """Fire until :meth:`stop`; outlives every error."""
        with suppress(NotSupported):  # a broker of another kind, which has a beat of its own
            self._loop.run(self._connected)

    def _connected(self) -> None:
        """Fire for as long as the connection lasts."""
        with Session(self._app) as session, TickScheduler(self._app) as scheduler:
            store = session.store
            if not self._warned:
                self._warned = True
                self._warn_of_beats(store)
            with store.client.pubsub(ignore_subscribe_messages=True) as pubsub:
                most = self._listen(store, pubsub)
                while not self._stopping.is_set():
                    self._keep(store)
                    wait = self._turn(store, scheduler, most)
                    self._loop.recovered()
                    self._sleep(pubsub, wait)

    def _after_failure(self, is_outage: bool) -> None:
        if is_outage and self._deploy is not None:
            self._deploy.look_again()  # Redis may come back empty

    def _warn_of_beats(self, store: Store) -> None:
        try:
            beat_guard.warn(store, self._app)
        except CommandRefused as exc:  # an account may not read what is not ours
            logger.warning("Cannot check whether celery beat runs: %s", exc)

    def _listen(self, store: Store, pubsub: Any) -> float:
        """Have it told when calls have written entries; return how long to wait at most."""
        try:
            pubsub.subscribe(store.keys.periodic_wake)
            pubsub.get_message(timeout=POLL)
        except CommandRefused as exc:
            logger.warning(
                "This account may not listen to %s (%s): what calls write is seen %s s later",
                store.keys.periodic_wake,
                exc,
                POLL,
            )
            pubsub.reset()
            return POLL
        return LOOK

    def _sleep(self, pubsub: Any, seconds: float) -> None:
        """Wait so long, or until calls have written entries."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._stopping.is_set():
            if not pubsub.subscribed:
                self._stopping.wait(left)
            elif pubsub.get_message(timeout=min(left, NAP)) is not None:
                # What was wrong may have been put right.
                self._failing = {name: (0.0, told) for name, (_, told) in self._failing.items()}
                return

    def _keep(self, store: Store) -> None:
        """Write what is in code; where that fails, the others are fired all the same."""
        if self._deploy is None:
            return
        try:
            self._deploy.keep(store)
        except LOST:
            raise
        except Exception:
            logger.exception("Periodic entries in code are not written, and are tried again later")

    def _turn(self, store: Store, scheduler: TickScheduler, most: float) -> float:
        """Look at entries whose time has come; return for how many seconds to wait then."""
        began = time.monotonic()
        failing = {name: until for name, (until, _) in self._failing.items() if until > began}
        looked = PeriodicStore(store).claim_due(BATCH, LEAVE, failing, put_right=self._put_right_to)
        now, self._put_right_to = looked.now // 1000, ""
        if looked.set_back:
            self._put_right(store, now, scheduler)
            self._put_right_to = looked.set_back
        looks: list[float] = [] if looked.next is None else [looked.next]
        looks += [now + (until - began) * 1000 for until in failing.values()]
        firings = []
        for name, record in looked.records:
            found = self._look_at(name, record, now, scheduler)
            if found is not None:
                entry, firing = found
                firings.append(found)
                then = replace(entry, state=firing.then).look
                looks += [then] if then is not None else []
        self.fired += self._fire(store, scheduler, firings)
        if len(looked.records) == BATCH or looked.set_back:
            return 0.0
        left = (min(looks, default=math.inf) - now) / 1000 - (time.monotonic() - began)
        return min(max(left, GATHER), most)

    def _put_right(self, store: Store, now: int, scheduler: TickScheduler) -> None:
        """Let intervals go on after Redis' clock was set back."""

        def right(name: str, record: str) -> Writing | None:
            line, _, text = record.partition("\n")
            try:
                entry = policy.set_back(self._unpacked(name, record), now, scheduler.zone)
            except Exception:  # schedules are anybody's; whoever looks at it tells of it
                return None
            return Writing(name, line, f"{entry.state.line}\n{text}", entry.look)

        logger.warning("Redis' clock was set back: periodic intervals go on from now")
        PeriodicStore(store).put_right(now, right)

    def _look_at(
        self, name: str, record: str, now: int, scheduler: TickScheduler
    ) -> tuple[Periodic, Firing] | None:
        try:
            entry = self._unpacked(name, record)
            firing = policy.fire(entry, now, scheduler.zone)
        except Exception as exc:  # schedules are anybody's
            self._failed(name, exc)
            return None
        if firing is None:
            # As it stands it comes too early: whoever has written it meant another moment.
            firing = Firing((), entry.state, entry.state, now)
        return entry, firing

    def _unpacked(self, name: str, record: str) -> Periodic:
        line, _, text = record.partition("\n")
        definition = self._known.get((name, text))
        if definition is None:
            if len(self._known) >= KNOWN:
                self._known.clear()
            definition = self._known[name, text] = Definition.loads(name, text)
        return Periodic(definition, PeriodicState.read(line))

    def _fire(
        self, store: Store, scheduler: TickScheduler, firings: list[tuple[Periodic, Firing]]
    ) -> int:
        try:
            return stored(scheduler.fire(store, firings))
        except StoreFull:
            raise
        except Exception as exc:
            self._check_there(store, exc)
        # One of them, or one queue, is wrong: the others can be fired.
        fired = 0
        for entry, firing in firings:
            try:
                fired += stored(scheduler.fire(store, [(entry, firing)]))
            except StoreFull:
                raise
            except Exception as exc:
                self._check_there(store, exc)
                self._failed(entry.name, exc)
        return fired

    def _check_there(self, store: Store, exc: Exception) -> None:
        """Raise what a Redis raises that is away; kombu says the same of what it was refused."""
        if isinstance(exc, (*LOST, BrokerUnavailable, CommandRefused)):
            store.client.ping()

    def _failed(self, name: str, exc: Exception) -> None:
        now = time.monotonic()
        _, told = self._failing.pop(name, (0.0, -math.inf))
        if now - told >= TELL:
            logger.error("Periodic entry %r cannot be fired here: %s", name, exc)
            told = now
        if len(self._failing) >= _MOST_FAILING:
            del self._failing[next(iter(self._failing))]
        self._failing[name] = now + AGAIN, told


def begin(app: Celery) -> Callable[[], None] | None:
    """Fire periodic entries until the worker of *app* stops, if it is one that dispatches."""
    if not Settings.from_options(app.conf.broker_transport_options).dispatch:
        return None
    ticker = Ticker(app)
    ticker.start()
    return ticker.stop
