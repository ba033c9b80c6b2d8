"""A suite in pytest-celery's own style. Only ``pytest_plugins`` says that there is no Docker."""

from __future__ import annotations

import re
import socket
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from celery.canvas import chain, group
from celery.result import AsyncResult
from pytest_celery import (
    RESULT_TIMEOUT,
    CeleryBackendCluster,
    CeleryBrokerCluster,
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RabbitMQTestBroker,
    RedisTestBackend,
    RedisTestBroker,
    add,
    fail,
    identity,
    ping,
)

from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.scene import answer
from tests.support.skips import need_rabbitmq

pytestmark = pytest.mark.nightly

pytest_plugins = ["celery_delayq.testing.pytest_celery"]

sys.path.insert(0, str(Path(__file__).parents[2] / "apps"))
flight_tasks = import_module("stock_pytest_celery_tasks")


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set[ModuleType]) -> set[ModuleType]:
    return {*default_worker_tasks, flight_tasks}


class OnEachBroker:
    @pytest.fixture(params=["redis", "rabbitmq"])
    def celery_broker(self, request: pytest.FixtureRequest) -> CeleryTestBroker:
        if request.param == "rabbitmq":
            need_rabbitmq()
        broker: CeleryTestBroker = request.getfixturevalue(f"celery_{request.param}_broker")
        return broker


class TestASetup(OnEachBroker):
    def test_it_is_ready_and_has_a_node_of_each_kind(self, celery_setup: CeleryTestSetup) -> None:
        assert celery_setup.ready(ping=True, control=True, docker=True)
        assert len(celery_setup) == 3
        for node, classes in (
            (celery_setup.broker, (CeleryTestBroker, (RedisTestBroker, RabbitMQTestBroker))),
            (celery_setup.backend, (CeleryTestBackend, RedisTestBackend)),
            (celery_setup.worker, (CeleryTestWorker,)),
        ):
            assert all(isinstance(node, each) for each in classes)
            assert node.app is celery_setup.app

    def test_it_runs_tasks(self, celery_setup: CeleryTestSetup) -> None:
        queue = celery_setup.worker.worker_queue

        assert add.s(1, 2).apply_async(queue=queue).get(timeout=RESULT_TIMEOUT) == 3
        assert ping.s().apply_async(queue=queue).get(timeout=RESULT_TIMEOUT) == "pong"
        with pytest.raises(RuntimeError, match="Task expected to fail"):
            fail.s().apply_async(queue=queue).get(timeout=RESULT_TIMEOUT)

    def test_it_runs_a_canvas(self, celery_setup: CeleryTestSetup) -> None:
        queue = celery_setup.worker.worker_queue
        canvas = chain(group(add.si(1, 2), add.si(3, 4)), identity.s())

        result: AsyncResult[Any] = canvas.apply_async(queue=queue)

        assert result.get(timeout=RESULT_TIMEOUT) == [3, 7]

    def test_it_runs_the_suites_own_tasks(self, celery_setup: CeleryTestSetup) -> None:
        result = flight_tasks.board.s("UA1545").apply_async(queue=celery_setup.worker.worker_queue)

        assert result.get(timeout=RESULT_TIMEOUT) == "UA1545 boarded"
        celery_setup.worker.assert_log_exists("boarding UA1545")
        celery_setup.worker.assert_log_does_not_exist("boarding B6725", timeout=1)

    def test_it_runs_a_delayed_task(self, celery_setup: CeleryTestSetup) -> None:
        assert celery_setup.app.conf.broker_url.startswith(("delayq+redis://", "delayq+amqp://"))
        board = flight_tasks.board.s("WN3317")

        result = board.apply_async(queue=celery_setup.worker.worker_queue, countdown=0.5)

        assert result.get(timeout=RESULT_TIMEOUT) == "WN3317 boarded"


class TestTheApp:
    @pytest.fixture
    def default_worker_app(self, default_worker_app: Celery) -> Celery:
        app = default_worker_app
        app.conf.worker_prefetch_multiplier = 1
        app.conf.task_default_priority = 3
        return app

    def test_its_settings_reach_the_worker(self, celery_setup: CeleryTestSetup) -> None:
        worker = celery_setup.worker
        conf = answer(celery_setup.app, worker.hostname(), "conf")

        assert conf["worker_prefetch_multiplier"] == 1
        assert conf["task_default_priority"] == 3


class TestAWorker:
    def test_it_knows_its_name_queue_and_version(self, celery_setup: CeleryTestSetup) -> None:
        worker = celery_setup.worker

        worker.assert_log_exists(f"{worker.hostname()} ready.")
        assert worker.worker_name == "celery_test_worker"
        assert worker.worker_queue == "celery"
        assert worker.log_level == "INFO"
        assert worker.version

    def test_it_can_be_killed_and_restarted_also_by_force(
        self, celery_setup: CeleryTestSetup
    ) -> None:
        worker = celery_setup.worker

        worker.kill()
        assert worker.container.status == "exited"

        for force in (False, True):
            worker.restart(force=force)
            assert worker.container.status == "running"
            assert celery_setup.ready(ping=True)

    def test_a_warm_shutdown_lets_a_task_finish(self, celery_setup: CeleryTestSetup) -> None:
        worker = celery_setup.worker
        result = flight_tasks.taxi.s(0.5).apply_async(queue=worker.worker_queue)
        worker.wait_for_log("taxiing")

        worker.kill("SIGTERM")

        worker.assert_log_exists("Warm shutdown")
        assert result.get(timeout=RESULT_TIMEOUT) == "in the air"

    @pytest.mark.parametrize(
        ("end", "code"),
        [("shutdown", 0), ("SIGTERM", 0), ("SIGKILL", 137)],
    )
    def test_its_exit_code_is_that_of_a_container(
        self, celery_setup: CeleryTestSetup, end: str, code: int
    ) -> None:
        worker = celery_setup.worker
        running = worker.container.attrs["State"]

        if end == "shutdown":
            answer(celery_setup.app, worker.hostname(), "ping")  # it hears
            celery_setup.app.control.shutdown(destination=[worker.hostname()])
        else:
            worker.kill(end)

        assert worker.container.wait() == {"StatusCode": code}
        assert (running["Running"], running["Status"], running["ExitCode"]) == (True, "running", 0)
        assert worker.container.attrs["State"] == {
            **running,
            "Running": False,
            "Status": "exited",
            "Pid": 0,
            "ExitCode": code,
        }
        worker.restart()
        assert worker.container.attrs["State"] == {**running, "Pid": worker.container.pid}

    def test_it_lists_the_processes_of_a_container(self, celery_setup: CeleryTestSetup) -> None:
        worker = celery_setup.worker
        pool = answer(celery_setup.app, worker.hostname(), "stats")["pool"]["processes"]
        expected = {worker.container.pid, *pool}

        listed = worker.get_running_processes_info(["pid", "name", "cmdline"])

        assert {each["pid"] for each in listed if each["name"] == "celery"} == expected
        [asking] = [each for each in listed if each["name"] != "celery"]
        assert asking["cmdline"][1] == "-c"
        celery = worker.get_running_processes_info(["pid", "name"], filters={"name": "celery"})
        assert {each["pid"] for each in celery} == expected
        assert all(each.keys() == {"pid", "name"} for each in celery)
        assert worker.get_running_processes_info(["pid"], filters={"pid": -1}) == []

    def test_a_child_that_was_killed_is_replaced(self, celery_setup: CeleryTestSetup) -> None:
        worker = celery_setup.worker

        def pids() -> set[int]:
            celery = {"name": "celery"}
            return {each["pid"] for each in worker.get_running_processes_info(None, celery)}

        before = pids()
        child = min(before - {worker.container.pid})

        assert worker.container.exec_run(f"kill -9 {child}")[0] == 0

        def replaced() -> bool:
            now = pids()
            return before - now == {child} and len(now - before) == 1

        wait_until(replaced, TIMEOUT, "a new child in the place of the old one")

    def test_it_gives_up_waiting_for_what_is_not_logged(
        self, celery_setup: CeleryTestSetup
    ) -> None:
        with pytest.raises(AssertionError, match="did not log -> landed within 1 seconds"):
            celery_setup.worker.assert_log_exists("landed", timeout=1)


class TestAWorkerOfASuitesOwnClass:
    @pytest.fixture
    def default_worker_container_cls(self) -> type[CeleryWorkerContainer]:
        class GateWorker(CeleryWorkerContainer):
            @classmethod
            def worker_name(cls) -> str:
                return "gate"

            @classmethod
            def worker_queue(cls) -> str:
                return "boarding"

            @classmethod
            def command(cls, *args: str, **options: Any) -> list[str]:
                return list(super().command("--pool=threads", "--concurrency=3", *args, **options))

            @classmethod
            def initial_env(cls, config: dict[str, Any], initial: Any = None) -> dict[str, Any]:
                return dict(super().initial_env(config, {**(initial or {}), "GATE": "C12"}))

        return GateWorker

    def test_its_name_queue_command_and_environment_hold(
        self, celery_setup: CeleryTestSetup
    ) -> None:
        worker = celery_setup.worker
        result = flight_tasks.board.s("DL461").apply_async(queue="boarding")

        assert result.get(timeout=RESULT_TIMEOUT) == "DL461 boarded"
        assert worker.hostname().startswith("gate@")
        assert worker.container.env["GATE"] == "C12"
        stats = answer(celery_setup.app, worker.hostname(), "stats")
        assert stats["pool"]["max-concurrency"] == 3


class TestABroker(OnEachBroker):
    def test_it_can_be_killed_and_restarted_under_a_worker(
        self, celery_setup: CeleryTestSetup
    ) -> None:
        celery_setup.broker.kill()
        assert celery_setup.broker.container.status == "exited"

        for _ in range(2):  # also while it runs
            celery_setup.broker.restart()
            assert celery_setup.ready(ping=True)

    def test_it_has_a_client_and_logs(self, celery_broker_cluster: CeleryBrokerCluster) -> None:
        broker = celery_broker_cluster[0]
        kind, _, id = broker.name().partition("-")

        assert broker.ready()
        assert re.match(r"\d+\.\d+", broker.container.version())
        assert id == broker.hostname()
        broker.assert_log_exists(broker.container.ready_prompt)
        if kind == "redis":
            assert broker.container.client.ping()
        else:
            with broker.container.client as connection:
                assert connection.connect().connected

    @pytest.mark.parametrize(("end", "code"), [("SIGTERM", 0), ("SIGKILL", 137)])
    def test_its_exit_code_is_that_of_a_container(
        self, celery_broker_cluster: CeleryBrokerCluster, end: str, code: int
    ) -> None:
        container = celery_broker_cluster[0].container
        assert container.attrs["State"]["ExitCode"] == 0

        container.kill(end)
        assert (container.status, container.attrs["State"]["ExitCode"]) == ("exited", code)

        container.start()
        container.stop(timeout=TIMEOUT)
        assert (container.status, container.attrs["State"]["ExitCode"]) == ("exited", 0)

    def test_its_ports_are_published(self, celery_broker_cluster: CeleryBrokerCluster) -> None:
        container = celery_broker_cluster[0].container
        port = "5672/tcp" if "amqp" in container.url else "6379/tcp"

        assert container.get_addr(port) == ("127.0.0.1", container.port)
        assert container.ports[port] == [container.port]
        for published in container.ports.values():
            socket.create_connection(("127.0.0.1", int(published[0])), timeout=TIMEOUT).close()

    def test_its_database_can_be_chosen(self, celery_broker_cluster: CeleryBrokerCluster) -> None:
        config = celery_broker_cluster[0].config(vhost="3")

        assert config["url"].endswith(f":{config['port']}/3")
        assert config["vhost"] == "3"


class TestARedisBroker:
    @pytest.fixture
    def default_redis_broker_command(self, default_redis_broker_command: list[str]) -> list[str]:
        return [*default_redis_broker_command, "--maxmemory", "16mb"]

    def test_the_suites_command_reaches_the_server(
        self, celery_broker_cluster: CeleryBrokerCluster
    ) -> None:
        config = celery_broker_cluster[0].container.client.config_get("*")

        assert config["maxmemory"] == str(16 * 2**20)
        assert config["maxmemory-policy"] == "noeviction"
        assert config["bind"] == "127.0.0.1"


class TestARabbitMQBroker:
    @pytest.fixture
    def celery_broker(self, request: pytest.FixtureRequest) -> RabbitMQTestBroker:
        need_rabbitmq()
        broker: RabbitMQTestBroker = request.getfixturevalue("celery_rabbitmq_broker")
        return broker

    def test_its_connections_can_be_closed_from_within(self, celery_setup: CeleryTestSetup) -> None:
        container, worker = celery_setup.broker.container, celery_setup.worker

        code, output = container.exec_run("rabbitmqctl close_all_connections cut")

        assert (code, output[:6]) == (0, b"Closed")
        worker.assert_log_exists("Connection to broker lost")
        assert celery_setup.ready(ping=True)
        assert container.exec_run(["rabbitmqctl", "no_such_command"])[0] != 0
        assert container.exec_run("true")[0] == 127


class TestABrokerOfAnotherScheme(OnEachBroker):
    @pytest.fixture
    def delayq_broker_scheme(self) -> str:
        return "redis"

    @pytest.fixture
    def delayq_rabbitmq_scheme(self) -> str:
        return "amqp"

    def test_stock_celery_runs_on_the_same_nodes(self, celery_setup: CeleryTestSetup) -> None:
        assert celery_setup.app.conf.broker_url.startswith(("redis://", "amqp://"))
        assert celery_setup.ready(ping=True)


class TestClusters:
    @pytest.fixture
    def celery_backend_cluster(self) -> None:
        return None

    def test_the_backend_can_be_left_out(
        self, celery_setup: CeleryTestSetup, celery_worker_cluster: CeleryWorkerCluster
    ) -> None:
        assert len(celery_setup) == 2
        assert celery_setup.backend is None
        flight_tasks.board.s("AA1141").apply_async(queue=celery_setup.worker.worker_queue)
        celery_worker_cluster[0].wait_for_log("boarding AA1141")


def test_broker_and_backend_are_servers_of_their_own(
    celery_broker_cluster: CeleryBrokerCluster, celery_backend_cluster: CeleryBackendCluster
) -> None:
    assert (
        celery_broker_cluster.config()["host_urls"] != celery_backend_cluster.config()["host_urls"]
    )
