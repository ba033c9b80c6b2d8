"""``--arg`` on the command line."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.store.paging import SEARCH_ENTRIES
from celery_delayq.testing import ManagedProcess, wait_until
from tests.support import TIMEOUT
from tests.support.cli import INTERRUPTIBLE, CommandLine


def remind(order_id: int, note: str = "") -> None:
    """Stand for any task."""


@pytest.fixture
def cli(app: Celery) -> CommandLine:
    app.task(name="shop.remind", shared=False)(remind)
    return CommandLine(app)


@pytest.fixture
def filled(app: Celery, cli: CommandLine) -> None:
    """Nine tasks for the orders 0 to 2, in two queues, by keyword and by place; one has a text."""
    for n in range(9):
        queue = ("celery", "mail")[n % 2]
        app.send_task("shop.remind", (n % 3,), countdown=60 + n, task_id=f"id-{n}", queue=queue)
    app.send_task("shop.remind", kwargs={"order_id": "1"}, countdown=99, task_id="text")


def ids(ran: object) -> list[str]:
    return [each["id"] for each in ran.json["entries"]]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("filled")
def test_entries_are_listed_and_counted(cli: CommandLine) -> None:
    for given, wanted in (
        (["order_id=1"], "id-1 id-4 id-7 text"),
        (['order_id="1"'], "text"),
        (["0=1"], "id-1 id-4 id-7"),
        (["order_id=1", "note=x"], ""),
        (["order_id=nine"], ""),
    ):
        options = [word for each in given for word in ("--arg", each)]
        for more in ([], ["--all"]):
            ran = cli("list", "--json", *more, *options)
            assert (ids(ran), ran.json["cursor"]) == (wanted.split(), None), given
        assert cli("count", "--json", *options).json == {"count": len(wanted.split())}
    shown = cli("list", "--arg", "order_id=1", "--queue", "mail").out
    assert re.findall(r"id-\d", shown) == ["id-1", "id-7"]
    assert shown.endswith("2 entries.\n")
    assert cli("list", "--arg", "order_id=9").out.startswith("0 entries: ")


@pytest.mark.usefixtures("filled")
def test_the_command_that_is_shown_goes_on(cli: CommandLine) -> None:
    first = cli("list", "--arg", "order_id=1", "--task", "shop.remind", "--limit", "2").out
    told = first.split("there may be more: ")[1].strip()
    second = cli(*shlex.split(told)).out

    assert re.findall(r"id-\d", first.partition("2 entries")[0]) == ["id-1", "id-4"]
    assert re.findall(r"id-\d", second) == ["id-7"]
    assert "text" in second


@pytest.mark.usefixtures("filled")
def test_changes_take_what_was_counted(cli: CommandLine, delayq: DelayQ) -> None:
    chosen = ["--arg", "order_id=2", "--yes"]

    assert "Cancel 3 entries" in cli("cancel", *chosen, "--dry-run").out
    assert "3 entries moved" in cli("reschedule", *chosen, "--by", "1h").out
    assert "3 entries cancelled" in cli("cancel", *chosen).out
    assert delayq.count() == 7
    assert "3 entries made ready" in cli("run-now", "--arg", "order_id=0", "--yes").out


@pytest.mark.usefixtures("filled")
def test_an_export_has_what_is_found(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"

    assert "4 entries exported" in cli("export", str(path), "--arg", "order_id=1").out

    assert '"arg": {"order_id": "1"}' in path.read_text().splitlines()[0]


@pytest.mark.parametrize("command", ["list", "count", "export -", "cancel"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--arg", "order_id"], "'order_id': expected NAME=VALUE, such as order_id=42"),
        (["--arg", "=42"], "expected NAME=VALUE"),
        (["--arg", "a=1", "--arg", "a=2"], "given twice"),
        (["--unpickle"], "unpickle=True without arg"),
    ],
)
def test_wrong_use_is_reported(cli: CommandLine, command: str, given: list[str], told: str) -> None:
    ran = cli(*command.split(), *given)

    assert (ran.code, told in " ".join(ran.err.split())) == (2, True), ran.err


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--arg ordr_id=1", "Note: no task of this app takes an argument ordr_id"),
        (
            "--arg ordr_id=1 --task shop.remind",
            "Note: task shop.remind does not take an argument ordr_id; did you mean order_id?",
        ),
        ("--arg order_id=1", ""),
        ("--arg 0=1", ""),
    ],
)
def test_an_unknown_argument_is_noted(cli: CommandLine, app: Celery, given: str, told: str) -> None:
    for name in {*app.tasks} - {"shop.remind"}:  # tasks that are shared by other tests, too
        app.tasks.pop(name)

    for command in ("list", "count", "cancel --dry-run"):
        ran = cli(*command.split(), *given.split())
        assert ran.code == 0
        assert ran.err.startswith(told)
        assert told or not ran.err


def test_what_cannot_be_told_is_counted(cli: CommandLine, app: Celery) -> None:
    app.conf.accept_content = ["json", "pickle"]
    app.send_task("shop.remind", (1,), countdown=60, serializer="pickle", task_id="packed")

    ran = cli("list", "--arg", "order_id=1", "--json")

    assert ids(ran) == []
    assert "The arguments of 1 entries are not known" in ran.err
    assert ids(cli("list", "--arg", "order_id=1", "--unpickle", "--json")) == ["packed"]


@pytest.mark.parametrize("given", [[], ["--json"]])
def test_an_interrupted_search_says_how_to_go_on(
    delayq: DelayQ, cli: CommandLine, shop: list[str], given: list[str]
) -> None:
    items = [{"args": (n % 2,), "countdown": 3600 + n, "id": f"id-{n:05}"} for n in range(40_000)]
    delayq.schedule_many(items, task="shop.remind")
    wanted = {f"id-{n:05}" for n in range(40_000) if n % 2}
    command = [*shop, "list", "--arg", "0=1", "--all", *given]

    with ManagedProcess([*INTERRUPTIBLE, *command]) as process:
        wait_until(lambda: "id-00001" in process.log, TIMEOUT, "it finds some", interval=0.001)
        os.kill(process.pid, signal.SIGINT)
        code, log = process.wait(timeout=TIMEOUT), process.log

    found = {*re.findall(r"id-\d{5}", log)}
    assert code == 1
    assert 0 < len(found) < len(wanted)
    assert "Traceback" not in log
    told = re.search(
        r"Interrupted: ([\d,]+) found among [\d,]+ of 40,000 entries\. Go on with: (.*)", log
    )
    assert told is not None, log[-500:]
    rest = subprocess.run(
        [*shop, *shlex.split(told[2]), "--all"], capture_output=True, text=True, check=True
    ).stdout
    assert found | {*re.findall(r"id-\d{5}", rest)} == wanted
    assert len({*re.findall(r"id-\d{5}", rest)} & found) <= SEARCH_ENTRIES
