"""Delayed Celery tasks that wait in Redis instead of in worker memory.

>>> from celery import Celery
>>> from celery_delayq import DelayQ
>>> app = Celery("shop", broker="delayq+redis://localhost:6379/0")
>>> delayq = DelayQ(app, at_least_once=True)
"""

from celery_delayq import transport  # noqa: F401, makes kombu know the schemes of our URLs
from celery_delayq.app import DelayQ
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.retry_policy import STEPPED, TEN_RETRIES, Exponential, RetryPolicy
from celery_delayq.model.scheduled import Filter, Outcome
from celery_delayq.schedule.items import Item

__all__ = [
    "STEPPED",
    "TEN_RETRIES",
    "DeadFilter",
    "DelayQ",
    "Exponential",
    "Filter",
    "Item",
    "Outcome",
    "RetryPolicy",
]

__version__ = "0.1.0.dev0"
