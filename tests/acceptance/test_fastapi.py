"""The example with FastAPI: a real uvicorn server, a real worker, requests over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from celery_delayq.embedded.ports import free_port
from celery_delayq.testing import ManagedProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi"


class Service(ManagedProcess):
    """A program of the example."""

    def __init__(self, name: str, command: list[str], redis: str, folder: Path) -> None:
        super().__init__(
            [sys.executable, "-m", *command],
            cwd=EXAMPLE,
            log_file=folder / f"{name}.log",
            name=name,
            env={"REDIS": redis},
        )


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.full)])
def http(
    request: pytest.FixtureRequest, delayq_redis: RedisUnderTest, tmp_path: Path
) -> Iterator[httpx.Client]:
    """Requests to the service, on each event loop of uvicorn."""
    pytest.importorskip(request.param)
    port = free_port()
    command = ["uvicorn", "service:api", "--port", str(port), "--loop", request.param]
    with (
        Service("uvicorn", command, delayq_redis.url, tmp_path) as service,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT) as client,
    ):

        def is_up() -> bool:
            assert service.running, service.log
            try:
                return client.get("/reminders").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(is_up, TIMEOUT, lambda: service.log)
        yield client


def new(seconds: float) -> dict[str, object]:
    return {"to": "Ada", "text": "tea is ready", "seconds": seconds}


def test_reminders_are_sent_found_moved_counted_and_cancelled(
    http: httpx.Client, delayq_redis: RedisUnderTest, tmp_path: Path
) -> None:
    # One test, since each service and each worker takes seconds to start.
    command = ["celery", "-A", "tasks", "worker", "-P", "solo", "--loglevel", "info"]
    with Service("worker", command, delayq_redis.url, tmp_path):
        id = http.post("/reminders", json=new(0.5)).json()["id"]
        found = http.get(f"/reminders/{id}/result", params={"timeout": 200})
    assert found.json() == {"result": "Dear Ada: tea is ready"}

    with ThreadPoolExecutor(8) as threads:
        sent = [*threads.map(lambda _: http.post("/reminders", json=new(3600)), range(40))]
    assert {each.status_code for each in sent} == {202}
    first, *_ = ids = [each.json()["id"] for each in sent]
    assert http.get("/reminders").json() == {"scheduled": 40}
    before = http.get(f"/reminders/{first}").json()

    assert http.patch(f"/reminders/{first}", params={"seconds": 7200}).status_code == 200
    after = http.get(f"/reminders/{first}").json()
    cancelled = [http.delete(f"/reminders/{id}").status_code for id in ids]

    assert (before["state"], after["state"]) == ("scheduled", "scheduled")
    assert after["due"] > before["due"]
    assert {*cancelled} == {200}
    assert http.get("/reminders").json() == {"scheduled": 0}
    assert http.get(f"/reminders/{first}").status_code == 404
    assert http.delete("/reminders/unknown").status_code == 409
    assert http.post("/reminders", json=new(1e300)).status_code == 422
    assert http.get("/reminders/unknown/result", params={"timeout": 0.2}).status_code == 504
