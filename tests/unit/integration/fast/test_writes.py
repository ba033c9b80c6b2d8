"""A task is written to a free child of a prefork pool at once, without a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from select import PIPE_BUF
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.asynpool import SCHED_STRATEGY_FAIR, SCHED_STRATEGY_FCFS
from kombu.asynchronous.hub import Hub

from celery_delayq.integration.fast import writes


class CountingHub(Hub):
    """Counts calls of its poller."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def add(self, *args: Any, **kwargs: Any) -> None:
        self.calls += 1
        super().add(*args, **kwargs)

    def _remove_from_loop(self, fd: int) -> None:
        self.calls += 1
        super()._remove_from_loop(fd)


@pytest.fixture
def hub() -> Iterator[CountingHub]:
    hub = CountingHub()
    yield hub
    hub.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def test_only_a_writer_that_is_there_is_removed(hub: CountingHub, pipe: tuple[int, int]) -> None:
    loop = writes.LenientHub(hub)
    _, there = pipe

    loop.remove_writer(there)
    before = hub.calls
    loop.add_writer(there, print)
    loop.remove_writer(there)

    assert (before, hub.writers) == (0, {})


class Pool(SimpleNamespace):
    """What the handlers of a pool see of it; its children are free or busy descriptors."""

    def __init__(self, strategy: int, waiting: int, busy: set[int]) -> None:
        super().__init__(
            sched_strategy=strategy,
            outbound_buffer=[*range(waiting)],
            _all_inqueues={1, 2, 3},
            _busy_workers=busy,
            written=[],
        )


@pytest.mark.parametrize(
    ("waiting", "busy", "written"),
    [(1, {1}, [[2]]), (3, {1}, [[2], [3]]), (0, {1}, []), (1, {1, 2, 3}, [])],
)
def test_free_children_are_written_to_before_the_loop_polls(
    hub: CountingHub, waiting: int, busy: set[int], written: list[list[int]]
) -> None:
    pool = Pool(SCHED_STRATEGY_FAIR, waiting, busy)

    def write(children: list[int]) -> None:
        pool.outbound_buffer.pop()
        pool.written.append(children)

    def create(pool: Pool, loop: Any) -> None:
        loop.consolidate_callback = write
        pool._quick_put = pool.outbound_buffer.append

    writes.write_at_once(Pool, create)(pool, hub)
    pool.on_poll_start()

    assert (pool.written, hub.consolidate_callback) == (written, write)


def test_a_task_is_written_to_a_free_child_when_it_comes(hub: CountingHub) -> None:
    pool = Pool(SCHED_STRATEGY_FAIR, 0, {1, 2})

    job = SimpleNamespace(_payload=(memoryview(b"size"), memoryview(b"task"), 4))

    def create(pool: Pool, loop: Any) -> None:
        loop.consolidate_callback = pool.written.append
        pool._quick_put = pool.outbound_buffer.append

    writes.write_at_once(Pool, create)(pool, hub)
    pool._quick_put(job)

    assert (pool.outbound_buffer, pool.written) == ([job], [[3]])


@pytest.mark.parametrize(
    ("size", "length", "rest"), [(PIPE_BUF - 4, PIPE_BUF, 0), (PIPE_BUF - 3, 4, PIPE_BUF - 3)]
)
def test_a_task_that_a_pipe_takes_whole_or_not_is_written_with_its_length(
    size: int, length: int, rest: int
) -> None:
    job = SimpleNamespace(_payload=(memoryview(b"size"), memoryview(b"x" * size), size))

    writes.join_length_and_body(job)

    first, body, left = job._payload
    assert (len(first), len(body), left) == (length, rest, rest)
    assert b"".join((first, body)) == b"size" + b"x" * size


def test_children_that_hold_several_tasks_are_written_to_as_celery_does(hub: CountingHub) -> None:
    pool = Pool(SCHED_STRATEGY_FCFS, 1, set())

    def create(pool: Pool, loop: Any) -> None:
        loop.consolidate_callback = pool.written.append
        pool.on_poll_start = print

    writes.write_at_once(Pool, create)(pool, hub)

    assert pool.on_poll_start is print
