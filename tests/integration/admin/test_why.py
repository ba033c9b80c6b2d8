"""``delayq.why`` and the command: a task is brought into each state, and asked about."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Limit, ReasonKind, Why
from celery_delayq.admin.why import reasons
from celery_delayq.model.scheduled import moment
from celery_delayq.store.keys import Layout
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.cli.conftest import CONTROLS, HOSTILE
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT, dead_letters
from tests.support.cli import CommandLine
from tests.support.runs import finished

#: A lease in seconds, and the worker id that has it.
LEASE, ONE = 30.0, "worker-one"


@pytest.fixture
def cli(app: Celery) -> CommandLine:
    return CommandLine(app)


@pytest.fixture
def looked(delayq: DelayQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher has looked in this test."""
    monkeypatch.setattr(reasons, "NO_DISPATCHER_SECONDS", TIMEOUT)
    delayq.store.register("celery")
    delayq.store.next_queue()


def _one(x: str) -> None:
    """Stand for any task."""


def send(app: Celery, id: str = "it", countdown: float = 0.001, **options: Any) -> str:
    """Send a task, by default one that is due when this returns."""
    app.send_task("tasks.add", (1, 2), task_id=id, countdown=countdown, **options)
    if countdown < 1:
        store = DelayQ.of(app).store
        due = store.now_ms() + 2
        wait_until(lambda: store.now_ms() >= due, what="it is due")
    return id


def promote(delayq: DelayQ, queue: str = "celery") -> None:
    wait_until(lambda: delayq.store.promote(queue, Layout(), 10).moved, what="it is promoted")


def lease(delayq: DelayQ, worker_id: str = ONE, number: int = 1, **options: Any) -> Any:
    store = delayq.store
    return store.leases.acquire("celery", worker_id, LEASE, f"{number}", 10, **options)


def kinds(answer: Why) -> list[ReasonKind]:
    return [reason.kind for reason in answer.reasons]


def check(
    delayq: DelayQ,
    cli: CommandLine,
    state: str,
    *expected: ReasonKind,
    id: str = "it",
    code: int = 0,
) -> Why:
    """Check the answer of the call and of the command, and return it."""
    answer = delayq.why(id, ask_workers=False)
    assert (answer.state, kinds(answer)) == (state, [*expected]), answer.text
    ran = cli("why", id)
    assert (ran.code, ran.err) == (code, "")
    assert ran.out.startswith(f"{id}: {state}")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert len(re.findall(r"^  [A-Z]", ran.out, re.MULTILINE)) >= len(answer.reasons)
    told = cli("why", id, "--json")
    assert (told.code, told.json["state"]) == (code, state)
    assert [each["kind"] for each in told.json["reasons"]][-len(expected) :] == [*expected]
    return answer


@pytest.mark.usefixtures("looked")
def test_a_task_that_is_due_later(app: Celery, delayq: DelayQ, cli: CommandLine) -> None:
    send(app, countdown=7200)

    answer = check(delayq, cli, "scheduled", ReasonKind.NOT_DUE)

    assert answer.due == answer.reasons[0].values["due"]
    assert 7100 < answer.reasons[0].values["seconds"] <= 7200
    assert (answer.task, answer.queue) == ("tasks.add", "celery")
    assert re.fullmatch(r"It is due at \S+, in (1h 59m|2h)\.", answer.text)


@pytest.mark.usefixtures("looked")
def test_pauses_and_their_times(app: Celery, delayq: DelayQ, cli: CommandLine) -> None:
    send(app)
    delayq.pause(queue="celery")
    delayq.pause(task="tasks.add")

    answer = check(delayq, cli, "scheduled", ReasonKind.QUEUE_PAUSED, ReasonKind.TASK_PAUSED)

    paused = delayq.paused()
    assert answer.reasons[0].values == {"queue": "celery", "since": paused.queues["celery"]}
    assert answer.reasons[1].values == {"task": "tasks.add", "since": paused.tasks["tasks.add"]}
    delayq.resume(queue="celery")
    delayq.store.promote("celery", Layout(), 10)
    check(delayq, cli, "paused", ReasonKind.TASK_PAUSED)


@pytest.mark.usefixtures("looked")
def test_a_due_task_that_limits_of_its_queue_hold_up(
    make_app: MakeApp, cli: CommandLine, delayq: DelayQ
) -> None:
    app = make_app(
        broker_transport_options={"delayq": {"max_ready": 1, "promote_rate": 2.5}},
    )
    for id in ("first", "second", "it"):
        send(app, id)
    DelayQ.of(app).store.register("celery")
    layout = DelayQ.of(app).store.layout_of("celery")
    wait_until(lambda: delayq.store.promote("celery", layout, 10).moved, what="one is promoted")

    expected = ReasonKind.MAX_READY, ReasonKind.PROMOTE_RATE, ReasonKind.OVERDUE
    answer = check(delayq, cli, "scheduled", *expected)

    assert answer.reasons[0].values == {"ready": 1, "max_ready": 1}
    assert answer.reasons[1].values == {"promote_rate": 2.5}
    assert answer.reasons[2].values["ahead"] <= 1


def test_no_dispatcher(app: Celery, delayq: DelayQ, cli: CommandLine, redis: Redis) -> None:
    send(app)
    check(delayq, cli, "scheduled", ReasonKind.OVERDUE, ReasonKind.NO_DISPATCHER)

    redis.hset("delayq:clock", "seen", delayq.store.now_ms() - 12_000)
    answer = check(delayq, cli, "scheduled", ReasonKind.OVERDUE, ReasonKind.NO_DISPATCHER)

    assert 12 <= answer.reasons[1].values["seconds"] < 60


@pytest.mark.usefixtures("looked")
def test_a_limit_and_a_parent_that_holds_it(app: Celery, delayq: DelayQ, cli: CommandLine) -> None:
    limit = Limit("one at a time", concurrency=1, key="{x}")
    app.task(name="shop.one", limit=limit, acks_late=True, shared=False)(_one)
    delayq.store.task_limits.announce({"one%20at%20a%20time": limit.definition.text})
    send_one: Callable[..., Any] = app.tasks["shop.one"].apply_async
    send_one(("ada",), task_id="parent")
    delayq.store.promote("celery", Layout(), 10)
    assert len(lease(delayq, has_limits=True).messages) == 1
    send_one(("ada",), task_id="other")
    send_one(("ada",), task_id="it", parent_id="parent", priority=9)
    delayq.store.promote("celery", Layout(), 10)
    lease(delayq, number=2, has_limits=True)

    answer = check(delayq, cli, "held", ReasonKind.LIMIT, ReasonKind.PARENT_HAS_PERMIT)

    values = answer.reasons[0].values
    assert (values["limit"], values["key"], values["concurrency"]) == ("one at a time", "ada", 1)
    assert (values["ahead"], values["used"], values["may_go"]) == (1, 1, False)
    assert answer.reasons[1].values == {"parent": "parent", "limit": "one at a time"}
    assert kinds(delayq.why("parent")) == [ReasonKind.LEASED]
    delayq.pause(task="shop.one")
    assert kinds(delayq.why("it"))[0] is ReasonKind.TASK_PAUSED


@pytest.mark.usefixtures("looked")
def test_a_ready_task_without_and_with_a_worker(
    app: Celery,
    delayq: DelayQ,
    cli: CommandLine,
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    for id in ("first", "it"):
        send(app, id)
    promote(delayq)
    if delayq.why("it", ask_workers=False).state != "ready":  # due a moment later
        promote(delayq)

    answer = check(delayq, cli, "ready", ReasonKind.READY)
    assert answer.reasons[0].values == {"ahead": 1}
    assert kinds(delayq.why("it")) == [ReasonKind.NO_CONSUMER, ReasonKind.READY]

    app.send_task("stock.nap", (60,), task_id="napper", countdown=0.01)
    worker = delayq_worker("tests.apps.stock_tasks:app", pool="threads", concurrency=1)
    wait_until(lambda: "napping" in worker.log, what="it runs")
    answer = check(delayq, cli, "running", ReasonKind.LEASED, id="napper")
    values = answer.reasons[0].values
    assert values["worker"] == delayq.find("napper")[0].worker
    assert values["extended"] is not None, values
    assert 0 <= values["extended"] < LEASE
    assert 0 < values["ends"] <= LEASE * 1.01
    send(app, "far", queue="far")
    wait_until(lambda: delayq.find("far")[0].state == "ready", what="its dispatcher promotes it")
    assert kinds(delayq.why("far")) == [ReasonKind.NO_CONSUMER, ReasonKind.READY]
    worker.kill()


@pytest.mark.usefixtures("looked")
def test_a_lease_that_has_ended(
    app: Celery, delayq: DelayQ, cli: CommandLine, redis: Redis
) -> None:
    send(app)
    promote(delayq)
    lease(delayq)
    redis.zadd("{celery}:leases", {ONE: delayq.store.now_ms() - 9_000})

    answer = check(delayq, cli, "running", ReasonKind.LEASE_ENDED)

    assert answer.reasons[0].values["worker"] == ONE
    assert 8 < answer.reasons[0].values["seconds"] < 60
    redis.hdel("delayq:clock", "seen")
    assert kinds(delayq.why("it"))[1:] == [ReasonKind.NO_DISPATCHER]


@pytest.mark.usefixtures("looked")
def test_a_quarantined_task(app: Celery, delayq: DelayQ, cli: CommandLine) -> None:
    send(app)
    promote(delayq)
    for number in (1, 2):
        fields = [field for field, *_ in lease(delayq, number=number).messages]
        delayq.store.leases.requeue("celery", ONE, fields, counted="died", max_deliveries=2)

    answer = check(delayq, cli, "ready", ReasonKind.QUARANTINED)

    assert answer.reasons[0].values == {"deaths": 2}


@pytest.mark.usefixtures("looked")
def test_revoked_expired_and_cancelled(app: Celery, delayq: DelayQ, cli: CommandLine) -> None:
    send(app, countdown=3600, expires=moment(delayq.store.now_ms()) + timedelta(seconds=60))
    delayq.store.control.revoke(60, ["it"])
    expected = ReasonKind.NOT_DUE, ReasonKind.REVOKED, ReasonKind.EXPIRED
    check(delayq, cli, "scheduled", *expected)

    send(app, "ready")
    promote(delayq)
    delayq.cancel("ready")
    answer = check(delayq, cli, "cancelled", ReasonKind.CANCELLED, id="ready")
    assert (answer.task, answer.queue) == ("tasks.add", "celery")

    send(app, "leased")
    promote(delayq)
    lease(delayq)
    delayq.store.control.revoke(60, ["leased"])
    leased = ReasonKind.LEASED, ReasonKind.REVOKED
    answer = check(delayq, cli, "running", *leased, id="leased")
    assert answer.text.endswith("a run that has begun goes on, and no worker begins another one.")

    delayq.store.control.revoke(60, ["early"])
    answer = check(delayq, cli, "revoked", ReasonKind.REVOKED, id="early")
    assert answer.reasons[0].values["since"] <= moment(delayq.store.now_ms())


def test_a_dead_letter(delayq: DelayQ, cli: CommandLine) -> None:
    delayq.store.register("bills")
    message, details = dead_letters.message("it", "shop.bill"), dead_letters.details()
    data = dead_letters.stored(dead_letters.AT, "failed: ValueError", message, details)
    delayq.store.dead_letters.restore("bills", [("it", dead_letters.AT, data)])

    answer = check(delayq, cli, "dead", ReasonKind.DEAD)

    since = moment(dead_letters.AT)
    assert answer.reasons[0].values == {"since": since, "reason": "failed: ValueError"}
    assert (answer.task, answer.queue) == ("shop.bill", "bills")
    assert answer.text == f"It has been dead since {since.isoformat()}: failed: ValueError"

    delayq.store.history.add("me", 1, 100, [finished("it", 9_000, started=8_000, state="FAILURE")])
    answer = check(delayq, cli, "dead", ReasonKind.DEAD, ReasonKind.ENDED)
    assert answer.reasons[1].values["state"] == "FAILURE"


def test_finished_and_unknown(delayq: DelayQ, cli: CommandLine) -> None:
    answer = check(delayq, cli, "unknown", ReasonKind.UNKNOWN, code=1)
    assert answer.text.endswith("No history of runs is kept.")
    assert not answer.is_known
    delayq.app.conf.broker_transport_options["delayq"] = {"history": 100}
    answer = check(delayq, cli, "unknown", ReasonKind.UNKNOWN, code=1)
    assert answer.text.endswith("The history has no run yet.")

    runs = [
        finished("it", 2_000, started=1_000, state="RETRY", reason="Busy: try again"),
        finished("other", 3_000),
        finished("it", 9_000, started=8_000, retries=1),
    ]
    delayq.store.history.add("me", 1, 100, runs)
    answer = check(delayq, cli, "ended", ReasonKind.ENDED)

    assert answer.text == (
        "It ran from 1970-01-01T00:00:08+00:00 to 1970-01-01T00:00:09+00:00 on celery@one: SUCCESS"
    )
    assert answer.reasons[0].values["retries"] == 1
    answer = check(delayq, cli, "unknown", ReasonKind.UNKNOWN, id="never", code=1)
    assert answer.text.endswith("The last 3 runs in the history are of other tasks.")


@pytest.mark.usefixtures("looked")
def test_a_retry_and_a_task_in_two_queues(app: Celery, delayq: DelayQ, cli: CommandLine) -> None:
    send(app, countdown=7200, retries=2)
    send(app, countdown=3600, queue="mail")

    answer = delayq.why("it")

    assert [each.queue for each in (answer, *answer.others)] == ["mail", "celery"]
    assert kinds(answer.others[0]) == [ReasonKind.NOT_DUE, ReasonKind.RETRY]
    assert cli("why", "it").out.count("It is due at") == 2
    assert kinds(delayq.why("it", queue="celery"))[1:] == [ReasonKind.RETRY]
    json.dumps(answer.as_dict())


def test_names_cannot_steer_a_terminal(delayq: DelayQ, delayq_redis: RedisUnderTest) -> None:
    app = delayq.app
    cli = CommandLine(app, shows_foreign=True)
    app.send_task(HOSTILE, task_id=HOSTILE, countdown=60, queue="celery")
    delayq.store.register("celery")
    delayq.pause(task=HOSTILE)

    ran = cli("why", HOSTILE)

    assert ran.code == 0
    assert not CONTROLS.search(ran.out + ran.err)


def test_an_answer_takes_few_commands(app: Celery, delayq: DelayQ, redis: Redis) -> None:
    send(app, countdown=60)
    delayq.store.register("celery")

    def commands(question: Callable[[str], Any]) -> int:
        question("it")  # connects
        before = redis.info("stats")["total_commands_processed"]
        question("it")
        return int(redis.info("stats")["total_commands_processed"] - before)

    assert commands(delayq.why) <= 10 * commands(delayq.get)
