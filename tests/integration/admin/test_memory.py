"""What looks at all that waits takes no more memory for more messages, small or large."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import count, product
from typing import Any

import pytest

from celery_delayq import DelayQ
from tests.support.dead_letters import fill

TASK, OTHER = "shop.mail", "shop.post"

#: Characters of an argument: of many messages, and of large ones. A number of them is one step.
SIZES = {"many": (500, 1200), "large": (300_000, 24)}


def scheduled(delayq: DelayQ, size: int, number: int, start: int) -> None:
    items = ({"args": ("x" * size,), "countdown": 3600 + start + n} for n in range(number))
    delayq.schedule_many(items, task=TASK)


def ready(delayq: DelayQ, size: int, number: int, _: int) -> None:
    delayq.schedule_many(({"args": ("x" * size,)} for _ in range(number)), task=TASK)


def dead(delayq: DelayQ, size: int, number: int, _: int) -> None:
    fill(delayq, number, size=size, task=TASK)


PLACES: dict[str, Callable[[DelayQ, int, int, int], None]] = {
    "scheduled": scheduled,
    "ready": ready,
    "dead": dead,
}


def rename_and_back(delayq: DelayQ) -> int:
    there, back = delayq.rename(TASK, OTHER), delayq.rename(OTHER, TASK)
    assert there.done == back.done == back.looked
    return back.looked


_changes = count()


def rewrite(delayq: DelayQ) -> int:
    report = delayq.rewrite(lambda _: {"kwargs": {"n": next(_changes)}})
    assert report.done == report.looked
    return report.looked


CALLS: dict[str, Callable[[DelayQ], int]] = {
    "compat": lambda delayq: delayq.compat().number,
    "rename": rename_and_back,
    "rewrite": rewrite,
}


#: Those that run in earlier tiers than the nightly one.
TIERS: dict[tuple[str, str, str], Any] = {
    ("compat", "scheduled", "many"): (),
    ("compat", "ready", "large"): pytest.mark.full,
    ("rewrite", "scheduled", "large"): pytest.mark.full,
}


@pytest.mark.parametrize(
    ("call", "place", "size"),
    [
        pytest.param(*case, marks=TIERS.get(case, pytest.mark.nightly))
        for case in product(CALLS, PLACES, SIZES)
        if case[0] == "compat" or case[1] != "ready"
    ],
)
def test_memory_does_not_grow_with_the_number_of_messages(
    delayq: DelayQ, call: str, place: str, size: str
) -> None:
    length, step = SIZES[size]

    def peak(number: int) -> int:
        tracemalloc.start()
        try:
            assert CALLS[call](delayq) == number
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    PLACES[place](delayq, length, step, 0)
    peak(step)  # what is imported and remembered once
    small = peak(step)
    PLACES[place](delayq, length, 2 * step, step)

    assert peak(3 * step) < 1.5 * small
