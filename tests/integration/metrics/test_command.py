"""``celery -A app delayq metrics``: a process that serves metrics."""

from __future__ import annotations

import re
import signal
import socket
import sys
import threading
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from celery_delayq.metrics.server import TIMEOUT_HEADER, MetricsServer
from celery_delayq.testing import ManagedProcess
from tests.integration.conftest import MakeApp
from tests.integration.metrics.conftest import values_of
from tests.support import TIMEOUT
from tests.support.cli import CommandLine


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def serves_until_term(shop: list[str]) -> None:
    """Start the command, look at what it serves, and end it."""
    with ManagedProcess([*shop, "metrics", "--port", "0"]) as process:
        process.wait_log("/metrics")
        match = re.search(r"metrics on http://127\.0\.0\.1:(\d+)/metrics", process.log)
        assert match, process.log
        status, body = get(int(match[1]), "/metrics")
        assert (status, values_of(body)["delayq_up",]) == (200, 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_it_serves_until_term(shop: list[str]) -> None:
    serves_until_term(shop)


@pytest.fixture
def cli(make_app: MakeApp) -> CommandLine:
    return CommandLine(make_app())


def test_a_port_in_use_is_an_error(cli: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = cli("metrics", "--port", str(port))

    assert ran.code == 1
    assert ran.err.startswith(f"Error: cannot listen on 127.0.0.1, port {port}: Address already in")


def test_an_address_of_another_machine_is_an_error(cli: CommandLine) -> None:
    ran = cli("metrics", "--host", "192.0.2.1", "--port", "0")

    assert (ran.code, "cannot listen on 192.0.2.1" in ran.err) == (1, True)


def test_without_the_extra_it_says_what_to_install(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("celery_delayq.metrics")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    ran = cli("metrics")

    expected = 'Error: metrics need prometheus_client: pip install "celery-delayq[metrics]"\n'
    assert (ran.code, ran.err) == (1, expected)


def test_a_stock_broker_is_refused(make_app: MakeApp) -> None:
    ran = CommandLine(make_app(extension=False, broker="redis://127.0.0.1:1/0"))("metrics")

    assert (ran.code, "needs a URL that begins with delayq+" in ran.err) == (1, True)


def test_the_server_answers_each_path() -> None:
    seen: list[float] = []

    def scrape(timeout: float) -> bytes:
        seen.append(timeout)
        return b"text\n"

    with MetricsServer("127.0.0.1", 0, scrape) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers = [
            get(server.port, "/metrics"),
            get(server.port, "/metrics?x=1", **{TIMEOUT_HEADER: "3"}),
            get(server.port, "/metrics", **{TIMEOUT_HEADER: "soon"}),
            get(server.port, "/metrics", "HEAD"),
            get(server.port, "/"),
            get(server.port, "/other"),
            get(server.port, "/metrics", "POST"),
        ]
        server.shutdown()

    assert [status for status, _ in answers] == [200, 200, 200, 200, 200, 404, 501]
    assert [body for _, body in answers[:4]] == [b"text\n"] * 3 + [b""]
    assert seen == [5.0, 1.5, 5.0, 5.0]


def test_many_connect_at_once() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(MetricsServer("127.0.0.1", 0, lambda _: b""))
        for _ in range(50):
            # None is accepted yet.
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=1))
