"""Task ids that sort in the order in which tasks are sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from kombu.utils.uuid import uuid

#: Bits of an id behind its number.
_RANDOM_BITS = 80


@contextmanager
def ordered_ids() -> Iterator[None]:
    """Give tasks ids that sort in the order of their calls.

    Redis orders tasks of a queue that are due in the same millisecond by their ids. While the clock
    of a test stands still, tasks with the same countdown are due in the same millisecond.
    """
    numbers = count(1)

    def new_id() -> UUID:
        number = next(numbers) << _RANDOM_BITS
        return UUID(int=number | (uuid4().int & ((1 << _RANDOM_BITS) - 1)), version=4)

    # Each module of Celery has its own reference to the function, so its default is replaced.
    function: Any = uuid
    before = function.__defaults__
    function.__defaults__ = (new_id,)
    try:
        yield
    finally:
        function.__defaults__ = before
