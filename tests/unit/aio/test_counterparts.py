"""Each public name of the sync client has a counterpart, or the docs say why it has none."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.aio.calls import on_loop
from celery_delayq.aio.limits import AsyncTaskLimits
from celery_delayq.aio.periodic import AsyncPeriodicTasks
from celery_delayq.deadletters.client import DeadLetters
from celery_delayq.limits.client import TaskLimits
from celery_delayq.periodic.client import PeriodicTasks

PAGE = Path(__file__).parents[3] / "docs" / "asyncio.md"


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def explained() -> set[str]:
    """Return the names in the first column of the table of what has no counterpart."""
    section = PAGE.read_text("utf-8").partition("## Not there")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def run_on_the_loop() -> set[str]:
    """Return the names in the row of what runs on the loop."""
    [row] = re.findall(r"^\| (.*) \| on the loop:", PAGE.read_text("utf-8"), re.MULTILINE)
    return {*re.findall(r"`(\w+)`", row)}


#: These ask nobody.
CONTEXT = {"context", "current_context", "add_context_provider"}

#: What is no method that hands its call on.
OWN = {"schedule_many", "close", "limits", "periodic", "app"}


@pytest.mark.parametrize(
    ("sync", "own"),
    [
        (DelayQ, AsyncDelayQ),
        (PeriodicTasks, AsyncPeriodicTasks),
        (TaskLimits, AsyncTaskLimits),
    ],
)
def test_each_counterpart_calls_the_method_of_its_name(sync: type, own: type) -> None:
    names = public(sync) & public(own) - OWN
    assert len(names) > 4
    for name in names:
        of_sync, of_own = getattr(sync, name), getattr(own, name)
        if name == "dead_letters":  # an object that is called
            of_sync = DeadLetters.__call__
        assert inspect.unwrap(of_own) is inspect.unwrap(of_sync), name
        assert inspect.signature(of_own) == inspect.signature(of_sync), name


def test_each_counterpart_is_awaited_or_iterated() -> None:
    for kind in (AsyncDelayQ, AsyncPeriodicTasks, AsyncTaskLimits):
        kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        plain = {
            name for name in public(kind) if not any(is_(getattr(kind, name)) for is_ in kinds)
        }
        assert plain <= {"app", "limits", "periodic", *CONTEXT}


def test_each_name_without_a_counterpart_is_explained() -> None:
    assert public(DelayQ) - public(AsyncDelayQ) == explained()
    assert public(PeriodicTasks) <= public(AsyncPeriodicTasks)
    assert public(TaskLimits) <= public(AsyncTaskLimits)


def test_the_docs_say_what_runs_on_the_loop() -> None:
    code = on_loop(DelayQ.get).__code__
    found = {
        name
        for name in public(AsyncDelayQ)
        if getattr(getattr(AsyncDelayQ, name), "__code__", None) is code
    }
    assert run_on_the_loop() == {"apply_async", "result", *found}


def test_schedule_many_takes_the_same_arguments() -> None:
    sync, own = (inspect.signature(kind.schedule_many) for kind in (DelayQ, AsyncDelayQ))

    assert [*own.parameters] == [*sync.parameters]
