"""What the doctor has found, for the pages of one server."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from enum import Enum
from threading import Lock, Thread
from typing import NamedTuple

from celery_delayq.admin.doctor import Diagnosis, diagnose
from celery_delayq.admin.doctor.finding import warning
from celery_delayq.store.session import Session

logger = logging.getLogger(__name__)


class Checks(Enum):
    """Which checks the doctor makes. The value is how long their findings are new."""

    QUICK = timedelta(minutes=5)
    ALL = timedelta(minutes=1)


class Look(NamedTuple):
    """What one look of the doctor has found; *ended* is when."""

    diagnosis: Diagnosis
    checks: Checks
    ended: datetime

    def is_new(self, checks: Checks) -> bool:
        """Return whether these findings are new enough for some checks, which they have."""
        # A broker that is away is back sooner than findings are old.
        if any(each.check == "broker" for each in self.diagnosis.findings):
            return False
        has_them = self.checks in (checks, Checks.ALL)
        return has_them and timedelta(0) <= datetime.now(timezone.utc) - self.ended < checks.value


class DoctorLooks:
    """Has the doctor look in a thread: all checks of a large schedule take minutes.

    Parameters
    ----------
    session : Session
        The connections that the doctor uses.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = Lock()
        self._thread: Thread | None = None
        #: What the thread does, and what it does next; None for nothing.
        self._now: Checks | None = None
        self._next: Checks | None = None
        self._newest: dict[Checks, Look] = {}

    @property
    def newest(self) -> Look | None:
        """The newest look of any kind; None before the first one has ended."""
        return max([*self._newest.values()], key=lambda look: look.ended, default=None)

    @property
    def newest_of_all_checks(self) -> Look | None:
        """The newest look with all checks; until the first one has ended, with the quick checks."""
        return self._newest.get(Checks.ALL, self.newest)

    @property
    def makes_all_checks(self) -> bool:
        """Whether the doctor makes all checks, or does so next."""
        return Checks.ALL in (self._now, self._next)

    def request(self, checks: Checks) -> None:
        """Have the doctor make some checks, unless it makes them or their findings are new."""
        with self._lock:
            planned = {self._now, self._next}
            if planned & {checks, Checks.ALL}:
                return
            if any(look.is_new(checks) for look in [*self._newest.values()]):
                return
            self._next = checks
            if self._thread is None:
                # A daemon: the process may end while the broker is silent.
                self._thread = Thread(target=self._run, name="delayq-web-doctor", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait at most *seconds* for the requested checks; return whether all have ended."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._now, self._next = self._next, None
                checks = self._now
                if checks is None:
                    self._thread = None
                    return
            found = self._diagnosis(checks)
            self._newest[checks] = Look(found, checks, datetime.now(timezone.utc))

    def _diagnosis(self, checks: Checks) -> Diagnosis:
        try:
            return diagnose(self._session, quick=checks is Checks.QUICK)
        except Exception as exc:
            logger.exception("The checks of the doctor failed")
            what, todo = f"the checks failed: {exc}", "see the log of this server"
            return Diagnosis(findings=[warning(what, todo, check="doctor")])
