"""``delayq+sentinel``: real sentinels name the master, and tasks follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kombu.exceptions import OperationalError
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.late_task import OUR_TRANSPORT, check_it_runs, send_late, start_worker
from tests.support.scene import StartWorker
from tests.support.sentinel import MASTER_NAME, Sentinel, replicated

PASSWORD = "p@ss/s3cret"
RIGHT = quote(PASSWORD, safe="")
NAMED = {"broker_transport_options": {"master_name": MASTER_NAME}}
#: Without redis-py's own retries, of about four seconds for each sentinel that is down.
IMPATIENT = {"master_name": MASTER_NAME, "sentinel_kwargs": {"retry": Retry(NoBackoff(), 0)}}
Servers = Callable[..., EmbeddedRedis]


@dataclass(frozen=True)
class Watched:
    """A master with a replica, and the two sentinels that watch them."""

    master: EmbeddedRedis
    replica: EmbeddedRedis
    sentinels: list[Sentinel]

    def url(self, scheme: str = "delayq+sentinel", password: str = RIGHT) -> str:
        """Give the URLs of both, what leads to the master on the first alone."""
        first, second = (sentinel.port for sentinel in self.sentinels)
        return f"{scheme}://:{password}@127.0.0.1:{first}/2;{scheme}://127.0.0.1:{second}"


@pytest.fixture
def watched(delayq_redis_factory: Servers, tmp_path: Path) -> Iterator[Watched]:
    master, replica = replicated(delayq_redis_factory, PASSWORD)
    with ExitStack() as stack:
        sentinels = [
            stack.enter_context(Sentinel(master, PASSWORD, tmp_path / f"sentinel-{number}"))
            for number in (1, 2)
        ]
        for sentinel in sentinels:
            sentinel.wait_ready(replicas=1)
        yield Watched(master, replica, sentinels)


@pytest.mark.parametrize(
    ("scheme", "transport"),
    [("delayq+sentinel", {}), ("sentinel", OUR_TRANSPORT)],
    ids=["delayq+sentinel", "our transport"],
)
def test_a_delayed_task_goes_to_the_master(
    watched: Watched,
    make_app: MakeApp,
    delayq_worker: StartWorker,
    scheme: str,
    transport: dict[str, Any],
) -> None:
    broker, settings = watched.url(scheme), {**NAMED, **transport}
    app = make_app(broker=broker, **settings)
    with watched.master.client(db=2) as client:
        result = send_late(app, client)
        with DelayQ.of(app) as delayq:
            assert delayq.count() == 1
        worker = start_worker(delayq_worker, broker, settings, loglevel="DEBUG")
        check_it_runs(result, client)
    assert "s3cret" not in worker.log


@pytest.mark.parametrize("down", [0, 1])
def test_one_sentinel_may_be_down(make_app: MakeApp, watched: Watched, down: int) -> None:
    app = make_app(broker=watched.url(), broker_transport_options=IMPATIENT)
    watched.sentinels[down].stop()

    with watched.master.client(db=2) as client:
        send_late(app, client)


@pytest.mark.full
def test_publisher_and_worker_follow_the_master(
    watched: Watched, make_app: MakeApp, delayq_worker: StartWorker
) -> None:
    broker = watched.url()
    app = make_app(broker=broker, **NAMED)
    worker = start_worker(delayq_worker, broker, NAMED)
    with watched.replica.client(db=2) as client:
        before = app.send_task("url.add", (2, 2), countdown=3600)
        wait_until(lambda: client.zcard("{celery}:due") == 1, TIMEOUT, "the entry on the replica")

        watched.master.kill()
        wait_until(
            lambda: all(s.master_port() == watched.replica.port for s in watched.sentinels),
            TIMEOUT,
            "the failover",
        )

        result = app.send_task("url.add", (2, 3), countdown=0.5)
        assert result.get(timeout=TIMEOUT) == 5
        assert client.zcard("{celery}:due") == 1
        assert before.state == "PENDING"
    assert worker.running


@pytest.mark.parametrize(
    ("password", "options", "error", "says"),
    [
        (
            RIGHT,
            {"master_name": "arrivals"},
            OperationalError,
            "No master found for 'arrivals'; check master_name",
        ),
        (RIGHT, {}, ValueError, "'master_name' transport option must be specified"),
        ("wr0ng", {"master_name": MASTER_NAME}, OperationalError, "(?i)invalid.*password"),
    ],
    ids=["wrong master name", "no master name", "wrong password"],
)
def test_what_leads_to_no_master_is_an_error_at_the_call(
    make_app: MakeApp,
    watched: Watched,
    password: str,
    options: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    app = make_app(broker=watched.url(password=password), broker_transport_options=options)

    with pytest.raises(error, match=says) as refused:
        app.send_task("url.add", (2, 3), countdown=60)

    assert password not in str(refused.value)


def test_no_sentinel_is_an_error_at_the_call(make_app: MakeApp) -> None:
    ports = (free_port(), free_port())
    broker = ";".join(f"delayq+sentinel://127.0.0.1:{port}" for port in ports)

    with pytest.raises(OperationalError, match="No master found") as refused:
        make_app(broker=broker, broker_transport_options=IMPATIENT).send_task(
            "url.add", (2, 3), countdown=60
        )

    addresses = ", ".join(f"127.0.0.1:{port}" for port in ports)
    assert str(refused.value).endswith(f"'{MASTER_NAME}'; no answer from {addresses}")
