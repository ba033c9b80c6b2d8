"""A Redis Cluster over TLS, with a password."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from kombu.exceptions import OperationalError

from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.cluster import form_cluster, node_options
from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.integration.transport.cluster.conftest import ClusterScene
from tests.support import TIMEOUT
from tests.support.cluster import MASTERS, Cluster
from tests.support.tls import Certificates, make_certificates, tls_server_program

pytestmark = pytest.mark.full

PASSWORD = "p@ss/s3cret"


@dataclass(frozen=True)
class SecureCluster(Cluster):
    """Servers whose clients, replicas and bus use TLS; its own port is for tests."""

    ports: list[int]
    certificates: Certificates

    @property
    def url(self) -> str:
        """The broker URL, of all masters."""
        return self.url_by(self.certificates)

    def url_by(self, certificates: Certificates) -> str:
        """Return the broker URL of a client that trusts this authority only."""
        trusted = f"ssl_cert_reqs=required&ssl_ca_certs={quote(str(certificates.authority))}"
        return ";".join(
            f"delayq+redisclusters://:{quote(PASSWORD, safe='')}@127.0.0.1:{port}?{trusted}"
            for port in self.ports[:MASTERS]
        )


@pytest.fixture
def cluster(tmp_path: Path, delayq_redis_factory: Callable[..., EmbeddedRedis]) -> SecureCluster:
    program, files = tls_server_program(), make_certificates(tmp_path / "certificates")
    ports = [free_port() for _ in range(2 * MASTERS)]
    servers = [
        delayq_redis_factory(
            executable=program,
            appendonly=False,
            password=PASSWORD,
            options={
                **node_options(),
                "masterauth": PASSWORD,
                "tls-port": port,
                "tls-cert-file": str(files.certificate),
                "tls-key-file": str(files.key),
                "tls-ca-cert-file": str(files.authority),
                "tls-auth-clients": False,
                "tls-cluster": True,
                "tls-replication": True,
            },
        )
        for port in ports
    ]
    cluster = SecureCluster(servers[:MASTERS], servers[MASTERS:], ports, files)
    form_cluster(cluster.masters, cluster.replicas)
    return cluster


def test_a_worker_runs_delayed_tasks_and_answers_also_after_a_failover(
    scene: ClusterScene,
) -> None:
    shards = [scene.shard(number) for number in (0, 4, 8)]
    worker = scene.work(0, 4, 8, pool="prefork")

    def all_run(when: str) -> None:
        ids = {f"{when} {shard.queue}": shard.queue for shard in shards}
        for id, queue in ids.items():
            scene.send("plain", "done", id=id, countdown=0.5, queue=queue)
        for id in ids:
            scene.wait_state(id)

    all_run("before")
    shards[1].master.kill()
    scene.cluster.wait_taken_over(shards[1].master)
    all_run("after")

    inspect = scene.app.control.inspect(timeout=2)
    wait_until(lambda: (inspect.ping() or {}).keys() == {worker.hostname}, TIMEOUT, "an answer")
    assert sorted(scene.runs("id")) == sorted(
        f"{when} {shard.queue}" for when in ("before", "after") for shard in shards
    )
    assert "s3cret" not in scene.app.connection_for_write().as_uri() + worker.log


def test_a_certificate_of_another_authority_is_refused(
    make_app: MakeApp, cluster: SecureCluster, tmp_path: Path
) -> None:
    app = make_app(broker=cluster.url_by(make_certificates(tmp_path / "other")))

    with pytest.raises(OperationalError, match=r"(?i)certificate"):
        app.tasks["tasks.add"].apply_async((1, 2), countdown=9, retry_policy={"max_retries": 0})
