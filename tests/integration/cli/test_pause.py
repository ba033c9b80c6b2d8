"""``pause``, ``resume`` and ``paused`` on the command line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery

from celery_delayq import DelayQ
from tests.support.cli import CommandLine


def test_a_queue_and_a_task_are_paused_and_go_on(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.store.register("mail")

    assert cli("pause", "--queue", "mail").out == "Queue mail is paused.\n"
    assert cli("pause", "--queue", "mail").out == "Queue mail is paused already.\n"
    told = cli("pause", "--task", "shop.bill", "--json").json
    assert told == {"queue": None, "task": "shop.bill", "paused": True, "changed": True}
    assert set(delayq.paused().queues) == {"mail"}
    stats = {each["name"]: each["is_paused"] for each in cli("stats", "--json").json["queues"]}
    assert stats == {"celery": False, "mail": True}
    assert re.search(r"^paused *$", cli("stats").out, re.MULTILINE)
    assert cli("resume", "--queue", "mail").out == "Queue mail is resumed.\n"
    assert cli("resume", "--queue", "mail").out == "Queue mail was not paused.\n"
    told = cli("resume", "--task", "shop.bill", "--json").json
    assert told == {"queue": None, "task": "shop.bill", "paused": False, "changed": True}
    assert cli("paused", "--json").json == {"queues": {}, "tasks": {}}


def test_a_queue_that_nobody_knows_is_paused_but_told(cli: CommandLine, delayq: DelayQ) -> None:
    told = cli("pause", "--queue", "mial", "--json")
    ran = cli("pause", "--queue", "mial")

    assert (told.code, ran.code, ran.out) == (0, 0, "Queue mial is paused already.\n")
    assert "There is no queue mial in Redis or in the app" in told.err
    assert "There is no queue mial" in ran.err
    assert "mial" in delayq.paused().queues


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


def test_what_is_paused_is_reported_with_since_when(cli: CommandLine, delayq: DelayQ) -> None:
    assert cli("paused").out == "Nothing is paused.\n"
    delayq.pause(queue="mail")
    delayq.pause(task="shop.[red]bill")

    told = cli("paused", "--json").json
    shown = cli("paused").out

    assert {kind: [*names] for kind, names in told.items()} == {
        "queues": ["mail"],
        "tasks": ["shop.[red]bill"],
    }
    since = datetime.fromisoformat(told["queues"]["mail"])
    assert abs(since - datetime.now(timezone.utc)) < timedelta(seconds=30)
    assert re.search(r"^queue +mail +\d{4}-", shown, re.MULTILINE)
    assert re.search(r"^task +shop\.\[red\]bill +\d{4}-", shown, re.MULTILINE)
