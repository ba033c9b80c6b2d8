"""``delayq rename`` and ``delayq rewrite``: a dry run, each outcome, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from celery_delayq import DelayQ
from celery_delayq.admin import rewrite
from celery_delayq.model.changes.calls import WaitingCall
from tests.support.cli import CommandLine

HERE = "tests.integration.cli.test_rewrite"


def add_more(call: WaitingCall) -> dict[str, Any] | None:
    """A function of a user."""
    return None if "more" in call.kwargs else {"kwargs": {"more": 1}}


def fail_once(call: WaitingCall) -> dict[str, Any] | None:
    """Fail for one call."""
    if call.id == "b":
        raise ValueError("as told")
    return add_more(call)


@pytest.fixture
def sent(delayq: DelayQ) -> list[str]:
    """Ids of scheduled tasks, with a callback each."""
    callback = delayq.app.signature("shop.call", (1,))
    for place, id in enumerate("abc"):
        delayq.app.send_task("shop.remind", (1,), task_id=id, countdown=600 + place, link=callback)
    return [*"abc"]


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def tasks(delayq: DelayQ) -> set[str]:
    return {each.task for each in delayq.entries()}


def test_a_rename_shows_each_and_asks(cli: CommandLine, delayq: DelayQ, sent: list[str]) -> None:
    asks = cli("rename", "shop.remind", "mail.remind")
    assert (asks.code, "say --yes, or --dry-run" in asks.err) == (2, True)

    dry = cli("rename", "shop.remind", "mail.remind", "--dry-run")
    assert dry.code == 0
    assert dry.out.splitlines() == [
        *(f"would be renamed  {id}  shop.remind: task='mail.remind'" for id in sent),
        "3 messages looked at, 3 would be renamed.",
    ]
    assert "this app has no task mail.remind" in dry.err
    assert tasks(delayq) == {"shop.remind"}

    ran = cli("rename", "shop.remind", "mail.remind", "--yes", "--json")
    *each, report = lines(ran.out)
    assert (ran.code, [(one["id"], one["outcome"]) for one in each]) == (
        0,
        [(id, "done") for id in sent],
    )
    assert (report["report"]["outcomes"], report["report"]["cursor"]) == ({"done": 3}, None)
    assert tasks(delayq) == {"mail.remind"}
    inner = cli("rename", "shop.call", "mail.call", "--yes").out
    assert "renamed  a  shop.call in a callback: task='mail.call'" in inner


def test_a_rewrite_calls_the_function(cli: CommandLine, delayq: DelayQ, sent: list[str]) -> None:
    path = f"{HERE}:add_more"
    dry = cli("rewrite", path, "--task", "shop.remind", "--dry-run")
    assert (dry.code, "3 would be rewritten" in dry.out) == (0, True)
    assert cli("rewrite", path, "--due-from", "2100-01-01T00:00:00Z", "--yes").code == 0

    ran = cli("rewrite", path, "--task", "shop.remind", "--yes")

    assert ran.code == 0
    assert "rewritten  a  shop.remind: kwargs={'more': 1}" in ran.out
    assert {str(each.as_dict()["kwargs"]) for each in delayq.entries()} == {"{'more': 1}"}
    assert "0 rewritten" in cli("rewrite", path, "--task", "shop.remind", "--yes").out


def test_an_error_of_the_function_has_an_id_and_the_rest_goes_on(
    cli: CommandLine, delayq: DelayQ, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "PAGE_ENTRIES", 2)
    command = ("rewrite", f"{HERE}:fail_once", "--task", "shop.remind", "--yes")

    stopped = cli(*command, "--stop", "--json")
    assert stopped.code == 1
    cursor = lines(stopped.out)[-1]["report"]["cursor"]
    assert f"--resume {cursor}" in stopped.err
    rest = cli(*command, "--resume", cursor)
    assert (rest.code, "1 message looked at, 1 rewritten" in rest.out) == (0, True)

    ran = cli(*command)
    assert ran.code == 1
    assert "not done  b  ValueError: as told" in ran.out
    assert "1 failed, and stay as they are." in ran.out
    entry = delayq.get("b")
    assert entry is not None
    assert entry.as_dict()["kwargs"] == {}


def test_a_module_in_the_current_folder_is_found(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"fixes_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text("def keep(call):\n    pass\n")
    monkeypatch.chdir(tmp_path)

    ran = cli("rewrite", f"{name}:keep", "--dry-run")

    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("nothing", "expected MODULE:FUNCTION"),
        ("nowhere:at_all", "cannot be imported: ModuleNotFoundError"),
        (f"{HERE}:none", "cannot be imported: AttributeError"),
        (f"{HERE}:HERE", "expected a function"),
    ],
)
def test_what_is_no_function_is_wrong_use(cli: CommandLine, given: str, problem: str) -> None:
    ran = cli("rewrite", given, "--dry-run")
    assert (ran.code, problem in ran.err) == (2, True), ran.err
    wrong = cli("rewrite", f"{HERE}:add_more", "--dry-run", "--resume", "x")
    assert (wrong.code, "no cursor" in wrong.err) == (2, True)
