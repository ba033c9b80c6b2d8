"""Flower's API says what is wrong with a task that it cannot publish."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_delayq import errors
from celery_delayq.embedded import free_port
from celery_delayq.integration.flower.api import status_of
from celery_delayq.testing import ManagedProcess
from tests.integration.conftest import stored
from tests.support import TIMEOUT

APPS = Path(__file__).parents[2] / "apps"
TAKEN = {"unique_key": "board", "on_conflict": "error", "countdown": 60}


@pytest.fixture
def flower(delayq_broker_url: str, tmp_path: Path) -> Iterator[str]:
    """URL of the API of a Flower that is up."""
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "flower_tasks:app", "flower"]
    command += ["--address=127.0.0.1", f"--port={port}"]
    settings = {"CELERY_BROKER_URL": delayq_broker_url, "FLOWER_UNAUTHENTICATED_API": "true"}
    log = tmp_path / "flower.log"
    with ManagedProcess(command, env=settings, cwd=APPS, log_file=log, name="flower") as process:
        process.wait_log("Registered tasks")
        yield f"http://127.0.0.1:{port}/api/task"


def post(url: str, options: dict[str, Any]) -> tuple[int, str]:
    """Return status and text of the answer."""
    request = urllib.request.Request(url, json.dumps(options).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_an_error_at_a_publish_is_named_with_a_status_of_its_own(flower: str, redis: Redis) -> None:
    status, _ = post(f"{flower}/async-apply/flower.board", {"args": ["UA 1"], **TAKEN})
    assert status == 200
    [there] = [each["headers"]["id"] for each in stored(redis)]

    for route in ("apply", "async-apply", "send-task"):
        for options, expected, text in (
            (TAKEN, 409, there),
            ({"countdown": 1e300}, 400, "countdown"),
            ({"unique_key": "board", "on_conflict": "100%"}, 400, "on_conflict='100%'"),
        ):
            url = f"{flower}/{route}/flower.board"
            status, answer = post(url, {"args": ["UA 2"], **options})
            assert (status, text in answer) == (expected, True), (route, options, answer)
        status, answer = post(f"{flower}/{route}/flower.board", {"countdown": 60, "args": 7})
        assert (status, answer) == (400, "args must be an array")  # Flower's own
    assert len(stored(redis)) == 1


def test_what_a_caller_or_a_broker_does_wrong_is_no_500() -> None:
    found = {
        name: status_of(each.__new__(each))
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.DelayQError)
    }

    assert found["UniqueConflict"] == 409
    assert {found[name] for name in ("QueueFull", "StoreFull", "BrokerUnavailable", "NoQueue")} == {
        503
    }
    assert {found[name] for name in ("InvalidETA", "InvalidOption", "InvalidUnique")} == {400}
