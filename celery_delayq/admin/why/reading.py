"""Reads the facts from which :mod:`celery_delayq.admin.why.reasons` makes an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from celery_delayq.admin.why.reasons import (
    EntryFacts,
    GoneFacts,
    Why,
    why_gone,
    why_waiting,
)
from celery_delayq.deadletters.stream import StreamDeadLetters
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.dead_letter import DeadLetter, DeadLetterRecord
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.history import read_runs
from celery_delayq.model.scheduled import ScheduledTask
from celery_delayq.model.script_values import to_bytes
from celery_delayq.schedule.client import id_of
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores, find_steps_of

#: Seconds to wait for the answers of workers.
ANSWER_SECONDS = 1.0


def why(session: Session, id: str, queue: str | None, *, ask_workers: bool) -> Why:
    """Return why a task has not run, or how it ended. Parameters of ``Admin.why``."""
    id = id_of(id)
    if session.on_rabbitmq:
        return _why_on_rabbitmq(session, id, queue)
    found = session.ask(lambda stores: _read(stores, id, queue))
    if isinstance(found, GoneFacts):
        return why_gone(found._replace(keeps_history=session.keeps_history))
    options = session.app.conf.broker_transport_options
    lease_seconds = Settings.from_options(options).lease
    names = {each.entry.queue for each in found if each.waits_for_worker}
    consumers = _consumers(session, names) if ask_workers and names else {}
    first, *others = (
        why_waiting(
            each._replace(
                lease_seconds=lease_seconds,
                consumers=consumers.get(each.entry.queue) if each.waits_for_worker else None,
            )
        )
        for each in sorted(found, key=lambda each: each.due_ms)
    )
    return replace(first, others=tuple(others))


def _why_on_rabbitmq(session: Session, id: str, queue: str | None) -> Why:
    """Return the answer for a dead letter; for any other id raise NotSupported."""
    dead_letter = StreamDeadLetters(session).get(id, queue=queue)
    if dead_letter is None:
        session.check_broker()
    return why_gone(GoneFacts(id, [dead_letter] if dead_letter else []))


def _read(stores: Stores, id: str, queue: str | None) -> list[EntryFacts] | GoneFacts:
    layouts = queues_of(stores, queue)
    places = stores.run_each(stores.queues_with(layouts, [id]), find_steps_of([id]))
    tasks = [ScheduledTask.of_place(name, each) for name, its in places.items() for each in its]
    if not tasks:
        return _read_gone(stores, id, layouts)
    facts: list[EntryFacts] = []
    for task in tasks:
        layout = layouts[task.queue]
        waits = stores.of(task.queue).waits.waits(
            task.queue, layout, task, _due_ms(task), _revocations(task)
        )
        paused = () if waits.task_paused_ms is None else (task.task,)
        entry = task.during_pauses(paused)
        facts.append(EntryFacts(entry, _due_ms(task), waits, layout.limits))
    return facts


def _read_gone(stores: Stores, id: str, layouts: Mapping[str, Layout]) -> GoneFacts:
    traces = stores.run_each(layouts, lambda store, name: store.waits.trace_steps(name, id))
    dead_letters = [
        DeadLetter.of(name, DeadLetterRecord.unpack(id, trace.dead_letter))
        for name, trace in traces.items()
        if trace.dead_letter is not None
    ]
    cancelled = [
        (name, trace.cancelled.task)
        for name, trace in traces.items()
        if trace.cancelled is not None
    ]
    revoked_ms = stores.common.waits.revoked_ms([_revoked(id)])
    facts = GoneFacts(id, dead_letters, cancelled, revoked_ms)
    if cancelled:
        return facts
    if runs := [*read_runs(stores.newest_runs(1, id))]:
        return facts._replace(runs=runs)
    if dead_letters:
        return facts
    return facts._replace(searched=sum(each.count() for each in stores.histories.values()))


def _due_ms(entry: ScheduledTask) -> int:
    return due_of_eta(entry.due).ms


def _revoked(id: str) -> bytes:
    """Return the member of an id in the set of revokes."""
    return b"i" + to_bytes(id)


def _revocations(entry: ScheduledTask) -> Sequence[bytes]:
    """Return the members of the set of revokes that revoke an entry, but for stamps."""
    canvases = Canvas.all_of(entry.headers, entry.own)
    return [_revoked(entry.id), *(to_bytes(each.text) for each in canvases)]


def _consumers(session: Session, queues: set[str]) -> dict[str, list[str]]:
    """Return the workers that answer that they consume some queues."""
    # Closing the connection at once also removes the queue for the answers.
    with session.connection() as connection:
        inspect = session.app.control.inspect(timeout=ANSWER_SECONDS, connection=connection)
        answers = inspect.active_queues() or {}
    return {
        name: [worker for worker, its in answers.items() if name in {q["name"] for q in its}]
        for name in queues
    }
