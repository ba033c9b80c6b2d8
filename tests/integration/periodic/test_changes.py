"""What is unset, times by which clock, what has ended, and how commands end."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.periodic.code_entries import source_of
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.policy import begin
from celery_delayq.periodic.schedules import clocked
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.ticking import write_entries

UTC = timezone.utc
FAR = datetime(2100, 1, 31, 9, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")

ALL: dict[str, Any] = {
    "timezone": "Europe/Berlin",
    "start": FAR,
    "end": FAR + timedelta(days=1),
    "max_runs": 7,
    "catch_up": "all",
    "catch_up_max": 20,
    "overlap": "skip",
}


@pytest.fixture
def cli(app: Celery) -> CommandLine:
    return CommandLine(app)


def definition_of(delayq: DelayQ, name: str = "report") -> Definition:
    entry = delayq.periodic.get(name)
    assert entry is not None
    return entry.definition


# -- unsetting


def plain(**given: Any) -> Definition:
    return Definition.from_fields(3600, name="report", task="shop.report", **given)


def test_none_unsets_what_was_said(delayq: DelayQ) -> None:
    delayq.periodic.add("report", 3600, "shop.report", [1], {"a": 1}, queue="q", **ALL)

    delayq.periodic.update("report", args=None, kwargs=None, options=None, **dict.fromkeys(ALL))

    assert definition_of(delayq) == plain()
    with pytest.raises(ConfigError, match="task=None: expected a text"):
        delayq.periodic.update("report", task=None)


@pytest.mark.parametrize("what", ["timezone", "start", "end", "max_runs", "catch_up", "overlap"])
def test_one_thing_is_unset_and_all_else_stays(delayq: DelayQ, cli: CommandLine, what: str) -> None:
    delayq.periodic.add("report", 3600, "shop.report", **ALL)
    # How many are caught up has no meaning without it.
    kept = {**ALL, what: None}
    if what == "catch_up":
        del kept["catch_up"], kept["catch_up_max"]

    done = cli("periodic", "update", "report", "--unset", what.replace("_", "-"))

    assert done.code == 0
    expected = {name: value for name, value in kept.items() if value is not None}
    assert definition_of(delayq) == plain(**expected)


def test_options_and_arguments_are_unset_by_a_command(delayq: DelayQ, cli: CommandLine) -> None:
    options: dict[str, Any] = {"queue": "q", "priority": 3, "expires": 60, "headers": {"a": 1}}
    delayq.periodic.add("report", 3600, "shop.report", [1], {"a": 1}, **options)
    names = ("args", "kwargs", "queue", "expires", "headers")

    done = cli(
        *("periodic", "update", "report", "--priority", "6", "--max-runs", "9"),
        *(word for name in names for word in ("--unset", name)),
    )

    assert done.code == 0
    assert definition_of(delayq) == plain(options={"priority": 6}, max_runs=9)


def test_what_is_set_is_not_unset_in_the_same_breath(delayq: DelayQ, cli: CommandLine) -> None:
    delayq.periodic.add("report", 3600, "shop.report", **ALL)

    done = cli("periodic", "update", "report", "--max-runs", "9", "--unset", "max-runs")
    unknown = cli("periodic", "update", "report", "--unset", "task")

    assert (done.code, unknown.code) == (2, 2)
    assert "--max-runs, --unset max-runs: give one of them" in done.err
    assert definition_of(delayq) == plain(**ALL)


# -- catching up


def test_how_many_are_caught_up_goes_with_all_of_them(delayq: DelayQ) -> None:
    with pytest.raises(ConfigError, match="catch_up_max=5: it is for catch_up='all'"):
        delayq.periodic.add("report", 3600, "shop.report", catch_up_max=5)
    delayq.periodic.add("report", 3600, "shop.report")
    with pytest.raises(ConfigError, match="catch_up_max=5: it is for catch_up='all'"):
        delayq.periodic.update("report", catch_up_max=5)

    delayq.periodic.update("report", catch_up="all", catch_up_max=5)
    delayq.periodic.update("report", catch_up="skip")

    assert definition_of(delayq) == plain(catch_up="skip")


def test_an_entry_of_before_that_says_it_without_a_meaning_can_be_changed(delayq: DelayQ) -> None:
    old = Definition(name="report", task="shop.report", schedule=schedule(3600), catch_up_max=5)
    entry = begin(old, delayq.store.now_ms(), UTC)
    write_entries(delayq, entry)

    delayq.periodic.update("report", max_runs=3)

    assert definition_of(delayq) == plain(max_runs=3)


# -- whose clock


def test_times_of_calls_without_an_offset_are_by_the_clock_of_the_app(make_app: MakeApp) -> None:
    delayq = DelayQ.of(make_app(timezone="Europe/Berlin"))
    wall = datetime(2100, 1, 31, 9)
    begins = wall.replace(tzinfo=BERLIN)

    delayq.periodic.add("once", wall, "tasks.add", (1, 2))
    delayq.periodic.add("often", 30, "tasks.add", (1, 2), start=wall, end=wall + timedelta(hours=1))

    assert definition_of(delayq, "once").schedule == clocked(begins)
    found = definition_of(delayq, "often")
    assert (found.start, found.end) == (begins, begins + timedelta(hours=1))
    assert delayq.periodic.next("often") == [begins + timedelta(seconds=30)]


def test_a_change_without_an_offset_is_by_the_clock_of_the_entry(delayq: DelayQ) -> None:
    delayq.periodic.add("report", crontab(0, 9), "shop.report", timezone="Europe/Berlin")

    delayq.periodic.update("report", start=datetime(2100, 1, 31))
    delayq.periodic.update("report", end=datetime(2100, 7, 31))

    definition = definition_of(delayq)
    assert definition.start == datetime(2100, 1, 31, tzinfo=BERLIN)
    assert definition.end == datetime(2100, 7, 31, tzinfo=BERLIN)
    # A moment stays what it is, whatever the clock.
    delayq.periodic.update("report", timezone="Asia/Tokyo")
    assert definition_of(delayq).start == datetime(2100, 1, 31, tzinfo=BERLIN)


def test_an_offset_and_a_duration_are_what_they_are(delayq: DelayQ, cli: CommandLine) -> None:
    said = ["--timezone", "Asia/Tokyo", "--start", "2100-01-31T09:00:00Z", "--end", "1000d"]
    assert cli("periodic", "add", "report", "shop.report", "--at", "30m", *said[:2]).code == 0
    at = definition_of(delayq).schedule.at
    assert abs(at - datetime.now(UTC) - timedelta(minutes=30)) < timedelta(minutes=1)

    done = cli("periodic", "add", "later", "shop.report", "--every", "30", *said)

    assert done.code == 2, "the end is before the start"
    done = cli("periodic", "add", "later", "shop.report", "--every", "30", *said[:4])
    assert (done.code, definition_of(delayq, "later").start) == (0, FAR)


# -- what has ended


def ended(name: str, **given: Any) -> Periodic:
    past = datetime(2001, 1, 1, tzinfo=UTC)
    definition = Definition.from_fields(past, name=name, task="shop.report", **given)
    return begin(definition, 10**12, UTC)


def test_what_has_ended_is_listed_and_removed(
    app: Celery, delayq: DelayQ, cli: CommandLine
) -> None:
    delayq.periodic.add("goes on", 3600, "shop.report")
    delayq.periodic.add("waits", 3600, "shop.report")
    delayq.periodic.pause("waits")
    write_entries(delayq, ended("over"), ended("old one"), ended("in code", source=source_of(app)))

    def listed(*said: str) -> list[str]:
        out = cli("periodic", "list", "--json", *said).out
        return [name for name in ("goes on", "in code", "old one", "over", "waits") if name in out]

    assert listed("--status", "ended") == ["in code", "old one", "over"]
    assert listed("--status", "ended", "--source", "api") == ["old one", "over"]
    assert listed("--status", "on") == ["goes on"]
    assert listed("--status", "paused") == ["waits"]
    assert cli("periodic", "list", "--status", "unreadable").out == (
        "There are no periodic entries with the status unreadable.\n"
    )
    unasked = cli("periodic", "remove", "--ended")
    assert (unasked.code, "say --yes" in unasked.err) == (2, True)

    removed = cli("periodic", "remove", "--ended", "--yes")

    # One in code would come back with the next change of the code, and begin anew.
    assert (removed.code, removed.out) == (0, "removed  'old one'\nremoved  over\n")
    assert listed() == ["goes on", "in code", "waits"]
    again = cli("periodic", "remove", "--ended")
    assert (again.code, again.out) == (0, "There are no entries that have ended.\n")
    assert cli("periodic", "remove", "--ended", "--json").json == {"outcomes": []}


@pytest.mark.parametrize("said", [[], ["a", "--ended"]])
def test_what_is_removed_is_named_or_has_ended(cli: CommandLine, said: list[str]) -> None:
    done = cli("periodic", "remove", *said, "--yes")

    assert (done.code, "give either names or --ended" in done.err) == (2, True)


# -- how commands end


@pytest.mark.parametrize(
    "said",
    [
        ["--timezone", "Mars/Olympus"],
        ["--end", "2100-01-30"],
        ["--at", "2001-01-01"],
        ["--every", "0.0001"],
        ["--crontab", "0 0 30 2 *"],
        ["--catch-up-max", "5"],
    ],
)
def test_what_cannot_be_changed_so_is_wrong_use(
    delayq: DelayQ, cli: CommandLine, said: list[str]
) -> None:
    before = delayq.periodic.add("report", 3600, "shop.report", start=FAR)

    done = cli("periodic", "update", "report", *said)

    assert done.code == 2
    assert "datetime." not in done.err
    assert delayq.periodic.list() == [before]


def test_a_broker_that_is_wrong_is_no_wrong_use(make_app: MakeApp) -> None:
    cli = CommandLine(make_app(broker="memory://", extension=False))

    for command in (["add", "a", "t"], ["update", "a"]):
        done = cli("periodic", *command, "--every", "30")
        assert done.code == 1
        assert "DelayQ needs a URL" in done.err
