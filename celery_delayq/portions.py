"""How much goes into one call: so many messages, and about 1 MB of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Bytes of messages of one call, as in ``lua/include/room.lua``: others would wait for more.
ROOM = 1_000_000


def portions(
    items: Iterable[T],
    most: int,
    size: Callable[[T], int],
    number: Callable[[T], int] = lambda _: 1,
    room: int = ROOM,
) -> Iterator[list[T]]:
    """Yield items in their order, as many at a time as one call takes; one at least.

    Parameters
    ----------
    most : int
        Most messages of one call.
    size, number : Callable
        How many bytes an item has, and how many messages.
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
