"""Outcomes of published messages: stored, replaced, kept, superseded or refused.

The transport learns the outcome inside kombu's publish, which returns nothing.
:class:`~celery_delayq.DelayQ` collects the outcomes around Celery's ``send_task``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal, NamedTuple

from celery_delayq.errors import DelayQError, QueueFull, UniqueConflict

Stored = Literal[
    "scheduled", "ready", "duplicate", "full", "replaced", "kept", "conflict", "superseded"
]


class Put(NamedTuple):
    """The outcome of storing a message, and the id of the other task, if any."""

    state: Stored
    other: str = ""


class PublishOutcome(NamedTuple):
    """The outcome of one message."""

    task_id: str
    put: Put
    queue: str = ""
    #: The record of the message.
    record: bytes = b""
    #: The record of the replaced entry; empty if that entry was not scheduled.
    replaced: bytes = b""


#: Receives the outcomes of messages that are stored after Celery's ``send_task`` has returned.
Report = Callable[[list[PublishOutcome]], None]

_collected: ContextVar[tuple[list[PublishOutcome], Report] | None] = ContextVar(
    "delayq_outcomes", default=None
)


class OutcomeCollector:
    """Collects the outcomes of messages that are sent inside its ``with`` block.

    *report* gets the outcomes of messages in a batch, which is sent later. A class, since a
    generator costs three times as much.
    """

    __slots__ = ("_report", "_token")

    def __init__(self, report: Report) -> None:
        self._report = report

    def __enter__(self) -> list[PublishOutcome]:
        outcomes: list[PublishOutcome] = []
        self._token = _collected.set((outcomes, self._report))
        return outcomes

    def __exit__(self, *_: object) -> None:
        _collected.reset(self._token)


def current_report() -> Report | None:
    """Return the function that gets the outcome of the message being sent; None without one."""
    collected = _collected.get()
    return None if collected is None else collected[1]


def note_outcome(outcome: PublishOutcome) -> None:
    """Give the outcome of a message to the collector.

    Raises
    ------
    QueueFull, UniqueConflict
        The message was refused.
    """
    error = refusal_error(outcome)
    if error is not None:
        raise error
    collected = _collected.get()
    if collected is not None and (outcome.put.other or outcome.put.state == "superseded"):
        collected[0].append(outcome)


def refusal_error(outcome: PublishOutcome) -> DelayQError | None:
    """Return the error of a refused message; None if the message was stored or kept."""
    task_id, put, queue, *_ = outcome
    if put.state == "full":
        return QueueFull(
            f"queue {queue!r} has as many scheduled entries as max_scheduled allows: task "
            f"{task_id} was not stored; send it later, or raise max_scheduled"
        )
    if put.state == "conflict":
        return UniqueConflict(
            f"task {put.other} has the same unique key: task {task_id} was not stored "
            "(on_conflict='error'; others are 'replace', 'keep' and 'later')",
            put.other,
        )
    return None
