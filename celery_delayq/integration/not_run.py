"""Report tasks that do not run to the result backend, events, signals and chords."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from billiard.exceptions import WorkerLostError
from celery import signals, states
from celery.app.task import Context
from celery.backends.base import DisabledBackend
from celery.events.event import Event
from celery.exceptions import ChordError, TaskRevokedError

from celery_delayq.integration.endings.results_together import stores_together
from celery_delayq.model.canvas import chord_contexts, without_chord
from celery_delayq.model.dead_letter import CHORD_NOTIFIED_FIELD, DeadLetter, has_crashed
from celery_delayq.model.names import renames_of
from celery_delayq.model.payload import request_of, request_of_record
from celery_delayq.model.publish_outcome import PublishOutcome
from celery_delayq.utils.bridge import off_loop
from celery_delayq.utils.portions import batches

logger = logging.getLogger(__name__)

#: Most seconds to wait for a producer from the app's pool. The caller may use the only producer.
PRODUCER_SECONDS = 10.0

#: Most events of one message.
GROUP_EVENTS = 100

#: Fields of an event ``task-revoked``, beside the id.
_REVOKED = {"terminated": False, "signum": None, "expired": False}


class NotRun(NamedTuple):
    """A task that does not run: its request (see :func:`.request_of`) and the reason."""

    request: Context
    reason: str


@off_loop
def note_revoked(
    app: Any, tasks: Iterable[NotRun], *, dispatcher: Any = None, may_be_replayed: bool = False
) -> None:
    """Report that tasks do not run, as a worker reports a revoked task.

    Parameters
    ----------
    dispatcher : Any
        Sends the events; None to create a dispatcher.
    may_be_replayed : bool
        Whether the tasks are dead letters, so that their chords continue to wait.
    """
    found = [*tasks]
    if not found:
        return
    _mark(app, found)
    _send_events(app, [request.id for request, _ in found], dispatcher)
    for request, reason in found:
        signals.task_revoked.send(
            sender=_task_of(app, getattr(request, "task", None)),
            request=request,
            terminated=False,
            signum=None,
            expired=False,
        )
        if not may_be_replayed:
            _tell_chords(app, request, states.REVOKED, TaskRevokedError(reason))


def _task_of(app: Any, name: Any) -> Any:
    """Return a task by its name or a former name, or None if the app does not have the task.

    The app is finalized only if the task is not known yet.
    """
    name = renames_of(app).of(name)
    found = app._tasks.get(name)
    return app.tasks.get(name) if found is None and app.autofinalize else found


def has_listeners(app: Any) -> bool:
    """Return whether a task that does not run is reported to a result backend or to receivers of
    the signal, beside events. Both get the request of the task.
    """
    if signals.task_revoked.receivers:
        return True
    try:
        return not isinstance(app.backend, DisabledBackend)
    except Exception:  # the error is logged when a result is stored
        return True


@off_loop
def note_cancelled(
    app: Any, requests: Iterable[Context], ready: Iterable[str], reason: str
) -> None:
    """Report that cancelled tasks do not run.

    Parameters
    ----------
    requests : Iterable[Context]
        The requests of the tasks that were scheduled (see :func:`.request_of`).
    ready : Iterable[str]
        Ids of the tasks that were ready: a worker reports them too.
    """
    _mark_ready(app, dict.fromkeys(ready, reason))
    note_revoked(app, [NotRun(request, reason) for request in requests])


@off_loop
def note_cancelled_ids(app: Any, ids: Sequence[str]) -> None:
    """Report that scheduled tasks were cancelled, for an app without :func:`has_listeners`."""
    if ids:
        _send_events(app, ids, None)


@off_loop
def note_outcomes(app: Any, outcomes: Iterable[PublishOutcome], *, kept: bool = False) -> None:
    """Report tasks that do not run because another task has their unique key.

    These tasks are the replaced ones, and with *kept* also the tasks that were not sent.
    """
    ready: dict[str, str] = {}
    found: list[NotRun] = []
    for task_id, put, _, record, replaced in outcomes:
        if put.other == task_id:
            continue
        if put.state == "replaced":
            reason = f"replaced by {task_id}"
            if replaced:
                found.append(NotRun(request_of_record(put.other, replaced), reason))
            else:
                ready[put.other] = reason
        elif put.state == "kept" and kept:
            reason = f"not sent, {put.other} has its unique key"
            found.append(NotRun(request_of_record(task_id, record), reason))
    _mark_ready(app, ready)
    note_revoked(app, found)


@off_loop
def note_purged(app: Any, dead_letters: Iterable[DeadLetter]) -> None:
    """Report purged dead letters, unless they were reported before.

    The chords that wait for them fail, except chords that were notified when the task failed. A
    task whose workers died is marked as failed now, and its error callbacks are called.
    """
    for dead_letter in dead_letters:
        if has_crashed(dead_letter):
            _fail(app, request_of(dead_letter), dead_letter.reason)
        if dead_letter.group_id is not None and not dead_letter.details.get(CHORD_NOTIFIED_FIELD):
            error = ChordError(f"a dead letter was purged: {dead_letter.reason}")
            _tell_chords(app, request_of(dead_letter), states.FAILURE, error)


def _fail(app: Any, request: Context, reason: str) -> None:
    """Report a failure of a task and of the rest of its chain. Notify no chord."""
    rest = [without_chord(each) for each in request.chain or ()]
    alone = Context({**request.__dict__, "chord": None, "chain": rest})
    try:
        app.backend.mark_as_failure(request.id, WorkerLostError(reason), request=alone)
    except Exception:
        logger.exception("The result backend was not told that task %r has failed", request.id)


def _mark_ready(app: Any, reasons: Mapping[str, str]) -> None:
    """Store the state of ready tasks by id. The worker that gets their message reports them."""
    _mark(app, [NotRun(Context(id=id), reason) for id, reason in reasons.items()])


def _mark(app: Any, tasks: Iterable[NotRun]) -> None:
    """Store the state of tasks. Notify no chord."""
    id = None
    try:
        found, ignored = [*tasks], app.conf.task_store_errors_even_if_ignored
        stored = [ignored or not each.request.ignore_result for each in found]
        ids = [request.id for (request, _), store in zip(found, stored, strict=True) if store]
        with stores_together(app.backend, ids) as backend:
            for (request, reason), store in zip(found, stored, strict=True):
                id = request.id
                alone = Context({**request.__dict__, "chord": None}) if request.chord else request
                if backend.mark_as_revoked(id, reason, alone, store_result=store) is False:
                    break  # in a worker the error is logged, not raised
    except Exception:  # one error ends the loop: a backend that is away makes each call slow
        logger.exception(
            "The result backend was not told that task %r, or one after it, is revoked", id
        )


def _send_events(app: Any, ids: Sequence[Any], dispatcher: Any) -> None:
    try:
        if dispatcher is None:
            _publish_events(app, ids)
            return
        for id in ids:
            dispatcher.send("task-revoked", uuid=id, **_REVOKED)
    except Exception:
        logger.exception("Nobody was told by event that %d tasks are revoked", len(ids))


def _publish_events(app: Any, ids: Sequence[Any]) -> None:
    """Send events in groups, as workers do: one message for many events."""
    with (
        app.amqp.producer_pool.acquire(block=True, timeout=PRODUCER_SECONDS) as producer,
        app.events.Dispatcher(
            producer.connection, channel=producer.channel, buffer_while_offline=False
        ) as dispatcher,
    ):
        for some in batches(ids, GROUP_EVENTS):
            group = partial(_group_of_events, some, dispatcher.clock)
            dispatcher.publish("task-multi", {}, dispatcher.producer, blind=True, Event=group)


def _group_of_events(
    ids: Sequence[Any], clock: Any, _type: str, /, **fields: Any
) -> list[dict[str, Any]]:
    """Return an event for each task. *fields* are those that Celery gives to each event."""
    common = Event("task-revoked", **{**fields, **_REVOKED})
    return [{**common, "uuid": id, "clock": clock.forward()} for id in ids]


def _tell_chords(app: Any, request: Context, state: str, error: Exception) -> None:
    try:
        # `mark_as_failure` does not fit: it treats the rest of the chain as already failed.
        for member in chord_contexts(request):
            app.backend.on_chord_part_return(member, state, error)
    except Exception:
        logger.exception("The chord of task %r was not told that it will not run", request.id)
