"""``inspect().scheduled()`` tells what waits in Redis as stock tells what waits in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from celery import Celery

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.scene import Control, StartWorker, answer, start_worker


def scheduled_of(app: Celery, worker: WorkerProcess) -> Any:
    return answer(app, worker.hostname, "scheduled")


def ids(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["request"]["id"] for entry in entries]


@pytest.mark.parametrize("pool", ["threads", "prefork", "gevent"])
def test_a_worker_tells_what_is_next_in_its_queues(control: Control, pool: str) -> None:
    work = control.tasks["work"]
    worker = control.start(pool, queues=["a", "b"])
    other = control.start("solo", queues=["aside", "empty"])
    assert scheduled_of(control.app, worker) == []
    with control.app.producer_pool.acquire() as producer:
        for n in reversed(range(70)):
            options = {"producer": producer, "task_id": str(n), "countdown": 7200 + n}
            work.apply_async((n,), queue="ab"[n % 2], **options)
            work.apply_async((n,), queue="aside", **{**options, "task_id": f"aside {n}"})

    assert ids(scheduled_of(control.app, worker)) == [str(n) for n in range(70)]
    assert ids(scheduled_of(control.app, other)) == [f"aside {n}" for n in range(70)]

    with control.app.producer_pool.acquire() as producer:
        for n in range(70, 120):
            work.apply_async((n,), queue="a", producer=producer, task_id=str(n), countdown=7200 + n)
    assert ids(scheduled_of(control.app, worker)) == [str(n) for n in range(100)]
    control.app.control.revoke(["0", "3"])
    control.delayq.reschedule("99", countdown=3600)
    assert ids(scheduled_of(control.app, worker)) == [
        str(n) for n in (99, 1, 2, *range(4, 99), 100, 101)
    ]


def test_who_only_asks_workers_keeps_no_leases(
    control: Control, delayq_redis: RedisUnderTest
) -> None:
    worker = control.start("threads")

    assert answer(control.app, worker.hostname, "ping")

    (worker_id,) = delayq_redis.client.scan_iter("delayq:worker_id:*")
    assert f".{worker.pid}." in worker_id.decode()


ZONES = [
    pytest.param(timezone.utc, id="UTC"),
    pytest.param(timezone(timedelta(hours=5, minutes=30)), id="+05:30", marks=pytest.mark.full),
    pytest.param(None, id="naive", marks=pytest.mark.full),
]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("ours", ["tests.apps.control_tasks:app", "tests.apps.stock_tasks:app"])
def test_the_answer_is_that_of_stock_celery(
    delayq_worker: StartWorker,
    delayq_redis: RedisUnderTest,
    delayq_broker_url: str,
    ours: str,
    zone: timezone | None,
) -> None:
    """Both with the extension, and with nothing but the URL."""
    eta = datetime.now(timezone.utc) + timedelta(hours=1, microseconds=1)
    eta = eta.astimezone(zone) if zone else eta.replace(tzinfo=None)
    call: dict[str, Any] = {"kwargs": {"y": [2, {"z": None}]}, "eta": eta, "priority": 3}
    answers = []
    for url, module in (
        (delayq_redis.url, "tests.apps.stock_tasks:app"),
        (delayq_broker_url, ours),
    ):
        sender = Celery("sender", broker=url, set_as_current=False)
        worker = delayq_worker(
            module, pool="solo", queues=["one"], broker_url=url, extra_args=FAST_START
        )
        sender.send_task("stock.add", (1,), queue="one", task_id="later", **call)
        wait_until(partial(scheduled_of, sender, worker), TIMEOUT, "it is there")

        [scheduled], known = (
            scheduled_of(sender, worker),
            answer(sender, worker.hostname, "query_task", ["later", "unknown"]),
        )

        assert scheduled["request"].pop("hostname") in (worker.hostname, None)
        assert [answer(sender, worker.hostname, what) for what in ("reserved", "active")] == [
            [],
            [],
        ]
        answers.append((scheduled, known))
        worker.stop()
        delayq_redis.client.flushall()
        sender.close()

    (stock, known_to_stock), (told, known) = answers
    assert told == stock
    [state, request] = known["later"]
    assert (state, request.pop("hostname")) == ("scheduled", None)
    assert request == stock["request"]
    if known_to_stock:  # Celery 5.7 and newer
        known_to_stock["later"][1].pop("hostname")
        assert known == known_to_stock


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        (("x" * 20_000,), {"y": 1}, None),
        ((), {"y": "é\N{PEAR}"}, ()),
        (({"a": [1, 2.5, None]}, "b"), {}, ()),
    ],
    ids=["huge", "unicode", "nested"],
)
def test_arguments_are_reported_as_they_are_unless_they_are_huge(
    control: Control, args: Any, kwargs: Any, told: Any
) -> None:
    worker = control.start("solo")
    control.app.send_task("who.knows", args, kwargs, countdown=3600)

    [entry] = scheduled_of(control.app, worker)

    request = entry["request"]
    if told is None:
        assert len(request["args"]) < 2000
        assert request["args"].startswith("('xxx")
        assert request["kwargs"] == "{'y': 1}"
    else:
        assert (request["args"], request["kwargs"]) == ([*args], kwargs)


def test_what_cannot_be_read_does_not_spoil_the_answer(control: Control) -> None:
    worker = control.start("solo")
    control.app.send_task("work", (1,), task_id="good", countdown=7200)
    control.app.send_task("work", (1,), task_id="bad", countdown=3600)
    control.client.hset("{celery}:entries", "bad", b"\xff nonsense")
    control.app.send_task("work", (1,), task_id="yaml", countdown=9000, serializer="yaml")

    assert ids(scheduled_of(control.app, worker)) == ["bad", "good", "yaml"]


def test_paused_and_revoked_tasks_are_reported(control: Control) -> None:
    delayq = control.delayq
    worker = control.start("solo")
    delayq.pause(task="work")
    control.app.send_task("work", (1,), task_id="paused_due")
    control.app.send_task("work", (1,), task_id="later", countdown=60)
    wait_until(lambda: len(control.scheduled()) == 2, TIMEOUT, "it is paused and due")
    control.app.send_task("other", (1,), task_id="gone", countdown=60)
    control.app.control.revoke("gone")

    assert sorted(ids(scheduled_of(control.app, worker))) == ["later", "paused_due"]
    assert answer(control.app, worker.hostname, "revoked") == ["gone"]


def test_what_workers_say_of_themselves_has_no_password_of_the_broker(
    make_app: MakeApp,
    delayq_worker: StartWorker,
    delayq_redis_factory: Callable[..., EmbeddedRedis],
) -> None:
    server = delayq_redis_factory(password="s3cret")
    url = server.url_for("delayq+redis")
    worker = start_worker(
        delayq_worker, "delayq_tasks", "threads", broker_url=url, result_backend=None
    )
    app = make_app(broker=url)

    stats, *others = (answer(app, worker.hostname, what) for what in ("stats", "conf", "report"))
    told = json.dumps([stats, *others], default=str)

    broker = stats["broker"]
    assert (broker["hostname"], broker["port"]) == ("127.0.0.1", server.port)
    assert broker["transport"] == "delayq+redis"
    assert broker.keys().isdisjoint(
        {"userid", "password", "ssl", "transport_options", "alternates"}
    )
    assert "s3cret" not in told
