"""Splits messages into calls with a limited number of messages and about 1 MB. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

#: Most bytes of messages in one call, as in ``include/byte_limit.lua``. Other clients wait for it.
MAX_CALL_BYTES = 1_000_000


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in their order, *size* at a time."""
    remaining = iter(items)
    while batch := [*islice(remaining, size)]:
        yield batch


def portions(
    items: Iterable[T],
    max_messages: int,
    size: Callable[[T], int],
    number: Callable[[T], int] = lambda _: 1,
    max_bytes: int = MAX_CALL_BYTES,
) -> Iterator[list[T]]:
    """Yield items in their order, in portions of one call each, at least one item a portion.

    Parameters
    ----------
    max_messages : int
        Most messages of one call.
    size, number : Callable
        Return the number of bytes of an item, and the number of its messages.
    max_bytes : int
        Most bytes of one call.
    """
    portion: list[T] = []
    free_messages, free_bytes = max_messages, max_bytes
    for item in items:
        count, length = number(item), size(item)
        if portion and (count > free_messages or length > free_bytes):
            yield portion
            portion, free_messages, free_bytes = [], max_messages, max_bytes
        portion.append(item)
        free_messages -= count
        free_bytes -= length
    if portion:
        yield portion
