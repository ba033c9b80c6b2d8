"""The base of a call of ``schedule_many``: its report, its outcomes, its error with a position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from celery_delayq.errors import ConfigError
from celery_delayq.schedule.items import ItemOutcome, ManyFailed, ManyReport

#: Refused items that a report keeps.
MAX_REFUSED_ITEMS = 100


class ManyCall:
    """One call of ``schedule_many``.

    Parameters
    ----------
    on_outcome : Callable[[ItemOutcome], None] | None
        Called with the outcome of each item.

    Raises
    ------
    ConfigError
        ``task_always_eager`` is set, or ``task_protocol`` is 1.
    """

    def __init__(self, app: Celery, on_outcome: Callable[[ItemOutcome], None] | None) -> None:
        if app.conf.task_always_eager:
            raise ConfigError("task_always_eager is set: no task is scheduled; unset it")
        if app.conf.task_protocol != 2:
            raise ConfigError(
                f"task_protocol={app.conf.task_protocol!r}: expected 2, the only one whose "
                "messages can be scheduled"
            )
        self._app = app
        self._on_outcome = on_outcome
        self._report = ManyReport()

    def oldest_unanswered(self) -> int:
        """Return the index of the first item without an outcome."""
        return self._report.taken

    def report_outcome(self, outcome: ItemOutcome) -> None:
        """Count an outcome and give it to the caller; raises CallerFailed if its function fails."""
        report = self._report
        report.counts[outcome.state] = report.counts.get(outcome.state, 0) + 1
        if outcome.error is not None and len(report.refusals) < MAX_REFUSED_ITEMS:
            report.refusals.append(outcome)
        if self._on_outcome is not None:
            try:
                self._on_outcome(outcome)
            except Exception as exc:
                raise CallerFailed(exc) from exc

    def refuse(self, id: str | None, error: Exception) -> None:
        """Report an item of which no message can be made; *id* is None if it cannot be read."""
        self._report.taken += 1
        self.report_outcome(ItemOutcome(self._report.taken - 1, id, "refused", error))

    @contextmanager
    def sending(self, broker_errors: tuple[type[Exception], ...]) -> Iterator[None]:
        """Note the position at the end; an error of the caller or the broker has it too.

        Raises
        ------
        ManyFailed
            Code of the caller has raised an error, or the broker one of *broker_errors*.
        """
        try:
            yield
        except CallerFailed as failure:
            raise self.make_error(failure.cause) from failure.cause
        except broker_errors as exc:
            raise self.make_error(exc) from exc
        self._report.position = self._report.taken

    def make_error(self, cause: Exception) -> ManyFailed:
        """Return the error with the report that ends the call."""
        report = self._report
        report.position = self.oldest_unanswered()
        return ManyFailed(
            f"scheduling ended early, after {report}; go on with item {report.position}: "
            f"{type(cause).__name__}: {cause}",
            report,
        )


def each_item(items: Iterator[Any], flush: Callable[[], object]) -> Iterator[Any]:
    """Yield the items of the caller.

    Raises
    ------
    CallerFailed
        The iterator has failed; *flush* was called before.
    """
    try:
        for item in items:  # noqa: UP028  `yield from` would close the caller's iterator too
            yield item
    except Exception as exc:
        flush()
        raise CallerFailed(exc) from exc


class CallerFailed(Exception):
    """The caller's iterable or ``on_outcome`` raised an error, *cause*."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause
