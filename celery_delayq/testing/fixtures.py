"""Pytest fixtures: a private Redis and real workers.

Use them by ``pytest_plugins = ["celery_delayq.testing.fixtures"]`` in the top ``conftest.py``.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import EmbeddedServerError, TravelError
from celery_delayq.store.scripting.scripts import has_test_clock
from celery_delayq.testing.processes import ProcessFailed
from celery_delayq.testing.servers import new_server
from celery_delayq.testing.workers import WorkerProcess

if TYPE_CHECKING:
    from celery_delayq.testing.travel.traveller import TimeTravel


@dataclass(frozen=True)
class RedisUnderTest:
    """An empty Redis for one test."""

    server: EmbeddedRedis
    client: Redis = field(repr=False)

    @property
    def url(self) -> str:
        """``redis://`` URL of database 0."""
        return self.server.url

    @property
    def port(self) -> int:
        """TCP port on 127.0.0.1."""
        return self.server.port


@pytest.fixture(scope="session")
def delayq_redis_server() -> Iterator[EmbeddedRedis]:
    """One server for the whole test run."""
    with new_server() as server:
        yield server


@pytest.fixture
def delayq_redis(delayq_redis_server: EmbeddedRedis) -> Iterator[RedisUnderTest]:
    """The server of the whole run, emptied. Its settings are restored after the test."""
    # The test before may have ended the server.
    delayq_redis_server.start()
    with delayq_redis_server.client() as client:
        client.flushall()
        client.script_flush()
        settings = client.config_get("maxmemory*")
        yield RedisUnderTest(delayq_redis_server, client)
        if delayq_redis_server.running:
            client.config_set("maxmemory", settings["maxmemory"])
            client.config_set("maxmemory-policy", settings["maxmemory-policy"])


@pytest.fixture
def delayq_redis_factory() -> Iterator[Callable[..., EmbeddedRedis]]:
    """Start servers for one test; takes the arguments of `EmbeddedRedis`."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(new_server(**options))


@pytest.fixture
def delayq_broker_scheme() -> str:
    """URL scheme of the broker; override it to run a suite on another transport."""
    return "delayq+redis"


@pytest.fixture
def delayq_broker_url(delayq_redis: RedisUnderTest, delayq_broker_scheme: str) -> str:
    """Broker URL of the emptied server."""
    return delayq_redis.server.url_for(delayq_broker_scheme)


@pytest.fixture(scope="session")
def delayq_rabbitmq_server() -> Iterator[EmbeddedRabbitMQ]:
    """One RabbitMQ node for the whole test run."""
    with EmbeddedRabbitMQ() as server:
        yield server


@pytest.fixture
def delayq_rabbitmq_scheme() -> str:
    """URL scheme of RabbitMQ as broker; override it to run a suite on stock ``amqp``."""
    return "delayq+amqp"


@pytest.fixture
def delayq_rabbitmq(
    delayq_rabbitmq_server: EmbeddedRabbitMQ, delayq_rabbitmq_scheme: str
) -> Iterator[str]:
    """Broker URL of an empty virtual host, which is deleted after the test."""
    delayq_rabbitmq_server.start()  # the test before may have ended the node
    vhost = delayq_rabbitmq_server.new_vhost()
    yield delayq_rabbitmq_server.url(delayq_rabbitmq_scheme, vhost=vhost)
    with suppress(EmbeddedServerError, OSError):  # a busy node keeps the virtual host
        delayq_rabbitmq_server.delete_vhost(vhost)


@pytest.fixture
def delayq_worker(
    delayq_broker_url: str, delayq_redis: RedisUnderTest, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    """Start workers, wait until they are ready, and end them after the test.

    Takes the arguments of `WorkerProcess`, and ``wait_ready=False`` to return before the worker is
    ready. Each worker gets the broker, and the same Redis as result backend. Workers can import the
    modules that the tests can import: their ``PYTHONPATH`` has the folders that pytest puts on
    ``sys.path``, by its setting ``pythonpath`` and for ``conftest.py``.
    """
    workers: list[WorkerProcess] = []

    def start(app: str, *, wait_ready: bool = True, **options: Any) -> WorkerProcess:
        if has_test_clock():
            from celery_delayq.testing.travel.refusals import WORKER_TEXT

            raise TravelError(f"{WORKER_TEXT}: leave out delayq_worker or delayq_time")
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = os.pathsep.join(dict.fromkeys([*_own_folders(), *filter(None, inherited)]))
        options["env"] = {"PYTHONPATH": path, **(options.get("env") or {})}
        options.setdefault("broker_url", delayq_broker_url)
        options.setdefault("result_backend", delayq_redis.url)
        options.setdefault("log_file", tmp_path / f"worker-{len(workers)}.log")
        worker = WorkerProcess(app, **options)
        workers.append(worker)
        worker.start()
        return worker.wait_ready() if wait_ready else worker

    yield start
    # All workers get the signal first, so that they end at the same time.
    for worker in workers:
        if worker.running:
            worker.term()
    for worker in workers:
        with suppress(ProcessFailed):
            worker.wait(timeout=10)
        worker.kill()


@pytest.fixture
def delayq_app() -> Celery | None:
    """The app of `delayq_time`; None for Celery's current app. Override it to return an app."""
    return None


@pytest.fixture
def delayq_time(
    delayq_app: Celery | None, delayq_redis: RedisUnderTest, delayq_broker_scheme: str
) -> Iterator[TimeTravel]:
    """Both clocks of a test: ``travel(hours=24)`` runs the tasks that are due meanwhile.

    The tasks run in the test's thread. Until the end of the test `delayq_app` uses the private
    Redis. See `TimeTravel`.
    """
    from celery_delayq.testing.travel.traveller import TimeTravel  # imports Celery's worker

    with TimeTravel(delayq_app, delayq_redis.server, delayq_broker_scheme) as time:
        yield time


def _own_folders() -> list[str]:
    """Return the folders of ``sys.path`` that are not those of Python and its packages."""
    paths = sysconfig.get_paths()
    of_python = {*paths.values(), *site.getsitepackages(), site.getusersitepackages()}
    return [
        folder
        for folder in map(os.path.abspath, filter(None, sys.path))
        if folder not in of_python and not folder.startswith(paths["platstdlib"])
    ]
