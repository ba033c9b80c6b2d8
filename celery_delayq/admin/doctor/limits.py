"""Checks of limits: whether they are those of the code, and whether all processes keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from celery_delayq.admin.doctor.finding import Finding, fault, note, warning
from celery_delayq.admin.doctor.subject import OnRedis
from celery_delayq.integration.send_task import importable_tasks
from celery_delayq.model.limits import Definition
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.store.task_limits import WaitingTasks
from celery_delayq.utils.text import spelled

#: Seconds for which a lane may go, and does not, until it counts as stalled: as long as for the
#: alert ``DelayQLaneStalled``.
MAX_STALLED_SECONDS = 600.0


def limits(subject: OnRedis) -> Iterator[Finding]:
    """What counts must be what the code says, and all processes must keep the limits."""
    stored = subject.store.task_limits.definitions()
    of_app = limits_of(subject.app).definitions(importable_tasks(subject.app))
    for name, each in sorted(stored.items()):
        shown = spelled(unquote(name))
        if each.override:
            yield note(
                f"limit {shown}: people have set {Definition.shown(each.override)}, the code says "
                f"{Definition.shown(each.of_code)}",
                f"celery -A <app> delayq limits unset {shown}, when the code is to count again",
            )
        ours = of_app.get(name, each.of_code)
        if each.of_code != ours:
            yield warning(
                f"limit {shown}: this app says {Definition.shown(ours)}, the worker that started "
                f"last said {Definition.shown(each.of_code)}",
                "run the same code everywhere, and start the workers again",
            )
    if stored:
        yield from _without_permits(subject)


def _without_permits(subject: OnRedis) -> Iterator[Finding]:
    """Find messages of limits that were leased without a permit."""
    store = subject.store
    names = [queue.name for queue in subject.stats().queues if queue.leased]
    found = store.run_each(store.task_limits.without_permits_steps(name) for name in names)
    numbers = Counter[str]()
    for its in found:
        if isinstance(its, Exception):
            raise its
        numbers.update(name for _, name in its)
    for name, number in sorted(numbers.items()):
        yield warning(
            f"limit {spelled(unquote(name))}: {number:,} of its messages are leased and do not "
            "count: a process of an older version has leased them, or the limit began later",
            "update all workers; until then the limit does not hold",
        )


def stalled_lanes(subject: OnRedis) -> Iterator[Finding]:
    """Workers must take held tasks that may go by their limits."""
    store, lanes = subject.store, subject.store.task_limits
    stats = subject.stats().queues
    idle = [each.name for each in stats if each.held and not each.leased and not each.is_paused]
    before = _waiting(subject, idle)
    if not before:
        return
    consumed = subject.consumed_queues()  # meanwhile an idle worker takes the first task
    now = store.now_us()
    for queue, (waiting, first) in before.items():
        is_stalled = first is not None and first == lanes.first_held(queue, waiting.lane)
        if not is_stalled:
            continue
        what = f"{spelled(queue)}: {waiting.may_go:,} held tasks may go by their limits, and"
        if queue not in consumed:
            yield fault(f"{what} no worker takes them", f"start a worker with -Q {spelled(queue)}")
        elif (late := (now - waiting.since_us) / 1_000_000) > MAX_STALLED_SECONDS:
            yield warning(
                f"{what} none goes, one for {late:,.0f} s",
                "all processes may be busy with long tasks: add workers. If they are idle, delayq "
                "fsck finds lanes that nobody looks at",
            )


def _waiting(
    subject: OnRedis, queues: Sequence[str]
) -> dict[str, tuple[WaitingTasks, bytes | None]]:
    """Return what waits in queues with held tasks that may go by their limits, and the first held
    entry of the lane that was due first.
    """
    if not queues:
        return {}
    store, lanes = subject.store, subject.store.task_limits
    definitions = {name: each.definition for name, each in lanes.definitions().items()}
    now_us = store.now_us()
    found = store.run_each(lanes.waiting_steps(queue, definitions, now_us) for queue in queues)
    waiting = {}
    for queue, its in zip(queues, found, strict=True):
        if isinstance(its, Exception):
            raise its
        if its.may_go:
            waiting[queue] = its, lanes.first_held(queue, its.lane)
    return waiting
