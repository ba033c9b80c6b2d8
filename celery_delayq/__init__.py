"""Delayed Celery tasks that wait in Redis instead of in worker memory.

>>> from celery import Celery
>>> from celery_delayq import DelayQ
>>> app = Celery("shop", broker="delayq+redis://localhost:6379/0")
>>> delayq = DelayQ(app, at_least_once=True)
"""

from typing import TYPE_CHECKING

from celery_delayq import celery_versions  # noqa: F401 - refuses an older one
from celery_delayq.integration.install import change_kombu

if TYPE_CHECKING:
    from celery_delayq.admin.stats import QueueStats, Stats
    from celery_delayq.admin.why.reasons import Reason, ReasonKind, Why
    from celery_delayq.app import DelayQ
    from celery_delayq.deadletters.client import DeadLetters
    from celery_delayq.limits.client import LaneStatus, LimitStatus, TaskLimits
    from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
    from celery_delayq.model.history import Run
    from celery_delayq.model.limits import Limit
    from celery_delayq.model.retries.policy import STEPPED, TEN_RETRIES, Exponential, RetryPolicy
    from celery_delayq.model.scheduled import Bulk, Filter, Outcome, Page, Paused, ScheduledTask
    from celery_delayq.model.unique import Key
    from celery_delayq.periodic.client import PeriodicTasks
    from celery_delayq.periodic.entries import Periodic
    from celery_delayq.schedule.client import Schedule
    from celery_delayq.schedule.items import InvalidItem, Item, ItemOutcome, ManyFailed, ManyReport
    from celery_delayq.schedule.runs import Runs
    from celery_delayq.transfer.client import Transfer
    from celery_delayq.transfer.results import Archived, Exported, Imported
else:
    from celery_delayq.utils.lazy import lazy_attributes

    __getattr__ = lazy_attributes(
        __name__,
        {
            "admin.stats": ("QueueStats", "Stats"),
            "admin.why.reasons": ("Reason", "ReasonKind", "Why"),
            "app": ("DelayQ",),
            "deadletters.client": ("DeadLetters",),
            "limits.client": ("LaneStatus", "LimitStatus", "TaskLimits"),
            "model.dead_letter": ("DeadFilter", "DeadLetter"),
            "model.history": ("Run",),
            "model.limits": ("Limit",),
            "model.retries.policy": ("STEPPED", "TEN_RETRIES", "Exponential", "RetryPolicy"),
            "model.scheduled": ("Bulk", "Filter", "Outcome", "Page", "Paused", "ScheduledTask"),
            "model.unique": ("Key",),
            "periodic.client": ("PeriodicTasks",),
            "periodic.entries": ("Periodic",),
            "schedule.client": ("Schedule",),
            "schedule.items": ("InvalidItem", "Item", "ItemOutcome", "ManyFailed", "ManyReport"),
            "schedule.runs": ("Runs",),
            "transfer.client": ("Transfer",),
            "transfer.results": ("Archived", "Exported", "Imported"),
        },
    )

__all__ = [
    "STEPPED",
    "TEN_RETRIES",
    "Archived",
    "Bulk",
    "DeadFilter",
    "DeadLetter",
    "DeadLetters",
    "DelayQ",
    "Exponential",
    "Exported",
    "Filter",
    "Imported",
    "InvalidItem",
    "Item",
    "ItemOutcome",
    "Key",
    "LaneStatus",
    "Limit",
    "LimitStatus",
    "ManyFailed",
    "ManyReport",
    "Outcome",
    "Page",
    "Paused",
    "Periodic",
    "PeriodicTasks",
    "QueueStats",
    "Reason",
    "ReasonKind",
    "RetryPolicy",
    "Run",
    "Runs",
    "Schedule",
    "ScheduledTask",
    "Stats",
    "TaskLimits",
    "Transfer",
    "Why",
]

__version__ = "0.1.0"

# For a worker also without ``DelayQ(app)``.
change_kombu()
