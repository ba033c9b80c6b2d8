"""The table of ``docs/what-needs-what.md`` is true in the cells that are easily wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.errors import InvalidETA, QueueFull
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp, add, stored
from tests.support import TIMEOUT
from tests.support.scene import StartWorker, answer, start_worker

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "what-needs-what.md").read_text("utf-8")
#: What an app has, each with all that stands left of it.
PARTS = ("url", "extension", "at_least_once")
#: The first words of the column "needs", and the part from which on the feature works.
FROM = {"URL": "url", "command": "url", "`DelayQ(app)`": "extension", "late acks": "at_least_once"}
SETTINGS = {"history": 100, "max_scheduled": 3, "lease": 5.0}
BEAT = {"tick": {"task": "parts.tick", "schedule": 0.2}}


def cells() -> dict[str, list[str]]:
    """Return the cells of each feature, by its text without links and code."""
    found = {}
    for line in PAGE.splitlines():
        name, *row = (cell.strip() for cell in line.strip("|").split("|"))
        if len(row) == 2 and row[0].startswith(tuple(FROM)):
            found[re.sub(r"[`\[\]]|\([^)]*\.md[^)]*\)", "", name)] = row
    return found


CELLS = cells()


def says_yes(feature: str, parts: str) -> bool:
    """Return whether, by the table, a feature works for an app with *parts*."""
    needs = next(row[0] for name, row in CELLS.items() if name.startswith(feature))
    first = next(part for words, part in FROM.items() if needs.startswith(words))
    return PARTS.index(parts) >= PARTS.index(first)


@pytest.fixture(params=PARTS)
def parts(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sender(make_app: MakeApp, parts: str) -> Celery:
    """An app that sends, with no more than *parts*."""
    app = make_app(extension=parts != "url", broker_transport_options={"delayq": SETTINGS})
    app.task(name="parts.unique", shared=False, unique_key="one")(add)
    return app


def send(app: Celery, name: str = "tasks.add", **options: Any) -> Any:
    """Send a task that is due in an hour."""
    return app.tasks[name].apply_async((1, 2), **{"countdown": 3600, **options})


def is_refused(error: type[Exception], app: Celery, **options: Any) -> bool:
    """Return whether a call raises this error."""
    try:
        send(app, **options)
    except Exception as exc:
        return isinstance(exc, error)
    return False


def has_part(name: str, redis: Redis, app: Celery, **options: Any) -> bool:
    """Return whether a message has this part of ours where an option of the call asks for it."""
    redis.flushall()
    send(app, **options)
    return name in stored(redis)[0]["properties"]["delayq"]


def test_what_senders_need(sender: Celery, parts: str, redis: Redis) -> None:
    is_so = {}
    is_so["a wrong eta"] = is_refused(InvalidETA, sender, countdown=float("nan"))
    is_so["skip_after"] = has_part("skip_after", redis, sender, skip_after=5)
    is_so["context and traces"] = has_part("context", redis, sender, context={"user": "ada"})
    is_so["waits and limits of one call"] = has_part("budget", redis, sender, retry_budget=3)

    redis.flushall()
    for _ in range(2):
        send(sender, "parts.unique")
    is_so["unique keys"] = redis.zcard("{celery}:due") == 1

    redis.flushall()
    id = send(sender).id
    sender.control.revoke(id)
    is_so["revoke that lasts"] = redis.zscore("delayq:revoked", f"i{id}") is not None

    redis.flushall()
    refused = [is_refused(QueueFull, sender) for _ in range(4)]
    is_so["promote_rate"] = refused == [False, False, False, True]
    is_so["countdown"] = redis.zcard("{celery}:due") == 3
    sender.control.purge()
    is_so["app.control.purge"] = redis.zcard("{celery}:due") == 0

    assert is_so == {feature: says_yes(feature, parts) for feature in is_so}


def test_what_workers_need(
    delayq: DelayQ, parts: str, redis: Redis, tmp_path: Path, delayq_worker: StartWorker
) -> None:
    """The app of the test stands for an operator, who pauses and looks."""
    alive = tmp_path / "alive"
    worker = start_worker(
        delayq_worker,
        "parts_tasks",
        "threads",
        conf={"beat_schedule": BEAT},
        delayq={**SETTINGS, "liveness_file": str(alive)},
        env={"APP_PARTS": parts},
    )
    app, is_so = delayq.app, {}
    eta, deliveries = app.send_task("parts.look", countdown=0.1).get(timeout=TIMEOUT)
    is_so["self.request.eta"] = bool(eta) and deliveries == 1
    failed = app.send_task("parts.fail", countdown=0.1).id
    dead = wait_until(lambda: delayq.dead_letter(failed), TIMEOUT, "the dead letter")
    is_so["dead letters are kept"] = True
    assert dead
    is_so["retry policies"] = dead.retries == 1
    is_so["liveness_file"] = alive.exists()

    def runs() -> set[str | None]:
        return {run.task for run in delayq.history()}

    expected = {"parts.look", "parts.fail"}
    if says_yes("periodic tasks", parts):
        expected.add("parts.tick")
    wait_until(lambda: expected <= runs(), TIMEOUT, "the runs")
    is_so["history of runs"] = True
    is_so["periodic tasks"] = "parts.tick" in runs()

    delayq.pause(task="parts.tick")
    paused = app.send_task("parts.tick")
    far = app.send_task("parts.tick", countdown=3600).id
    shown = answer(app, worker.hostname, "scheduled")
    is_so["inspect().scheduled()"] = far in [entry["request"]["id"] for entry in shown]
    wait_until(lambda: delayq.get(paused.id), TIMEOUT, "the paused task in the schedule")
    is_so["pause, resume"] = True

    long = app.send_task("parts.run_long")
    wait_until(lambda: long.state == "RUNNING", TIMEOUT, "the run")
    if not says_yes("a running task", parts):
        wait_until(lambda: not delayq.stats().leased, TIMEOUT, "the acknowledgement")
    worker.kill()
    is_so["a running task"] = delayq.stats().leased == 1

    assert is_so == {feature: says_yes(feature, parts) for feature in is_so}
