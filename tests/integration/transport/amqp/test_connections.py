"""TLS, and several URLs."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from celery_delayq.embedded.ports import HOST, free_port
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from tests.support.rabbitmq import RabbitMQScene
from tests.support.tls import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture(scope="module")
def tls_url(certificates: Certificates) -> Iterator[str]:
    """URL of a broker that wants TLS, and a certificate of who connects."""
    port = free_port()
    config = {
        "listeners.ssl.1": f"{HOST}:{port}",
        "ssl_options.cacertfile": str(certificates.authority),
        "ssl_options.certfile": str(certificates.certificate),
        "ssl_options.keyfile": str(certificates.key),
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
    }
    with EmbeddedRabbitMQ(config=config):
        yield f"delayq+amqps://guest:guest@{HOST}:{port}//"


@pytest.mark.parametrize("where", ["setting", "url"])
def test_a_delayed_task_goes_over_tls(tls_url: str, certificates: Certificates, where: str) -> None:
    files = {
        "ca_certs": str(certificates.authority),
        "certfile": str(certificates.certificate),
        "keyfile": str(certificates.key),
    }
    query = "&".join(f"ssl_{name}={value}" for name, value in files.items())
    url = f"{tls_url}?{query}&ssl_cert_reqs=required" if where == "url" else tls_url
    use = None if where == "url" else {**files, "cert_reqs": ssl.CERT_REQUIRED}
    with RabbitMQScene(url, broker_use_ssl=use) as scene:
        due = scene.send("a", 0.3)

        assert scene.receive("orders")["a"] >= due


def test_the_second_url_is_tried_when_the_first_is_away(delayq_rabbitmq: str) -> None:
    away = f"delayq+amqp://guest:guest@{HOST}:{free_port()}//"
    with RabbitMQScene(f"{away};{delayq_rabbitmq}") as scene:
        due = scene.send("a", 0.3)

        assert scene.receive("orders")["a"] >= due
        assert scene.app._delayq.stats().as_dict()["scheduled"] == 0
