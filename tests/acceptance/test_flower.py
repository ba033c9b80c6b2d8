"""Unmodified Flower on an app with delayed tasks: its pages in a real browser."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRabbitMQ, EmbeddedRedis, free_port
from celery_delayq.testing import ManagedProcess, WorkerProcess, wait_until
from tests.acceptance.browser import Browser
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT

pytestmark = pytest.mark.full

APPS = Path(__file__).parents[1] / "apps"
Workers = Callable[..., WorkerProcess]

#: Rows of the table below a caption on a worker's page: the text of each cell.
ROWS = """
[...document.querySelectorAll('caption')].filter(each => each.textContent.includes(%r))
  .flatMap(each => [...each.parentElement.querySelectorAll('tbody tr')])
  .map(row => [...row.cells].map(cell => cell.innerText.trim()))
"""

#: Logs in to RabbitMQ's pages.
LOGIN = """
document.querySelector('[name=username]').value = 'guest';
document.querySelector('[name=password]').value = 'guest';
document.querySelector('input[type=submit]').click();
"""


@pytest.fixture
def server(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    return delayq_redis_factory(password="p@ss/s3cret")


#: Flower sees of a cluster what it sees of one Redis.
CLUSTER = pytest.param("cluster", marks=pytest.mark.nightly)


@pytest.fixture(params=["redis", "rabbitmq", CLUSTER])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rabbitmq(kind: str, request: pytest.FixtureRequest) -> EmbeddedRabbitMQ | None:
    """The RabbitMQ of the tests, with an account whose password is secret."""
    if kind != "rabbitmq":
        return None
    server: EmbeddedRabbitMQ = request.getfixturevalue("delayq_rabbitmq_server")
    server.start()
    server.ask("PUT", "users/shop", {"password": "p@ss/s3cret", "tags": ""})
    return server


@pytest.fixture
def broker(
    kind: str,
    server: EmbeddedRedis,
    rabbitmq: EmbeddedRabbitMQ | None,
    request: pytest.FixtureRequest,
) -> Iterator[str]:
    if kind == "cluster":
        yield request.getfixturevalue("delayq_cluster")
        return
    if rabbitmq is None:
        yield server.url_for("delayq+redis", database=1)
        return
    vhost = rabbitmq.new_vhost()
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    rabbitmq.ask("PUT", f"permissions/{vhost}/shop", rights)
    yield rabbitmq.url("delayq+amqp", vhost=vhost).replace("guest:guest", "shop:p%40ss%2Fs3cret")
    rabbitmq.delete_vhost(vhost)


@pytest.fixture
def app(make_app: MakeApp, broker: str, server: EmbeddedRedis) -> Celery:
    return make_app(broker=broker, result_backend=server.url)


@pytest.fixture
def flower(
    broker: str, server: EmbeddedRedis, rabbitmq: EmbeddedRabbitMQ | None, tmp_path: Path
) -> Iterator[str]:
    """The URL of a running Flower."""
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "flower_tasks:app", "flower"]
    command += ["--address=127.0.0.1", f"--port={port}"]
    if rabbitmq is not None:
        command += [f"--broker_api={rabbitmq.api_url()}"]
    settings = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": server.url}
    log = tmp_path / "flower.log"
    with ManagedProcess(command, env=settings, cwd=APPS, log_file=log, name="flower") as process:
        process.wait_log("Visit me at")
        url = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{url}/healthcheck", timeout=TIMEOUT) as reply:
            assert reply.status == 200
        yield url
        assert "s3cret" not in process.log
        assert "Unable to get queues" not in process.log
        assert "API call failed" not in process.log


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "browser") as browser:
        yield browser


@pytest.fixture
def worker(server: EmbeddedRedis, broker: str, delayq_worker: Workers) -> WorkerProcess:
    return delayq_worker(
        "flower_tasks:app",
        pool="solo",
        broker_url=broker,
        result_backend=server.url,
        cwd=APPS,
        extra_args=["--task-events"],
    )


def screenshot(browser: Browser, file: Path) -> None:
    browser.screenshot(file)
    assert file.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_the_pages_of_workers_and_tasks_show_a_delayed_task_that_was_run(
    worker: WorkerProcess, app: Celery, flower: str, browser: Browser, tmp_path: Path
) -> None:
    browser.open(f"{flower}/workers")
    browser.wait_for("document.querySelector('#workers-online').innerText === '1'")

    late = app.send_task("flower.board", ("UA 1545",), countdown=1)
    soon = app.send_task("flower.board", ("AA 1141",))
    assert soon.get(timeout=TIMEOUT) == "AA 1141 boarded"
    assert late.get(timeout=TIMEOUT) == "UA 1545 boarded"

    browser.wait_for("document.querySelector('#workers-succeeded').innerText === '2'")
    [shown] = browser.rows("workers-table")
    assert shown["worker"] == worker.hostname
    assert (shown["processed"], shown["succeeded"], shown["failed"]) == ("2", "2", "0")
    screenshot(browser, tmp_path / "workers.png")

    browser.open(f"{flower}/tasks")
    browser.wait_for("document.querySelectorAll('#tasks-table tbody td:nth-child(2)').length === 2")
    # The cell has the full id and shows a short one.
    tasks = {row["uuid"][: len(late.id)]: row for row in browser.rows("tasks-table")}
    assert set(tasks) == {late.id, soon.id}
    for task in tasks.values():
        assert (task["name"], task["state"]) == ("flower.board", "SUCCESS")
    screenshot(browser, tmp_path / "tasks.png")

    browser.open(f"{flower}/task/{late.id}")
    for shown_of_it in ("SUCCESS", "UA 1545", "UA 1545 boarded"):
        assert shown_of_it in browser.text()
    screenshot(browser, tmp_path / "task.png")

    wait_for_queue(browser, flower, "messages", "0")


def wait_for_queue(browser: Browser, flower: str, column: str, number: str) -> None:
    """Wait until the broker's page shows *number* in a column of the one queue."""

    def shown() -> bool:
        # RabbitMQ's management API counts every five seconds. Before, it does not list a new queue.
        browser.open(f"{flower}/broker")
        [queue] = browser.rows("queue-table")
        return (queue["queue"], queue[column]) == ("celery", number)

    wait_until(shown, TIMEOUT, browser.text)


def test_the_page_of_the_broker_counts_what_waits(
    broker: str,
    rabbitmq: EmbeddedRabbitMQ | None,
    app: Celery,
    flower: str,
    browser: Browser,
    tmp_path: Path,
) -> None:
    for flight in ("UA 1545", "AA 1141", "B6 725"):
        app.send_task("flower.board", (flight,))
    for flight in ("DL 461", "UA 1696"):
        app.send_task("flower.board", (flight,), priority=9)
    for flight in ("EV 5708", "B6 79", "B6 301", "WN 3841"):
        app.send_task("flower.board", (flight,), countdown=600)

    wait_for_queue(browser, flower, "ready", "5")
    # RabbitMQ itself does not count the scheduled ones of a queue.
    wait_for_queue(browser, flower, "messages", "9" if rabbitmq is None else "5")
    assert DelayQ.of(app).stats().scheduled == 4
    shown_url = broker.replace("p%40ss%2Fs3cret", "**")
    assert shown_url in browser.text()
    assert "s3cret" not in browser.evaluate("document.documentElement.outerHTML")
    screenshot(browser, tmp_path / "broker.png")

    if rabbitmq is not None:
        # Flower shows queues that workers consume. Other queues are on RabbitMQ's own pages.
        pages = rabbitmq.api_url().replace("guest:guest@", "").removesuffix("api/")
        browser.open(pages)
        browser.wait_for("document.querySelector('input[type=submit]') !== null")
        browser.evaluate(LOGIN)
        browser.wait_for("document.body.innerText.includes('Cluster')")
        browser.evaluate("location.hash = '#/queues'")
        browser.wait_for("document.body.innerText.includes('delayq.delay.')")
        screenshot(browser, tmp_path / "queues.png")


@pytest.mark.parametrize("kind", ["redis", CLUSTER])
def test_the_page_of_a_worker_shows_the_schedule(
    worker: WorkerProcess, app: Celery, flower: str, browser: Browser, tmp_path: Path
) -> None:
    page = f"{flower}/worker/{worker.hostname}"
    for n, flight in enumerate(("UA 1545", "AA 1141", "B6 725")):
        app.send_task("flower.board", (flight,), task_id=flight, countdown=300 - n)
    app.send_task("flower.board", ("DL 461",), queue="elsewhere", countdown=300)

    browser.open(page)
    browser.evaluate("document.querySelector('#worker-tab-tasks').click()")
    browser.wait_for("document.body.innerText.includes('Scheduled tasks')")

    assert browser.evaluate(ROWS % "Scheduled") == [
        ["flower.board", flight, f"['{flight}']", "{}"]
        for flight in ("B6 725", "AA 1141", "UA 1545")
    ]
    screenshot(browser, tmp_path / "schedule.png")

    app.control.revoke("AA 1141")
    assert DelayQ.of(app).run_now("UA 1545")
    assert app.AsyncResult("UA 1545").get(timeout=TIMEOUT) == "UA 1545 boarded"

    def shown() -> bool:
        # Flower shows its current data, and asks the worker for each list for the next time.
        browser.open(page)
        browser.evaluate("document.querySelector('#worker-tab-tasks').click()")
        return (
            browser.evaluate(ROWS % "Scheduled") == [["flower.board", "B6 725", "['B6 725']", "{}"]]
            and ["flower.board", "1"] in browser.evaluate(ROWS % "Processed")
            and "AA 1141" in str(browser.evaluate(ROWS % "Revoked"))
        )

    wait_until(shown, TIMEOUT, browser.text)

    browser.open(f"{flower}/task/AA 1141")
    browser.wait_for("document.body.innerText.includes('REVOKED')")
