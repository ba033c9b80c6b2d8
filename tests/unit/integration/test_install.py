"""The table of changes to Celery: it lists what really differs, and all of it can be undone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task
from kombu.utils.imports import symbol_by_name

import celery_delayq
from celery_delayq.integration import install
from celery_delayq.integration.replace import Change, Register, Replace
from tests.support import TIMEOUT

#: What ``inspect`` sees of anything.
SEEN = {"kinds", "__name__", "__qualname__", "__module__", "__doc__"}
#: A dotted string: ``"celery_delayq.module:attribute"``.
DOTTED = re.compile(r"""["']((?:celery|celery_delayq|kombu)\.[a-z_.]+:\w+)[."'\[]""")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """By step, what really differs in a fresh process, and what ``inspect`` sees of it."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.celery_changes"],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def targets(changes: Iterable[Change]) -> list[str]:
    """Return what a part of the table says, in the form of the differences."""
    named: list[str] = []
    for change in changes:
        target = change.target.replace("signals.", "celery.signals:")
        if isinstance(change, Register):
            named += (f"{target}[{key}]" for key in change.keys)
        elif change.is_needed:
            named.append(canonical(target))
    return sorted(named)


def canonical(target: str) -> str:
    """Return a class's attribute under the module that defines it: versions of Celery differ."""
    owner, _, attribute = target.partition(":")[2].rpartition(".")
    if not owner or "[" in target:
        return target
    module = symbol_by_name(f"{target.partition(':')[0]}:{owner.partition('.')[0]}").__module__
    return f"{module}:{owner}.{attribute}"


def test_the_table_lists_what_importing_the_package_changes(found: dict[str, list[str]]) -> None:
    assert found["TRANSPORT"] == targets(install.TRANSPORT)


def test_the_table_lists_what_the_extension_changes(found: dict[str, list[str]]) -> None:
    assert found["PROCESS APP"] == targets((*install.PROCESS, *install.APP))


def test_the_table_lists_what_changes_in_tasks(found: dict[str, list[str]]) -> None:
    assert found["TASK again"] == targets(install.TASK)
    assert found["TASK plain"] == [each for each in found["TASK again"] if "orig" not in each]


def test_the_table_lists_what_a_client_for_asyncio_changes(found: dict[str, list[str]]) -> None:
    assert found["AIO"] == targets(install.AIO)


def test_the_table_lists_what_changes_in_a_worker(found: dict[str, list[str]]) -> None:
    changes = (*install.worker_changes(), *install.EXTENDED_WORKER, *install.REQUEST)
    assert found["WORKER EXTENDED_WORKER REQUEST"] == targets(changes)


def test_the_table_lists_what_changes_before_a_worker_consumes(
    found: dict[str, list[str]],
) -> None:
    # One of both pools, which share a name.
    changes = (*install.POOL, *install.CONSUMER, *install.LOOP)
    assert found["POOL CONSUMER"] == sorted({*targets(changes)})


#: Of a replacement that is no function or method, what differs from the original.
OTHERWISE = {
    # Records stay LogRecords, which can be pickled.
    "logging:_logRecordFactory": SEEN | {"annotations", "signature", "arguments"},
    "app.amqp_cls": {"__module__", "__doc__"},
    "app.control_cls": {"__module__", "__doc__"},
    "task.Request": {"__module__"},
    # Celery's trace uses it alone.
    "celery.app.trace:AsyncResult": SEEN - {"kinds"},
}

#: Of whose owner there is nothing here: gevent, eventlet, and Flower.
NOT_HERE = {
    *("logging:Logger.callHandlers", "logging:_lock", "threading:_active_limbo_lock"),
    *("flower_api.BaseApiHandler.send_error", "flower_app.Flower.start"),
}


def test_inspect_tells_no_replacement_from_the_original(found: dict[str, Any]) -> None:
    replaced = {
        each.target
        for each in install.all_changes()
        if isinstance(each, Replace) and each.is_needed
    }

    assert found["seen"].keys() == replaced - NOT_HERE
    for target, (before, after) in found["seen"].items():
        differs = before.keys() | after.keys()
        assert differs == OTHERWISE.get(target, set()), (target, before, after)


def test_a_worker_of_an_app_that_does_not_use_the_package_stays_as_it_is() -> None:
    """It is imported all the same: it has a command of Celery's command line."""
    app = Celery("stock", broker="memory://", set_as_current=False)
    app.finalize()
    controller = SimpleNamespace(app=app, stop=None)

    install._change_worker(controller)

    assert vars(controller) == {"app": app, "stop": None}
    assert {task.Request for task in app.tasks.values()} == {Task.Request}


def test_all_can_be_undone(found: dict[str, list[str]]) -> None:
    assert found["undone"] == found["undone pool"] == []


PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all(); import gevent as greenlets",
    "eventlet": "import eventlet as greenlets; greenlets.monkey_patch()",
}
LOGGING = """
import logging, sys
from functools import partial
from celery_delayq.integration.install import GREENLETS
from celery_delayq.integration.replace import make, undo
from celery_delayq.utils import native_threads
from tests.support import TIMEOUT

def log(name, sleep):
    for number in range(100):
        logging.info("%s %d", name, number)
        sleep(0.001)
    ended.append(name)

logging.basicConfig(stream=sys.stdout, level="INFO", format="%(module)s %(message)s")

def refuse_one(record):
    if record.args == ("native 1", 7):
        raise ValueError("a filter of the app")
    return True

logging.getLogger().handlers[0].flush = lambda: native_threads.sleep(0.002)
logging.getLogger().handlers[0].addFilter(refuse_one)
stock = logging.Logger.callHandlers
make(GREENLETS)
ended = []
for name in ("native 1", "native 2"):
    native_threads.start(partial(log, name, native_threads.sleep))
for name in ("greenlet 1", "greenlet 2"):
    greenlets.spawn(log, name, greenlets.sleep)
while len(ended) < 4:
    greenlets.sleep(0.01)
if hasattr(greenlets, "wait"):  # returns when no other greenlet runs
    greenlets.wait()
undo(GREENLETS)
assert logging.Logger.callHandlers is stock
"""


@pytest.mark.parametrize("package", PATCHES)
def test_native_threads_and_greenlets_log_side_by_side(package: str) -> None:
    code = f"{PATCHES[package]}\n{LOGGING}"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )

    names = ("greenlet 1", "greenlet 2", "native 1", "native 2")
    lines = [f"<string> {name} {number}" for name in names for number in range(100)]
    lines.remove("<string> native 1 7")
    assert sorted(done.stdout.splitlines()) == sorted(lines)
    assert "ValueError: a filter of the app" in done.stderr


def test_each_change_says_what_happens_without_it_and_its_condition() -> None:
    for change in install.all_changes():
        assert change.without.endswith("."), change.target
        assert bool(change.condition) == (change.when is not Change.when), change.target
        assert change.is_needed or change.versions, change.target


def test_each_dotted_string_of_the_package_leads_somewhere() -> None:
    package = Path(celery_delayq.__file__).parent
    texts = (path.read_text() for path in package.rglob("*.py"))
    dotted = {name for text in texts for name in DOTTED.findall(text)}

    assert "celery_delayq.transport:Transport" in dotted
    for name in dotted:
        assert symbol_by_name(name) is not None
