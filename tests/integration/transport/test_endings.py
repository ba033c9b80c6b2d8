"""Every way a task can end, whatever happens to its connection meanwhile.

What is to come of each is said in `tests.support.endings.cells`; the table of what there cannot be
stands there, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.endings.backend_calls import LEFT_OUT, led_to, named
from tests.support.endings.cells import Outcome, World, cells, expected, worlds
from tests.support.endings.stage import Stage
from tests.support.proxy import Proxy
from tests.support.scene import StartWorker

#: What `make test` runs.
SHORT = {
    World("prefork", "late", "running", "at once"),
    World("threads", "early", "running", "at once"),
    World("threads", "early", "ended", "at the end"),
    World("threads", "early", results="counters"),
}


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(world, id=str(world), marks=[] if world in SHORT else pytest.mark.full)
        for world in worlds()
    ],
)
def test_each_task_comes_to_its_end(
    world: World,
    delayq_redis_factory: Callable[[], EmbeddedRedis],
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> None:
    wanted = {cell.id: expected(world, cell) for cell in cells(world)}
    broker = delayq_redis_factory()
    with Proxy(broker.port) as proxy:
        stage = Stage(world, cells(world), delayq_worker, broker, proxy, delayq_redis.url)
        try:
            stage.play()
            with suppress(TimeoutError):
                wait_until(lambda: not (differences(stage.outcomes(), wanted) or stage.others()))
            found = differences(stage.outcomes(), wanted), stage.others()
            assert found == ({}, set()), stage.stacks()
            if world.results == "away":
                endings = {cell.ending for cell in stage.cells}
                assert named(stage.backend_calls()) - {*LEFT_OUT} == led_to(world, endings)
            stage.stop()
            found = differences(stage.outcomes(), wanted), stage.others()
            assert found == ({}, set()), stage.stacks()
        finally:
            stage.close()


def differences(
    found: dict[str, Outcome], wanted: dict[str, Outcome]
) -> dict[str, tuple[Outcome, Outcome]]:
    """Return by id what was found and what was wanted, where these differ.

    Of the reason of a dead letter only the beginning is wanted.
    """
    return {
        id: (found[id], outcome)
        for id, outcome in wanted.items()
        if found[id]._replace(result=found[id].result[: len(outcome.result)]) != outcome
        or (outcome.result in ("done", "retried", "requeued") and found[id] != outcome)
    }
