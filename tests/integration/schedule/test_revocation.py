"""What is revoked never runs: not here, not after a restart, whoever revoked it and how."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import StampingVisitor
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult

from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.control_tasks import tasks_of
from tests.integration.conftest import MakeApp
from tests.support import SHORT_LEASE, TIMEOUT
from tests.support.scene import Control
from tests.support.stopped import stop

if TYPE_CHECKING:
    from tests.support.travelling import TravellingControl

Way = Callable[[Control, AsyncResult], None]


class Stamp(StampingVisitor):
    """Stamps all tasks with the customer for whom they are."""

    def __init__(self, customer: str) -> None:
        self.customer = customer

    def on_signature(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"customer": self.customer}


def send(control: Control, key: str, customer: str = "them", **options: Any) -> AsyncResult:
    """Send a task with a stamp."""
    sig = control.tasks["work"].s(key).set(task_id=key, **options)
    sig.stamp(Stamp(customer))
    return sig.apply_async()


def by_result(control: Control, result: AsyncResult) -> None:
    result.revoke()


def by_ids(control: Control, result: AsyncResult) -> None:
    control.app.control.revoke([result.id, "another one"])


def by_stamp(control: Control, result: AsyncResult) -> None:
    control.app.control.revoke_by_stamped_headers({"customer": ["us", "nobody"]})


def by_command_line(control: Control, result: AsyncResult) -> None:
    """Revoke as people do; nobody answers, since no worker runs, and it lasts all the same."""
    command_line(control, "revoke", result.id)


def by_stamp_on_the_command_line(control: Control, result: AsyncResult) -> None:
    command_line(control, "revoke_by_stamped_headers", "customer=us")


def command_line(control: Control, *args: str) -> None:
    conf = control.app.conf
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.control_tasks:app"]
    command += ["-b", conf.broker_url, "--result-backend", conf.result_backend]
    done = subprocess.run(
        [*command, "control", *args], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert "No nodes replied" in done.stderr, done


WAYS = [by_result, by_ids, by_stamp, by_command_line, by_stamp_on_the_command_line]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__.replace("_", " "))
def revoke(request: pytest.FixtureRequest) -> Way:
    way: Way = request.param
    return way


def test_what_is_scheduled_is_removed_at_once(control: Control, revoke: Way) -> None:
    send(control, "spared", countdown=300)
    before = control.unfinished()
    result = send(control, "revoked", "us", countdown=60)
    assert control.unfinished() != before

    with control.watching() as told:
        revoke(control, result)

        assert control.unfinished() == before
        assert result.state == "REVOKED"
        with pytest.raises(TaskRevokedError):
            result.get(timeout=TIMEOUT)
        wait_until(lambda: told, TIMEOUT, "its event")
    assert told == [("task-revoked", "revoked")]


@pytest.mark.conformance
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_what_is_ready_is_refused_by_workers_that_start_later(control: Control, pool: str) -> None:
    at_once = [send(control, f"at once {n}", "us") for n in range(2)]
    promoted = [send(control, f"promoted {n}", "us", countdown=60) for n in range(2)]
    for result in promoted:
        assert control.delayq.run_now(result.id)
    assert len(control.ready()) == 4

    by_result(control, at_once[0])
    by_result(control, promoted[0])
    by_stamp(control, promoted[1])
    spared = send(control, "spared")
    with control.watching() as told:
        control.start(pool)
        assert spared.get(timeout=TIMEOUT) == "spared"
        control.wait_empty()

    results = [*at_once, *promoted]
    assert [result.state for result in results] == ["REVOKED"] * 4
    assert control.runs("id") == ["spared"]
    revoked = sorted(id for kind, id in told if kind == "task-revoked")
    assert revoked == ["at once 0", "at once 1", "promoted 0", "promoted 1"]
    assert list(control.delayq.store.dead_letters.all("celery")) == []


@pytest.mark.parametrize("way", [by_ids, by_stamp], ids=["ids", "stamp"])
def test_what_a_killed_worker_held_is_refused_by_the_next_one(control: Control, way: Way) -> None:
    conf = {"worker_prefetch_multiplier": 12}
    doomed = control.start(conf=conf, delayq={"lease": SHORT_LEASE})
    control.tasks["work"].apply_async(("blocking", "", "gate"), task_id="blocking")
    control.wait_runs(1)
    result = send(control, "revoked", "us")
    delayed = send(control, "another one", "us", countdown=0.1)
    wait_until(
        lambda: control.leased_ids() == {"blocking", "revoked", "another one"},
        TIMEOUT,
        "it holds all",
    )

    stop(doomed.pid)  # it learns nothing of the revocation
    way(control, result)
    doomed.kill()
    assert control.leased_ids() == {"blocking", "revoked", "another one"}
    control.open("gate")
    control.start(conf=conf, delayq={"lease": SHORT_LEASE})

    spared = send(control, "spared")
    assert spared.get(timeout=TIMEOUT) == "spared"
    control.wait_empty()
    assert (result.state, delayed.state) == ("REVOKED", "REVOKED")
    assert sorted(control.runs("id")) == ["blocking", "blocking", "spared"]


@pytest.mark.parametrize("by", ["id", "stamp"])
def test_what_a_stock_client_revokes_stays_revoked(
    control: Control, delayq_redis: RedisUnderTest, by: str
) -> None:
    """Its broadcast reaches a worker, which sees to those that start later."""
    first = control.start("threads")
    wait_until(control.listeners, TIMEOUT, "a worker that hears broadcasts")
    scheduled = send(control, "scheduled", "us", countdown=60)
    elsewhere = send(control, "elsewhere", "us", queue="aside")
    later = send(control, "later", "us", queue="aside", countdown=60)
    stock = Celery("stock", broker=delayq_redis.url, set_as_current=False)

    if by == "id":
        stock.control.revoke([each.id for each in (scheduled, elsewhere, later)])
    else:
        stock.control.revoke_by_stamped_headers({"customer": "us"})

    wait_until(lambda: not control.scheduled("aside"), TIMEOUT, "removed")
    wait_until(lambda: scheduled.state == later.state == "REVOKED", TIMEOUT, "both are revoked")
    stock.close()
    first.stop()
    assert control.ready("aside") == ["elsewhere"]
    control.start("threads", queues=["aside"])
    assert send(control, "spared", queue="aside").get(timeout=TIMEOUT) == "spared"
    control.wait_empty("aside")
    assert elsewhere.state == "REVOKED"
    assert control.runs("id") == ["spared"]


@pytest.mark.parametrize("way", [by_ids, by_stamp], ids=["ids", "stamp"])
def test_revoked_ids_are_forgotten_in_time(make_app: MakeApp, control: Control, way: Way) -> None:
    options = {"revoke_expires": 1.0}
    control.app = tasks_of(make_app(broker_transport_options={"delayq": options}))
    result = send(control, "revoked", "us")
    way(control, result)
    control.wait_past(control.now() + 1.1)

    control.start("solo", delayq=options)

    control.wait_runs(1)
    control.wait_empty()
    assert control.runs("id") == ["revoked"]


@pytest.mark.parametrize("late", [True, False], ids=["late ack", "early ack"])
def test_a_running_task_is_terminated(control: Control, late: bool) -> None:
    control.start(conf={"at_least_once": late})
    result = control.tasks["work"].apply_async(("a", "", "gate"), countdown=0.1)
    control.wait_runs(1)
    if late:
        assert control.delayq.get(result.id) is not None
    else:
        wait_until(lambda: control.delayq.get(result.id) is None, TIMEOUT, "it is acked early")

    with control.watching() as told:
        result.revoke(terminate=True)
        with pytest.raises(TaskRevokedError, match="terminated"):
            result.get(timeout=TIMEOUT)
        assert control.tasks["work"].delay("b").get(timeout=TIMEOUT) == "b"
        wait_until(lambda: ("task-revoked", result.id) in told, TIMEOUT, "its event")
    control.wait_empty()
    assert control.runs("key") == ["a", "b"]
    assert told.count(("task-revoked", result.id)) == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_running_task_that_is_revoked_is_held_until_it_has_ended(
    control: Control, pool: str
) -> None:
    control.start(pool, concurrency=2, conf={"task_acks_late": True})
    result = control.tasks["work"].apply_async(kwargs={"gate": "end"}, task_id="runs")
    control.wait_runs(1)

    control.app.control.revoke("runs", reply=True, timeout=TIMEOUT, limit=1)
    # With these the worker learns what is stored of the revoke.
    for key in ("a", "b"):
        assert control.tasks["work"].delay(key).get(timeout=TIMEOUT) == key

    assert "runs" in control.leased_ids()
    assert result.state == "PENDING"
    control.open("end")
    result.get(timeout=TIMEOUT)
    control.wait_empty()


@pytest.mark.run_by("test")
@pytest.mark.parametrize("countdown", [None, 60], ids=["ready", "scheduled"])
def test_a_chord_with_a_revoked_member_fails_as_on_stock_celery(
    control: TravellingControl, countdown: float | None
) -> None:
    work = control.tasks["work"]
    members = [work.s(1), work.s(2).set(countdown=countdown, task_id="revoked"), work.s(3)]
    result = chord(members)(control.tasks["total"].s())

    control.app.control.revoke("revoked")
    control.run()

    with pytest.raises(ChordError, match="Dependency revoked raised"):
        control.app.AsyncResult(result.id).get(timeout=TIMEOUT)
    control.wait_empty()
    assert sorted(control.runs("key")) == [1, 3]


def test_revoking_a_group_revokes_its_members(control: Control) -> None:
    members = [control.tasks["work"].s(n).set(countdown=60) for n in range(3)]
    spared = send(control, "spared", countdown=60)
    result = group(members).apply_async()
    assert len(control.scheduled()) == 4

    result.revoke()

    assert control.scheduled() == [(spared.id, 0)]
    assert [each.state for each in result] == ["REVOKED"] * 3


@pytest.mark.run_by("test")
def test_what_follows_a_revoked_task_of_a_chain_does_not_run(control: TravellingControl) -> None:
    work = control.tasks["work"]
    result = chain(work.si(1), work.si(2).set(countdown=60), work.si(3)).apply_async()
    control.run(0)
    assert control.scheduled() == [(result.parent.id, 0)]

    result.parent.revoke()

    control.wait_empty()
    after = work.delay("after")
    control.run()
    assert after.get(timeout=TIMEOUT) == "after"
    assert control.runs("key") == [1, "after"]
    assert [result.parent.state, result.state] == ["REVOKED", "PENDING"]


@pytest.mark.parametrize("late", [True, False], ids=["late ack", "early ack"])
def test_a_retry_that_waits_is_revoked(control: Control, late: bool) -> None:
    control.start(conf={"at_least_once": late})
    result = control.tasks["work"].apply_async(("a", "retry", "gate"))
    control.wait_runs(1)
    control.open("gate")
    wait_until(lambda: result.state == "RETRY", TIMEOUT, "its retry waits")
    assert control.scheduled() == [(result.id, 1)]

    result.revoke()

    control.wait_empty()
    assert result.state == "REVOKED"
    assert control.tasks["work"].apply_async(("b",), countdown=0.6).get(timeout=TIMEOUT) == "b"
    assert control.runs("key") == ["a", "b"]
