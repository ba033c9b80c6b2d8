"""Tell Celery that tasks will not run: result backend, signals, events and chords."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

from celery import signals, states
from celery.app.task import Context
from celery.exceptions import ChordError, TaskRevokedError

from celery_delayq.model.canvas import group_of, waited_for
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.payload import Readable, body_of
from celery_delayq.model.scheduled import ScheduledTask
from celery_delayq.utils.bridge import off_loop

logger = logging.getLogger(__name__)


@off_loop
def note_revoked(app: Any, ids: Iterable[str], reason: str, request: Any = None) -> None:
    """Report to the result backend, signals and events that tasks will not run.

    With the *request* of a task, its chord is notified too.
    """
    ids = [*ids]
    try:
        for id in ids:
            app.backend.mark_as_revoked(id, reason, request, store_result=True)
    except Exception:  # away, most likely, and each try takes a while
        logger.exception(
            "The result backend was not told that task %r, or one after it, is revoked", id
        )
    if not ids:
        return
    try:
        with (
            app.amqp.producer_pool.acquire(block=True) as producer,
            # In groups, as workers send theirs: one message for many events.
            app.events.Dispatcher(
                producer.connection,
                channel=producer.channel,
                buffer_while_offline=False,
                buffer_group={"task"},
                buffer_limit=100,
            ) as dispatcher,
        ):
            for id in ids:
                dispatcher.send(
                    "task-revoked", uuid=id, terminated=False, signum=None, expired=False
                )
            dispatcher.flush()
    except Exception:
        logger.exception("Nobody was told by event that %d tasks are revoked", len(ids))
    for id in ids:
        signals.task_revoked.send(
            sender=None,
            request=request or Context(id=id),
            terminated=False,
            signum=None,
            expired=False,
        )


@off_loop
def note_cancelled(
    app: Any, ids: Collection[str], entries: Iterable[ScheduledTask], reason: str
) -> None:
    """Report that tasks will not run, and fail the chords that wait for them, as a worker does.

    *entries* are these tasks and perhaps others.
    """
    note_revoked(app, ids, reason)
    for entry in entries:
        if entry.id in ids and group_of(entry.headers, entry.own):
            _tell_chords(app, entry, entry.id, states.REVOKED, TaskRevokedError(reason))


@off_loop
def tell_chords_of_dead(app: Any, dead_letters: Iterable[DeadLetter]) -> None:
    """Fail the chords that wait for purged dead letters.

    Chords that were notified when the task failed are not notified again.
    """
    for dead_letter in dead_letters:
        if dead_letter.group_id is not None and not dead_letter.details.get("told"):
            error = ChordError(f"a dead letter was purged: {dead_letter.reason}")
            _tell_chords(app, dead_letter, dead_letter.id, states.FAILURE, error)


def _tell_chords(app: Any, task: Readable, id: str, state: str, error: Exception) -> None:
    try:
        # Not `mark_as_failure`: to that, the rest of the chain has failed already.
        for member in waited_for(task.headers, body_of(task.message or {})[2]):
            app.backend.on_chord_part_return(member, state, error)
    except Exception:
        logger.exception("The chord of task %r was not told that it will not run", id)
