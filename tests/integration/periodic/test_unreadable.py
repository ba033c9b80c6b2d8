"""Entries that cannot be read here: of classes that are elsewhere, and of other versions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from celery import Celery
from rich.cells import cell_len

from celery_delayq import DelayQ
from celery_delayq.errors import PeriodicExists, RecordError, ScheduleNotImportable
from celery_delayq.periodic import schedules
from celery_delayq.periodic.entries import UnreadableEntry
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.cli import CommandLine

TIDES = """
from celery.schedules import schedule

class tides(schedule):
    def __init__(self, harbour):
        super().__init__(3600)
        self.harbour = harbour

    def __reduce__(self):
        return type(self), (self.harbour,)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a class of schedules; it is gone when it is taken from ``sys.path``."""
    (tmp_path / "harbours.py").write_text(TIDES)
    monkeypatch.syspath_prepend(tmp_path)
    return str(tmp_path)


@pytest.fixture
def gone(module: str, delayq: DelayQ, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an entry whose class is not here."""
    from harbours import tides  # type: ignore[import-not-found]

    delayq.periodic.add("ebb", tides("Dover"), "shop.sail", ["out"], queue="sea", max_runs=9)
    delayq.periodic.add("poll", 3600, "shop.poll")
    forget(module, monkeypatch)
    return "ebb"


def forget(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "harbours", raising=False)
    monkeypatch.delitem(schedules._SCHEDULE_CLASSES, "harbours:tides", raising=False)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != module])


def come_back(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(module)
    from harbours import tides

    schedules.register(tides)


@pytest.fixture
def cli(app: Celery) -> CommandLine:
    return CommandLine(app)


def record_of(delayq_redis: RedisUnderTest, name: str) -> str:
    found: bytes = delayq_redis.client.hget("delayq:periodic", name) or b""
    return found.decode()


def test_calls_tell_what_cannot_be_read_and_why(gone: str, delayq: DelayQ) -> None:
    [found] = delayq.periodic.unreadable()

    assert (found.name, found.status, found.source) == (gone, "unreadable", "api")
    assert "harbours:tides is not registered here" in found.problem
    assert not found.paused
    assert [entry.name for entry in delayq.periodic.list()] == ["poll"]
    with pytest.raises(ScheduleNotImportable, match="harbours:tides"):
        delayq.periodic.get(gone)
    for call in (delayq.periodic.update, delayq.periodic.resume, delayq.periodic.next):
        with pytest.raises(ScheduleNotImportable, match="harbours:tides"):
            call(gone)
    with pytest.raises(PeriodicExists, match="which cannot be read here"):
        delayq.periodic.add(gone, 30, "shop.sail")


def test_commands_show_what_cannot_be_read(gone: str, delayq: DelayQ, cli: CommandLine) -> None:
    narrow, wide = cli("periodic", "list"), cli("periodic", "list", columns=200)
    lines = cli("periodic", "list", "--json").out.splitlines()
    shown = cli("periodic", "show", gone)

    assert (narrow.code, narrow.err, wide.code) == (0, "", 0)
    assert max(map(cell_len, narrow.out.splitlines())) <= 80
    assert "unreadable" in narrow.out
    [row] = [line.split() for line in wide.out.splitlines() if line.startswith(gone)]
    assert row[1:3] == ["harbours:tides", "is"]
    assert row[-4:] == ["shop.sail", "unreadable", "0", "api"]
    assert wide.out.endswith("\n2 entries.\n")
    told = [json.loads(line) for line in lines]
    assert [(each["name"], each["status"]) for each in told] == [
        ("ebb", "unreadable"),
        ("poll", "on"),
    ]
    assert told[0]["schedule"] == {"class": "harbours:tides", "args": ["Dover"]}
    assert "harbours:tides is not registered here" in told[0]["problem"]
    assert (shown.code, shown.err) == (0, "")
    assert "problem      harbours:tides is not registered here" in shown.out
    assert '"queue": "sea"' in shown.out
    assert cli("periodic", "show", gone, "--json").json == told[0]
    assert cli("periodic", "list", "--status", "unreadable").out.count("\nebb") == 1


def test_what_cannot_be_read_is_paused_and_goes_on_where_it_can_be(
    gone: str,
    delayq: DelayQ,
    cli: CommandLine,
    delayq_redis: RedisUnderTest,
    module: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = record_of(delayq_redis, gone)

    assert cli("periodic", "pause", gone).out == "paused  ebb\n"
    again = delayq.periodic.pause(gone)

    assert isinstance(again, UnreadableEntry)
    assert again.paused
    assert "unreadable, paused" in cli("periodic", "show", gone).out
    after = record_of(delayq_redis, gone)
    assert after.partition("\n")[2] == before.partition("\n")[2]
    assert delayq_redis.client.zscore("delayq:periodic_at", gone) is None
    failed = cli("periodic", "resume", gone, "poll")
    assert failed.code == 1
    assert "failed: harbours:tides is not registered here" in failed.out
    assert "on  poll" in failed.out
    come_back(module, monkeypatch)
    assert delayq.periodic.resume(gone).status == "on"
    assert delayq_redis.client.zscore("delayq:periodic_at", gone)


def test_what_cannot_be_read_is_removed_or_replaced(
    gone: str, delayq: DelayQ, cli: CommandLine
) -> None:
    refused = cli("periodic", "add", gone, "shop.sail", "--every", "30")
    assert (refused.code, "or say --replace" in refused.err) == (1, True)

    replaced = cli("periodic", "add", gone, "shop.sail", "--every", "30", "--replace")

    assert (replaced.code, delayq.periodic.unreadable()) == (0, [])
    assert [entry.name for entry in delayq.periodic.list()] == ["ebb", "poll"]


def test_what_cannot_be_read_is_listed_cannot_be_changed_and_is_removed(
    gone: str, delayq: DelayQ, cli: CommandLine
) -> None:
    assert [each.name for each in delayq.periodic._all()] == [gone, "poll"]
    for command in (["next"], ["update", "--every", "30"]):
        done = cli("periodic", command[0], gone, *command[1:])
        assert done.code == 1
        assert done.err.startswith("Error: harbours:tides is not registered here")
    assert cli("periodic", "remove", gone, "--yes").out == "removed  ebb\n"
    assert delayq.periodic.unreadable() == []


@pytest.mark.parametrize(
    "record", [b"", b"nothing", b"\xff\n{}", b"2 a b\n[]", b"1 a 9" + b"9" * 30 + b" 3 4 5 on\n{"]
)
@pytest.mark.parametrize("name", [b"wrong", b"wr\xffng"])
def test_a_record_of_another_version_is_shown_and_removed(
    delayq: DelayQ, cli: CommandLine, delayq_redis: RedisUnderTest, record: bytes, name: bytes
) -> None:
    delayq_redis.client.hset("delayq:periodic", name, record)
    text = name.decode("utf-8", "surrogateescape")

    listed = cli("periodic", "list", "--json")
    shown = cli("periodic", "show", text)
    table = cli("periodic", "list")

    assert (listed.json["name"], listed.json["status"]) == (text, "unreadable")
    assert (shown.code, table.code) == (0, 0)
    assert "unreadable" in shown.out
    assert cli("periodic", "remove", text, "--yes").code == 0
    assert delayq_redis.client.hlen("delayq:periodic") == 0


def test_what_says_not_even_how_it_stands_cannot_be_paused(
    delayq: DelayQ, cli: CommandLine, delayq_redis: RedisUnderTest
) -> None:
    delayq_redis.client.hset("delayq:periodic", "wrong", b"nothing")

    with pytest.raises(RecordError, match="unreadable line 'nothing'"):
        delayq.periodic.pause("wrong")
    done = cli("periodic", "pause", "wrong")
    assert (done.code, "failed: unreadable line" in done.out) == (1, True)


def test_a_backup_has_what_cannot_be_read_where_it_was_made(
    gone: str,
    delayq: DelayQ,
    cli: CommandLine,
    delayq_redis: RedisUnderTest,
    module: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delayq.periodic.pause(gone)
    before = record_of(delayq_redis, gone)
    backup = tmp_path / "periodic.jsonl"
    backup.write_text(cli("periodic", "list", "--json").out)
    delayq_redis.client.flushdb()

    elsewhere = cli("periodic", "import", "--from", "list", str(backup))
    assert elsewhere.code == 1
    assert "refused  ebb  harbours:tides is not registered here" in elsewhere.out
    come_back(module, monkeypatch)
    here = cli("periodic", "import", "--from", "list", str(backup))

    assert here.code == 0
    assert record_of(delayq_redis, gone) == before
