"""A pytest plugin: tests and workers run with least rights.

``TEST_LEAST_RIGHTS=1 pytest …``; a test fails if Redis has refused a command of an account.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis

from celery_delayq.admin.accounts import Role, rules
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import WorkerProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.faults.stage import Stage

USERS: tuple[Role, ...] = ("operator", "worker")


def url_as(url: str, user: str) -> str:
    """Return the URL of a local Redis for one of the users."""
    return url.replace("//127.0.0.1", f"//{user}:pw-{user}@127.0.0.1", 1)


def make_users(client: Redis) -> None:
    for user in USERS:
        command = ("ACL", "SETUSER", user, "reset", "on", f">pw-{user}", *rules(user))
        client.execute_command(*command)
    client.acl_log_reset()


def check_refusals(client: Redis) -> None:
    """Fail if Redis has refused a command of an account."""
    refused = [
        (each["username"], each["object"])
        for each in client.acl_log()
        if each["object"] not in ("client", b"client")  # Redis 6.2: CLIENT SETINFO of redis-py
    ]
    assert refused == []


@pytest.fixture(autouse=True)
def _least_rights(delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    make_users(delayq_redis.client)
    url_for, start = EmbeddedRedis.url_for, WorkerProcess.start
    enter_broker, url_of_stage = Stage._enter_broker, Stage._url

    def url_for_operator(server: Any, scheme: str, **options: Any) -> str:
        url = url_for(server, scheme, **options)
        own = server is delayq_redis.server and scheme.startswith("delayq+")
        return url_as(url, "operator") if own else url

    def start_as_worker(worker: Any) -> Any:
        url = worker.env.get("CELERY_BROKER_URL", "")
        worker.env["CELERY_BROKER_URL"] = url.replace("operator:pw-operator@", "worker:pw-worker@")
        return start(worker)

    def enter_with_users(stage: Any, stack: ExitStack) -> None:
        enter_broker(stage, stack)
        make_users(stage.redis)
        stack.callback(check_refusals, stage.redis)

    monkeypatch.setattr(EmbeddedRedis, "url_for", url_for_operator)
    monkeypatch.setattr(WorkerProcess, "start", start_as_worker)
    monkeypatch.setattr(Stage, "_enter_broker", enter_with_users)
    monkeypatch.setattr(Stage, "_url", lambda *args: url_as(url_of_stage(*args), "worker"))
    yield
    if delayq_redis.server.running:
        check_refusals(delayq_redis.client)
