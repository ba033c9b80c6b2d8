"""Checks of limits: whether they are those of the code, and whether all processes keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from urllib.parse import unquote

from celery_delayq.admin.doctor.finding import Finding, warning
from celery_delayq.admin.doctor.subject import OnRedis
from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Label, limit_of
from celery_delayq.model.limits import Definition
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.store.task_limits import StoredLimit
from celery_delayq.utils.text import spelled

#: Most leased messages of a queue that are looked at.
_MAX_LEASED_MESSAGES = 1000


def limits(subject: OnRedis) -> Iterator[Finding]:
    """What counts must be what the code says, and all processes must keep the limits."""
    stored = subject.store.task_limits.definitions()
    of_app = limits_of(subject.app).definitions(subject.app.tasks)
    for name, each in sorted(stored.items()):
        shown = spelled(unquote(name))
        if each.override:
            yield warning(
                f"limit {shown}: people have set {_text(each.override)}, the code says "
                f"{_text(each.of_code)}",
                f"celery -A <app> delayq limits unset {shown}, when the code is to count again",
            )
        ours = of_app.get(name, each.of_code)
        if each.of_code != ours:
            yield warning(
                f"limit {shown}: this app says {_text(ours)}, the worker that started last said "
                f"{_text(each.of_code)}",
                "run the same code everywhere, and start the workers again",
            )
    if stored:
        yield from _without_permits(subject, stored)


def _text(definition: str) -> str:
    found = Definition.parse(definition)
    return "no limit" if found is None else str(found)


def _without_permits(subject: OnRedis, stored: dict[str, StoredLimit]) -> Iterator[Finding]:
    """Find messages of limits that were leased without a permit."""
    store, limits = subject.store, subject.store.task_limits
    names = [queue.name for queue in subject.stats().queues if queue.leased]
    found = store.run_each(store.leases.leases_steps(name) for name in names)
    numbers = Counter[str]()
    for queue, its in zip(names, found, strict=True):
        if isinstance(its, Exception):
            raise its
        values = (
            value for worker_id, _, _ in its for _, value in store.scan.leased(queue, worker_id)
        )
        leased: list[tuple[str, bytes, bytes]] = []
        for value in islice(values, _MAX_LEASED_MESSAGES):
            message = split_leased(value)[1]
            mark, label = limit_of(message), Label.of(message)
            if mark is not None and label is not None:
                leased.append((mark.lane, label.id, label.message_id))
        leased = [each for each in leased if stored.get(_limit(each[0]), StoredLimit()).definition]
        has_permit = limits.have_permits(queue, leased)
        numbers.update(
            _limit(lane) for (lane, _, _), has in zip(leased, has_permit, strict=True) if not has
        )
    for name, number in sorted(numbers.items()):
        yield warning(
            f"limit {spelled(unquote(name))}: {number:,} of its messages are leased and do not "
            "count: a process of an older version has leased them, or the limit began later",
            "update all workers; until then the limit does not hold",
        )


def _limit(lane: str) -> str:
    """Return the name of the limit of a lane."""
    return lane.partition(":")[0]
