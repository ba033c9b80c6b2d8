"""``delayq rename`` and ``delayq rewrite``: a dry run, each outcome, and exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from celery_delayq import DelayQ
from celery_delayq.admin import rewrite
from celery_delayq.model.changes.calls import WaitingCall
from celery_delayq.testing import ManagedProcess, wait_until
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.cli import INTERRUPTIBLE, CommandLine

HERE = "tests.integration.cli.test_rewrite"

NOON = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)


def add_more(call: WaitingCall) -> dict[str, Any] | None:
    """A function of a user."""
    return None if "more" in call.kwargs else {"kwargs": {"more": 1}}


def add_values(call: WaitingCall) -> dict[str, Any]:
    """Return values that are no plain JSON; a failure, if the serializer cannot encode them."""
    values: list[Any] = [NOON, Decimal("1.50"), UUID(int=7), b"\xff"]
    return {"args": [*values, object()] if call.id == "b" else values}


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
    wrong = cli("rename", "shop.remind", "mail.remind", "--yes")
    assert (wrong.code, "this app has no task mail.remind" in wrong.err) == (1, True)
    assert tasks(delayq) == {"shop.remind"}
    for name in ("mail.remind", "mail.call"):
        delayq.app.task(name=name, shared=False)(add_more)

    asks = cli("rename", "shop.remind", "mail.remind")
    assert (asks.code, "say --yes, or --dry-run" in asks.err) == (2, True)

    dry = cli("rename", "shop.remind", "mail.remind", "--dry-run")
    assert dry.code == 0
    assert dry.out.splitlines() == [
        *(f"would be renamed  {id}  shop.remind: task='mail.remind'" for id in sent),
        "3 messages looked at, 3 would be renamed.",
    ]
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
    told = f"rewrite {HERE}:fail_once --task shop.remind --yes --stop --json --resume {cursor}"
    assert stopped.err.splitlines()[-1] == f"To continue: {told}"
    rest = cli(*command, "--resume", cursor)
    assert (rest.code, "3 messages looked at, 1 rewritten" in rest.out) == (1, True)

    ran = cli(*command)
    assert ran.code == 1
    assert "not done  b  ValueError: as told (test_rewrite.py, line " in ran.out
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


def test_values_that_are_no_json_are_shown_as_kombu_has_them(
    cli: CommandLine, delayq: DelayQ, sent: list[str]
) -> None:
    command = ("rewrite", f"{HERE}:add_values", "--task", "shop.remind", "--yes")

    ran = cli(*command, "--json")

    *outcomes, end = lines(ran.out)
    shown = {each["id"]: each["calls"][0]["changes"]["args"] for each in outcomes}
    noon = {"__type__": "datetime", "__value__": NOON.isoformat()}
    assert [shown["a"][0], shown["c"][0]] == [noon] * 2
    assert shown["b"].startswith("[datetime.datetime(2030")
    [failure] = end["report"]["failures"]
    assert (failure["id"], failure["calls"][0]["changes"]["args"]) == ("b", shown["b"])
    assert (ran.code, end["report"]["outcomes"]) == (1, {"done": 2})
    entry = delayq.get("a")
    assert entry is not None
    assert entry.args == [NOON, Decimal("1.50"), UUID(int=7), b"\xff"]


@pytest.mark.parametrize(
    "given", [["--due-to", "1h"], ["--due-from", "1m", "--queue", "celery", "--priority", "0"]]
)
@pytest.mark.parametrize("dry_run", ["--dry-run", "--yes"])
def test_the_printed_command_continues_a_relative_time(
    cli: CommandLine,
    delayq: DelayQ,
    sent: list[str],
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    dry_run: str,
) -> None:
    monkeypatch.setattr(rewrite, "PAGE_ENTRIES", 2)
    command = ("rewrite", f"{HERE}:fail_once", "--task", "shop.remind", *given, dry_run, "--stop")

    stopped = cli(*command)

    told = stopped.err.splitlines()[-1].removeprefix("To continue: ")
    assert (stopped.code, dry_run in told.split()) == (1, True)
    rest = cli(*shlex.split(told))
    assert (rest.code, "messages looked at" in rest.out) == (1, True), rest
    assert rest.err.splitlines()[-1] == stopped.err.splitlines()[-1]


def test_what_was_not_looked_into_is_not_done(
    cli: CommandLine, delayq: DelayQ, sent: list[str]
) -> None:
    callback = delayq.app.signature("shop.remind", (1,))
    delayq.app.conf.accept_content = ["json", "pickle"]
    delayq.app.send_task("shop.mail", countdown=60, serializer="pickle", link=callback)
    command = ("rename", "shop.remind", "mail.remind", "--force", "--yes")

    ran = cli(*command)

    assert (ran.code, "1 message was not decoded" in ran.out) == (1, True)
    assert cli(*command, "--unpickle").code == 0
    assert cli(*command, "--unpickle", "--json").json["report"]["undecoded"] == 0


def test_a_rename_that_finds_something_prints_no_note(cli: CommandLine, delayq: DelayQ) -> None:
    """The app has no task of the old name, and only a periodic entry or a signature names it."""
    command = ("rename", "shop.old", "shop.new", "--force", "--yes")
    delayq.periodic.add("each", 3600.0, "shop.old")

    ran = cli(*command)
    assert (ran.code, ran.err, "1 renamed" in ran.out) == (0, "", True)
    again = cli(*command)
    assert (again.code, "this app has no task shop.old, and none is scheduled" in again.err) == (
        0,
        True,
    )


def test_a_rename_of_a_mistyped_name_fails(
    cli: CommandLine, delayq: DelayQ, sent: list[str], make_app: MakeApp
) -> None:
    app = make_app()
    app.task(name="mail.remind", shared=False)(add_more)
    DelayQ(app, renamed={"shop.remind": "mail.remind"})
    renaming = CommandLine(app)
    for how in ("--dry-run", "--yes"):
        typo = renaming("rename", "shop.remnid", "mail.remind", how)
        assert (typo.code, "no task shop.remnid, and none is scheduled" in typo.err) == (1, True)
    assert tasks(delayq) == {"shop.remind"}

    for _ in range(2):  # a repeated one finds nothing, under a name that the code knows
        again = renaming("rename", "shop.remind", "mail.remind", "--yes")
        assert (again.code, again.err) == (0, "")
    assert tasks(delayq) == {"mail.remind"}


def test_only_some_queues_are_renamed(cli: CommandLine, delayq: DelayQ, sent: list[str]) -> None:
    delayq.app.send_task("shop.remind", (1,), task_id="d", countdown=60, queue="other")

    ran = cli("rename", "shop.remind", "mail.remind", "--queue", "other", "--force", "--yes")

    assert ran.code == 0
    assert {each.id for each in delayq.list(task="mail.remind")} == {"d"}
    assert cli("rename", "a", "b", "--queue", "othre", "--yes").code == 1


@pytest.mark.parametrize("command", ["rename", "rewrite"])
def test_an_interrupted_rewrite_prints_the_command_that_continues(
    delayq: DelayQ, shop: list[str], tmp_path: Path, command: str
) -> None:
    items = [{"args": (n,), "countdown": 3600 + n, "id": f"id-{n:05}"} for n in range(1200)]
    delayq.schedule_many(items, task="shop.remind")
    gate = tmp_path / "gate"
    (tmp_path / "fixes.py").write_text(
        "import os, pathlib, time\n"
        "from celery_delayq.admin import rewrite\n"
        "def wait():\n"
        "    print('waits', flush=True)\n"
        f"    while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        "def add_more(call):\n"
        "    if call.args[0] == 700: wait()\n"
        "    return None if call.kwargs else {'kwargs': {'more': 1}}\n"
    )
    if command == "rename":
        with (tmp_path / "shop.py").open("a") as file:
            file.write(
                "import fixes\n"
                "from celery_delayq.model.changes.calls import Rewriter\n"
                "rewritten = Rewriter.rewritten\n"
                "def waiting(self, message, call):\n"
                "    if call.id == 'id-00700': fixes.wait()\n"
                "    return rewritten(self, message, call)\n"
                "Rewriter.rewritten = waiting\n"
            )
    words = {
        "rename": ["rename", "shop.remind", "mail.remind", "--force"],
        "rewrite": ["rewrite", "fixes:add_more"],
    }[command]

    with ManagedProcess([*INTERRUPTIBLE, *shop, *words, "--yes"]) as process:
        wait_until(lambda: "waits" in process.log, TIMEOUT, "it is in the second page")
        os.kill(process.pid, signal.SIGINT)
        code, log = process.wait(timeout=TIMEOUT), process.log

    gate.touch()
    assert (code, "Traceback" in log) == (1, False), log[-1000:]
    [told] = [each for each in log.splitlines() if each.startswith("To continue: ")]
    rest = subprocess.run(
        [sys.executable, "-m", *shlex.split(told.removeprefix("To continue: "))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "700 messages looked at, 700 " in rest.stdout
    assert {(each.task, str(each.kwargs)) for each in delayq.entries()} == {
        ("mail.remind", "{}") if command == "rename" else ("shop.remind", "{'more': 1}")
    }
