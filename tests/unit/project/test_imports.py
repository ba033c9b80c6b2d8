"""What a process imports that only sends tasks, and what a worker imports before it forks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: Prints the modules of each step; the app's broker is never reached.
PROGRAM = """
import json, sys
import kombu.transport.redis
from celery import Celery, signals
app = Celery("shop", broker="delayq+redis://localhost:6379/0")
steps = {}

def note(step):
    known = {each for names in steps.values() for each in names}
    steps[step] = sorted({*sys.modules} - known)

note("Celery")
import celery_delayq
celery_delayq.DelayQ(app, at_least_once=True)
note("DelayQ(app)")
worker = type("Worker", (), {"app": app})()
signals.worker_init.send(sender=worker)
note("worker")
from celery_delayq.utils.lazy import import_all
import_all()
note("again")
print(json.dumps(steps))
"""

#: The modules of this package that sending needs. A module that belongs to workers, or to a part of
#: `DelayQ` that only some apps use, is not imported here: see `utils/lazy.py`.
SENDING = {
    "celery_delayq",
    "celery_delayq.admin",
    "celery_delayq.admin.web_rights",
    "celery_delayq.app",
    "celery_delayq.celery_versions",
    "celery_delayq.dispatch",
    "celery_delayq.dispatch.start_gate",
    "celery_delayq.errors",
    "celery_delayq.integration",
    "celery_delayq.integration.broker_urls",
    "celery_delayq.integration.context",
    "celery_delayq.integration.fast",
    "celery_delayq.integration.fast.bodies",
    "celery_delayq.integration.fast.declared",
    "celery_delayq.integration.fast.group",
    "celery_delayq.integration.fast.headers",
    "celery_delayq.integration.fast.parents",
    "celery_delayq.integration.fast.settings",
    "celery_delayq.integration.fast.writes",
    "celery_delayq.integration.former_names",
    "celery_delayq.integration.install",
    "celery_delayq.integration.replace",
    "celery_delayq.integration.send_task",
    "celery_delayq.model",
    "celery_delayq.model.arguments",
    "celery_delayq.model.arguments.functions",
    "celery_delayq.model.arguments.key",
    "celery_delayq.model.context",
    "celery_delayq.model.context.trace_context",
    "celery_delayq.model.envelope",
    "celery_delayq.model.limits",
    "celery_delayq.model.limits.of_app",
    "celery_delayq.model.names",
    "celery_delayq.model.publish_outcome",
    "celery_delayq.model.retries",
    "celery_delayq.model.retries.options",
    "celery_delayq.model.retries.policy",
    "celery_delayq.model.task_options",
    "celery_delayq.model.unique",
    "celery_delayq.store",
    "celery_delayq.store.session",
    "celery_delayq.utils",
    "celery_delayq.utils.bridge",
    "celery_delayq.utils.delegation",
    "celery_delayq.utils.foreign",
    "celery_delayq.utils.lazy",
    "celery_delayq.utils.message_json",
    "celery_delayq.utils.native_threads",
    "celery_delayq.utils.numbers",
    "celery_delayq.utils.once",
    "celery_delayq.utils.plain_repr",
    "celery_delayq.utils.text",
}
#: Packages that the import of this package adds to those of Celery, kombu and redis-py.
OTHERS = {"billiard", "celery", "msgspec"}
#: What neither may import: it registers a task, or needs an extra.
NEVER = {"celery_delayq.webhook", "celery_delayq.spark", "celery_delayq.cli", "rich", "sqlalchemy"}


@pytest.fixture(scope="module")
def steps() -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def test_a_process_that_sends_tasks_imports_few_modules(steps: dict[str, list[str]]) -> None:
    imported = steps["DelayQ(app)"]

    assert {name for name in imported if name.startswith("celery_delayq")} == SENDING
    packages = {name.partition(".")[0] for name in imported} - {"celery_delayq"}
    assert packages - {*sys.stdlib_module_names} <= OTHERS
    workers = ("celery.worker", "celery.concurrency", "kombu.asynchronous", "celery.apps")
    assert [name for name in imported if name.startswith(workers)] == []


def test_a_worker_imports_the_other_modules_before_its_pool_forks(
    steps: dict[str, list[str]],
) -> None:
    imported = {*steps["worker"]}

    assert {
        "celery_delayq.dispatch.dispatcher",
        "celery_delayq.integration.task_messages",
        "celery_delayq.periodic.runner",
        "celery_delayq.schedule.client",
        "celery_delayq.transport.redis",
    } <= imported
    assert [name for name in steps["again"] if name.startswith("celery_delayq")] == []


def test_extras_and_tasks_are_imported_only_where_they_are_used(
    steps: dict[str, list[str]],
) -> None:
    imported = {*steps["DelayQ(app)"], *steps["worker"]}

    assert NEVER & imported == set()
