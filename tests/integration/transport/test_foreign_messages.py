"""Whatever a client of a broker writes: workers live, each message runs or is dead, lists work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu import Exchange, Queue

from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support.foreign_scene import FUZZ, MANY, Foreign, ForeignRabbitMQ, ForeignRedis
from tests.support.scene import StartWorker


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def delayq_broker_url(broker: str, request: pytest.FixtureRequest) -> str:
    """URL of the empty broker."""
    if broker == "rabbitmq":
        return str(request.getfixturevalue("delayq_rabbitmq"))
    return str(request.getfixturevalue("delayq_redis").server.url_for("delayq+redis"))


@pytest.fixture
def scene(
    broker: str, make_app: MakeApp, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> Iterator[Foreign]:
    app = make_app()
    if broker == "redis":
        yield ForeignRedis(delayq_redis, app, delayq_worker)
        return
    rabbitmq = ForeignRabbitMQ(delayq_redis, app, delayq_worker)
    with app.connection_for_write() as connection:
        Queue("celery", Exchange("any", "topic"), "#")(connection.default_channel).declare()
    with rabbitmq.broker_client:
        yield rabbitmq


@pytest.mark.parametrize("examples", [10, pytest.param(30, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("acks_late", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "pool", [pytest.param("threads", marks=pytest.mark.nightly), "solo", "prefork"]
)
def test_no_message_ends_a_worker_and_none_is_lost(
    scene: Foreign, pool: str, acks_late: bool, examples: int
) -> None:
    """Of few examples, and each night of many."""
    scene.worker = scene.start(pool, conf={"task_acks_late": acks_late})

    @settings(FUZZ, max_examples=examples)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        for _ in range(MANY):
            scene.put(data)
        scene.run_last()

    run()
    scene.wait_settled()
    assert len(scene.sent) > 10 * examples
    dead_letters = scene.list_all()
    assert scene.ran()
    assert dead_letters

    replayed = scene.delayq.replay_all(DeadFilter(), everything=True)
    assert sum(replayed.outcomes.values()) == len(dead_letters)
    scene.run_last()
    while dead_letters := scene.list_all():
        scene.delayq.purge_all(DeadFilter(), everything=True)
