"""Without a terminal: no command pads its lines, and a row of a table is one line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ, Limit
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine, leaves
from tests.support.dead_letters import fill

#: Commands that run until they are stopped.
SERVICES = {"dispatch", "metrics", "web"}

#: A line for each of the other commands; first those that only read. DIR is a folder.
LINES = (
    *("stats", "list", "list --all", "list --held", "list --arg 0=ada", "count", "get later"),
    *("why later", "why due", "why held", "why none", "why celery-000000", "timeline later"),
    *("history", "paused", "limits list", "limits lanes stripe", "plot", "top", "doctor"),
    *("health", "compat", "fsck", "dead list", "dead show celery-000000", "periodic list"),
    *("periodic show hourly", "periodic next hourly", "topology"),
    *("migrate --to stock --dry-run", "rename shop.mail shop.bill --dry-run"),
    *("rewrite shop:none --dry-run", "export DIR/all.jsonl", "import DIR/all.jsonl --dry-run"),
    *("dead export DIR/dead.jsonl", "dead import DIR/dead.jsonl --dry-run"),
    *("periodic import beat --dry-run", "periodic add daily 1d shop.mail"),
    *("periodic update daily --queue mail", "periodic pause daily", "periodic resume daily"),
    *("periodic run-now daily", "periodic remove daily --yes", "pause --task shop.bill"),
    *("resume --task shop.bill", "limits set stripe --rate 5/m", "limits list"),
    *("limits unset stripe", "update later --args '[1]'", "reschedule later --eta 2h"),
    *("run-now later --dry-run", "cancel later --dry-run", "cancel-canvas later"),
    *("dead replay celery-000000", "dead archive DIR/old.jsonl", "dead purge --everything --yes"),
    *("cancel later", "run-now --everything --dry-run"),
)


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(broker_transport_options={"delayq": {"history": 100}})


@pytest.fixture
def _filled(app: Celery, delayq: DelayQ) -> None:
    """Tasks that are due later, due and paused, and held, with what tables show in several lines:
    a paused queue, a limit that people have set, an entry that fsck repairs, tasks of other code.
    """
    app.send_task("shop.mail", ("ada", 5), task_id="later", countdown=3600)
    app.send_task("shop.unknown", ("ada", 5), task_id="due", countdown=0.01)
    delayq.pause(queue="celery")
    delayq.pause(task="shop.report")
    stripe = Limit("stripe", rate="100/m").definition.text
    for store in delayq.session.stores:
        store.task_limits.announce({"stripe": stripe})
    delayq.limits.set("stripe", rate="7/m")
    store = delayq.store
    store.client.zadd("{celery}:held", {f"stripe\0{0:03d}\0{1:015d}\0held": 0})
    store.client.zadd("{celery}:delayed:bodies-missing", {"x": 1})
    delayq.periodic.add("hourly", 3600, "shop.mail")
    fill(delayq, 2)
    wait_until(lambda: delayq.stats().paused, what="a task is due")


def test_there_is_a_line_for_each_command() -> None:
    names = dict(leaves())
    shown = {name for name in names for line in LINES if f"{line} ".startswith(f"{name} ")}

    assert shown | SERVICES == {*names}


@pytest.mark.usefixtures("_filled")
def test_no_command_pads_a_line(cli: CommandLine, tmp_path: Path) -> None:
    for line in LINES:
        ran = cli(*shlex.split(line.replace("DIR", str(tmp_path))), columns=None)
        for shown in (*ran.out.splitlines(), *ran.err.splitlines()):
            assert shown == shown.rstrip(), line
            assert len(shown) < 1000, line
            # Between the bars of a chart there may be any number.
            assert "│" in shown or " " * 100 not in shown, line


@pytest.mark.usefixtures("_filled")
@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("stats", ("celery", "paused", "2", "0", "1", "1", "0", "0", "2")),
        ("compat", ("shop.unknown", "1")),
        ("limits list", ("stripe", "7/m;", "code:")),
    ],
)
def test_each_row_is_one_line(cli: CommandLine, line: str, row: tuple[str, ...]) -> None:
    ran = cli(*line.split(), columns=None)

    rows = [each.split() for each in ran.out.splitlines()]
    assert [tuple(each[: len(row)]) for each in rows].count(row) == 1, ran.out
