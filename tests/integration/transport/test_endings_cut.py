"""Tasks that fail after a lost connection are dead letters, as those that fail before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from kombu import Connection

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.letters import Buried
from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.outcome_tasks import failure
from tests.support.faults.ledger import Ledger

IDS = [f"task-{n}" for n in range(20)]


@pytest.fixture
def ledger(delayq_redis: RedisUnderTest) -> Iterator[Ledger]:
    ledger = Ledger(delayq_redis.url)
    yield ledger
    ledger.close()


@pytest.mark.parametrize("acks", ["late", "early"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_that_fail_after_a_cut_are_dead_letters(
    pool: str,
    acks: str,
    ledger: Ledger,
    delayq_redis: RedisUnderTest,
    delayq_redis_factory: Callable[[], EmbeddedRedis],
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    broker = delayq_redis_factory()
    client, url = broker.client(), broker.url_for("delayq+redis")
    late = {"task_acks_late": acks == "late", "task_reject_on_worker_lost": acks == "late"}
    delayq_worker(
        "tests.apps.outcome_tasks:app",
        pool=pool,
        concurrency=len(IDS),
        broker_url=url,
        env={"OUTCOME_LEDGER": delayq_redis.url, "OUTCOME_SETTINGS": json.dumps(late)},
        extra_args=FAST_START,
    )
    with Connection(url) as connection:
        for id in IDS:
            failure.apply_async(("gate",), task_id=id, connection=connection)
    wait_until(lambda: set(ledger.starts()) == set(IDS), what="all run")

    client.client_kill_filter(_type="normal")
    delayq_redis.client.set("gate:gate", 1)

    wait_until(lambda: client.hlen("{celery}:dead") == len(IDS), what="all are dead letters")
    wait_until(lambda: not client.keys("*:leased:*"), what="nothing is held")
    dead = client.hgetall("{celery}:dead")
    letters = [Buried.unpack(id.decode(), data) for id, data in dead.items()]
    assert {letter.id: letter.reason for letter in letters} == dict.fromkeys(
        IDS, "failed: Failed: no luck"
    )
    assert ledger.starts() == dict.fromkeys(IDS, 1)
    client.close()
