"""Revoking that lasts: what is scheduled is removed at once, the rest is remembered in Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery import signals, states
from celery.app.control import Control as CeleryControl
from celery.app.task import Context
from celery.exceptions import ChordError, TaskRevokedError
from celery.worker import control
from kombu.utils.functional import maybe_list

from celery_delayq.model.canvas import Canvas, group_of, waited_for
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.payload import Readable, body_of
from celery_delayq.model.scheduled import Bulk, ScheduledTask
from celery_delayq.settings import Settings

if TYPE_CHECKING:
    from celery_delayq.app import DelayQ

logger = logging.getLogger(__name__)

#: Ids that one script call cancels.
BATCH = 100


def revoke(delayq: DelayQ, ids: Iterable[str]) -> None:
    """Remember ids in Redis, and cancel what is scheduled.

    In this order: what is promoted meanwhile is refused by the worker. So is what is ready, since
    it can tell the chord that waits for it.
    """
    ids = [*dict.fromkeys(map(str, ids))]
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        _remember(delayq, batch)
        delayq.cancel_ids(batch, reason="revoked", ready=False)


def revoke_by_stamps(delayq: DelayQ, stamps: Mapping[str, Any]) -> None:
    """Remember stamped headers in Redis, and cancel what is scheduled and has one of them.

    All scheduled messages are looked at.
    """
    _remember(delayq, stamps=stamps)
    stamped = (entry.id for entry in delayq.entries() if _has_stamp(entry, stamps))
    while batch := [*islice(stamped, BATCH)]:
        delayq.cancel_ids(batch, reason="revoked", ready=False)


def cancel_canvas(
    delayq: DelayQ, canvas: Canvas, progress: Callable[[Bulk], object] | None = None
) -> Bulk:
    """Remember a canvas in Redis, and cancel what of it is scheduled.

    All scheduled messages are looked at. What is ready, or is sent later, is refused by workers.
    """
    _remember(delayq, canvas=canvas)
    bulk = Bulk(dry_run=False)
    entries = delayq.entries()
    found = (entry.id for entry in entries if canvas in Canvas.all_of(entry.headers, entry.own))
    while batch := [*islice(found, BATCH)]:
        outcomes = delayq.cancel_ids(batch, reason="revoked", ready=False)
        bulk.total += len(batch)
        bulk.outcomes.update(outcomes)
        if progress is not None:
            progress(bulk)
    return bulk


def note_replaced(app: Any, id: str, queue: str, record: bytes, reason: str) -> None:
    """Tell all who wait for it that a task was replaced; *record* may be empty."""
    entries = []
    if record:
        entries.append(ScheduledTask.of_record(queue, id, "scheduled", 0, record))
    note_cancelled(app, [id], entries, reason)


def note_cancelled(
    app: Any, ids: Collection[str], entries: Iterable[ScheduledTask], reason: str
) -> None:
    """Tell all who wait for it that tasks will not run; *entries* are these and perhaps others."""
    note_revoked(app, ids, reason)
    tell_chords(app, [each for each in entries if each.id in ids], reason)


def tell_chords(app: Any, entries: Iterable[ScheduledTask], reason: str) -> None:
    """Have the chords fail that wait for entries which will not run, as a worker does.

    A chord whose member is never heard of would wait for ever.
    """
    for entry in entries:
        if group_of(entry.headers, entry.own):
            _tell_chords(app, entry, entry.id, states.REVOKED, TaskRevokedError(reason))


def tell_chords_of_dead(app: Any, dead_letters: Iterable[DeadLetter]) -> None:
    """Have the chords fail that wait for dead letters which are purged.

    A chord that was told when the task failed is not told again.
    """
    for dead_letter in dead_letters:
        if dead_letter.group_id is not None and not dead_letter.details.get("told"):
            error = ChordError(f"a dead letter was purged: {dead_letter.reason}")
            _tell_chords(app, dead_letter, dead_letter.id, states.FAILURE, error)


def _tell_chords(app: Any, task: Readable, id: str, state: str, error: Exception) -> None:
    try:
        # Not `mark_as_failure`: to that, what is chained has failed already.
        for member in waited_for(task.headers, body_of(task.message or {})[2]):
            app.backend.on_chord_part_return(member, state, error)
    except Exception:
        logger.exception("The chord of task %r was not told that it will not run", id)


def _has_stamp(entry: ScheduledTask, wanted: Mapping[str, Any]) -> bool:
    """Return whether a worker would refuse it, by the rule of Celery's ``Request.revoked``."""
    its = entry.headers.get("stamps") or {}
    return any(
        set(map(str, maybe_list(its[name]) or [])) & set(map(str, maybe_list(values) or []))
        for name, values in wanted.items()
        if name in its
    )


def _remember(
    delayq: DelayQ,
    ids: Sequence[str] = (),
    stamps: Mapping[str, Any] | None = None,
    canvas: Canvas | None = None,
) -> None:
    assert delayq.app is not None
    settings = Settings.from_options(delayq.app.conf.broker_transport_options)
    seconds = settings.revoke_expires
    delayq._ask(lambda store: store.control.revoke(seconds, ids, stamps, canvas))


class ControlMixin:
    """Sees all ways of revoking: they are broadcast."""

    app: Any

    def broadcast(
        self, command: str, arguments: Any = None, destination: Any = None, **kwargs: Any
    ) -> Any:
        """Have Redis remember what is revoked on all workers, and tell them."""
        delayq = getattr(self.app, "_delayq", None)
        if delayq is not None and not destination and delayq.has_store:
            given = {**(arguments or {}), **kwargs}
            if command == "revoke":
                revoke(delayq, maybe_list(given.get("task_id")) or [])
            elif command == "revoke_by_stamped_headers":
                revoke_by_stamps(delayq, stamps_of(given.get("headers")))
        return super().broadcast(command, arguments, destination, **kwargs)  # type: ignore[misc]


class Control(ControlMixin, CeleryControl):
    """Celery's own remote control with revoking that lasts."""


def install_in_worker() -> None:
    """Make a worker remember what a client without the extension revokes."""
    data = control.Panel.data
    for command, remember in (
        ("revoke", _remember_ids),
        ("revoke_by_stamped_headers", _remember_stamps),
    ):
        if not hasattr(data[command], "delayq"):
            data[command] = _remembering(data[command], remember)


def _remembering(
    stock: Callable[..., Any], remember: Callable[[DelayQ, dict[str, Any]], None]
) -> Callable[..., Any]:
    """Make revoking last that a client without the extension has asked for."""

    def revoke(state: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(state, *args, **kwargs)
        delayq = getattr(state.app, "_delayq", None)
        if delayq is not None and delayq.has_store:
            try:
                remember(delayq, kwargs)
            except Exception:
                logger.exception("Only running workers know what was revoked")
        return result

    revoke.__doc__ = stock.__doc__
    revoke.delayq = True  # type: ignore[attr-defined]
    return revoke


def _remember_ids(delayq: DelayQ, given: dict[str, Any]) -> None:
    ids = [str(id) for id in maybe_list(given.get("task_id")) or []]
    new = delayq._ask(lambda store: store.control.not_revoked(ids))
    if new:
        revoke(delayq, new)


def _remember_stamps(delayq: DelayQ, given: dict[str, Any]) -> None:
    stamps = stamps_of(given.get("headers"))
    if delayq._ask(lambda store: store.control.not_revoked((), stamps)):
        revoke_by_stamps(delayq, stamps)


def stamps_of(headers: Any) -> dict[str, Any]:
    """Return stamped headers as a mapping; the command line gives a list of ``name=value``."""
    if isinstance(headers, Mapping):
        return dict(headers)
    pairs = (str(each).partition("=") for each in maybe_list(headers) or [])
    return {name: value for name, _, value in pairs}


def note_revoked(app: Any, ids: Iterable[str], reason: str, request: Any = None) -> None:
    """Tell the result backend, signals and those who watch events that tasks will not run.

    With the *request* of a task, the chord to which it belongs is told too.
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
        with app.events.default_dispatcher() as dispatcher:
            for id in ids:
                dispatcher.send(
                    "task-revoked", uuid=id, terminated=False, signum=None, expired=False
                )
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


class _Interim:
    def __init__(self, delayq: DelayQ) -> None:
        self._delayq = delayq

    def revoke(self, ids: Iterable[str]) -> None:
        revoke(self._delayq, ids)

    def revoke_by_stamps(self, stamps: Mapping[str, Any]) -> None:
        revoke_by_stamps(self._delayq, stamps)

    def revoke_new(self, ids: Sequence[str]) -> None:
        _remember_ids(self._delayq, {"task_id": ids})

    def revoke_new_stamps(self, stamps: Mapping[str, Any]) -> None:
        _remember_stamps(self._delayq, {"headers": stamps})
