"""Items for ``schedule_many``, and the stored entries."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

from redis import Redis

from celery_delayq.schedule.items import Item
from tests.integration.conftest import stored

UTC = dt.timezone.utc
FAR = dt.datetime(2100, 1, 1, 12, tzinfo=UTC)


def entries(redis: Redis, queue: str = "celery") -> list[tuple[int, dict[str, Any]]]:
    """Return due (ms) and message of scheduled entries, by due."""
    found = redis.zrange(f"{{{queue}}}:due", 0, -1, withscores=True)
    return list(zip((int(score) for _, score in found), stored(redis, queue), strict=True))


def one(number: Any, note: Any = None) -> None:
    """A task with other arguments."""


def numbered(count: int, **more: Any) -> Iterator[Item]:
    """Yield items with ids of their own."""
    return (Item((n, n), countdown=60, id=f"n{n}", **more) for n in range(count))


def meanwhile(count: int, before: int, do: Callable[[], object]) -> Iterator[Item]:
    """Yield items as `numbered` does, and call *do* before one of them is taken."""
    for n, item in enumerate(numbered(count)):
        if n == before:
            do()
        yield item
