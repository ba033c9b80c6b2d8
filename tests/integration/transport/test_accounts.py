"""Accounts of Redis with the rights that ``docs/accounts.md`` gives them, on a real server."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from celery import Celery, chain, chord, group
from kombu import Consumer, Queue
from prometheus_client.parser import text_string_to_metric_families as parse
from redis import Redis
from redis.exceptions import ResponseError

from celery_delayq import DelayQ, Limit, Outcome
from celery_delayq.admin import accounts
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.errors import CommandRefused, NotAllowed, UniqueConflict
from celery_delayq.metrics.catalogue import METRICS
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.store import Store
from celery_delayq.testing import ManagedProcess, wait_until
from tests.integration.conftest import MakeApp, add
from tests.support import TIMEOUT
from tests.support.accounts_page import ACL_FILE, PAGE, acl_file, with_rules
from tests.support.cli import CommandLine
from tests.support.scene import StartWorker, answer, start_worker

Account = Callable[..., str]


@pytest.fixture
def server(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    return delayq_redis_factory()


@pytest.fixture
def admin(server: EmbeddedRedis) -> Iterator[Redis]:
    with server.client() as client:
        yield client


@pytest.fixture
def account(server: EmbeddedRedis, admin: Redis) -> Account:
    """Make an account with the rules of its name, or others, and return the broker's URL for it."""

    def make(name: Any, *more: str, rules: Sequence[str] = ()) -> str:
        given = [*(rules or accounts.rules(name, ["celery"])), *more]
        admin.execute_command("ACL", "SETUSER", name, "reset", "on", ">s3cret", *given)
        return f"delayq+redis://{name}:s3cret@127.0.0.1:{server.port}/0"

    return make


def refused(admin: Redis, name: str) -> set[str]:
    """Return what an account was refused: commands, keys and channels."""
    found = {
        entry["object"] if isinstance(entry["object"], str) else entry["object"].decode()
        for entry in admin.acl_log()
        if entry["username"] in (name, name.encode())
    }
    if admin.info("server")["redis_version"].startswith("6."):
        # One right for all of CLIENT, an administrator's: redis-py goes on without SETINFO.
        found.discard("client")
    return found


def test_the_docs_give_the_rules_that_the_scripts_need() -> None:
    """``python -m tests.support.accounts_page`` writes them."""
    text = PAGE.read_text("utf-8")

    assert {text.count(f"ACL SETUSER {role} on") for role in accounts.ROLES} == {1}
    assert text == with_rules(text)
    assert ACL_FILE.read_text("utf-8") == acl_file()


def test_a_producer_publishes_and_can_do_nothing_else(
    account: Account, admin: Redis, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(broker=account("producer"))

    app.send_task("tasks.add", (1, 2), countdown=60, task_id="a", unique_key="k")
    app.send_task("tasks.add", (1, 2), countdown=60, task_id="b", priority=9)
    app.send_task("tasks.add", (1, 2), task_id="c", priority=9)

    for conflict in ("replace", "keep", "later", "error"):
        with suppress(UniqueConflict):
            app.send_task("tasks.add", (1,), countdown=60, unique_key="k", on_conflict=conflict)
    app.send_task("tasks.add", (1, 2), countdown=60, task_id="b", skip_after=5, priority=9)
    task = app.tasks["tasks.add"]
    group(task.s(n, 1).set(countdown=n and 60) for n in range(2)).apply_async()
    chain(task.si(1, 1), task.si(2, 2)).apply_async(countdown=60)
    DelayQ.of(app).schedule_many([task.s(n, 1).set(countdown=60) for n in range(150)])
    limited = make_app(
        broker=app.conf.broker_url,
        broker_transport_options={"delayq": {"max_scheduled": 200, "history": 10}},
    )
    limited.send_task("tasks.add", (1, 2), countdown=60)
    admin.hset("delayq:limits", "cone", "0 1 1 1")
    task.limit, task.acks_late = Limit("one", concurrency=1, fair=True), True
    task.apply_async((1, 2), task_id="held")
    assert admin.zcard("{celery}:held") == 1

    assert admin.zcard("{celery}:due") > 150
    # It passes over the check for keys of earlier versions.
    assert refused(admin, "producer") <= {"delayq:agenda"}
    assert not caplog.messages
    delayq = DelayQ.of(app)
    for denied in (
        lambda: delayq.cancel("a"),
        lambda: delayq.pause(queue="celery"),
        lambda: delayq.store.client.rpop("celery"),
        lambda: delayq.store.client.lrange("celery", 0, -1),
        lambda: delayq.store.client.get("results"),
        lambda: delayq.store.client.keys("*"),
        lambda: delayq.store.client.flushdb(),
        lambda: delayq.store.client.config_get("*"),
    ):
        with pytest.raises(CommandRefused):
            denied()
    with pytest.raises(Exception, match="permission"):
        app.send_task("tasks.add", (1, 2), countdown=60, queue="other")
    ran = CommandLine(app)("list")
    assert ran.code == 1
    assert re.match(
        r"Error: https://\S+/docs/accounts.md lists the rights that an account of", ran.err
    )


@pytest.mark.parametrize("command", ["zadd", "time", "hsetnx", "evalsha"])
def test_a_publish_that_may_not_be_is_an_error_and_not_taken_for_a_repeat(
    account: Account, admin: Redis, make_app: MakeApp, command: str
) -> None:
    app = make_app(broker=account("producer", f"-{command}"))

    with pytest.raises(NotAllowed, match=r"docs/accounts\.md"):
        app.send_task("tasks.add", (1, 2), countdown=60)

    assert admin.zcard("{celery}:due") == 0


@pytest.mark.parametrize("lasts", [True, False], ids=["leased", "popped"])
def test_what_may_not_wait_for_messages_asks_again_once_a_second(
    account: Account, admin: Redis, make_app: MakeApp, lasts: bool
) -> None:
    app = make_app(broker=account("worker", "-brpop"))
    queue = Queue("celery", auto_delete=not lasts)

    with app.connection_for_write() as connection, Consumer(connection, [queue]):
        began = time.monotonic()
        for _ in range(15):
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.1)
        seconds = time.monotonic() - began

    [refusal] = [entry for entry in admin.acl_log() if entry["object"] in ("brpop", b"brpop")]
    assert 1 <= refusal["count"] <= 2 + seconds


@pytest.mark.full
def test_a_worker_runs_tasks_and_an_operator_controls_them(
    account: Account, admin: Redis, make_app: MakeApp, delayq_worker: StartWorker
) -> None:
    url = account("worker")
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo", broker_url=url)
    app = make_app(broker=account("operator"))
    delayq: DelayQ = DelayQ.of(app)

    results = [app.send_task("add", (n, 1), countdown=n and 0.2) for n in range(2)]
    app.send_task("nobody.knows", (1,), task_id="unknown")
    app.send_task("add", (1, 1), countdown=60, task_id="cancelled")
    app.send_task("add", (1, 1), countdown=60, task_id="moved")

    assert [result.get(timeout=TIMEOUT) for result in results] == [1, 2]
    assert delayq.cancel("cancelled") is Outcome.DONE
    assert delayq.reschedule("moved", by=60) is Outcome.DONE
    assert [entry.id for entry in delayq.list()] == ["moved"]
    assert delayq.pause(task="add")
    assert delayq.resume(task="add")
    assert delayq.run_now("moved") is Outcome.DONE
    wait_until(lambda: [*delayq.dead_letters()], what="what no worker knows is dead")
    [dead_letter] = delayq.dead_letters()
    assert delayq.replay(dead_letter) is Outcome.DONE
    assert delayq.stats().queues
    assert app.control.purge() >= 0
    delayq.periodic.add("tick", 1, "add", (1, 1))
    wait_until(lambda: delayq.periodic.get("tick").total_run_count > 1, what="it is fired")  # type: ignore[union-attr]
    assert delayq.periodic.remove("tick")
    assert answer(app, worker.hostname, "ping") == {"ok": "pong"}
    app.send_task("add", (1, 1), countdown=60, task_id="asked for")
    scheduled = answer(app, worker.hostname, "scheduled")
    found = answer(app, worker.hostname, "query_task", "asked for")
    assert [each["request"]["id"] for each in scheduled] == [*found] == ["asked for"]
    worker.stop()

    assert refused(admin, "worker") == set()
    assert refused(admin, "operator") == set()


@pytest.fixture
def guarded(tmp_path: Path, delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A server with the users of ``contrib/acl/users.acl``, and one for the test."""
    text = re.sub(r">(\w+)_PASSWORD", lambda found: f">pw-{found[1].lower()}", acl_file())
    text = text.replace("user default off", "user default on nopass ~* &* +@all")
    (tmp_path / "users.acl").write_text(text)
    return delayq_redis_factory(options={"aclfile": str(tmp_path / "users.acl")})


def scrape(port: int) -> str:
    """Return what an exporter says."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as answer:
        text: str = answer.read().decode()
    return text


def says(port: int, text: str) -> bool:
    return text in scrape(port)


#: What a role must not do, as commands.
FORBIDDEN = {
    "producer": ["RPOP celery", "LRANGE celery 0 -1", "HGETALL {celery}:entries", "GET x"],
    "worker": ["GET celery-task-meta-x", "HGETALL celery-task-meta-x", "SET x y", "SCAN 0"],
    "dispatcher": ["RPOP celery", "LRANGE celery 0 -1", "BRPOP celery 1", "GET celery-task-meta-x"],
    "operator": ["GET celery-task-meta-x", "SET x y"],
    "exporter": [
        "LPUSH celery x",
        "DEL celery",
        "ZADD {celery}:due 1 x",
        "PUBLISH delayq:wake:0 x",
    ],
}
FOR_NOBODY = ["FLUSHALL", "KEYS *", "CONFIG SET maxmemory 1", "ACL LIST", "SHUTDOWN", "MONITOR"]
FOR_NOBODY += ["CLIENT LIST", "GET other", "REPLICAOF NO ONE"]


@pytest.mark.parametrize("role", accounts.ROLES)
def test_a_role_of_the_acl_file_may_do_nothing_else(guarded: EmbeddedRedis, role: str) -> None:
    with Redis(port=guarded.port, username=role, password=f"pw-{role}") as client:
        for command in [*FORBIDDEN[role], *FOR_NOBODY]:
            with pytest.raises(ResponseError, match="permission"):
                client.execute_command(*command.split())


@pytest.mark.full
def test_each_role_of_the_acl_file_does_its_work_without_a_refusal(
    guarded: EmbeddedRedis, make_app: MakeApp, delayq_worker: StartWorker, tmp_path: Path
) -> None:
    urls: dict[str, str] = {
        role: f"delayq+redis://{role}:pw-{role}@127.0.0.1:{guarded.port}/0"
        for role in accounts.ROLES
    }
    producer = make_app(broker=urls["producer"])
    operator = CommandLine(make_app(broker=urls["operator"]))
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.delayq_tasks:app", "delayq"]

    def run(role: str, *arguments: str) -> ManagedProcess:
        env = {"CELERY_BROKER_URL": urls[role], "PYTHONUNBUFFERED": "1"}
        log = tmp_path / f"{role}.log"
        return ManagedProcess([*command, *arguments], env=env, log_file=log)

    def missing() -> set[str]:
        """Return the metrics that the exporter does not have."""
        found = {family.name for family in parse(scrape(port))}
        return {each.name.removesuffix("_total") for each in METRICS} - found

    port = free_port()
    with (
        run("dispatcher", "dispatch") as dispatcher,
        run("exporter", "metrics", "--port", str(port), "--tasks", "5") as exporter,
    ):
        dispatcher.wait_log("dispatching")
        exporter.wait_log("/metrics")
        lost = producer.send_task("add", (2, 2))
        with guarded.client() as admin:
            store = Store(admin, Keys(), Layout())
            assert store.leases.acquire("celery", "gone", 0.5, "1", 1).messages
            wait_until(lambda: admin.llen("celery"), what="the dispatcher takes it back")
        result = producer.send_task("add", (1, 2), countdown=0.1)
        with guarded.client() as admin:
            wait_until(lambda: admin.llen("celery") == 2, what="the dispatcher moves it")
            admin.hset("delayq:limits", "capi", "0 1 8 1")
            limit = Limit("api", concurrency=8, fair=True)
            task = producer.task(name="add", limit=limit, acks_late=True, shared=False)(add)
            limited = task.apply_async((2, 3))
            wait_until(lambda: admin.zcard("{celery}:held") == 1, what="it is held")
            schedule = ("--every", "1", "--args", "[1,1]")
            assert operator("periodic", "add", "tick", "add", *schedule).code == 0
            worker = start_worker(
                delayq_worker,
                "delayq_tasks",
                "threads",
                broker_url=urls["worker"],
                delayq={"dispatch": False, "history": 100},
            )
            assert (result.get(timeout=TIMEOUT), lost.get(timeout=TIMEOUT)) == (3, 4)
            assert limited.get(timeout=TIMEOUT) == 5
            producer.send_task("nobody.knows", (1,))
            wait_until(lambda: admin.hlen("{celery}:dead"), what="it is dead")
            change = ("limits set api --concurrency 2", "limits unset api")
            look = ("stats", "list", "dead list", "limits list", "limits lanes api", "fsck")
            for line in (*change, *look, "doctor --role operator --json"):
                ended = operator(*line.split())
                assert (ended.code, ended.err) == (0, ""), (line, ended)
            for said in (
                "delayq_up 1",
                'delayq_entries{queue="celery",state="dead"} 1',
                'delayq_schedule_memory_bytes{queue="celery"}',
                'delayq_run_seconds_count{queue="celery",task="add"}',
            ):
                wait_until(partial(says, port, said), TIMEOUT, lambda: exporter.log)
            worker.stop()
            producer.send_task("add", (1, 1), countdown=600)
            # Ticks become ready, and nobody takes them.
            wait_until(lambda: not missing(), TIMEOUT, lambda: f"{missing()}\n{exporter.log}")
            assert dispatcher.stop() == 0
            assert not admin.hexists("delayq:clock", "duty")
            refusals = {role: refused(admin, role) for role in accounts.ROLES}
    assert refusals == {role: set() for role in accounts.ROLES}
    for log in (dispatcher.log, exporter.log, worker.log):
        assert "docs/accounts.md" not in log
        assert "pw-" not in log


@pytest.mark.full
def test_results_in_the_same_redis_need_the_documented_rights(
    account: Account, admin: Redis, make_app: MakeApp, delayq_worker: StartWorker
) -> None:
    line = PAGE.read_text("utf-8").partition("- A result backend in the same Redis")[2]
    codes = re.findall(r"`([~&+][^`]+)`", line.partition("\n- ")[0])
    more = [rule for code in codes for rule in code.split()]
    urls = {role: account(role, *more) for role in ("worker", "producer")}
    results = {role: url.removeprefix("delayq+") for role, url in urls.items()}
    delayq_worker(
        "tests.apps.delayq_tasks:app",
        pool="solo",
        broker_url=urls["worker"],
        result_backend=results["worker"],
    )
    app = make_app(broker=urls["producer"], result_backend=results["producer"])
    # The other tasks of this worker write their runs down where it has no rights.
    echo = partial(app.signature, "celery.accumulate")

    one = echo((1, 2)).apply_async(countdown=0.1)
    both = group(echo((n,)) for n in range(2)).apply_async()
    joined = chord([echo((n,)) for n in range(2)], echo()).apply_async()

    assert one.get(timeout=TIMEOUT) == [1, 2]
    assert both.get(timeout=TIMEOUT) == [[0], [1]]
    assert joined.get(timeout=TIMEOUT) == [[[0], [1]]]
    assert {role: refused(admin, role) for role in urls} == {"worker": set(), "producer": set()}


@pytest.mark.full
def test_an_account_without_dangerous_commands_is_reported_once_and_works(
    account: Account, admin: Redis, make_app: MakeApp, delayq_worker: StartWorker
) -> None:
    url = account("app", rules=["~*", "&*", "+@all", "-@dangerous", "-@admin"])
    worker = delayq_worker("tests.apps.delayq_tasks:app", pool="solo", broker_url=url)
    app: Celery = make_app(broker=url)

    result = app.send_task("add", (1, 2), countdown=0.1)

    assert result.get(timeout=TIMEOUT) == 3
    warned = [line for line in worker.log.splitlines() if "WARNING" in line]
    times = {"ACL SETUSER <name> +info": 1, "ACL SETUSER <name> +config|get": 1, "permission": 2}
    assert {said: sum(said in line for line in warned) for said in times} == times
