"""Times on the command line: what is shown can be pasted, and is the same moment again."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.cli.options import TimeType
from celery_delayq.cli.text import stamp
from celery_delayq.model.typed_times import read_typed_time
from celery_delayq.periodic.definition import API_SOURCE
from tests.support import dead_letters
from tests.support.cli import TIME, CommandLine, Ran, clock_of, leaves, times_in
from tests.support.runs import finished

UTC = timezone.utc

#: Half past one, twice: on that morning New York's clocks are set back.
ONE, TWO = (datetime(2099, 11, 1, hour, 30, 0, 123_000, UTC) for hour in (5, 6))

#: One millisecond before the first, so that nothing may be rounded.
BEFORE = ONE - timedelta(milliseconds=1)

#: Such a half past one that has passed.
DIED = datetime(2025, 11, 2, 5, 30, 0, 123_000, UTC)

ZONES = ("UTC0", "EST5EDT,M3.2.0,M11.1.0", "NPT-5:45", "JST-9", "LINT-14")

COMMANDS = dict(leaves())

#: Commands that show times, also in ``--json``, with their arguments. `tests/support/cli.py` checks
#: the form of the times that any command shows in any test.
SHOWING = {
    "get": ["before"],
    "limits lanes": ["sun"],
    "list": [],
    "paused": [],
    "dead list": [],
    "dead show": ["dead"],
    "why": ["before"],
    "timeline": ["before"],
    "history": [],
    "periodic list": [],
    "periodic show": ["launch"],
    "periodic next": ["launch"],
    "periodic add": ["launch", "shop.mail", "--at", ONE.isoformat(), "--replace"],
    "periodic update": ["launch", "--at", TWO.isoformat()],
    "periodic resume": ["launch"],
}

#: Commands that show times, but not in ``--json``, with their arguments and the times.
SHOWING_IN_TEXT = {
    "reschedule": (["before", "--eta", TWO.isoformat()], {TWO}),
    "dead replay": (["dead", "--eta", TWO.isoformat()], {TWO}),
}


def _nothing(*_: Any) -> None:
    """Stand for any task."""


@pytest.fixture(params=ZONES[:3])
def cli(request: pytest.FixtureRequest, app: Celery) -> CommandLine:
    for name in ("shop.mail", "shop.bill"):
        app.task(name=name, shared=False)(_nothing)
    return CommandLine(app, request.param)


@pytest.fixture
def filled(app: Celery, delayq: DelayQ) -> None:
    """Three entries, a dead letter, a periodic entry that starts and ends, a lane, a pause."""
    for id, eta in (("before", BEFORE), ("one", ONE), ("two", TWO)):
        app.send_task("shop.mail", eta=eta, task_id=id)
    for id, died in (("dead-before", DIED - timedelta(milliseconds=1)), ("dead", DIED)):
        ms = round(died.timestamp() * 1000)
        data = dead_letters.stored(ms, "failed", dead_letters.message(id), dead_letters.details())
        delayq.store.dead_letters.restore("celery", [(id, ms, data)])
    delayq.periodic.add("launch", 3600, "shop.mail", start=ONE, end=TWO + timedelta(days=1))
    delayq.store.task_limits.announce({"sun": "0 1 1 1"})
    delayq.store.client.zadd("{celery}:held", {f"sun:ada\0{0:03d}\0{1:015d}\0id": 0})
    delayq.store.client.zadd("{celery}:lanes", {"sun:ada": round(ONE.timestamp() * 1_000_000)})
    delayq.store.register("celery")
    delayq.store.history.add("me", 1, 100, [finished("one", round(ONE.timestamp() * 1000))])
    delayq.pause(queue="mail")


def times_in_json(ran: Ran) -> set[datetime]:
    """Return all times in JSON."""
    return {datetime.fromisoformat(each) for each in re.findall(r'"(\d{4}-\d\d-[^"]*)"', ran.out)}


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("columns", [80, 200])
def test_times_are_shown_exactly_and_with_their_offset(cli: CommandLine, columns: int) -> None:
    for command, given in SHOWING.items():
        line = [*command.split(), *given]
        ran = cli(*line, columns=columns)
        assert ran.code == 0, (line, ran)
        assert times_in(ran.out), (line, ran)
        assert times_in(ran.out) <= times_in_json(cli(*line, "--json")), line
    for command, (given, expected) in SHOWING_IN_TEXT.items():
        ran = cli(*command.split(), *given, columns=columns)
        assert (ran.code, times_in(ran.out)) == (0, expected), ran


def timed() -> list[Any]:
    """Return all options that take a time, of all commands."""
    return [
        pytest.param(option, id=f"{name} {option.opts[0]}")
        for name, command in COMMANDS.items()
        for option in command.params
        if isinstance(option.type, TimeType) or option.metavar == "TIME"
    ]


@pytest.mark.parametrize("option", timed())
def test_each_option_reads_what_is_shown_as_the_same_moment(option: click.Option) -> None:
    moments = (BEFORE, ONE, TWO, ONE.replace(microsecond=0), datetime(2030, 7, 1, tzinfo=UTC))
    for zone, moment in product(ZONES, moments):
        with clock_of(zone):
            text = stamp(moment)
            texts = [text, text.replace("T", " "), moment.isoformat()]
            naive = text[:-6]
            if moment != TWO or not zone.startswith("EST"):  # that hour is there twice
                texts.append(naive)
            read = {option.type.convert(each, option, None) for each in texts}
            assert {datetime.fromisoformat(each) for each in read} == {moment}, (zone, texts)


@pytest.mark.parametrize("option", timed())
@pytest.mark.parametrize("text", ["now", "17:00", "tomorrow 9:00", "1h30m", "in 2 hours", "3d ago"])
def test_each_option_reads_all_that_people_may_type(option: click.Option, text: str) -> None:
    assert datetime.fromisoformat(option.type.convert(text, option, None)).tzinfo is not None


def test_the_edges_of_the_calendar_are_shown_and_read() -> None:
    for zone, year in product(ZONES, (1, 9999)):
        moment = datetime(year, 1 if year == 1 else 12, 31, 23, 59, 59, tzinfo=UTC)
        with clock_of(zone):
            assert read_typed_time(stamp(moment), ONE) == moment


@pytest.mark.usefixtures("filled")
def test_what_list_shows_means_that_entry_for_all_filters(cli: CommandLine, tmp_path: Path) -> None:
    backup = str(tmp_path / "schedule.jsonl")
    assert cli("export", backup).code == 0
    time = TIME.findall(cli("get", "one").out)[0].rstrip(",")
    given = {
        "list": ["--json"],
        "count": ["--json"],
        "cancel": ["--dry-run", "--json"],
        "run-now": ["--dry-run", "--json"],
        "reschedule": ["--by", "1h", "--dry-run", "--json"],
        "export": ["-"],
        "import": [backup, "--dry-run", "--json"],
    }

    for command, more in given.items():
        ran = cli(command, *more, "--due-from", time, "--due-to", time)
        assert ran.code == 0, ran
        assert _number(command, ran) == 1, (command, ran)
    assert cli("cancel", "before", "--if-eta", time).code == 1
    assert cli("cancel", "one", "--if-eta", time).code == 0
    assert cli("reschedule", "two", "--eta", time).code == 0
    assert cli("list", "--json").json["entries"][1]["due"] == ONE.isoformat()


@pytest.mark.usefixtures("filled")
def test_what_dead_list_shows_means_that_dead_letter(cli: CommandLine, tmp_path: Path) -> None:
    backup = str(tmp_path / "dead.jsonl")
    assert cli("dead", "export", backup).code == 0
    time = TIME.findall(cli("dead", "list").out)[1].rstrip(",")
    given = {
        "dead list": ["--json"],
        "dead replay": ["--dry-run", "--json"],
        "dead purge": ["--dry-run", "--json"],
        "dead export": ["-"],
        "dead import": [backup, "--dry-run", "--json"],
        "dead archive": [f"sqlite:///{tmp_path}/dead.db", "--json"],
    }

    for command, more in given.items():
        ran = cli(*command.split(), *more, "--died-from", time, "--died-to", time)
        assert ran.code == 0, ran
        assert _number(command, ran) == 1, (command, ran)


@pytest.mark.usefixtures("filled")
def test_what_is_shown_of_one_entry_makes_another(cli: CommandLine, delayq: DelayQ) -> None:
    lines = dict(re.findall(r"^(start|end) +(\S+),", cli("periodic", "show", "launch").out, re.M))
    naive = {name: text[:-6] for name, text in lines.items()}

    for name, given in (("same", lines), ("naive", naive)):
        options = [part for what, time in given.items() for part in (f"--{what}", time)]
        zone = ["--timezone", "Europe/Berlin"]
        assert cli("periodic", "add", name, "shop.mail", "--every", "1h", *zone, *options).code == 0
    once = ["--at", lines["start"]]
    assert cli("periodic", "add", "once", "shop.mail", *once).code == 0

    found = {each.name: each for each in delayq.periodic.list(API_SOURCE)}
    assert [found[name].definition.start for name in ("same", "naive")] == [ONE, ONE]
    assert {found[name].definition.end for name in ("same", "naive")} == {TWO + timedelta(days=1)}
    assert found["once"].next == ONE


def test_an_eta_without_an_offset_is_shown_in_utc_as_workers_read_it(
    cli: CommandLine, app: Celery
) -> None:
    app.send_task("shop.mail", eta=ONE.replace(tzinfo=None), task_id="naive")

    ran = cli("get", "naive")

    assert times_in(ran.out) == {ONE}
    assert times_in_json(cli("get", "naive", "--json")) == {ONE}


def _number(command: str, ran: Ran) -> int:
    """Return how many a command has meant."""
    if "list" in command or "export" in command:
        ids = re.findall(r'"id": ?"[^"]+"', ran.out)
        return len(ran.json["entries"]) if command == "list" else len({*ids})
    told = json.loads(ran.out)
    if "outcomes" in told:
        return int(sum(n for became, n in told["outcomes"].items() if became != "filtered"))
    return int(told.get("count", told.get("moved", -1)))
