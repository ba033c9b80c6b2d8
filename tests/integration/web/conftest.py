"""A schedule with tasks in every state, for the pages to show."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ, Limit
from tests.integration.conftest import MakeApp
from tests.support.dead_letters import details, message
from tests.support.flower import page_paths


class Scene(NamedTuple):
    """The ids of tasks by their state."""

    delayq: DelayQ
    waiting: str
    ready: str
    dead: str
    elsewhere: str


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(broker_transport_options={"delayq": {"history": 100}})


@pytest.fixture
def scene(app: Celery) -> Scene:
    return scene_of(app)


@pytest.fixture
def prepared(scene: Scene) -> Scene:
    """The scene with what can be resumed and unset."""
    prepare(scene)
    return scene


def paths_of(scene: Scene) -> dict[str, str]:
    """Return the paths of all pages, and of those of objects."""
    tasks = (scene.waiting, scene.dead)
    return page_paths(task=tasks, entry=("digest",), limit=("stripe",))


def scene_of(app: Celery) -> Scene:
    """Fill the Redis of an app."""
    delayq = DelayQ.of(app)
    waiting = app.send_task("shop.mail", ("ada", 17), task_id="mail-17", countdown=3600)
    for number in range(3):
        app.send_task("shop.report", (number,), countdown=7200 + number)
    elsewhere = app.send_task("shop.mail", ("bob",), queue="slow", countdown=60)
    ready = app.send_task("shop.mail", ("eve",))
    dead = delayq.store.dead_letters
    dead.add("celery", "mail-3", "failed: ValueError: declined", message("mail-3"), details())
    for name, minute in (("cleanup", "0"), ("digest", "*/30")):
        delayq.periodic.add(name, crontab(minute=minute), "shop.report", ("ada",))
    for store in delayq.session.stores:
        store.task_limits.announce({"stripe": Limit("stripe", rate="100/m").definition.text})
    return Scene(delayq, waiting.id, ready.id, "mail-3", elsewhere.id)


def prepare(scene: Scene) -> None:
    """Add what can be resumed and unset."""
    delayq = scene.delayq
    delayq.pause(queue="paused")
    delayq.periodic.add("off", 60, "shop.report")
    delayq.periodic.pause("off")
    delayq.limits.set("stripe", concurrency=1)
