"""``periodic list``, ``show``, ``next``, ``add``, ``update``, ``remove``, ``pause`` and so on."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from celery.schedules import BaseSchedule, crontab, schedule, solar
from rich.cells import cell_len

from celery_delayq import DelayQ
from celery_delayq.periodic.rrule import rrule
from celery_delayq.periodic.schedules import clocked
from tests.integration.cli.conftest import HOSTILE
from tests.support.cli import CommandLine

FAR = datetime(2100, 1, 31, 9, tzinfo=timezone.utc)


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# -- add


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["--every", "30"], schedule(30)),
        (["--every", "1h30m"], schedule(5400)),
        (["--crontab", "0 9 1-7 * mon-fri"], crontab("0", "9", "mon-fri", "1-7")),
        (["--rrule", "FREQ=MONTHLY;BYDAY=-1FR"], rrule("FREQ=MONTHLY;BYDAY=-1FR")),
        (["--at", FAR.isoformat()], clocked(FAR)),
        (["--solar", "sunset", "52.5", "-13.4"], solar("sunset", 52.5, -13.4)),
    ],
)
def test_add_takes_all_kinds_of_schedules(
    cli: CommandLine, delayq: DelayQ, said: list[str], expected: BaseSchedule
) -> None:
    done = cli("periodic", "add", "report", "shop.report", *said)

    assert (done.code, done.err) == (0, "")
    [entry] = delayq.periodic.list()
    assert entry.definition.schedule == expected
    assert (entry.name, entry.definition.task, entry.status) == ("report", "shop.report", "on")


def test_add_takes_all_that_there_is_to_say(cli: CommandLine, delayq: DelayQ) -> None:
    said = {
        "--every": "30",
        "--args": '[1, "a"]',
        "--kwargs": '{"n": 1}',
        "--queue": "reports",
        "--priority": "3",
        "--expires": "1m",
        "--headers": '{"tenant": "a"}',
        "--timezone": "Europe/Berlin",
        "--start": FAR.isoformat(),
        "--end": (FAR + timedelta(days=1)).isoformat(),
        "--max-runs": "7",
        "--catch-up": "all",
        "--catch-up-max": "20",
        "--overlap": "skip",
    }

    done = cli("periodic", "add", "report", "shop.report", *sum(said.items(), ()), "--json")

    assert done.code == 0
    [entry] = delayq.periodic.list()
    assert (
        entry.as_dict()
        == done.json
        == {
            "name": "report",
            "source": "api",
            "when": "every 30s",
            "task": "shop.report",
            "schedule": {"every": 30},
            "args": [1, "a"],
            "kwargs": {"n": 1},
            "options": {
                "queue": "reports",
                "priority": 3,
                "expires": 60.0,
                "headers": {"tenant": "a"},
            },
            "timezone": "Europe/Berlin",
            "start": FAR.isoformat(),
            "end": (FAR + timedelta(days=1)).isoformat(),
            "max_runs": 7,
            "catch_up": "all",
            "catch_up_max": 20,
            "overlap": "skip",
            "status": "on",
            "since": FAR.isoformat(),
            "next": (FAR + timedelta(seconds=30)).isoformat(),
            "last_run_at": None,
            "total_run_count": 0,
            "manual_runs": 0,
        }
    )


def test_a_name_is_taken_once(cli: CommandLine, delayq: DelayQ) -> None:
    assert cli("periodic", "add", "report", "shop.report", "--every", "30").code == 0

    again = cli("periodic", "add", "report", "shop.report", "--every", "60")
    assert again.code == 1
    assert "there is a periodic entry report already" in again.err
    assert "`periodic update`, or say --replace" in again.err
    assert delayq.periodic.list()[0].definition.schedule == schedule(30)

    assert cli("periodic", "add", "report", "shop.report", "--every", "60", "--replace").code == 0
    assert delayq.periodic.list()[0].definition.schedule == schedule(60)


def test_a_task_that_may_be_a_slip_of_the_pen_is_reported(cli: CommandLine, delayq: DelayQ) -> None:
    done = cli("periodic", "add", "report", "shop.rpeort", "--every", "30")

    assert done.code == 0
    assert "this app has no task shop.rpeort" in done.err
    assert [entry.name for entry in delayq.periodic.list()] == ["report"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([], "give one of --every, --crontab, --rrule, --at and --solar"),
        (["--every", "30", "--crontab", "0 9 * * *"], "--every, --crontab: give one of them"),
        (
            ["--every", "-5"],
            "'--every': '-5': expected more than none, such as 90 (seconds), 5m",
        ),
        (["--every", "0"], "'--every': '0': expected more than none, such as 90 (seconds), 5m"),
        (["--every", "30", "--expires", "0"], "'--expires': '0': expected more than none"),
        (["--every", "0.0001"], "whole milliseconds"),
        (["--every", "soon"], "'soon': expected a duration"),
        (["--crontab", "0 9 * *"], "'0 9 * *': expected minute, hour, day of month, month"),
        (["--crontab", "61 9 * * *"], "61"),
        (["--crontab", "0 9 * * someday"], "someday"),
        (["--rrule", "FREQ=SOMETIMES"], "SOMETIMES"),
        (["--at", "soon"], "'soon': expected a time such as"),
        (["--at", "2030-13-01"], "local time without an offset"),
        (["--solar", "moonrise", "1", "2"], "moonrise"),
        (["--solar", "sunset", "north", "2"], "north"),
        (["--every", "30", "--args", '{"a": 1}'], "expected JSON such as"),
        (["--every", "30", "--timezone", "Mars/Olympus"], "Error: --timezone 'Mars/Olympus'"),
        (["--every", "30", "--end", "2001-01-01"], "never due from now on until --end 2001-01-01"),
        (
            ["--every", "30", "--start", "2100-01-02", "--end", "2100-01-01"],
            "Error: --end 2100-01-01T00:00:00+00:00: expected a time after --start 2100-01-02",
        ),
        (
            ["--every", "30", "--catch-up-max", "100"],
            "Error: --catch-up-max 100: it is for --catch-up 'all'",
        ),
        (["--every", "30", "--catch-up", "one", "--catch-up-max", "5"], "--catch-up-max 5: it is"),
        (["--at", "2001-01-01"], "at 2001-01-01T00:00:00+00:00 is never due from now on"),
        (["--every", "30", "--overlap", "maybe"], "maybe"),
        (["--every", "30", "--max-runs", "0"], "0"),
    ],
)
def test_what_cannot_be_is_refused(
    cli: CommandLine, delayq: DelayQ, said: list[str], told: str
) -> None:
    done = cli("periodic", "add", "report", "shop.report", *said)

    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert delayq.periodic.list() == []


# -- list, show, next


def test_an_empty_list_says_so(cli: CommandLine) -> None:
    assert cli("periodic", "list").out == "There are no periodic entries.\n"
    assert cli("periodic", "list", "--json").out == ""
    shown = cli("periodic", "list", "--source", "code shop")
    assert shown.out == "There are no periodic entries with the source code shop.\n"


def test_list_and_show_tell_what_is_there(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.periodic.add("poll", 30, "shop.poll", start=FAR)
    delayq.periodic.add("report", crontab("0", "9"), "shop.report", timezone="Europe/Berlin")
    delayq.periodic.pause("report")

    narrow, wide = cli("periodic", "list"), cli("periodic", "list", columns=200)

    assert narrow.code == wide.code == 0
    assert max(map(cell_len, narrow.out.splitlines())) <= 80
    assert narrow.out.endswith("\n2 entries.\n")
    poll, report = rows(wide.out)[2:4]
    assert poll[:5] == ["poll", "every", "30s", "shop.poll", "on"]
    assert " ".join(report) == "report 0 9 * * *, Europe/Berlin shop.report paused 0 api"
    told = [json.loads(line) for line in cli("periodic", "list", "--json").out.splitlines()]
    assert told == [entry.as_dict() for entry in delayq.periodic.list()]
    shown = cli("periodic", "show", "poll").out
    assert ["when", "every", "30s"] in rows(shown)
    assert (FAR + timedelta(seconds=30)).isoformat() in shown
    assert cli("periodic", "show", "poll", "--json").json == told[0]


def test_next_tells_the_ticks_to_come(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.periodic.add("poll", 30, "shop.poll", start=FAR, max_runs=3)

    expected = [(FAR + timedelta(seconds=30 * n)).isoformat() for n in (1, 2, 3)]
    assert cli("periodic", "next", "poll", "--json").json == {"ticks": expected}
    assert cli("periodic", "next", "poll", "--count", "2", "--json").json["ticks"] == expected[:2]
    assert len(cli("periodic", "next", "poll").out.splitlines()) == 3
    delayq.periodic.pause("poll")
    assert cli("periodic", "next", "poll").out == "poll has no more ticks: it is paused.\n"


def test_hostile_names_do_not_steer_the_terminal(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.periodic.add(HOSTILE, 30, HOSTILE, [HOSTILE], start=FAR, queue=HOSTILE)

    for done in (
        cli("periodic", "list"),
        cli("periodic", "list", columns=200),
        cli("periodic", "show", HOSTILE),
        cli("periodic", "next", HOSTILE),
        cli("periodic", "pause", HOSTILE),
        cli("periodic", "resume", HOSTILE),
        cli("periodic", "remove", HOSTILE, "--yes"),
    ):
        assert done.code == 0
        assert not {"\x1b", "\x07", "\r", "\u202e"} & {*done.out}
    assert delayq.periodic.list() == []


# -- changes


def test_update_changes_what_is_given(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.periodic.add("poll", 30, "shop.poll", start=FAR, queue="slow", priority=3)

    done = cli("periodic", "update", "poll", "--queue", "fast", "--max-runs", "3", "--json")

    definition = delayq.periodic.list()[0].definition
    assert done.json == delayq.periodic.list()[0].as_dict()
    assert (definition.schedule, definition.task) == (schedule(30), "shop.poll")
    assert definition.options == {"queue": "fast", "priority": 3}
    assert (definition.max_runs, definition.start) == (3, FAR)
    assert cli("periodic", "update", "poll", "--every", "1m", "--task", "shop.report").code == 0
    definition = delayq.periodic.list()[0].definition
    assert (definition.schedule, definition.task) == (schedule(60), "shop.report")
    nothing = cli("periodic", "update", "poll")
    assert (nothing.code, "give what is to be changed" in nothing.err) == (2, True)


def test_pause_resume_run_and_remove(cli: CommandLine, delayq: DelayQ) -> None:
    for name in ("a", "b"):
        delayq.periodic.add(name, 3600, "shop.report")
    before = {entry.name: entry.next for entry in delayq.periodic.list()}

    assert cli("periodic", "pause", "a", "b").out == "paused  a\npaused  b\n"
    assert [entry.status for entry in delayq.periodic.list()] == ["paused", "paused"]
    resumed = cli("periodic", "resume", "a", "--json").json["outcomes"]
    assert resumed == [
        {"name": "a", "done": True, "outcome": "on", "next": before["a"].isoformat()}  # type: ignore[union-attr]
    ]
    [sent] = cli("periodic", "run-now", "a", "--json").json["outcomes"]
    assert (sent["outcome"], sent["id"].partition(":")[0]) == ("sent", "a")
    assert delayq.periodic.list()[0].total_run_count == 1
    assert cli("periodic", "remove", "a").out == "removed  a\n", "what is named needs no --yes"
    assert [entry.name for entry in delayq.periodic.list()] == ["b"]


@pytest.mark.parametrize("command", ["pause", "resume", "run-now", "remove"])
def test_what_is_unknown_is_reported_and_the_others_are_done(
    cli: CommandLine, delayq: DelayQ, command: str
) -> None:
    delayq.periodic.add("there", 3600, "shop.report")
    sure = ["--yes"] if command == "remove" else []

    done = cli("periodic", command, "nowhere", "there", *sure, "--json")

    assert done.code == 1
    told = [(each["name"], each["done"]) for each in done.json["outcomes"]]
    assert told == [("nowhere", False), ("there", True)]


@pytest.mark.parametrize("command", ["show", "next", "update"])
def test_what_is_not_there_cannot_be_shown(cli: CommandLine, command: str) -> None:
    what = ["--every", "30"] if command == "update" else []

    done = cli("periodic", command, "nowhere", *what)

    assert (done.code, done.out) == (1, "")
    assert "there is no periodic entry" in done.err
