"""Metrics of limits: how much of each is used, and which held entries wait for a worker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from urllib.parse import unquote

from celery_delayq.metrics.sheet import Sheet
from celery_delayq.store.gauges import SAMPLED_QUEUES
from celery_delayq.store.store import Store
from celery_delayq.utils.once import warn_once

logger = logging.getLogger(__name__)


class LimitNumbers:
    """The numbers of limits, over all stores."""

    def __init__(self) -> None:
        self._held, self._used = Counter[str](), Counter[str]()
        self._allowed: dict[str, int] = {}
        #: Held entries by queue: all, and those that more workers could run.
        self._waiting: dict[str, tuple[int, int]] = {}

    def read(self, store: Store, queues: Iterable[str]) -> None:
        """Add the numbers of a store."""
        limits, names = store.task_limits, [*queues]
        stored = limits.definitions()
        if not stored:
            return
        definitions = {name: each.definition for name, each in stored.items()}
        self._used.update(limits.used_by_limit([*stored]))
        self._allowed |= {n: each.concurrency if each else 0 for n, each in definitions.items()}
        now_us = store.now_us()
        steps = (limits.waiting_steps(queue, definitions, now_us) for queue in names)
        for queue, found in zip(names, store.run_each(steps, SAMPLED_QUEUES), strict=True):
            if isinstance(found, Exception):
                warn_once(logger, f"No numbers of limits of queue {queue!r}: {found}")
                continue
            self._held.update(found.held)
            self._waiting[queue] = sum(found.held.values()), found.may_go

    def put(self, sheet: Sheet) -> None:
        """Put the numbers."""
        for name, most in self._allowed.items():
            limit = unquote(name)
            sheet.put("limit_held", self._held[name], limit)
            sheet.put("limit_used", self._used[name], limit)
            if most:
                sheet.put("limit_allowed", most, limit)
        for queue, (held, runnable) in self._waiting.items():
            sheet.put("held_entries", runnable, queue, "worker")
            sheet.put("held_entries", held - runnable, queue, "limit")
