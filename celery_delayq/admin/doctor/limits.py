"""Checks of limits: whether they are those of the code, and whether all processes keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from urllib.parse import unquote

from celery_delayq.admin.doctor.finding import Finding, note, warning
from celery_delayq.admin.doctor.subject import OnRedis
from celery_delayq.model.limits import Definition
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.utils.text import spelled


def limits(subject: OnRedis) -> Iterator[Finding]:
    """What counts must be what the code says, and all processes must keep the limits."""
    stored = subject.store.task_limits.definitions()
    of_app = limits_of(subject.app).definitions(subject.app.tasks)
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
