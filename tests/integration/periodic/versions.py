"""Versions of an app's code, as far as they write their periodic entries."""

from __future__ import annotations

from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.entries import Periodic
from celery_delayq.testing.fixtures import RedisUnderTest

VERSIONS = "delayq:code_versions"
TASK = {"task": "note", "schedule": 600.0}
CHANGED = {**TASK, "args": [2]}


def deploy(app: Celery) -> Deployment:
    """Start a worker of that code: its part about entries."""
    deployment = Deployment(app)
    deployment.keep(DelayQ.of(app).session.stores)
    return deployment


def keep(deployment: Deployment, app: Celery) -> None:
    """Let the time pass after which a worker says again that it is about."""
    deployment._kept = float("-inf")
    deployment.keep(DelayQ.of(app).session.stores)


def entries(app: Celery) -> dict[str, Periodic]:
    return {entry.name: entry for entry in DelayQ.of(app).periodic.list()}


def silent(delayq_redis: RedisUnderTest, *versions: Deployment) -> None:
    """Make it as if nobody had said for longer than a minute that versions are about."""
    for each in versions:
        field = f"{each.source}\0{each.version}"
        since, _, last = (delayq_redis.client.hget(VERSIONS, field) or b"").partition(b" ")
        delayq_redis.client.hset(VERSIONS, field, f"{int(since)} {int(last) - 61_000}")
