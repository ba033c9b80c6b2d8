"""TLS: certificates are checked as the URL says, and real workers run tasks over TLS."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from kombu.exceptions import OperationalError
from redis import Redis

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import HOST, free_port
from celery_delayq.integration.broker_urls import CLUSTER_SCHEMES, SCHEMES
from celery_delayq.store.scripting import client
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.late_task import OUR_TRANSPORT, check_it_runs, send_late, start_worker
from tests.support.scene import StartWorker
from tests.support.tls import Certificates, make_certificates, tls_server_program


@dataclass(frozen=True)
class SecureRedis:
    """A server that asks its clients for a certificate, and its plain door for the test."""

    port: int
    certificates: Certificates
    client: Redis

    def url(self, scheme: str, authority: Path | None = None) -> str:
        files = {
            "ssl_ca_certs": authority or self.certificates.authority,
            "ssl_certfile": self.certificates.certificate,
            "ssl_keyfile": self.certificates.key,
        }
        options = "&".join(f"{name}={quote(str(path))}" for name, path in files.items())
        where = f"{scheme}://:p%40ss%2Fs3cret@127.0.0.1:{self.port}/3"
        return f"{where}?ssl_cert_reqs=required&{options}"


@pytest.fixture
def secure_redis(tmp_path: Path) -> Iterator[SecureRedis]:
    program = tls_server_program()
    certificates = make_certificates(tmp_path / "certificates")
    port = free_port()
    options: dict[str, str | int | bool] = {
        "tls-port": port,
        "tls-cert-file": str(certificates.certificate),
        "tls-key-file": str(certificates.key),
        "tls-ca-cert-file": str(certificates.authority),
        "tls-auth-clients": True,
    }
    with (
        EmbeddedRedis(executable=program, password="p@ss/s3cret", options=options) as server,
        server.client(db=3) as client,
    ):
        yield SecureRedis(port, certificates, client)


@pytest.mark.parametrize(
    ("scheme", "settings"),
    [("delayq+rediss", {}), ("rediss", OUR_TRANSPORT)],
    ids=["delayq+rediss", "our transport"],
)
def test_a_delayed_task_goes_over_tls(
    secure_redis: SecureRedis,
    make_app: MakeApp,
    delayq_worker: StartWorker,
    scheme: str,
    settings: dict[str, str],
) -> None:
    broker = secure_redis.url(scheme)

    result = send_late(make_app(broker=broker, **settings), secure_redis.client)
    worker = start_worker(delayq_worker, broker, settings, loglevel="DEBUG")
    check_it_runs(result, secure_redis.client)

    doors = {c["laddr"] for c in secure_redis.client.client_list() if c["db"] == "3"}
    own = secure_redis.client.client_info()["laddr"]
    assert doors - {own} == {f"127.0.0.1:{secure_redis.port}"}
    assert "s3cret" not in worker.log


def test_after_a_failover_tls_is_kept_with_its_options(
    make_app: MakeApp, secure_redis: SecureRedis
) -> None:
    down = f"delayq+redis://127.0.0.1:{free_port()}/1"
    app = make_app(broker=f"{down};{secure_redis.url('delayq+rediss')}")

    app.send_task("url.add", (2, 3), countdown=60)

    assert secure_redis.client.zcard("{celery}:due") == 1


def test_a_server_of_another_authority_is_not_trusted(
    make_app: MakeApp, secure_redis: SecureRedis, tmp_path: Path
) -> None:
    stranger = make_certificates(tmp_path / "stranger").authority
    app = make_app(broker=secure_redis.url("delayq+rediss", stranger))

    with pytest.raises(OperationalError, match=r"(?i)certificate verify failed"):
        app.send_task("url.add", (2, 3), countdown=60)

    assert secure_redis.client.keys() == []


def test_a_client_without_a_certificate_is_refused_before_its_password_counts(
    make_app: MakeApp, secure_redis: SecureRedis
) -> None:
    broker = re.sub("&ssl_(certfile|keyfile)=[^&]*", "", secure_redis.url("delayq+rediss"))

    ran = CommandLine(make_app(broker=broker))("health", "--ready")

    assert (ran.code, ran.out) == (1, "")
    assert "not ready: " in ran.err
    assert secure_redis.client.acl_log() == []


def test_health_and_doctor_work_over_tls(make_app: MakeApp, secure_redis: SecureRedis) -> None:
    cli = CommandLine(make_app(broker=secure_redis.url("delayq+rediss")))

    assert cli("health", "--ready").out == "ready\n"
    assert cli("doctor").code == 0


def test_a_server_without_tls_ends_the_handshake_by_a_timeout_that_names_tls(
    make_app: MakeApp, delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the end of a command, and the client for the answer to its handshake."""
    monkeypatch.setattr(client, "HANDSHAKE_SECONDS", 0.1)
    app = make_app(broker=f"delayq+rediss://127.0.0.1:{delayq_redis.port}/0?ssl_cert_reqs=none")

    with pytest.raises(OperationalError, match=r"the TLS handshake within 0\.1 s: is this"):
        app.send_task("url.add", (2, 3), countdown=60, retry=False)


#: The first bytes that a client of each scheme says. Sockets and sentinels have no TLS in the URL.
HELLO = {
    "redis": b"*",
    "rediscluster": b"*",
    "amqp": b"AMQP",
    **dict.fromkeys(("rediss", "redisclusters", "amqps"), b"\x16\x03"),
}

#: How a server is named: alone, after one that is away, and by a plain URL with our transport.
NAMED = {
    "alone": ("delayq+{here}", {}),
    "second": ("delayq+{away};delayq+{here}", {}),
    "setting": ("{here}", OUR_TRANSPORT),
}


@pytest.mark.parametrize(
    ("scheme", "named"),
    [
        (scheme, named)
        for scheme in SCHEMES
        for named in NAMED
        if scheme not in ("redis+socket", "sentinel")
        and (scheme not in CLUSTER_SCHEMES or named != "setting")  # kombu has no such scheme
    ],
)
def test_a_scheme_of_tls_says_nothing_in_plain_text(
    make_app: MakeApp, scheme: str, named: str
) -> None:
    form, settings = NAMED[named]
    said: list[bytes] = []
    with socket.create_server((HOST, 0)) as server:

        def listen() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        said.append(client.recv(16))

        threading.Thread(target=listen, daemon=True).start()
        here = f"{scheme}://user:secret@{HOST}:{server.getsockname()[1]}"
        away = f"{scheme}://user:secret@{HOST}:{free_port()}"
        app = make_app(broker=form.format(here=here, away=away), **settings)

        with app.connection_for_write() as connection, pytest.raises(OperationalError):
            connection.ensure_connection(max_retries=1, interval_start=0)

    assert said
    assert {each[: len(HELLO[scheme])] for each in said} == {HELLO[scheme]}
