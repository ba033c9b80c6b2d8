"""Scenes without a worker: tasks run in the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.apps import control_tasks, retry_tasks
from tests.apps.retry_tasks import RetryScene
from tests.support import TIMEOUT
from tests.support.scene import AppScene, Control

#: Seconds by which the clock moves where a test waits: longer than all retries of a test together.
WAIT_SECONDS = 60


class Travelling(AppScene):
    """A scene whose waits move the clock."""

    def __init__(self, redis: RedisUnderTest, app: Celery, travel: TimeTravel) -> None:
        super().__init__(redis, app, _no_worker)
        self.travel = travel

    def run(self, seconds: float = WAIT_SECONDS) -> None:
        """Run what is due now and in the next seconds."""
        self.travel.travel(seconds=seconds)

    def wait(self, condition: Callable[[], object], what: str = "the condition") -> None:
        self.run()
        assert condition(), what

    def wait_runs(self, count: int, _timeout: float = TIMEOUT) -> None:
        self.run()
        assert self.client.llen("log") >= count, self.runs("id", "retries")

    def wait_empty(self, queue: str = "celery") -> None:
        self.run()
        assert self.unfinished(queue) == {}

    def wait_past(self, moment: float) -> None:
        self.travel.travel(seconds=max(0.0, moment - self.now()) + 0.001)


class TravellingControl(Travelling, Control):
    """`Control` without workers."""


class TravellingScene(Travelling, RetryScene):
    """`RetryScene` without workers."""

    def wait_state(self, id: str, wanted: str = "SUCCESS") -> Any:
        self.run()
        assert self.state(id) == wanted
        return AsyncResult(id, app=self.app).result

    def wait_dead(self, *ids: str) -> None:
        self.run()
        found = {dead_letter.task_id for dead_letter in self.delayq.dead_letters()}
        assert found >= {*ids}, self.runs("id", "retries")

    def ends(self, results: list[AsyncResult]) -> dict[str, str]:
        self.run()
        return super().ends(results)

    def assert_waits(self, waits: dict[str, list[float]]) -> None:
        """Check that each attempt came exactly in time."""
        assert {id: [round(wait, 3) for wait in self.waits(id)] for id in waits} == waits


def travelling_scene(
    kind: str, app: Celery, redis: RedisUnderTest, travel: TimeTravel
) -> TravellingScene | TravellingControl:
    """Return the scene ``scene`` or ``control`` of an app whose tasks are acknowledged late, as
    those of the workers.
    """
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    if kind == "control":
        return TravellingControl(redis, control_tasks.tasks_of(app), travel)
    return TravellingScene(redis, retry_tasks.tasks_of(app), travel)


def _no_worker(*_: Any, **__: Any) -> Any:
    raise AssertionError("tasks of this scene run in the test")
