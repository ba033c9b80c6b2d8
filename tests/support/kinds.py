"""Send tasks in every way that Celery has, on every broker."""

from __future__ import annotations

import datetime as dt
from typing import Any

from celery import chain, chord, group

from tests.support import TIMEOUT

#: Number of runs in :func:`assert_all_kinds_run`, with retries and members.
RUNS = 25
#: At least so many of these runs have an ETA: 16 tasks that are sent with a delay, and two retries.
MIN_RUNS_WITH_ETA = 18


def assert_all_kinds_run(tasks: Any) -> None:
    """Send tasks of all kinds, and wait for their results."""
    now = dt.datetime.now(dt.timezone.utc)
    results = {
        "countdown": (tasks.add.apply_async((1, 2), countdown=0.4), 3),
        "eta": (tasks.add.apply_async((3, 4), eta=now + dt.timedelta(seconds=0.6)), 7),
        "past": (tasks.add.apply_async((5, 6), eta=now - dt.timedelta(days=1)), 11),
        "at once": (tasks.add.delay(7, 8), 15),
        "retry": (tasks.flaky.apply_async((0.3,), countdown=0.1), "at last"),
        "autoretry": (tasks.backoff.delay(), "at last"),
        "replace": (tasks.replacing.apply_async((9,), countdown=0.1), 10),
        "chain": (chain(tasks.add.s(1, 1), tasks.add.s(2)).apply_async(countdown=0.2), 4),
        "group": (group(tasks.add.s(1, 1), tasks.add.s(2, 2)).apply_async(countdown=0.2), [2, 4]),
        "chord": (
            chord([tasks.add.s(1, 1), tasks.add.s(2, 2)], tasks.total.s()).apply_async(
                countdown=0.2
            ),
            6,
        ),
        "link": (tasks.add.apply_async((1, 1), countdown=0.2, link=tasks.add.s(40)), 2),
        "expires later": (tasks.add.apply_async((1, 9), countdown=0.2, expires=60), 10),
        "priority": (tasks.add.apply_async((2, 9), countdown=0.2, priority=9), 11),
        "yaml": (tasks.add.apply_async((3, 9), countdown=0.2, serializer="yaml"), 12),
        "msgpack": (
            tasks.add.apply_async((4, 9), countdown=0.2, serializer="msgpack", compression="zlib"),
            13,
        ),
        "large": (tasks.size.apply_async(("x" * 1_000_000,), countdown=0.2), 1_000_000),
    }

    got = {name: result.get(timeout=TIMEOUT) for name, (result, _) in results.items()}

    assert got == {name: expected for name, (_, expected) in results.items()}


def assert_not_early(run: dict[str, Any]) -> None:
    """Check that a run is not before its ETA, which the sender computed in whole milliseconds."""
    assert run["at"] >= dt.datetime.fromisoformat(run["eta"]).timestamp() - 0.001, run
