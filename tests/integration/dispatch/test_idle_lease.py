"""An idle worker leases what its own dispatcher promotes, in the same round trip."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.proxy import Fault, Proxy
from tests.support.scene import Leases

PROMOTE, LEASE, WAIT = "dispatch/promote", "leases/acquire", "BRPOP"

#: What may happen to the two calls that go along together.
FAULTS = [*product((PROMOTE, LEASE), (Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.STALL))]


class Idle(NamedTuple):
    """An idle worker, behind a proxy."""

    leases: Leases
    proxy: Proxy
    worker: WorkerProcess

    def calls(self) -> tuple[int, ...]:
        """Return how often it has promoted, leased and begun to wait."""
        return tuple(self.proxy.traffic[name] for name in (PROMOTE, LEASE, WAIT))

    def settle(self) -> None:
        """Wait until it waits for what comes."""
        clients = self.leases.client.client_list
        wait_until(
            lambda: any(each["cmd"] == "brpop" and "b" in each["flags"] for each in clients()),
            what="it waits",
        )


@pytest.fixture(params=["solo", "prefork", "threads"])
def idle(
    request: pytest.FixtureRequest, leases: Leases, delayq_redis: RedisUnderTest
) -> Iterator[Idle]:
    with Proxy(delayq_redis.port) as proxy:
        worker = leases.start(
            request.param,
            concurrency=1 if request.param == "solo" else 2,
            broker_url=f"delayq+redis://127.0.0.1:{proxy.port}/0",
        )
        worker.wait_ready()
        idle = Idle(leases, proxy, worker)
        idle.settle()
        yield idle


def send(idle: Idle, id: str, countdown: float = 0.2) -> None:
    idle.leases.app.send_task("lease.add", (1, 1), task_id=id, countdown=countdown)


def test_a_task_that_becomes_due_costs_one_round_trip(idle: Idle) -> None:
    send(idle, "first")  # then Redis knows the scripts
    idle.leases.wait_runs(1)
    idle.settle()
    before = idle.calls()
    for number in range(5):
        send(idle, str(number))
        idle.leases.wait_runs(number + 2)
    after = idle.calls()

    promoted, leased, waited = (b - a for a, b in zip(before, after, strict=True))
    assert (promoted, leased) == (5, 5)
    assert waited <= 1  # once after the first task


def test_what_is_sent_to_run_at_once_is_leased_between_those_that_are_due(idle: Idle) -> None:
    for number in range(10):
        send(idle, str(number), 0.2 * (number % 2))

    idle.leases.wait_runs(10)
    assert sorted(idle.leases.runs("id"), key=int) == [str(number) for number in range(10)]
    idle.leases.wait_empty()


def test_a_reply_that_is_lost_costs_no_task_and_no_time(idle: Idle) -> None:
    late = {}
    for what, fault in FAULTS:
        idle.settle()
        id = f"{what} {fault.name}"
        rule = idle.proxy.on(what, fault, seconds=0.2)
        send(idle, id)
        assert rule.fired.wait(10), id
        begun = idle.leases.now()
        wait_until(lambda id=id: id in idle.leases.runs("id"), 30, what=id)  # type: ignore[misc]
        late[id] = idle.leases.now() - begun
        idle.proxy.forget_rules()

    idle.leases.wait_empty()
    assert sorted(idle.leases.runs("id")) == sorted(late)
    # A lease lasts 30 s, and a wait 15 s.
    assert max(late.values()) < 10, late


def test_a_worker_that_stops_meanwhile_leaves_the_task_to_others(idle: Idle) -> None:
    idle.proxy.hold(LEASE)
    send(idle, "left")
    wait_until(lambda: idle.proxy.held, what="it leases")
    idle.worker.term()
    idle.worker.wait(30)
    idle.proxy.cut_all()
    assert idle.leases.runs("id") == []

    idle.leases.start("solo")
    idle.leases.wait_runs(1)
    idle.leases.wait_empty()
