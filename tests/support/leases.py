"""Lease keepers without Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq.dispatch.lease_keeper import LeaseKeeper
from celery_delayq.settings import Settings


class Message:
    """Stands for what was handed out."""


class AnyStore:
    """Stands for a store and all its parts: every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any) -> None:
        """Be any of its methods."""


class BeatingStore(AnyStore):
    """Counts the beats for the one message that is held."""

    def __init__(self) -> None:
        self.beats: list[str] = []

    def beat(self, queue: str, *_: Any) -> int:
        """Extend the lease."""
        self.beats.append(queue)
        return 1


def keeper(
    claim: Callable[[str, float], bool] = lambda *_: True,
    name: Callable[[], str] = lambda: "me",
    store: Any = None,
    start: Callable[[Callable[[], None]], None] | None = lambda _: None,
    **settings: Any,
) -> LeaseKeeper:
    """Return a keeper; without a *start* function it runs its thread, and needs a store."""
    options = Settings.from_options({"delayq": settings})
    more: Any = {} if start is None else {"start": start}
    return LeaseKeeper(store, claim, options, name, **more)


def take(one: LeaseKeeper, queue: str, number: int, *, alone: bool = False) -> list[str]:
    """Have *one* hold so many messages that came with a request."""
    message_id = one.new_request_number(queue)
    fields = [f"{message_id}:{place}" for place in range(1, number + 1)]
    return one.take(queue, message_id, fields, alone=alone)
