"""Commands know the tasks in modules that only workers import, as with ``include=``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from celery_delayq import DelayQ
from celery_delayq.cli.commands.limits import limits
from celery_delayq.cli.options import JsonType, WantedArgumentType
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine, Ran, leaves
from tests.support.lazy import LIMIT, TASK, is_imported, lazy_app


class Case(NamedTuple):
    """Options of a command; ``@`` is a folder. What is right, if the command knows the task."""

    options: str
    is_right: Callable[[Ran], object]


def said(text: str) -> Callable[[Ran], object]:
    return lambda ran: text in " ".join((ran.out + ran.err).split())


def found(number: int) -> Callable[[Ran], object]:
    """Return whether a command has found entries by a positional argument."""
    return lambda ran: json.loads(ran.out)["outcomes"] == {"done": number}


REFUSED = said("does not take the arguments")

#: By command: each that names arguments, or tasks that wait. Two entries wait, and one dead letter.
CASES: dict[str, Case] = {
    "cancel": Case("--arg key=k1 --dry-run --json", found(1)),
    "compat": Case("", said("3 bind, 0 would fail")),
    "count": Case("--arg key=k1 --json", lambda ran: ran.json == {"count": 1}),
    "dead replay": Case("dead --args [1,2,3]", REFUSED),
    "export": Case("@some.jsonl --arg key=k1 --json", lambda ran: ran.json["entries"] == 1),
    "import": Case(
        "@all.jsonl --arg key=k1 --json",
        lambda ran: ran.json["outcomes"] == {"duplicate": 1, "filtered": 1},
    ),
    "limits lanes": Case(LIMIT, said("No task is held.")),
    "limits set": Case(f"{LIMIT} --burst 3", said(f"Limit {LIMIT}: 5/m, burst 3")),
    "limits unset": Case(f"{LIMIT} --code", said("the code of this app has it")),
    "list": Case("--arg key=k1 --json", lambda ran: len(ran.json["entries"]) == 1),
    "pause": Case(f"--task {TASK}", lambda ran: "no task" not in ran.err),
    "periodic add": Case(f"each {TASK} --every 60", lambda ran: "no task" not in ran.err),
    "rename": Case(f"other.task {TASK} --dry-run", lambda ran: f"no task {TASK}" not in ran.err),
    "reschedule": Case("--arg key=k1 --in 60 --dry-run --json", found(1)),
    "rewrite": Case("fixes:add_two --dry-run", REFUSED),
    "run-now": Case("--arg key=k1 --dry-run --json", found(1)),
    "update": Case("k1 --args [1,2,3]", REFUSED),
}

#: Commands that take arguments or tasks as they are, or whose result does not depend on the code.
OTHERS = {
    *("dead archive", "dead export", "dead import", "dead list", "dead purge"),
    *("periodic update", "resume"),
}


def asks_the_code(command: click.Command) -> bool:
    """Return whether an option of a command names arguments, a task or a limit."""
    return any(
        isinstance(each.type, (JsonType, WantedArgumentType))
        or each.name in ("task", "function")
        or (each.name == "name" and command in limits.commands.values())
        for each in command.params
    )


def test_the_table_is_complete() -> None:
    every = {name for name, command in leaves() if asks_the_code(command)}

    assert {*CASES} | OTHERS == every | {"compat", "rename"}


@pytest.mark.parametrize("name", CASES)
def test_the_command_imports_the_modules_of_workers(
    name: str, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = lazy_app(make_app, tmp_path, monkeypatch)
    delayq, cli = DelayQ.of(app), CommandLine(app)
    for key in ("k1", "k2"):
        app.send_task(TASK, (key,), task_id=key, countdown=3600, unique_key="{0}")
    [message, _] = [each.message for each in delayq.entries()]
    delayq.store.dead_letters.add("celery", "dead", "it failed", json.dumps(message).encode())
    delayq.export_to(tmp_path / "all.jsonl")
    (tmp_path / "fixes.py").write_text("def add_two(call): return {'args': [1, 2, 3]}\n")
    assert not is_imported(app)

    case = CASES[name]
    ran = cli(*name.split(), *case.options.replace("@", f"{tmp_path}/").split())

    assert case.is_right(ran), ran


def test_the_doctor_compares_the_limits_of_the_modules_of_workers(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = lazy_app(make_app, tmp_path, monkeypatch)
    DelayQ.of(app).store.task_limits.announce({LIMIT: "0 1 8 0"})

    ran = CommandLine(app)("doctor", "--json")

    assert f"limit {LIMIT}: this app says 5/m, the worker that started last said 8" in ran.out


def test_a_module_that_cannot_be_imported_hinders_no_limit_of_redis(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(include=["no_such_module_of_limits"])
    DelayQ.of(app).store.task_limits.announce({LIMIT: "0 1 8 0"})

    ran = CommandLine(app)("limits", "set", LIMIT, "--concurrency", "3")

    assert (ran.code, ran.out) == (0, f"Limit {LIMIT}: 3 at once\ncode: 8 at once\n")
    assert "No module named 'no_such_module_of_limits'" in caplog.text
