"""What earlier versions stored is read by this one, listed, and run by its workers.

``tests/format`` has a file of each released version; none is made again. A version that is not
released has a file too: ``make format-file`` writes it again after a change of the format. The
state of this version is written, read and run as well, so that the next file is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from celery_delayq import DelayQ, __version__
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.format_tasks import app
from tests.integration.conftest import module_app
from tests.support import TIMEOUT, stored_format
from tests.support.drift import look
from tests.support.scene import Scene, start_worker

pytestmark = pytest.mark.full

#: Writes the file of this version: ``make format-file``.
VARIABLE = "DELAYQ_WRITE_FORMAT"
FAR = datetime(2100, 1, 1, tzinfo=timezone.utc)
#: Longer than the dispatchers need to find a killed worker.
DELAYQ = {"lease": 2, "history": 1000}


@pytest.fixture
def scene(delayq_redis: RedisUnderTest, delayq_broker_url: str) -> Iterator[Scene]:
    with module_app(app, delayq_redis, delayq_broker_url):
        yield Scene(delayq_redis)


@pytest.fixture
def start(delayq_worker: Callable[..., Any]) -> Callable[[], Any]:
    def start() -> Any:
        return start_worker(
            delayq_worker,
            "format_tasks",
            conf={"broker_transport_options": {"delayq": DELAYQ}},
            concurrency=3,
        )

    return start


def fill(scene: Scene, start: Callable[[], Any]) -> list[str]:
    """Store something of every kind; return the ids that a worker runs at once."""
    delayq, tasks = DelayQ.of(app), app.tasks
    work, limited = tasks["format.work"], tasks["format.limited"]
    worker = start()
    done = work.delay("finished")
    work.apply_async(("dead",), {"do": "reject"}, task_id="dead")
    leased = limited.apply_async(("customer",), {"gate": "kept"}, task_id="leased")
    scene.wait_runs(3)
    held = limited.apply_async(("customer",), task_id="held")
    wait_until(lambda: len([*delayq.history()]) >= 2, TIMEOUT, "the history")
    assert done.id in {run.id for run in delayq.history()}
    worker.kill()

    ready = work.apply_async(("ready",), priority=3, task_id="ready")
    soon = work.apply_async(("soon",), countdown=0.01, task_id="soon")
    work.apply_async(({"n": 2**70, "empty": []},), eta=FAR, task_id="far", priority=9)
    for number in range(2):  # the second one has the id of the first
        work.apply_async((number,), eta=FAR, task_id="duplicate")
    tasks["format.unique"].apply_async(("order",), eta=FAR, task_id="unique")
    work.apply_async((), eta=FAR, task_id="with a message of its own: ü\n%", skip_after=60)
    tasks["format.paused"].apply_async((), countdown=0.01, task_id="paused")
    delayq.pause(task="format.paused")
    tasks["format.revoked"].apply_async((), task_id="revoked")
    app.control.revoke("revoked")
    delayq.periodic.add("yearly", 366 * 86_400, work, ("periodic",))
    with delayq.context(user="ada"):
        work.apply_async((), eta=FAR, task_id="with values")
    return sorted([leased.id, held.id, ready.id, soon.id])


def run(scene: Scene, start: Callable[[], Any], ids: list[str]) -> None:
    """Have a worker of this version run what it should run, and no revoked or paused task."""
    scene.open("kept")
    scene.client.delete("log")
    start()
    wait_until(
        lambda: {*ids} <= {*scene.runs("id")}, TIMEOUT, lambda: f"{ids} to run: {scene.runs('id')}"
    )
    assert {"revoked", "paused", "far", "dead"}.isdisjoint(scene.runs("id"))


def check_file(content: dict[str, Any], scene: Scene, start: Callable[[], Any]) -> None:
    delayq = DelayQ.of(app)
    scene.client.flushall()
    stored_format.load(scene.client, content["keys"])

    found = json.loads(json.dumps(stored_format.read(delayq)))
    # A later version may read more.
    assert {name: found[name] for name in content["read"]} == content["read"]
    assert look(delayq.store).findings == []
    run(scene, start, content["runs"])


def test_what_this_version_stores_can_be_loaded_and_run(
    scene: Scene, start: Callable[[], Any], tmp_path: Path
) -> None:
    ids = fill(scene, start)
    delayq = DelayQ.of(app)
    file = stored_format.file_of(__version__)
    path = file if os.environ.get(VARIABLE) else tmp_path / file.name

    stored_format.write(path, __version__, scene.client, stored_format.read(delayq), ids)

    check_file(json.loads(path.read_text("utf-8")), scene, start)


@pytest.mark.parametrize(
    "version", sorted({__version__} | {path.stem for path in stored_format.FOLDER.glob("*.json")})
)
def test_what_a_version_stored_is_read_and_run(
    version: str, scene: Scene, start: Callable[[], Any]
) -> None:
    path = stored_format.file_of(version)
    assert path.exists(), "run: make format-file"

    check_file(json.loads(path.read_text("utf-8")), scene, start)
