"""A task that ends each child that reads it, without a worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_delayq.integration.pool import tasks


class Lost(SimpleNamespace):
    """A pool that finds that children have died which were to run one task."""

    def __init__(self) -> None:
        super().__init__(given_on=0, crashed=False, job=SimpleNamespace(_accepted=False))
        self.job._ack = lambda *_: setattr(self.job, "_accepted", True)

    def process_flush_queues(self, _child: Any) -> None:
        """Read nothing: the child has reported nothing."""

    def mark_as_worker_lost(self, _job: Any, _exitcode: int) -> None:
        self.crashed = True

    def give_on(self, job: Any, _child: Any) -> None:
        self.given_on += not job._accepted


@pytest.mark.parametrize(
    ("children", "given_on", "crashed"),
    [([1], 1, False), ([1, 1, 1, 1], 4, False), ([1, 2, 2], 3, False), ([1, 1, 2, 3], 3, True)],
)
def test_a_task_has_crashed_when_three_children_have_died_of_it(
    children: list[int], given_on: int, crashed: bool
) -> None:
    """The pool names a child again while the task waits for another one."""
    pool = Lost()
    on_child_lost = tasks.count_lost_children(Lost, Lost.give_on)

    for pid in children:
        on_child_lost(pool, pool.job, SimpleNamespace(pid=pid, exitcode=1))

    assert (pool.given_on, pool.crashed) == (given_on, crashed)
