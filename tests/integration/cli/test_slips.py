"""Slips of the pen are told, and scripts are not left waiting for an answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from celery_delayq import DelayQ
from tests.support.cli import CommandLine


@pytest.fixture
def cli(app: Celery) -> CommandLine:
    app.task(name="shop.remind", shared=False)(_nothing)
    return CommandLine(app)


def _nothing() -> None:
    """Stand for any task."""


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_task_that_nobody_knows_is_paused_and_told(
    cli: CommandLine, delayq: DelayQ, more: list[str]
) -> None:
    ran = cli("pause", "--task", "shop.rmind", *more)

    said = "Note: this app has no task shop.rmind, and none is scheduled; did you mean shop.remind?"
    assert (ran.code, ran.err) == (0, f"{said}\n")
    assert [*delayq.paused().tasks] == ["shop.rmind"]
    assert cli("resume", "--task", "shop.rmind", *more).err == ""
    again = cli("resume", "--task", "shop.rmind", *more)
    assert (again.code, again.err) == (0, f"{said}\n")


def test_a_task_of_the_app_or_of_the_schedule_is_no_slip(app: Celery, cli: CommandLine) -> None:
    app.send_task("other.bill", countdown=3600, queue="bills")

    for task in ("shop.remind", "other.bill"):
        ran = cli("pause", "--task", task)
        assert (ran.code, ran.out, ran.err) == (0, f"Task {task} is paused.\n", "")


def test_a_queue_that_nobody_knows_is_told_scripts_too(cli: CommandLine) -> None:
    for more in ([], ["--json"]):
        ran = cli("pause", "--queue", "mial", *more)
        assert ran.code == 0
        assert "There is no queue mial in Redis or in the app" in ran.err


@pytest.fixture
def three(delayq: DelayQ) -> Callable[[], list[str]]:
    """Three periodic entries; returns what is left of them."""
    for name in ("a", "b", "c"):
        delayq.periodic.add(name, 3600, "shop.remind")
    return lambda: [entry.name for entry in delayq.periodic.list()]


def test_what_is_named_is_removed_where_nobody_can_be_asked(
    cli: CommandLine, three: Callable[[], list[str]]
) -> None:
    assert cli("periodic", "remove", "a").out == "removed  a\n"
    assert cli("periodic", "remove", "b", "nowhere").code == 1
    assert three() == ["c"]
