"""Webhooks over real connections, and from real workers."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, group
from kombu.utils.imports import symbol_by_name

from celery_delayq.embedded.ports import free_port
from celery_delayq.errors import ConfigError, DeliveryFailed, DeliveryRefused, InvalidWebhook
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.webhook import TASK_NAME, Webhook, deliver, verify
from tests.integration.conftest import module_app
from tests.support import TIMEOUT
from tests.support.receiver import Handler, Receiver

StartWorker = Callable[..., WorkerProcess]


# -- one request ------------------------------------------------------------------------------


def settings(**more: Any) -> Webhook:
    return Webhook(
        **{
            "allow": ["127.0.0.1:*", "localhost:*"],
            "allow_http": True,
            "allow_networks": ["127.0.0.0/8", "::1/128"],
            "timeout": 60,
            **more,
        }
    )


def test_a_request_has_the_payload_and_can_be_checked_by_its_receiver() -> None:
    with Receiver(204) as receiver:
        status = deliver(
            settings(secret="s3cret", user_agent="shop/1"),
            receiver.url("/orders/7?full=1"),
            {"id": 7},
            {"X-Shop": "ada", "accept": "text/plain"},
            "the-id",
        )

    assert status == 204
    [request] = receiver.requests
    assert (request.path, json.loads(request.body)) == ("/orders/7?full=1", {"id": 7})
    assert verify("s3cret", request.headers, request.body) == "the-id"
    assert request.headers["Idempotency-Key"] == "the-id"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["User-Agent"] == "shop/1"
    assert request.headers["X-Shop"] == "ada"
    assert request.headers.get_all("Accept") == ["text/plain"]
    assert request.headers["Host"] == f"127.0.0.1:{receiver.port}"


def send(url: str, body: Any = None, **more: Any) -> int:
    return deliver(settings(**more), url, body, None, "id")


def test_a_redirect_is_not_followed() -> None:
    with Receiver(200) as elsewhere:
        location = elsewhere.url("/stolen", host="127.0.0.2")
        with (
            Receiver((307, {"Location": location})) as receiver,
            pytest.raises(DeliveryRefused, match=r"redirect to 'http://127\.0\.0\.2:\d+/stolen'"),
        ):
            send(receiver.url())

    assert len(receiver.requests) == 1
    assert elsewhere.requests == []


@pytest.mark.parametrize("location", ["http://[", "http://" + "x" * 60_000, "\x01", ""])
def test_a_redirect_to_no_url_is_refused_as_well(location: str) -> None:
    with (
        Receiver((302, {"Location": location})) as receiver,
        pytest.raises(DeliveryRefused, match="302, a redirect"),
    ):
        send(receiver.url())


def test_environment_and_cookies_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with Receiver((200, {"Set-Cookie": "a=b"})) as receiver:
        send(receiver.url())
        send(receiver.url())

    assert [request.headers["Cookie"] for request in receiver.requests] == [None, None]


def hang_up(handler: Handler) -> None:
    handler.connection.close()


def say_something_else(handler: Handler) -> None:
    handler.wfile.write(b"220 mail ESMTP\r\n")


def drip(handler: Handler) -> None:
    """Answer one byte at a time, and never end the headers."""
    _drip(handler, b"HTTP/1.1 200 OK\r\nX-Slow: ")


def drip_body(handler: Handler) -> None:
    """Answer with a failure whose body never ends."""
    _drip(handler, b"HTTP/1.1 500 Oh\r\n\r\nonly the beginning ")


def _drip(handler: Handler, start: bytes) -> None:
    handler.wfile.write(start)
    while not handler.server.receiver.ended.wait(0.02):
        handler.wfile.write(b"x")


def flood(handler: Handler) -> None:
    """Answer with a failure and as many bytes as the client reads."""
    handler.wfile.write(b"HTTP/1.1 400 No\r\n\r\n")
    while not handler.server.receiver.ended.is_set():
        handler.wfile.write(b"no \x1b[2J\n" * 10_000)


@pytest.mark.parametrize(
    ("answer", "timeout", "message"),
    [
        (hang_up, TIMEOUT, "no answer"),
        (say_something_else, TIMEOUT, "no answer: RemoteProtocolError"),
        (drip, 0.5, r"no answer within 0\.5 s"),
        (drip_body, 2.0, r"500: only the beginning x+"),
    ],
)
def test_a_receiver_that_does_not_answer_to_the_end_is_tried_again(
    answer: Callable[[Handler], None], timeout: float, message: str
) -> None:
    start = time.monotonic()
    with Receiver(answer) as receiver, pytest.raises(DeliveryFailed, match=message):
        send(receiver.url("/?s3cret"), timeout=timeout)

    assert timeout == TIMEOUT or time.monotonic() - start > 0.8 * timeout
    with pytest.raises(DeliveryFailed, match="no answer: ConnectError"):
        send(receiver.url())  # nobody listens any more


def wait_for_the_end(handler: Handler) -> None:
    handler.server.receiver.ended.wait(TIMEOUT)


def test_a_receiver_that_does_not_read_is_given_up_at_the_deadline() -> None:
    with Receiver(wait_for_the_end) as receiver:
        receiver.read_bodies = False
        with pytest.raises(DeliveryFailed, match=r"no answer within 0\.5 s"):
            send(receiver.url(), "x" * 30_000_000, timeout=0.5)


@pytest.mark.parametrize("most", [0, 20, 512])
def test_no_more_of_a_huge_answer_is_read_than_the_error_shows(most: int) -> None:
    with Receiver(flood) as receiver, pytest.raises(DeliveryRefused) as caught:
        send(receiver.url("/a"), timeout=TIMEOUT, max_response=most)

    text = str(caught.value).removeprefix(f"POST {receiver.url('/a')}: 400").removeprefix(": ")
    assert len(text) <= most
    assert text.isprintable()


def test_a_success_is_done_although_its_body_does_not_end() -> None:
    def endless(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        wait_for_the_end(handler)

    with Receiver(endless) as receiver:
        assert send(receiver.url(), timeout=TIMEOUT) == 200


# -- TLS --------------------------------------------------------------------------------------


def certificate_for(name: str, folder: Path) -> Path:
    """Make a self-signed certificate for the name of a host, with its key in the same file."""
    key, certificate, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName=DNS:{name}",
            "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
        ],
        check=True,
        capture_output=True,
        timeout=TIMEOUT,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.fail("the certificate is made by openssl: apt install openssl")
    return certificate_for("localhost", tmp_path)


def test_certificates_are_checked_against_the_name_although_the_address_is_asked(
    certificate: Path,
) -> None:
    trusting: dict[str, Any] = {"ca_file": str(certificate), "allow_http": False}
    with Receiver(200, certificate=certificate) as receiver:
        # Another name, and an authority that is not known.
        for host, more in (("127.0.0.1", trusting), ("localhost", {})):
            with pytest.raises(DeliveryFailed, match=r"(?i)certificate verify failed"):
                send(receiver.url(host=host), **more)
        assert receiver.requests == []

        assert send(receiver.url(host="localhost"), **trusting) == 200


def test_a_receiver_that_does_not_greet_is_given_up(certificate: Path) -> None:
    with Receiver(200) as plain:
        url = plain.url(host="localhost").replace("http:", "https:")
        with pytest.raises(DeliveryFailed, match=r"no answer"):
            send(url, timeout=0.5)


def test_a_file_of_authorities_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ca_file=.*missing\.pem"):
        send(f"https://127.0.0.1:{free_port()}/", ca_file=str(tmp_path / "missing.pem"))


# -- workers ----------------------------------------------------------------------------------


@pytest.fixture
def app(delayq_broker_url: str, delayq_redis: RedisUnderTest) -> Iterator[Celery]:
    """The app of the workers, pointed at the Redis of this test."""
    from tests.apps import webhook_tasks

    with module_app(webhook_tasks.app, delayq_redis, delayq_broker_url):
        yield webhook_tasks.app


@pytest.fixture
def post(app: Celery) -> Any:
    return app.tasks[TASK_NAME]


@pytest.fixture
def worker(delayq_worker: StartWorker) -> WorkerProcess:
    return delayq_worker("tests.apps.webhook_tasks:app", pool="threads")


def died(app: Celery) -> list[str]:
    """Return the ids of the dead letters."""
    return [dead_letter.id for dead_letter in app._delayq.dead_letters()]


def test_a_failure_is_tried_again_under_the_same_id(
    worker: WorkerProcess, app: Celery, post: Any
) -> None:
    with Receiver(500, 503, hang_up, 200) as receiver:
        result = post.apply_async(
            (receiver.url("/a?token=t0ken"), {"id": 7}), retry_intervals=(0.05, 0.05, 0.05)
        )

        assert result.get(timeout=TIMEOUT) == 200

    told = [(request.headers["Idempotency-Key"], request.body) for request in receiver.requests]
    assert told == [(result.id, b'{"id":7}')] * 4
    assert died(app) == []
    worker.wait_log("500")
    assert "t0ken" not in worker.log


WAIT = (429, {"Retry-After": "1"})
ELSEWHERE = {"Location": "http://169.254.169.254/"}


@pytest.mark.parametrize(
    ("answer", "waits", "error", "attempts"),
    [
        pytest.param(500, (0.05, 0.05), DeliveryFailed, 3, id="after the last attempt"),
        pytest.param((404, ELSEWHERE), (0.05,), DeliveryRefused, 1, id="not wanted"),
        pytest.param((302, ELSEWHERE), (0.05,), DeliveryRefused, 1, id="a redirect"),
        pytest.param(WAIT, (60,), DeliveryFailed, 2, id="a wait that is asked for is an attempt"),
        pytest.param(WAIT, False, DeliveryFailed, 1, id="who wants no retry gets none"),
    ],
)
@pytest.mark.usefixtures("worker")
def test_a_webhook_that_fails_for_good_is_a_dead_letter(
    app: Celery, post: Any, answer: Any, waits: Any, error: type[Exception], attempts: int
) -> None:
    status = answer if isinstance(answer, int) else answer[0]
    with Receiver(answer) as receiver:
        result = post.apply_async((receiver.url(),), retry_intervals=waits)

        with pytest.raises(error, match=str(status)):
            result.get(timeout=TIMEOUT)

    assert len(receiver.requests) == attempts
    if waits:
        wait_until(lambda: died(app) == [result.id], what="it is a dead letter")


def test_the_receiver_may_say_how_long_to_wait(worker: WorkerProcess, post: Any) -> None:
    """The task's own first wait is an hour."""
    with Receiver((429, {"Retry-After": "1"}), (503, {"Retry-After": "soon"}), 200) as receiver:
        result = post.apply_async((receiver.url(),), retry_intervals=(3600, 0.05))

        assert result.get(timeout=TIMEOUT) == 200

    first, second, _ = (request.at for request in receiver.requests)
    assert second - first >= 1


def test_what_was_sent_past_the_check_is_refused_by_the_worker(
    worker: WorkerProcess, app: Celery
) -> None:
    """``send_task`` knows no task."""
    result = app.send_task(TASK_NAME, ("https://evil.example.net/?t0ken",), retry_intervals=(0.05,))

    with pytest.raises(InvalidWebhook, match="is not allowed"):
        result.get(timeout=TIMEOUT)

    wait_until(lambda: died(app) == [result.id], what="it is a dead letter")
    assert "t0ken" not in worker.log


def test_webhooks_in_a_canvas(worker: WorkerProcess, post: Any) -> None:
    with Receiver(200) as receiver:
        both = group(post.si(receiver.url("/a")), post.si(receiver.url("/b")))
        result = chain(post.si(receiver.url("/first")), both).apply_async(countdown=0.1)

        assert result.get(timeout=TIMEOUT) == [200, 200]

    paths = [request.path for request in receiver.requests]
    assert paths[0] == "/first"
    assert sorted(paths[1:]) == ["/a", "/b"]


# -- its two names ----------------------------------------------------------------------------

PATH = "celery_delayq.webhook.post"

#: Ways to send one by the import path of the task, which is not its name.
BY_PATH: dict[str, Callable[[Celery, str], object]] = {
    "send_task": lambda app, url: app.send_task(PATH, (url,)),
    "delayed": lambda app, url: app.send_task(PATH, (url,), countdown=0.1),
    "signature": lambda app, url: app.signature(PATH, (url,)).apply_async(),
    "chain": lambda app, url: chain(
        app.signature(TASK_NAME, (url,), immutable=True),
        app.signature(PATH, (url,), immutable=True),
    ).apply_async(),
    "tasks": lambda app, url: app.tasks[PATH].delay(url),
    "import": lambda _, url: symbol_by_name(PATH).delay(url),
    "schedule_many": lambda app, url: app._delayq.schedule_many([{"args": (url,)}], task=PATH),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[] if way == "chain" else pytest.mark.full) for way in BY_PATH]
)
def test_what_is_sent_by_the_import_path_has_the_name_of_the_task(
    way: str, worker: WorkerProcess, app: Celery
) -> None:
    with Receiver(200, 200) as receiver:
        app.set_current()
        BY_PATH[way](app, receiver.url())
        wait_until(lambda: len(receiver.requests) == 1 + (way == "chain"), TIMEOUT, "it is asked")

    wait_until(lambda: "succeeded" in worker.log, TIMEOUT, "it has ended")
    assert f"Task {TASK_NAME}[" in worker.log
    assert PATH not in worker.log.partition("ready.")[2]
    assert died(app) == []


@pytest.mark.full
def test_what_a_stock_producer_sends_by_the_import_path_runs(
    worker: WorkerProcess, app: Celery, delayq_redis: RedisUnderTest
) -> None:
    with (
        Celery("stock", broker=delayq_redis.url, set_as_current=False) as stock,
        Receiver(200) as receiver,
    ):
        stock.send_task(PATH, (receiver.url(),))
        wait_until(lambda: len(receiver.requests) == 1, TIMEOUT, "it is asked")

    assert died(app) == []


def test_its_own_path_leads_to_it(app: Celery) -> None:
    task = app.tasks[TASK_NAME]

    assert (task.name, f"{task.__module__}.{task.__name__}") == (TASK_NAME, PATH)
    assert app.tasks[PATH] is task
