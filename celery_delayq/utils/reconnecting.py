"""A loop of a background service: it logs an outage, waits, reconnects and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class ReconnectingLoop:
    """Calls a step again and again, and continues after each error.

    The begin and the end of an outage are logged once. Any other error is logged each time, with
    its traceback.

    Parameters
    ----------
    name : str
        The service, for log lines.
    logger : Any
        Has the methods of ``logging.Logger``.
    go_on : Callable[[], bool]
        Called before each step; False ends the loop.
    wait : Callable[[float], object]
        Waits for a number of seconds, or until the service is to stop.
    retry : float | Callable[[int], float]
        Seconds to wait in an outage, or a function from the number of failures in a row to seconds.
    retry_error : float | None
        Seconds to wait after any other error; None: the same as in an outage.
    outages : Mapping[str, tuple[type[Exception], ...]]
        Names of outages, such as "Redis is away", and the errors that show each outage.
    on_failure : Callable[[bool], object]
        Called before each wait, with True in an outage.
    fatal : tuple[type[Exception], ...]
        Errors that end the loop; :meth:`run` raises them.
    """

    name: str = field(kw_only=False)
    logger: Any = field(kw_only=False)
    go_on: Callable[[], bool]
    wait: Callable[[float], object]
    retry: float | Callable[[int], float]
    retry_error: float | None = None
    outages: Mapping[str, tuple[type[Exception], ...]]
    on_failure: Callable[[bool], object] = bool
    fatal: tuple[type[Exception], ...] = ()
    _outage: str | None = field(default=None, init=False)
    #: Number of failures since the service last worked.
    failures: int = field(default=0, init=False)

    def run(self, step: Callable[[], object]) -> None:
        """Call *step* until the service is to stop.

        A step may last as long as a connection. It calls :meth:`recovered` when it works.
        """
        while self.go_on():
            try:
                step()
            except self.fatal:
                raise
            except Exception as exc:
                self.failures += 1
                self._handle_failure(exc)

    def recovered(self) -> None:
        """Record that the service works: the next failure counts as the first one."""
        if self._outage is not None:
            self.logger.info("reconnected, %s resumed", self.name)
            self._outage = None
        self.failures = 0

    def _handle_failure(self, exc: Exception) -> None:
        """Log a failure, and wait."""
        found = (what for what, errors in self.outages.items() if isinstance(exc, errors))
        outage = next(found, None)
        seconds = self.retry(self.failures) if callable(self.retry) else self.retry
        if outage is None:
            seconds = seconds if self.retry_error is None else self.retry_error
            self.logger.exception("%s failed, retrying in %g s", self.name, seconds)
        elif outage != self._outage and self.go_on():
            self.logger.warning("%s, %s waits: %s", outage, self.name, exc)
            self._outage = outage
        self.on_failure(outage is not None)
        self.wait(seconds)
