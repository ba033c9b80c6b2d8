"""What only workers on Redis do, beside the contract of all brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import module_app
from tests.support import TIMEOUT
from tests.support.kinds import assert_not_early
from tests.support.scene import AppScene, StartWorker

pytestmark = pytest.mark.each_server


@pytest.fixture
def tasks(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[Any]:
    """The module of tasks, whose app uses the Redis of this test."""
    from tests.apps import delayq_tasks

    with module_app(delayq_tasks.app, delayq_redis, delayq_broker_url):
        yield delayq_tasks


class Delayed(AppScene):
    """Starts workers of the tasks, and shows their runs."""

    module, pool, prefetch = "delayq_tasks", "solo", 4


@pytest.fixture
def scene(tasks: Any, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> Delayed:
    return Delayed(delayq_redis, tasks.app, delayq_worker)


def test_without_ack_emulation_tasks_run_as_on_stock(scene: Delayed, tasks: Any) -> None:
    scene.start(conf={"broker_transport_options": {"ack_emulation": False}})

    assert tasks.add.apply_async((1, 2), countdown=0.2).get(timeout=TIMEOUT) == 3
    assert tasks.add.delay(3, 4).get(timeout=TIMEOUT) == 7
    assert not scene.leased_ids()


@pytest.mark.parametrize(
    ("conf", "parts"),
    [
        (
            {"task_acks_late": False},
            "transport on, DelayQ(app) on, late acks off, dispatcher on",
        ),
        (
            {
                "task_acks_late": True,
                "broker_transport_options": {"delayq": {"dispatch": False}},
            },
            "transport on, DelayQ(app) on, late acks on, dispatcher off",
        ),
    ],
)
def test_the_banner_shows_our_scheme_and_what_is_on(
    scene: Delayed, delayq_redis: RedisUnderTest, conf: dict[str, Any], parts: str
) -> None:
    worker = scene.start(conf=conf)

    lines = [line.strip() for line in worker.log.splitlines()]
    banner = [line[line.index(".>") :] for line in lines if ".>" in line]

    [transport] = [line for line in banner if "transport:" in line]
    assert re.fullmatch(
        rf"\.> transport:   delayq\+redis://\w*:\*\*@127\.0\.0\.1:{delayq_redis.port}/0", transport
    )
    assert f".> delayq:      {parts}" in banner


def test_a_countdown_that_waited_in_a_ready_list_is_not_counted_again(
    scene: Delayed, tasks: Any, delayq_redis: RedisUnderTest
) -> None:
    """DelayQ(app) came before the change of the URL: its messages carry their countdown."""
    app = tasks.app
    with app.connection_for_write(delayq_redis.url) as connection:
        app.send_task("add", (1, 2), countdown=2, connection=connection, task_id="noted")
    assert scene.ready() == ["noted"]
    scene.start()

    scene.wait_runs(1)

    [run] = scene.read()
    assert_not_early(run)
    assert scene.scheduled() == []


def test_an_ack_that_went_with_an_idle_connection_is_sent_again(
    delayq_worker: StartWorker, tasks: Any, delayq_redis_factory: Callable[..., EmbeddedRedis]
) -> None:
    """The server cuts a connection that is idle for a second; the task takes two."""
    broker = delayq_redis_factory(options={"timeout": 1})
    url = broker.url_for("delayq+redis")
    delayq_worker("tests.apps.stock_tasks:app", pool="prefork", broker_url=url)
    app = tasks.app
    with app.connection_for_write(url) as connection:
        for n in range(2):
            app.send_task("stock.nap", (2.0,), connection=connection, task_id=f"nap-{n}")

    for n in range(2):
        assert app.AsyncResult(f"nap-{n}").get(timeout=TIMEOUT) == "rested"
    with broker.client() as client:
        wait_until(lambda: not client.keys("*:leased:*"), what="both are acknowledged")
