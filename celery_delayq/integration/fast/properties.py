"""Read four cached properties without a lock.

A cached property of kombu takes a lock at each read. Celery reads four of them for each task that
it sends. Benchmark row: ``fast-properties``.
"""

from __future__ import annotations

from typing import Any

from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Replace


class WithoutLock:
    """Replaces a cached property of kombu.

    The first read goes to kombu. This class has no ``__set__``, so Python finds the value in the
    object at each later read. Three things differ from kombu: a setter is not called, deleting a
    missing value is an error, and an assignment does not wait for a first read in another thread.
    """

    def __init__(self, _owner: Any, stock: Any) -> None:
        self._stock = stock
        self.__doc__ = stock.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._stock.__get__(instance, owner)


GROUP = Group(
    name="properties",
    process=tuple(
        Replace(
            target=target,
            by=WithoutLock,
            without="Celery takes the lock of `cached_property` for each read, once for each task.",
        )
        for target in (
            "celery.app.base:Celery.amqp",
            "celery.app.amqp:AMQP.router",
            "celery.app.amqp:AMQP.create_task_message",
            "celery.app.amqp:AMQP.send_task_message",
        )
    ),
    upstream="kombu: have `cached_property.__get__` look into `instance.__dict__` before it takes "
    "the lock.",
)
