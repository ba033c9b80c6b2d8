"""Splits messages into calls: at most so many, and about 1 MB of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

#: Most bytes of messages of one call, as in ``include/room.lua``: other clients wait for it.
MAX_CALL_BYTES = 1_000_000


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in their order, *size* at a time."""
    remaining = iter(items)
    while batch := [*islice(remaining, size)]:
        yield batch


def portions(
    items: Iterable[T],
    most: int,
    size: Callable[[T], int],
    number: Callable[[T], int] = lambda _: 1,
    room: int = MAX_CALL_BYTES,
) -> Iterator[list[T]]:
    """Yield items in their order, as many at a time as one call takes, at least one.

    Parameters
    ----------
    most : int
        Most messages of one call.
    size, number : Callable
        The number of bytes of an item, and of its messages.
    room : int
        Most bytes of one call.
    """
    some: list[T] = []
    left, there = most, room
    for item in items:
        count, length = number(item), size(item)
        if some and (count > left or length > there):
            yield some
            some, left, there = [], most, room
        some.append(item)
        left -= count
        there -= length
    if some:
        yield some
