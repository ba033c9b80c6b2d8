"""Workers of one version of the code run what another version has sent under other names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery, chain, chord

from celery_delayq import DelayQ
from celery_delayq.errors import UniqueConflict
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.renamed_tasks import VERSIONS, extend
from tests.contract.workers.conftest import not_a_cluster, not_rabbitmq
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.brokers import Broker
from tests.support.scene import AppScene, StartWorker

Version = Callable[[str], Celery]


class RenamedScene(AppScene):
    """Starts workers of versions of the code."""

    module, pool, concurrency = "renamed_tasks", "threads", 2

    def start_version(self, version: str, rate: str = "", **options: Any) -> WorkerProcess:
        """Start a worker of a version; its task ``remind`` has a limit with that *rate*."""
        return self.start(env={"CODE_VERSION": version, "CODE_RATE": rate}, **options)

    def ran(self) -> list[tuple[str, str]]:
        """Return the name of the task of each run, and its key."""
        return sorted((run["task"], str(run["key"])) for run in self.read())


@pytest.fixture
def client(make_app: MakeApp, broker: Broker) -> Version:
    """Make a client of a version of the code."""

    def make(version: str) -> Celery:
        app = make_app(extension=False, **broker.conf)
        extend(app, version)
        return app

    return make


@pytest.fixture
def renamed_scene(
    broker: Broker, app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> RenamedScene:
    return broker.show(RenamedScene(delayq_redis, app, delayq_worker))


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_messages_and_signatures_of_a_former_name_run_as_the_task(
    renamed_scene: RenamedScene, client: Version, pool: str
) -> None:
    old = client("before")
    remind = old.tasks["shop.remind"]
    results = [
        remind.apply_async(("now",)),
        remind.apply_async(("later",), countdown=0.3),
        remind.apply_async(("linked",), link=remind.si("link")),
        chain(remind.si("first"), remind.si("second")).apply_async(countdown=0.1),
        chord([remind.si("a"), remind.si("b")], old.tasks["shop.total"].s()).apply_async(),
    ]
    remind.apply_async(("fails",), link_error=old.signature("shop.failed"))

    renamed_scene.start_version("renamed", pool=pool)

    got = [result.get(timeout=TIMEOUT) for result in results]
    assert got == ["now", "later", "linked", "second", 2]
    keys = ["now", "later", "linked", "link", "first", "second", "a", "b", "fails"]
    renamed_scene.wait_runs(len(keys) + 2)
    assert renamed_scene.ran() == sorted(
        [
            *(("mail.remind", key) for key in keys),
            ("mail.total", "total"),
            ("mail.failed", "as told"),
        ]
    )
    # Also in the request, and so in the history and in events.
    in_requests = {run["in_request"] for run in renamed_scene.read() if run["id"]}
    assert in_requests == {"mail.remind", "mail.total"}


def test_two_versions_beside_each_other_run_all_tasks(
    renamed_scene: RenamedScene, client: Version
) -> None:
    """The two deployments of a rename: each version beside the next one."""
    versions = [*VERSIONS]
    worker = renamed_scene.start_version(versions[0])
    sent = 0
    for before, after in pairwise(versions):
        both = [worker, renamed_scene.start_version(after)]
        for version in (before, after):
            app, (first, _) = client(version), VERSIONS[version]
            results = [
                app.tasks[f"{first}.remind"].apply_async((f"{version} {n}",), countdown=n % 2 / 5)
                for n in range(8)
            ]
            results.append(app.send_task(f"{first}.remind", (f"{version} by name",)))
            for result in results:
                result.get(timeout=TIMEOUT)
            sent += len(results)
        both[0].term()
        both[0].wait(timeout=TIMEOUT)
        worker = both[1]

    assert len(renamed_scene.read()) == sent
    names = {(run["version"], run["task"]) for run in renamed_scene.read()}
    assert names <= {(version, f"{VERSIONS[version][0]}.remind") for version in versions}
    assert [*DelayQ.of(renamed_scene.app).dead_letters()] == []


def test_a_client_of_the_new_code_may_still_use_a_former_name(
    renamed_scene: RenamedScene, client: Version
) -> None:
    new = client("renamed")
    sent = [
        new.send_task("shop.remind", ("by name",)),
        new.signature("shop.remind", ("signature",)).apply_async(countdown=0.1),
    ]

    # A worker that does not know the former name.
    renamed_scene.start_version("after")

    assert [result.get(timeout=TIMEOUT) for result in sent] == ["by name", "signature"]
    assert {run["task"] for run in renamed_scene.read()} == {"mail.remind"}


@not_a_cluster
def test_a_stock_producer_may_use_a_former_name(
    renamed_scene: RenamedScene, broker: Broker, make_app: MakeApp
) -> None:
    results = []
    for protocol in (2, 1):
        stock = make_app(extension=False, broker=broker.stock_url, task_protocol=protocol)
        results.append(stock.send_task("shop.remind", (f"protocol {protocol}",)))

    renamed_scene.start_version("renamed")

    got = [result.get(timeout=TIMEOUT) for result in results]
    assert got == ["protocol 2", "protocol 1"]


def test_filters_of_dead_letters_find_former_names(
    renamed_scene: RenamedScene, client: Version, broker: Broker
) -> None:
    old, new = DelayQ.of(client("before")), DelayQ.of(client("renamed"))
    old.app.tasks["shop.remind"].apply_async(("fails",), task_id="old")
    renamed_scene.start_version("renamed")
    renamed_scene.wait_runs(1)
    new.app.tasks["mail.remind"].apply_async(("fails",), task_id="new")
    renamed_scene.wait_runs(2)

    def ids(delayq: DelayQ, task: str) -> list[str]:
        return sorted(each.task_id or "" for each in delayq.dead_letters(task=task))

    wait_until(lambda: ids(new, "mail.remind") == ["new", "old"], TIMEOUT, "both dead letters")
    if broker.name != "rabbitmq":  # there a dead letter has the present name
        assert ids(new, "shop.remind") == ["old"]
        assert ids(old, "mail.remind") == ["new"]


@not_rabbitmq
def test_the_retry_of_a_former_name_has_the_unique_key_of_the_task(
    renamed_scene: RenamedScene, client: Version, broker: Broker
) -> None:
    old, prepared, new = client("before"), client("prepared"), client("renamed")
    delayq, there = DelayQ.of(new), {"queue": broker.queues[0]}
    sent = old.tasks["shop.retried"].apply_async(("k",), **there)
    renamed_scene.start_version("renamed")

    def is_retried() -> bool:
        entry = delayq.get(sent.id)
        return entry is not None and entry.state == "scheduled"

    wait_until(is_retried, TIMEOUT, "its retry is scheduled")

    entry = delayq.get(sent.id)
    assert entry is not None
    assert (entry.task, entry.unique_key) == ("mail.retried", "mail.retried:k")
    for task in (new.tasks["mail.retried"], prepared.tasks["shop.retried"]):
        with pytest.raises(UniqueConflict, match=sent.id):
            task.apply_async(("k",), countdown=3600, on_conflict="error", **there)
    assert delayq.run_now(sent.id)
    assert sent.get(timeout=TIMEOUT) == "k"
    assert renamed_scene.ran() == [("mail.retried", "k")] * 2
    # Now it is free.
    wait_until(lambda: delayq.get(sent.id) is None, TIMEOUT, "it is acknowledged")
    options = {"countdown": 3600, "on_conflict": "error", **there}
    assert new.tasks["mail.retried"].apply_async(("k",), **options).id


@not_rabbitmq
def test_the_limit_of_a_task_holds_for_its_former_name(
    renamed_scene: RenamedScene, client: Version, broker: Broker
) -> None:
    old, delayq = client("before"), DelayQ.of(client("renamed"))
    for number in range(4):
        old.tasks["shop.remind"].apply_async((number,), queue=broker.queues[0])

    renamed_scene.start_version("renamed", rate="1/h")

    def are_held() -> bool:
        return [each.state for each in delayq.entries()] == ["held"] * 3

    wait_until(are_held, TIMEOUT, "all but one wait for the limit")
    renamed_scene.wait_runs(1)
    assert {each.limit for each in delayq.entries()} == {"one"}
    assert [task for task, _ in renamed_scene.ran()] == ["mail.remind"]


@pytest.mark.parametrize(
    ("renamed", "problem"),
    [
        ({"shop.gone": "mail.gone"}, "the app has no task 'mail.gone'"),
        ({"mail.remind": "mail.total"}, "the app has a task 'mail.remind'"),
    ],
)
def test_a_worker_does_not_start_with_names_that_contradict_its_tasks(
    renamed_scene: RenamedScene, renamed: dict[str, str], problem: str
) -> None:
    worker = renamed_scene.start(conf={"renamed": renamed}, wait_ready=False)

    assert worker.wait(timeout=TIMEOUT) != 0
    assert problem in worker.log
