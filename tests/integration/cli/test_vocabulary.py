"""Words of the command line: similar names, output for other programs, versions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.cli import delayq as delayq_command
from tests.support.cli import CommandLine
from tests.support.dead_letters import fill

LONG = "shop.invoices.europe.monthly.statements.send_statement_with_attachments"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("lsit", "No such command 'lsit'; did you mean list?"),
        ("run_now x", "No such command 'run_now'; did you mean run-now?"),
        ("Cancel x", "No such command 'Cancel'; did you mean cancel?"),
        ("dead lst", "No such command 'lst'; did you mean list?"),
        ("periodic updat x", "No such command 'updat'; did you mean update?"),
        ("limits lane", "No such command 'lane'; did you mean lanes?"),
        ("zzz", "No such command 'zzz'."),
        ("list --qeue mail", "--queue"),
    ],
)
def test_a_wrong_command_names_a_similar_one(cli: CommandLine, given: str, told: str) -> None:
    ran = cli(*given.split())

    assert (ran.code, told in ran.err) == (2, True), ran.err


QUEUE = "did you mean bills?"
TASK = "Note: this app has no task shop.mial{}; did you mean shop.mail?"

#: What a command that gets a wrong queue and a wrong task says.
NAMES = {
    "get it --queue blils": QUEUE,
    "why it --queue blils": QUEUE,
    "update it --queue blils --priority 3": QUEUE,
    "cancel it --queue blils": QUEUE,
    "run-now it --queue blils": QUEUE,
    "reschedule it --queue blils --in 60": QUEUE,
    "dead show it --queue blils": QUEUE,
    "dead purge it --queue blils": QUEUE,
    "dead replay it --queue blils": QUEUE,
    "list --queue blils": QUEUE,
    "list --arg a=1 --queue blils": QUEUE,
    "count --queue blils": QUEUE,
    "cancel --queue blils --yes": QUEUE,
    "dead list --queue blils": QUEUE,
    "dead purge --queue blils --yes": QUEUE,
    "dead replay nothing --to-queue blils": QUEUE,
    "export - --queue blils": QUEUE,
    "dead export - --queue blils": QUEUE,
    "import @ --queue blils": QUEUE,
    "dead import @ --queue blils": QUEUE,
    "dead archive sqlite:///@.db --queue blils": QUEUE,
    "periodic add each shop.mail --every 60 --queue blils": QUEUE,
    "periodic update here --queue blils": QUEUE,
    "fsck --queue blils": QUEUE,
    "compat --queue blils": QUEUE,
    "rename a b --queue blils --yes": QUEUE,
    "rewrite operator:not_ --queue blils --yes": QUEUE,
    "pause --queue blils": QUEUE,
    "resume --queue blils": QUEUE,
    "list --task shop.mial": TASK.format(""),
    "list --all --task shop.mial": TASK.format(""),
    "count --task shop.mial": TASK.format(""),
    "reschedule --task shop.mial --in 60 --yes": TASK.format(""),
    "dead list --task shop.mial": TASK.format(""),
    "dead replay --task shop.mial --yes": TASK.format(""),
    "dead purge --task shop.mial --yes": TASK.format(""),
    "cancel --task shop.mial --yes": TASK.format(""),
    "run-now --task shop.mial --yes": TASK.format(""),
    "export - --task shop.mial": TASK.format(""),
    "import @ --task shop.mial": TASK.format(""),
    "dead export - --task shop.mial": TASK.format(""),
    "dead archive sqlite:///@.db --task shop.mial": TASK.format(""),
    "dead import @ --task shop.mial": TASK.format(""),
    "periodic update here --task shop.mial": TASK.format(""),
    "periodic add each shop.mial --every 60": TASK.format(""),
    "pause --task shop.mial": TASK.format(", and none is scheduled"),
    "resume --task shop.mial": TASK.format(", and none is scheduled"),
    "rename shop.mial b --force --yes": TASK.format(", and none is scheduled"),
    "rename shop.bill shop.mial --yes": TASK.format("").removeprefix("Note: "),
    "rewrite operator:not_ --task shop.mial --yes": TASK.format(", and none is scheduled"),
    "rewrite operator:not_ --priority 7 --yes": "there are the steps 0, 3, 6, 9",
}


def commands_of(group: click.Group) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in commands_of(found))
        else:
            yield name, found


def test_the_table_has_each_option_with_the_name_of_a_queue_or_a_task() -> None:
    wanted = {
        (path, option.opts[0])
        for path, command in commands_of(delayq_command)
        for option in command.params
        if option.metavar in ("QUEUE", "TASK") and option.opts[0].startswith("--")
    }

    lines = [line.split() for line in NAMES]
    told = {
        (path, option)
        for path, option in wanted
        for line in lines
        if line[: len(path.split())] == path.split() and option in line
    }
    assert told == wanted


@pytest.mark.parametrize("given", NAMES)
def test_a_wrong_queue_or_task_names_a_similar_one(
    app: Celery, cli: CommandLine, delayq: DelayQ, tmp_path: Path, given: str
) -> None:
    app.send_task("shop.bill", countdown=60, queue="bills")
    delayq.periodic.add("here", 60.0, "shop.bill")
    export = delayq.export_dead if given.startswith("dead") else delayq.export_to
    export(tmp_path / "exported")

    ran = cli(*given.replace("@", str(tmp_path / "exported")).split())

    assert NAMES[given] in " ".join((ran.out + ran.err).split())


def test_a_countdown_has_the_name_that_calls_give_it(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.app.send_task("shop.mail", countdown=3600, task_id="one")

    assert cli("reschedule", "one", "--countdown", "60").out == "moved to 1m from now  one\n"
    assert delayq.count(due_to=datetime.now(timezone.utc) + timedelta(seconds=61)) == 1


def test_versions_are_reported(cli: CommandLine) -> None:
    ran = cli("--version")

    assert ran.code == 0
    assert (
        ran.out
        == ", ".join(
            f"{name} {version(name)}" for name in ("celery-delayq", "celery", "kombu", "redis")
        )
        + "\n"
    )


def test_lists_in_json_are_alike(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.app.send_task("shop.mail", (1,), countdown=3600, task_id="one")
    fill(delayq, 1)

    [entry] = cli("list", "--json").json["entries"]
    [dead] = cli("dead", "list", "--json").json["dead_letters"]

    same = {"id", "task_id", "task", "queue", "state", "due", "retries", "worker"}
    same |= {"args", "kwargs", "argsrepr", "kwargsrepr"}
    assert same <= entry.keys() & dead.keys()
    assert (entry["state"], dead["state"]) == ("scheduled", "dead")
    assert cli("list", "--all", "--json").json["entries"] == [entry]
    assert cli("get", "one", "--json").json["entries"] == [{**entry, "calls": []}]
    [shown] = cli("dead", "show", dead["id"], "--json").json["dead_letters"]
    assert {**shown, **dead} == shown


def test_without_a_terminal_each_item_is_a_line_with_its_id(
    app: Celery, delayq: DelayQ, shop: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    ids = [app.send_task(LONG, ("x" * 99,), countdown=60 + n, queue="q" * 60).id for n in range(3)]
    dead = fill(delayq, 3, task=LONG, queue="q" * 60)
    for name in ("first", "second"):
        delayq.periodic.add(name, 3600.0, LONG, queue="q" * 60)

    def lines(*command: str) -> list[str]:
        ran = subprocess.run([*shop, *command], capture_output=True, text=True, check=True)
        return ran.stdout.splitlines()

    for command, wanted in (
        (("list",), ids),
        (("list", "--all"), ids),
        (("list", "--arg", "0=" + "x" * 99), ids),
        (("dead", "list"), dead),
        (("periodic", "list"), ["first", "second"]),
    ):
        shown = lines(*command)
        for id in wanted:
            [row] = [line for line in shown if id in line.split()]
            assert LONG in row.split(), command
    assert json.loads("".join(lines("list", "--json")))["entries"][0]["id"] == ids[0]
    assert re.search(r"3 entries\.$", lines("list")[-1])
