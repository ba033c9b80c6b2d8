"""``delayq doctor`` on real servers: it finds each prepared fault, and nothing on a good set-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.admin import accounts
from celery_delayq.admin.doctor import REDIS_CHECKS, work
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.store.store import Store
from celery_delayq.testing import ManagedProcess, wait_until
from tests.integration.conftest import MakeApp
from tests.lua.bench import labelled
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.faults.clocks import wrong_clock
from tests.support.keyspace import now_of, snapshot
from tests.support.proxy import Proxy
from tests.support.scene import StartWorker, start_worker


@dataclass
class Patient:
    """A good set-up, which a fault changes: server, URL, and settings of the app."""

    server: EmbeddedRedis
    client: Redis
    stack: ExitStack
    start: StartWorker
    make_app: Callable[..., Any]
    broker: str
    conf: dict[str, Any] = field(default_factory=dict)
    delayq: dict[str, Any] = field(default_factory=dict)
    at_least_once: bool = False
    limits: dict[str, Limit] = field(default_factory=dict)

    def app(self) -> Any:
        app = self.make_app(
            extension=False,
            broker=self.broker,
            broker_transport_options={"delayq": self.delayq},
        )
        DelayQ(app, at_least_once=self.at_least_once, limits=self.limits)
        app.conf.update(self.conf)
        return app

    def worker(self, app: str = "delayq_tasks", **options: Any) -> Any:
        return start_worker(self.start, app, "threads", broker_url=self.broker, **options)


@pytest.fixture
def patient(
    delayq_redis_factory: Callable[..., EmbeddedRedis],
    delayq_worker: StartWorker,
    make_app: MakeApp,
) -> Iterator[Patient]:
    server = delayq_redis_factory()
    with ExitStack() as stack, server.client() as client:
        url = server.url_for("delayq+redis")
        yield Patient(server, client, stack, delayq_worker, make_app, url)


def findings(patient: Patient, *options: str) -> list[Mapping[str, str]]:
    ran = CommandLine(patient.app())("doctor", "--json", *options)
    told = ran.json
    assert ran.code == (0 if told["healthy"] else 1)
    found: list[Mapping[str, str]] = told["findings"]
    assert all(each["what"] and each["todo"] for each in found)
    return found


def test_nothing_is_wrong_with_a_good_set_up(patient: Patient) -> None:
    patient.at_least_once = True
    worker = patient.worker()
    app = patient.app()
    app.send_task("add", (1, 1), countdown=0.1)
    app.send_task("add", (1, 1), countdown=60)
    worker.wait_log("succeeded")

    ran = CommandLine(app)("doctor")

    assert (ran.code, ran.err) == (0, "")
    versions, said = ran.out.splitlines()[-2:]
    assert said == f"{len(REDIS_CHECKS) + 2} checks: nothing wrong"
    info = patient.client.info("server")
    is_valkey = info.get("server_name") == "valkey"
    server = f"Valkey {info['valkey_version']}" if is_valkey else f"Redis {info['redis_version']}"
    assert server in versions
    assert ("Redis" in versions) == (not is_valkey)
    assert findings(patient) == []


# -- faults, by what they are: each returns nothing, and its check is in the table --------------


def replica(patient: Patient) -> None:
    patient.client.replicaof("127.0.0.1", str(free_port()))


def evicting(patient: Patient) -> None:
    patient.client.config_set("maxmemory-policy", "allkeys-lru")


def forgetful(patient: Patient) -> None:
    patient.client.config_set("appendonly", "no")


def snapshots_only(patient: Patient) -> None:
    patient.client.config_set("appendonly", "no")
    patient.client.config_set("save", "3600 1")


def rarely_synced(patient: Patient) -> None:
    patient.client.config_set("appendfsync", "no")


def bad_disk(patient: Patient) -> None:
    (patient.server.data_dir / "dump.rdb").mkdir()
    patient.client.bgsave()
    wait_until(
        lambda: patient.client.info("persistence")["rdb_last_bgsave_status"] == "err",
        what="Redis sees it",
    )


def nearly_full(patient: Patient) -> None:
    patient.client.setrange("large", 50_000_000, "x")
    patient.client.config_set("maxmemory", int(patient.client.info("memory")["used_memory"] * 1.05))


def full(patient: Patient) -> None:
    patient.client.config_set("maxmemory", 1)


def few_connections(patient: Patient) -> None:
    patient.client.config_set("maxclients", 200)
    for _ in range(182):
        patient.stack.enter_context(patient.server.client()).ping()


def few_replicas(patient: Patient) -> None:
    patient.delayq = {"wait_replicas": 1}


def slow_link(patient: Patient) -> None:
    proxy = patient.stack.enter_context(Proxy(patient.server.port))
    proxy.latency = 0.025
    patient.broker = f"delayq+redis://127.0.0.1:{proxy.port}/0"


def many_scripts(patient: Patient) -> None:
    with patient.client.pipeline(transaction=False) as pipe:
        for number in range(600):
            pipe.script_load(f"return {number}")
        pipe.execute()


def no_right(patient: Patient, *rules: str, role: accounts.Role = "worker") -> None:
    given = [*accounts.rules(role, ["celery"]), *rules]
    patient.client.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", *given)
    patient.broker = f"delayq+redis://app:s3cret@127.0.0.1:{patient.server.port}/0"


def lacking_command(patient: Patient) -> None:
    no_right(patient, "-hincrbyfloat")


def lacking_keys(patient: Patient) -> None:
    no_right(patient)
    patient.conf = {"task_default_queue": "mail"}


def other_steps(patient: Patient) -> None:
    app = patient.make_app(
        broker=patient.broker, broker_transport_options={"priority_steps": [0, 5]}
    )
    DelayQ.of(app).store.register("celery")


def nobody_dispatches(patient: Patient) -> None:
    patient.stack.enter_context(pytest.MonkeyPatch.context()).setattr(
        work, "MAX_OVERDUE_SECONDS", 0.2
    )
    patient.app().send_task("add", (1, 1), countdown=0.1)
    client = patient.client
    wait_until(
        lambda: client.zcount("{celery}:due", 0, (now_of(client) - 0.3) * 1000), what="it is late"
    )


def nobody_consumes(patient: Patient) -> None:
    app = patient.app()
    app.send_task("add", (1, 1), eta=datetime.now(timezone.utc) - timedelta(minutes=5))


def nobody_was_started(patient: Patient) -> None:
    patient.app().send_task("add", (1, 1))


def nobody_reclaims(patient: Patient) -> None:
    worker = patient.worker("liveness_tasks", conf={"task_acks_late": True})
    patient.app().send_task("stand_still", (60,))
    wait_until(lambda: patient.client.zcard("{celery}:leases"), what="it holds the task")
    worker.kill()
    patient.client.hincrby("delayq:clock", "seen", -120_000)


def start_celery_beat(patient: Patient) -> None:
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.delayq_tasks:app", "beat"]
    process = ManagedProcess(
        [*command, "-s", str(patient.server.data_dir / "beat")],
        env={"CELERY_BROKER_URL": patient.broker},
        log_file=patient.server.data_dir / "beat.log",
    )
    patient.stack.enter_context(process)
    wait_until(lambda: patient.client.zcard("delayq:celery_beats"), TIMEOUT, "it is announced")


def stock_worker(patient: Patient) -> None:
    patient.start("tests.apps.stock_tasks:app", pool="solo", broker_url=patient.server.url)


def left_by_stock_producers(patient: Patient) -> None:
    stock = patient.make_app(broker=patient.server.url)
    for _ in range(3):
        stock.send_task("add", (1, 1), countdown=3600)


def left_by_stock(patient: Patient) -> None:
    patient.client.hset("unacked", "tag", "[{}, '', 'celery']")


def drift(patient: Patient) -> None:
    patient.app().send_task("add", (1, 1), countdown=600)
    patient.client.delete("{celery}:entries")


def late_acks_alone(patient: Patient) -> None:
    patient.conf = {"task_acks_late": True}


def overridden(patient: Patient) -> None:
    patient.at_least_once = True
    patient.conf = {"task_acks_late": False}


def hoarding(patient: Patient) -> None:
    patient.conf = {"worker_prefetch_multiplier": 0}


def away(patient: Patient) -> None:
    patient.server.stop()


def periodic_late(patient: Patient) -> None:
    delayq = DelayQ.of(patient.app())
    delayq.periodic.add("tick", 3600, "add", (1, 1))
    patient.client.zincrby("delayq:periodic_at", -7_200_000, "tick")


def many_dead(patient: Patient) -> None:
    patient.delayq = {"dead_letters_max": 1}
    store = DelayQ.of(patient.app()).store
    store.register("celery")
    store.dead_letters.add("celery", "id", "failed", b"{}")


def set_by_people(patient: Patient) -> None:
    delayq = DelayQ.of(patient.app())
    delayq.store.task_limits.announce({"api": "0 1 8 0"})
    delayq.limits.set("api", concurrency=2)


def switched_off(patient: Patient) -> None:
    delayq = DelayQ.of(patient.app())
    delayq.store.task_limits.announce({"api": "0 1 8 0"})
    delayq.limits.set("api", off=True)


def another_limit(patient: Patient) -> None:
    patient.limits = {"shop.*": Limit("by pattern", concurrency=7)}
    DelayQ.of(patient.app()).store.task_limits.announce({"by%20pattern": "0 1 8 0"})


def hold(patient: Patient, limit: str, *ids: str) -> Store:
    """Publish tasks of a limit; those that may not go at once are held."""
    store = DelayQ.of(patient.app()).store
    store.task_limits.announce({"api": limit})
    store.register("celery")
    for id in ids:
        call = store.schedule_call("celery")
        call.add(labelled(id, 0, lane="api:"))
        store.run(call)
    return store


def leased_without_a_permit(patient: Patient) -> None:
    store = hold(patient, "0 1 8 0", "a", "b")
    store.leases.acquire("celery", "me", 60.0, "1", 2, has_limits=True)
    patient.client.zremrangebyrank("delayq:permits", 0, 0)


def nobody_takes_held_tasks(patient: Patient) -> None:
    hold(patient, "0 1 8 1", "a", "b")


def workers_are_busy(patient: Patient) -> None:
    """With a task of another queue, for as long as the lane may go."""
    worker = patient.worker(
        "liveness_tasks",
        queues=["celery", "slow"],
        concurrency=1,
        conf={"task_acks_late": True, "worker_prefetch_multiplier": 1},
    )
    patient.at_least_once = True
    patient.app().send_task("stand_still", (600,), queue="slow")
    wait_until(lambda: patient.client.zcard("{slow}:leases"), what="it holds the task")
    hold(patient, "0 1 8 1", "a")
    patient.client.zincrby("{celery}:lanes", -700e6, "api:")
    patient.stack.callback(worker.kill)


#: Faults, and which checks find them.
FAULTS: dict[Callable[[Patient], None], set[str]] = {
    evicting: {"eviction"},
    forgetful: {"persistence"},
    snapshots_only: {"persistence"},
    rarely_synced: {"persistence"},
    bad_disk: {"disk"},
    nearly_full: {"memory"},
    few_connections: {"connections"},
    few_replicas: {"replicas"},
    slow_link: {"latency"},
    many_scripts: {"script cache"},
    lacking_command: {"rights"},
    lacking_keys: {"rights"},
    other_steps: {"queues"},
    nobody_dispatches: {"dispatchers"},
    nobody_consumes: {"consumers"},
    nobody_was_started: {"consumers"},
    left_by_stock: {"stock workers"},
    left_by_stock_producers: {"consumers", "stock ETAs"},
    drift: {"fsck"},
    late_acks_alone: {"settings"},
    overridden: {"settings"},
    hoarding: {"settings"},
    away: {"broker"},
    periodic_late: {"periodic"},
    many_dead: {"dead letters"},
    another_limit: {"limits"},
    leased_without_a_permit: {"limits"},
    nobody_takes_held_tasks: {"stalled lanes"},
}
#: The same with more servers or processes, or a wait.
SLOW_FAULTS: dict[Callable[[Patient], None], set[str]] = {
    nobody_reclaims: {"leases"},
    start_celery_beat: {"beat"},
    stock_worker: {"stock workers"},
    workers_are_busy: {"stalled lanes"},
}


def _params() -> Iterator[Any]:
    for faults, marks in ((FAULTS, ()), (SLOW_FAULTS, (pytest.mark.full,))):
        for fault, checks in faults.items():
            yield pytest.param(fault, checks, id=fault.__name__, marks=marks)


@pytest.mark.parametrize(("fault", "checks"), [*_params()])
def test_each_fault_is_found_and_nothing_else(
    patient: Patient, fault: Callable[[Patient], None], checks: set[str]
) -> None:
    fault(patient)

    found = findings(patient)

    assert {each["check"] for each in found if each["level"] != "cannot tell"} == checks, found


@pytest.mark.full
def test_a_stock_worker_keeps_no_limit(patient: Patient) -> None:
    hold(patient, "0 1 1 0")
    stock_worker(patient)

    [found] = [each for each in findings(patient) if each["check"] == "stock workers"]

    assert found["level"] == "warning"
    assert found["what"].endswith("and no limit holds for it")


def test_tasks_that_wait_for_their_limit_are_no_fault(patient: Patient) -> None:
    patient.at_least_once = True
    store = hold(patient, "3600000000 1 0 1", "a", "b")
    store.leases.acquire("celery", "me", 60.0, "1", 2, has_limits=True)
    store.run(store.leases.ack_call("celery", "me", {"1:1": b""}, has_permits=True))

    assert patient.client.zcard("{celery}:held") == 1
    assert findings(patient) == []


@pytest.mark.parametrize("setting", [set_by_people, switched_off])
def test_what_people_have_set_is_a_note(
    patient: Patient, setting: Callable[[Patient], None]
) -> None:
    patient.at_least_once = True
    setting(patient)

    [found] = findings(patient)
    ran = CommandLine(patient.app())("doctor")

    assert (found["check"], found["level"]) == ("limits", "note")
    assert "limits unset api" in found["todo"]
    assert ran.code == 0
    assert ran.out.splitlines()[-1].endswith("checks: nothing wrong, 1 note")


@pytest.mark.full
def test_a_wrong_clock_is_found(patient: Patient, tmp_path: Path) -> None:
    """That of the machine on which it runs; libfaketime does not work with redis-server."""
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.delayq_tasks:app", "delayq"]
    env = {**os.environ, "CELERY_BROKER_URL": patient.broker, **wrong_clock(-300, tmp_path)}

    ran = subprocess.run(
        [*command, "doctor", "--json"], env=env, capture_output=True, text=True, timeout=TIMEOUT
    )

    told = {each["check"]: each["what"] for each in json.loads(ran.stdout)["findings"]}
    assert ({*told}, ran.returncode) == ({"settings", "clock"}, 1)
    assert "Redis' clock is 300.0 s ahead of that of this machine" in told["clock"]


@pytest.mark.parametrize(("fault", "check"), [(replica, "role"), (full, "memory")])
def test_a_server_that_refuses_all_writes_is_found_also_where_checks_need_them(
    patient: Patient, fault: Callable[[Patient], None], check: str
) -> None:
    fault(patient)

    assert check in {each["check"] for each in findings(patient)}


@pytest.mark.full
def test_a_busy_worker_is_a_consumer(patient: Patient) -> None:
    """Of early acknowledgements: it holds nothing while its task runs."""
    worker = patient.worker(
        "liveness_tasks",
        concurrency=1,
        conf={"worker_prefetch_multiplier": 1, "worker_disable_prefetch": True},
    )
    for _ in range(3):
        patient.app().send_task("stand_still", (60,))
    worker.wait_log("received")

    found = {each["check"] for each in findings(patient)}
    worker.kill()

    assert "consumers" not in found


def test_it_changes_nothing(patient: Patient) -> None:
    patient.at_least_once = True
    app = patient.app()
    app.send_task("add", (1, 1), countdown=60)
    app.send_task("add", (1, 1))
    DelayQ.of(app).store.register("celery")
    patient.client.zadd("delayq:celery_beats", {"has ended": 5})
    patient.client.hset("unacked", "tag", "[{}, '', 'celery']")
    patient.client.hset("{celery}:leased:me", "1:1", "junk")
    before = snapshot(patient.client)

    found = findings(patient)

    assert {"consumers", "stock workers", "fsck"} <= {each["check"] for each in found}
    after = snapshot(patient.client)
    after.pop("_kombu.binding_deadlines", None)  # new kombu's, of the exchange for answers
    assert after == before


@pytest.mark.parametrize("renamed", [False, True])
def test_what_a_hidden_config_would_tell_cannot_be_told(
    patient: Patient, delayq_redis_factory: Callable[..., EmbeddedRedis], renamed: bool
) -> None:
    """By a missing right, and as hosted servers do it."""
    patient.at_least_once = True
    if renamed:
        server = delayq_redis_factory(options={"rename-command": 'CONFIG ""'})
        patient.broker = server.url_for("delayq+redis")
    else:
        no_right(patient, "-config", role="operator")

    ran = CommandLine(patient.app())("doctor", "--json")

    assert (ran.code, ran.err) == (0, "")
    found = {each["check"]: each["level"] for each in ran.json["findings"]}
    assert found == dict.fromkeys(("eviction", "persistence", "connections"), "cannot tell")
    assert "docs/accounts.md" in ran.json["findings"][0]["todo"]


def test_what_the_account_may_not_ask_cannot_be_told(patient: Patient, tmp_path: Path) -> None:
    no_right(patient, "-config", "-info")

    found = findings(patient, "--role", "producer")

    assert {each["level"] for each in found} == {"cannot tell"}
    asked = {"eviction", "persistence", "disk", "memory", "role"}
    assert asked <= {each["check"] for each in found}


def test_unreadable_numbers_end_no_other_check(patient: Patient) -> None:
    patient.client.hset("delayq:clock", "seen", "of somebody else")
    patient.client.zadd("delayq:periodic_at", {"of somebody else": "-inf"})

    found = {each["check"]: each["level"] for each in findings(patient)}

    assert found["leases"] == "cannot tell"


def test_a_stock_broker_is_wrong_use(patient: Patient) -> None:
    patient.broker = patient.server.url

    ran = CommandLine(patient.app())("doctor")

    assert (ran.code, ran.out) == (2, "")
    assert "a URL that begins with delayq+" in " ".join(ran.err.split())
