"""Fixtures for all tiers: a private Redis and real workers, as the package gives them to users."""

from __future__ import annotations

import gc
import os
import re
import tracemalloc  # noqa: F401 - or pytest imports it in a garbage collection, within any call
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from celery_delayq.embedded import EmbeddedRedis, ports
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.testing import wait
from tests.support import TIMEOUT, output
from tests.support.cluster import Cluster
from tests.support.skips import need_rabbitmq
from tests.support.versions import read_once

pytest_plugins = ["celery_delayq.testing.fixtures"]
if os.environ.get("TEST_LEAST_RIGHTS"):
    pytest_plugins.append("tests.support.least_rights")

wait.DEFAULT_TIMEOUT = TIMEOUT

#: On a loaded machine an example takes any time, and a test that is right must not fail for it.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session")
def delayq_rabbitmq_server() -> Iterator[EmbeddedRabbitMQ]:
    """One RabbitMQ node for the whole test run, where the program is installed."""
    need_rabbitmq()
    with EmbeddedRabbitMQ() as server:
        yield server


@pytest.fixture(scope="session")
def cluster_server() -> Iterator[Cluster]:
    """One Redis Cluster for the whole test run; a test that ends or moves nodes starts its own.

    No master is replaced here because a busy machine keeps it silent for a second.
    """

    def start(**options: Any) -> EmbeddedRedis:
        return stack.enter_context(EmbeddedRedis(**options))

    with ExitStack() as stack:
        yield Cluster.start(start, node_timeout_ms=600_000)


@pytest.fixture
def delayq_cluster(cluster_server: Cluster) -> str:
    """Broker URL of the emptied cluster."""
    for each in cluster_server.masters:
        with each.client() as client:
            client.flushall()
            client.script_flush()
    return cluster_server.url


SPARK = "tests/integration/spark/"
#: Each of these files parses our code or builds the site, once for all its tests.
PROJECT = ("tests/unit/project/", "tests/acceptance/test_site.py")
#: Servers of a whole process, and parts of the ids of the tests that use them.
SHARED = {"Redis Cluster": ("cluster",), "RabbitMQ": ("rabbitmq", "amqp")}
#: The tests of this file share a cluster of RabbitMQ.
NODES = "tests/integration/embedded/test_rabbitmq.py"
#: Fault tests start servers of their own, and last long.
FAULTS = "tests/acceptance/"
#: `make test` runs a test on the first of these that it has, or two with the mark "conformance".
POOL_ORDER = ("threads", "prefork", "solo", "gevent", "eventlet")
#: Pools that do to a task what another one does, but for kills, cuts and losses: `make nightly`.
NIGHTLY_POOLS = ("solo", "eventlet")
#: Parts of the ids of tests of kills, cuts and losses: all of their cases stay in `make test-full`.
LOSSES = re.compile(
    "(?<![a-z])(away|cannot|closed|crash|cut|die[ds]|endings|failover|fault|hang|kill|los[est]|"
    "not_begun|outage|poison|reconnect|shutdown|silent|stop|terminat)"
)


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of xdist ports of its own: that of a server which is away is free.

    And have gevent look addresses up at once. By default it asks a thread, through a queue whose
    lock is not re-entrant: where a signal handler or a finalizer that changes greenlets comes
    inside it, the next lookup waits for ever, and with it all greenlets.
    """
    os.environ["GEVENT_RESOLVER"] = "block"
    read_once()
    process = getattr(config, "workerinput", None)
    if process is not None:
        number = int(process["workerid"].removeprefix("gw"))
        ports.PORTS = ports.PORTS[number :: process["workercount"]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of its processes to a failed test, as far as they fit on a few screens."""
    report = yield
    if report.failed:
        report.sections.extend(output.logs(item, 20_000))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show a failed test at once: a tier may go on for half an hour before its summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash else str(report.longrepr)
        print(f"\nFAILED {report.nodeid} ({report.when}): {message[:1000]}", flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from the thousands of tests, which stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as "full" those on a further pool, PostgreSQL, RabbitMQ or a Redis Cluster.

    Of these, "nightly" are further pools in tests without a kill, cut or loss: on RabbitMQ all of
    them, and else those that `make matrix` runs, too, or that do what others do. Those whose broker
    is no single Redis are not repeated on the second one, but those on RabbitMQ are, on its newest
    version.
    """
    pools: dict[str, set[str]] = defaultdict(set)
    for item in items:
        if pool := _parameters(item).get("pool"):
            pools[_name(item)].add(pool)
    for item in items:
        parameters = _parameters(item)
        pool = parameters.get("pool")
        first = 2 if item.get_closest_marker("conformance") else 1
        order = [each for each in POOL_ORDER if each in pools[_name(item)]]
        further = pool in POOL_ORDER and pool not in order[:first]
        fixtures = {"postgres", "delayq_rabbitmq"} & {*getattr(item, "fixturenames", ())}
        if further or fixtures or {"postgresql", "rabbitmq", "cluster"} & {*parameters.values()}:
            item.add_marker(pytest.mark.full)
        if further and not LOSSES.search(item.nodeid):
            on_rabbitmq = parameters.get("broker") == "rabbitmq"
            conformance = item.get_closest_marker("conformance") is not None
            if on_rabbitmq or conformance or pool in NIGHTLY_POOLS:
                item.add_marker(pytest.mark.nightly)
        if parameters.get("broker") in ("cluster", "rabbitmq"):
            item.add_marker(pytest.mark.other_broker)
        if "delayq_rabbitmq" in fixtures or "rabbitmq" in parameters.values():
            item.add_marker(pytest.mark.rabbitmq)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """Return the values that a test was parametrized with; those of no other type than text."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec else {}
    return {name: value for name, value in params.items() if isinstance(value, str)}


def _name(item: pytest.Item) -> str:
    """Return a test's id without its parameters."""
    return item.nodeid.partition("[")[0]


#: Starts of the names of variables that decide how the tests' processes run.
DECISIVE = ("CELERY", "DELAYQ", "LD_", "PATH", "PYTHON")
VARIABLES = pytest.StashKey[dict[str, str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the variables, which no test may change for later ones."""
    session.config.stash[VARIABLES] = _decisive_variables()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that has shown a password, itself or in a log, or changed variables."""
    result = yield
    output.check_test(item)
    before, now = item.config.stash[VARIABLES], _decisive_variables()
    item.config.stash[VARIABLES] = now
    changed = sorted(name for name, _ in before.items() ^ now.items())
    assert not changed, f"the test or its fixtures leave changed variables: {changed}"
    return result


def _decisive_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(DECISIVE)}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let few processes run all tests that share a server which costs much, before all else.

    One runs those of Spark, and of eight processes three those on RabbitMQ and three those on a
    Redis Cluster. Tests of the project share what they have parsed, and those of the site what
    they have built, a process for each file. Other tests go anywhere.
    """
    # The mark xdist_group does not do it: pytest 9.2 does not tell it to xdist 3.8.
    from xdist.scheduler import LoadScopeScheduling

    class FewServers(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SPARK):
                return SPARK
            if nodeid.startswith(PROJECT):
                return nodeid.partition("::")[0]
            groups = self.numnodes * 3 // 8
            if groups > 1 and not nodeid.startswith(FAULTS):
                for server, parts in SHARED.items():
                    if any(part in nodeid for part in parts):
                        key = NODES if nodeid.startswith(NODES) else nodeid
                        return f"{server} {crc32(key.encode()) % groups}"
            return nodeid

    return FewServers(config, log)
