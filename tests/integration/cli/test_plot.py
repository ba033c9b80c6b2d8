"""`delayq plot`: the load to come and the lateness, as text and as SVG."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from celery import Celery
from rich.console import Console

from celery_delayq import DelayQ
from celery_delayq.admin.lateness import lateness
from tests.integration.cli.conftest import CONTROLS, HOSTILE
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.runs import finished

MINUTE, HOUR = 60_000, 3_600_000


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(broker_transport_options={"delayq": {"history": 1000}})


@pytest.fixture
def filled(app: Celery, delayq: DelayQ) -> None:
    """Tasks of three queues within an hour, a day and a month, and runs that were late."""
    for countdown in (*range(60, 600, 60), 7200, 86_400, 90 * 86_400):
        app.send_task("shop.mail", countdown=countdown)
        app.send_task(HOSTILE, countdown=countdown, queue="bills")
    app.send_task("shop.mail", countdown=900, queue=HOSTILE)
    now = delayq.store.now_ms()
    runs: list[bytes] = []
    for number in range(100):
        started = now - number * 20_000
        times = {"due": started - 10 * number, "started": started}
        queue = "bills" if number % 4 == 0 else "celery"
        runs.append(finished(f"run {number}", started + 5, queue=queue, task="shop.mail", **times))
    runs.append(finished("at once", now, started=now))
    runs.append(finished("old", now, due=now - 30 * HOUR, started=now - 29 * HOUR))
    runs.append(b"unreadable")
    delayq.store.history.add("me", 1, 1000, runs)


def test_lateness_is_counted_by_the_step_of_the_start(delayq: DelayQ, filled: None) -> None:
    found = lateness(delayq.session, 60, 60)

    assert (len(found.steps), found.times[-1].timestamp() % 60) == (60, 0)
    assert len(found.all) == 100
    assert {name: len(its) for name, its in found.by_name.items()} == {"celery": 75, "bills": 25}
    assert sorted(found.all) == [10 * number for number in range(100)]
    assert {len(each) for each in found.steps[-30:-5]} == {3}
    by_task = lateness(delayq.session, 3600, 48, "task")
    assert {name: len(its) for name, its in by_task.by_name.items()} == {
        "shop.mail": 100, "tasks.add": 1
    }  # fmt: skip
    cut = lateness(delayq.session, 60, 60, most=10)
    assert (cut.is_cut, found.is_cut, len(cut.all) <= 10) == (True, False, True)


#: The numbers of tasks to come and of late runs, by step.
NUMBERS = {"minute": (19, 100), "hour": (23, 101), "day": (23, 101)}


@pytest.mark.usefixtures("filled")
def test_charts_fit_and_have_all_numbers(cli: CommandLine) -> None:
    for step, by, columns in product(NUMBERS, ("queue", "task"), (20, 40, 80, 200)):
        ran = cli("plot", "--step", step, "--by", by, columns=columns)
        assert (ran.code, ran.err, CONTROLS.search(ran.out)) == (0, "", None)
        assert max(map(len, ran.out.splitlines())) <= columns
        shown, (due, late) = " ".join(ran.out.split()), NUMBERS[step]
        assert f"Load to come: {due} due in the next" in shown
        assert f"Lateness: {late} runs started in the last" in shown
        assert "█" in ran.out


@pytest.mark.usefixtures("filled")
def test_svg_is_written_and_says_the_same(cli: CommandLine, tmp_path: Path) -> None:
    for step in ("minute", "hour", "day"):
        file = tmp_path / f"{step}.svg"
        ran = cli("plot", "--step", step, "--svg", str(file))
        assert (ran.code, ran.out) == (0, f"written: {file}\n")
        text = file.read_text("utf-8")
        root = ET.fromstring(text)
        assert sum(each.tag.endswith("}svg") for each in root) == 3
        assert not CONTROLS.search(text.replace("\n", ""))
        assert "Lateness by queue" in text


def test_a_file_that_cannot_be_written_is_an_error(cli: CommandLine, tmp_path: Path) -> None:
    ran = cli("plot", "--svg", str(tmp_path / "none" / "x.svg"))
    assert (ran.code, "there is no folder" in ran.err) == (2, True)
    ran = cli("plot", "--svg", str(tmp_path))
    assert (ran.code, "is a directory" in ran.err) == (2, True)


@pytest.mark.parametrize("keeps_history", [False, True])
def test_without_tasks_and_runs_it_says_so(
    make_app: MakeApp, tmp_path: Path, keeps_history: bool
) -> None:
    options = {"delayq": {"history": 100 if keeps_history else 0}}
    cli = CommandLine(make_app(broker_transport_options=options))

    ran = cli("plot")

    assert ran.code == 0
    assert "0 due in the next 60 minutes, 0 later" in ran.out
    text = " ".join(ran.out.split())
    assert "No run of a task with an ETA is known." in text
    assert ("Runs are kept if the setting history is more than 0." in text) is not keeps_history
    assert cli("plot", "--svg", str(tmp_path / "x.svg")).code == 0


def test_without_unicode_it_is_drawn_in_ascii(
    cli: CommandLine, filled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "encoding", property(lambda _: "ascii"))

    ran = cli("plot")

    assert ran.code == 0
    assert ran.out.isascii()
    assert "#" in ran.out


@pytest.mark.full
@pytest.mark.rabbitmq
def test_on_rabbitmq_it_is_not_supported(make_app: MakeApp, delayq_rabbitmq: str) -> None:
    ran = CommandLine(make_app(broker=delayq_rabbitmq))("plot")

    assert (ran.code, "RabbitMQ can neither list" in ran.err) == (1, True)
