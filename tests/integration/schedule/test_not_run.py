"""Whoever waits for a task that never runs learns of that, in each way in which it may end.

Every end of a message is counted (``model/totals.py``). So the names of the counters in the scripts
are all ends that there are, and each of them is in the table here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import chord, states
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

import celery_delayq
from celery_delayq.model.scheduled import Filter
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, batch
from tests.support import TIMEOUT
from tests.support.scene import AppScene, StartWorker

SCRIPTS = Path(celery_delayq.__file__).parent / "store/lua"


class NotRun(AppScene):
    """Sends tasks that never run, and starts the worker that reports the ready ones."""

    module, pool = "not_run_tasks", "solo"

    #: Whether a chord waits for each task.
    in_chords = False

    def send(self, id: str, task: str = "run", **options: Any) -> None:
        """Send a task; its first argument is its unique key, where it has one."""
        error = self.tasks["failed"].si().set(task_id=f"error of {id}")
        member = self.tasks[task].s(id).set(task_id=id, link_error=error, **options)
        if self.in_chords:
            chord([member, self.tasks["run"].si()])(
                self.tasks["body"].s().set(task_id=f"body of {id}")
            )
        else:
            member.apply_async()

    def make_ready(self, id: str, task: str = "run") -> None:
        """Send a task, and promote it."""
        self.send(id, task, countdown=600)
        assert self.delayq.run_now(id)
        assert id in self.ready()

    def replace(self, id: str, **options: Any) -> None:
        """Send a task that replaces another one."""
        new = {"task_id": f"new {id}", "countdown": 600}
        self.tasks["replace"].apply_async((id,), **new, **options)


def root_of(scene: NotRun, id: str) -> str:
    [entry] = scene.delayq.find(id)
    return str(entry.headers["root_id"])


def overdue() -> datetime:
    """Return an ETA that has passed."""
    return datetime.now(timezone.utc) - timedelta(seconds=60)


class End(NamedTuple):
    """How a task ends of which no worker runs anything.

    Parameters
    ----------
    prepare : Callable[[NotRun, str], object]
        Sends the task with an id.
    end : Callable[[NotRun, str], object]
        Ends it.
    counter : str
        What counts it.
    task : str
        Its name.
    chord_waits : bool
        Whether its chord waits on, since it is a dead letter that may be replayed.
    queue : str
        Where it was sent to.
    """

    prepare: Callable[[NotRun, str], object]
    end: Callable[[NotRun, str], object]
    counter: str
    task: str = "run"
    chord_waits: bool = False
    queue: str = "celery"


def scheduled(scene: NotRun, id: str) -> None:
    scene.send(id, countdown=600)


def scheduled_unique(scene: NotRun, id: str) -> None:
    scene.send(id, "replace", countdown=600)


def ready(scene: NotRun, id: str) -> None:
    scene.make_ready(id)


def ready_unique(scene: NotRun, id: str) -> None:
    scene.make_ready(id, "replace")


def late(scene: NotRun, id: str) -> None:
    scene.send(id, "brief", eta=overdue())


def expired(scene: NotRun, id: str) -> None:
    scene.send(id, expires=overdue())


def kept(scene: NotRun, id: str) -> None:
    scene.tasks["keep"].apply_async((id,), task_id=f"owner of {id}", countdown=600)
    scene.send(id, "keep", countdown=600)


def kept_in_batch(scene: NotRun, id: str) -> None:
    keep = scene.tasks["keep"]
    keep.apply_async((id,), task_id=f"owner of {id}", countdown=600)
    with batch(scene.app) as producer:
        keep.apply_async((id,), task_id=id, countdown=600, producer=producer)


def replace_in_batch(scene: NotRun, id: str) -> None:
    with batch(scene.app) as producer:
        scene.replace(id, producer=producer)


def replace_by_many(scene: NotRun, id: str) -> None:
    row = {"args": (id,), "id": f"new {id}", "countdown": 600}
    scene.delayq.schedule_many([row], task=scene.tasks["replace"])


def nothing(_scene: NotRun, _id: str) -> None:
    pass


ENDS: dict[str, End] = {
    "cancelled while scheduled": End(scheduled, lambda s, id: s.delayq.cancel(id), "cancelled"),
    "cancelled while ready": End(ready, lambda s, id: s.delayq.cancel(id), "cancelled"),
    "cancelled by ids": End(scheduled, lambda s, id: s.delayq.cancel_ids([id]), "cancelled"),
    "cancelled by a filter": End(
        lambda s, id: s.send(id, countdown=600, queue="filtered"),
        lambda s, _: s.delayq.cancel_all(Filter("filtered")),
        "cancelled",
        queue="filtered",
    ),
    "cancelled with its canvas": End(
        scheduled, lambda s, id: s.delayq.cancel_canvas(root_id=root_of(s, id)), "cancelled"
    ),
    "revoked while scheduled": End(scheduled, lambda s, id: s.app.control.revoke(id), "cancelled"),
    "revoked while ready": End(ready, lambda s, id: s.app.control.revoke(id), "acked"),
    "replaced while scheduled": End(scheduled_unique, NotRun.replace, "replaced", "replace"),
    "replaced while ready": End(ready_unique, NotRun.replace, "replaced", "replace"),
    "replaced in a batch": End(scheduled_unique, replace_in_batch, "replaced", "replace"),
    "replaced by schedule_many": End(scheduled_unique, replace_by_many, "replaced", "replace"),
    "not sent": End(kept, nothing, "", "keep"),
    "not sent in a batch": End(kept_in_batch, nothing, "", "keep"),
    "expired": End(expired, nothing, "acked"),
    "skipped": End(late, nothing, "dead:skipped", "brief", chord_waits=True),
}

#: Ends without a report here, and why.
OTHERS = {
    "moved": "its retry takes its place, or it waits on",
    "purged": "as on stock: whoever empties a queue tells nobody",
    "taken": "a stock worker has it, and reports it",
    "dead:crashed": "its purge fails its chord: test_canvases.py of dead letters",
    "dead:corrupt": "nobody knows its id",
}

#: What is counted and is no end.
NO_END = {"accepted", "pushed", "promoted", "ready", "retried", "redelivered", "aside", "empty"}
NO_END |= {"moved", "replayed"}


def test_each_end_that_scripts_count_is_here() -> None:
    counted: set[str] = set()
    for script in SCRIPTS.rglob("*.lua"):
        source = re.sub(r"--[^\n]*", "", script.read_text())
        for name in re.findall(r"add_total\([^,]+,([^,]+)", source):
            # A condition of a choice between two names is no name.
            counted |= set(re.findall(r"'([a-z:]+)'", name.rpartition("==")[2]))
    ends = {end.counter for end in ENDS.values() if end.counter}

    assert {"cancelled", "replaced", "acked", "dead:skipped"} <= counted
    assert counted - NO_END - {"dead:"} == (ends | OTHERS.keys()) - {"moved"}


def test_each_place_that_reports_is_here() -> None:
    root = Path(celery_delayq.__file__).parent
    imports = re.compile(r"^ *from \S+(\.not_run import| import (\w+, )*not_run\b)", re.MULTILINE)
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if imports.search(path.read_text())
    }

    assert found == {
        "deadletters/client.py",  # a purge of dead letters
        "deadletters/stream.py",  # the same on RabbitMQ
        "integration/send_task.py",  # replaced, not sent, superseded
        "integration/worker.py",  # what a worker takes and does not run
        "schedule/bulk.py",  # cancelled by a filter
        "schedule/client.py",  # cancelled, revoked
        "schedule/schedule_many.py",  # replaced
    }


@pytest.fixture
def make_scene(
    make_app: MakeApp, delayq_redis: RedisUnderTest, delayq_worker: StartWorker
) -> Callable[..., NotRun]:
    """Make the scene with some settings, which its worker has too."""
    from tests.apps.not_run_tasks import tasks_of

    def make(**conf: Any) -> NotRun:
        conf = {"result_extended": True, **conf}
        return NotRun(delayq_redis, tasks_of(make_app(**conf)), delayq_worker)

    return make


def bring_about(scene: NotRun) -> dict[str, End]:
    """Bring all ends about, of which a worker reports some later; return them by task id."""
    for name, end in ENDS.items():
        end.prepare(scene, name)
    for name, end in ENDS.items():
        end.end(scene, name)
    return ENDS


def test_result_backend_and_receivers_know_the_task(make_scene: Callable[..., NotRun]) -> None:
    scene = make_scene()
    with scene.watching() as events:
        ends = bring_about(scene)
        scene.start()
        wait_until(
            lambda: {each["id"] for each in scene.read("revoked")} >= ends.keys(),
            TIMEOUT,
            lambda: f"all are reported: {scene.read('revoked')}",
        )
        wait_until(
            lambda: {id for kind, id in events if kind == "task-revoked"} >= ends.keys(),
            TIMEOUT,
            lambda: f"all events: {events}",
        )

    found = {}
    for id in ends:
        result = AsyncResult(id, app=scene.app)
        found[id] = result.state, result.name, result.args, result.kwargs, result.queue
    assert found == {
        id: (states.REVOKED, end.task, [id], {}, end.queue) for id, end in ends.items()
    }
    told = [(each["id"], each["task"], each["args"]) for each in scene.read("revoked")]
    assert sorted(told) == sorted((id, end.task, [id]) for id, end in ends.items())
    told_by_event = [id for kind, id in events if kind == "task-revoked"]
    assert sorted(told_by_event) == sorted(ends)
    # As on stock, where nothing has failed.
    assert not [
        id for id in ends if AsyncResult(f"error of {id}", app=scene.app).state != "PENDING"
    ]


def test_a_caller_that_waits_by_rpc_gets_the_error(make_scene: Callable[..., NotRun]) -> None:
    scene = make_scene(result_backend="rpc://", result_extended=False)
    ends = bring_about(scene)
    worker = scene.start(result_backend="rpc://")

    got = {id: AsyncResult(id, app=scene.app).get(timeout=TIMEOUT, propagate=False) for id in ends}
    assert {id: type(error) for id, error in got.items()} == dict.fromkeys(ends, TaskRevokedError)

    scene.send("revoked while a worker runs", countdown=600)
    revoke = scene.app.control.revoke
    assert revoke("revoked while a worker runs", reply=True, limit=1, timeout=TIMEOUT)
    assert "Traceback" not in worker.log


def test_a_chord_that_waits_for_it_fails(make_scene: Callable[..., NotRun]) -> None:
    scene = make_scene()
    scene.in_chords = True
    ends = bring_about(scene)
    scene.start()
    # A batch sends no chords.
    told = {id for id, end in ends.items() if not end.chord_waits} - {"not sent in a batch"}

    def failed() -> set[str]:
        return {id for id in ends if AsyncResult(f"body of {id}", app=scene.app).failed()}

    wait_until(lambda: failed() >= told, TIMEOUT, lambda: f"these wait: {told - failed()}")
    assert failed() == told
