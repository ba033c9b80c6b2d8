"""``dispatch`` at its start: it waits for Redis as workers do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_delayq.testing import ManagedProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.proxy import Proxy

pytestmark = pytest.mark.full

#: Starts a dispatcher of an app with these settings.
Start = Callable[..., ManagedProcess]


@pytest.fixture
def proxy(delayq_redis: RedisUnderTest) -> Iterator[Proxy]:
    with Proxy(delayq_redis.port) as proxy:
        proxy.refuse()
        yield proxy


@pytest.fixture
def start(tmp_path: Path, proxy: Proxy, delayq_redis: RedisUnderTest) -> Start:
    def start(login: str = "", **conf: object) -> ManagedProcess:
        url = f"delayq+redis://{login}localhost:{proxy.port}/0"
        conf = {"broker_connection_timeout": 0.5, **conf}
        (tmp_path / "shop.py").write_text(
            "from celery import Celery\nfrom celery_delayq import DelayQ\n"
            f"app = Celery('shop', broker={url!r})\napp.conf.update({conf!r})\nDelayQ(app)\n"
        )
        command = [sys.executable, "-m", "celery", "-A", "shop", "delayq", "dispatch"]
        return ManagedProcess(command, cwd=tmp_path)

    return start


def test_it_waits_until_redis_is_there(start: Start, proxy: Proxy) -> None:
    with start() as process:
        process.wait_log("Trying again in 2 s")
        assert f"cannot reach Redis at localhost:{proxy.port}: " in process.log
        proxy.accept()
        process.wait_log("dispatching")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_it_may_be_stopped_while_it_waits(start: Start) -> None:
    with start() as process:
        process.wait_log("Trying again")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "stopped before there was a connection" in process.log


@pytest.mark.parametrize(
    "conf", [{"broker_connection_retry_on_startup": False}, {"broker_connection_max_retries": 1}]
)
def test_it_ends_where_workers_would(start: Start, conf: dict[str, object]) -> None:
    with start(**conf) as process:
        assert process.wait() == 1
        assert process.log.splitlines()[-1].startswith("Error: cannot reach Redis at localhost:")


def test_a_wrong_password_is_reported_at_once(start: Start, proxy: Proxy) -> None:
    proxy.accept()

    with start("ada:hunter2@") as process:
        assert process.wait() == 1
        assert "Trying again" not in process.log
        assert "invalid username-password pair" in process.log.splitlines()[-1]
        assert "hunter2" not in process.log
