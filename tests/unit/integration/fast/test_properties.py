"""Cached properties of Celery are read without a lock."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from kombu.utils.objects import cached_property

from celery_delayq.integration.fast.properties import WithoutLock
from celery_delayq.integration.replace import Replace
from tests.support import TIMEOUT


class Owner:
    """Has a property that waits until it may be made."""

    def __init__(self) -> None:
        self.made: list[object] = []
        self.may_end = threading.Event()

    @cached_property
    def value(self) -> object:
        self.made.append(object())
        assert self.may_end.wait(TIMEOUT)
        return self.made[-1]


class Broken(AbstractContextManager[None]):
    """A lock that nobody may take."""

    def __enter__(self) -> None:
        raise AssertionError("the lock was taken")

    def __exit__(self, *_: object) -> None:
        pass


def test_a_cached_property_is_made_once_by_many_threads_and_read_without_a_lock() -> None:
    stock, change = Owner.value, Replace(target="owner.value", by=WithoutLock, without="test")
    lock, owner = stock.lock, Owner()
    found: list[object] = []
    change.make(owner=Owner)
    try:
        threads = [
            threading.Thread(target=lambda: found.append(owner.value), daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        owner.may_end.set()
        for thread in threads:
            thread.join(TIMEOUT)
        stock.lock = Broken()
        assert (found, owner.value, len(owner.made)) == ([owner.made[0]] * 4, owner.made[0], 1)

        owner.value = "own"
        assert owner.value == "own"
        del owner.value
        stock.lock = lock
        assert (owner.value, len(owner.made)) == (owner.made[-1], 2)
    finally:
        stock.lock = lock
        change.undo(owner=Owner)
    assert Owner.value is stock
