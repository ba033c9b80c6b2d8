"""A loop of a background service: it logs an outage, waits, reconnects and goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class ReconnectingLoop:
    """Runs a step again and again, and outlives every error.

    An outage is logged once, and its end once; any other error each time, with its traceback.

    Parameters
    ----------
    name : str
        The service, for log lines.
    logger : Any
        Has the methods of ``logging.Logger``.
    go_on : Callable[[], bool]
        Asked before each step.
    wait : Callable[[float], object]
        Waits for so many seconds, or until the service is to stop.
    retry : float | Callable[[int], float]
        Seconds to wait in an outage, or what gives them by the number of failures in a row.
    retry_error : float | None
        Seconds to wait after any other error; None for the same.
    outages : Mapping[str, tuple[type[Exception], ...]]
        What may be away, such as "Redis is away", and the errors by which that shows.
    on_failure : Callable[[bool], object]
        Called before each wait: with True in an outage.
    fatal : tuple[type[Exception], ...]
        Errors that end the loop; :meth:`run` raises them.
    """

    def __init__(
        self,
        name: str,
        logger: Any,
        *,
        go_on: Callable[[], bool],
        wait: Callable[[float], object],
        retry: float | Callable[[int], float],
        retry_error: float | None = None,
        outages: Mapping[str, tuple[type[Exception], ...]],
        on_failure: Callable[[bool], object] = bool,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        self._name = name
        self._logger = logger
        self._go_on = go_on
        self._wait = wait
        self._retry = retry
        self._retry_error = retry_error
        self._outages = outages
        self._on_failure = on_failure
        self._fatal = fatal
        self._outage: str | None = None
        #: Failures since the service worked last.
        self.failures = 0

    def run(self, step: Callable[[], object]) -> None:
        """Call *step* until the service is to stop. A step may itself last as long as a connection,
        and says by :meth:`recovered` that it works.
        """
        while self._go_on():
            try:
                step()
            except self._fatal:
                raise
            except Exception as exc:
                self.failures += 1
                self._after(exc)

    def recovered(self) -> None:
        """Note that it works: the next failure is the first one again."""
        if self._outage is not None:
            self._logger.info("reconnected, %s resumed", self._name)
            self._outage = None
        self.failures = 0

    def _after(self, exc: Exception) -> None:
        """Log a failure, and wait."""
        found = (what for what, errors in self._outages.items() if isinstance(exc, errors))
        outage = next(found, None)
        seconds = self._retry(self.failures) if callable(self._retry) else self._retry
        if outage is None:
            seconds = seconds if self._retry_error is None else self._retry_error
            self._logger.exception("%s failed, retrying in %g s", self._name, seconds)
        elif outage != self._outage and self._go_on():
            self._logger.warning("%s, %s waits: %s", outage, self._name, exc)
            self._outage = outage
        self._on_failure(outage is not None)
        self._wait(seconds)
