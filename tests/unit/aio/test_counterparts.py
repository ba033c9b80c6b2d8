"""Each public name of the sync client has a counterpart, or the docs say why it has none."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.aio.periodic import AsyncPeriodicTasks
from celery_delayq.periodic.client import PeriodicTasks

PAGE = Path(__file__).parents[3] / "docs" / "asyncio.md"


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def explained() -> set[str]:
    """Return the names in the first column of the table of what has no counterpart."""
    section = PAGE.read_text("utf-8").partition("## Not there")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("sync", "own"), [(DelayQ, AsyncDelayQ), (PeriodicTasks, AsyncPeriodicTasks)]
)
def test_each_name_has_a_counterpart_with_the_same_arguments(sync: type, own: type) -> None:
    shared = public(sync) & public(own)
    assert len(shared) > 5
    for name in shared - {"dead_letters", "schedule_many", "close", "periodic", "app"}:
        assert inspect.signature(getattr(own, name)) == inspect.signature(getattr(sync, name)), name


def test_each_name_without_a_counterpart_is_explained() -> None:
    assert public(DelayQ) - public(AsyncDelayQ) == explained()
    assert public(PeriodicTasks) <= public(AsyncPeriodicTasks)


def test_schedule_many_takes_the_same_arguments() -> None:
    sync, own = (inspect.signature(kind.schedule_many) for kind in (DelayQ, AsyncDelayQ))

    assert [*own.parameters] == [*sync.parameters]
