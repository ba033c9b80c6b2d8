"""``dead list`` and ``show``, and hostile names in ``fsck``."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from celery import Celery
from rich.cells import cell_len

from celery_delayq import DelayQ
from celery_delayq.cli import screen
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.cli.conftest import CONTROLS, HOSTILE, dead_ids
from tests.support.cli import CommandLine
from tests.support.dead_letters import details, fill, message

# -- list


@pytest.mark.usefixtures("four_dead_letters")
def test_list_shows_what_died_in_order(cli: CommandLine) -> None:
    narrow, wide = cli("dead", "list"), cli("dead", "list", columns=200)

    assert narrow.code == wide.code == 0
    assert narrow.out.endswith("\n4 dead letters.\n")
    for shown in (narrow.out, wide.out):
        places = [shown.index(id) for id in ("nine", "ten", "eleven", "twelve")]
        assert places == sorted(places)
        assert "failed after 3 retries: Declined" in shown
        assert "1d ago" in shown
    assert max(map(cell_len, narrow.out.splitlines())) <= 80
    [row] = [line for line in wide.out.splitlines() if "eleven" in line]
    assert re.match(r"\d{4}-\d\d-\d\dT\S+ +1m( 1s)? ago +shop\.bill +bills +3 +failed", row)


def test_none_is_reported(cli: CommandLine, delayq: DelayQ) -> None:
    assert cli("dead", "list").out == "There are no dead letters.\n"
    assert cli("dead", "list", "--json").json == {"dead_letters": [], "cursor": None}
    shown = cli("dead", "list", "--queue", "mial")
    assert shown.code == 0
    assert "0 dead letters: the filter selects no dead letter." in shown.out
    assert "There is no queue mial" in shown.out


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ("--queue celery", "nine ten"),
        ("--task shop.bill", "eleven twelve"),
        ("--id ten", "ten"),
        ("--reason RETRIES", "nine ten eleven"),
        ("--exception Timeout", "nine eleven"),
        ("--died-from 2h", "ten eleven twelve"),
        ("--died-to 30m", "nine ten"),
        ("--died-from 2h --died-to 30m", "ten"),
        ("--root root-1", "nine ten"),
        ("--group group-1", "ten eleven"),
        ("--root root-1 --group group-1", "ten"),
        ("--died-from 2001-01-01 --died-to 2001-01-02", ""),
    ],
)
@pytest.mark.usefixtures("four_dead_letters")
def test_all_commands_take_the_same_filters(
    cli: CommandLine, delayq: DelayQ, tmp_path: Path, filter: str, wanted: str
) -> None:
    options, ids = filter.split(), wanted.split()

    listed = cli("dead", "list", *options, "--json").json["dead_letters"]
    assert [each["id"] for each in listed] == ids
    for command in ("replay", "purge"):
        dry = cli("dead", command, *options, "--dry-run", "--json")
        assert (dry.code, dry.json["total"]) == (0, len(ids))
    url = f"sqlite:///{tmp_path}/dead.db"
    assert cli("dead", "export", url, *options, "--json").json["dead_letters"] == len(ids)
    assert cli("dead", "archive", url, *options, "--json").json["moved"] == len(ids)
    assert [id for id in dead_ids(delayq) if id in ids] == []
    back = cli("dead", "import", url, *options, "--json")
    assert back.json["outcomes"].get("restored", 0) == len(ids)
    done = cli("dead", "purge", *options, "--yes")
    assert done.code == 0
    assert f"{len(ids)} dead letter" in done.out
    assert len(dead_ids(delayq)) == 4 - len(ids)


def test_dead_letters_beyond_the_limit_are_counted(cli: CommandLine, delayq: DelayQ) -> None:
    fill(delayq, 703)

    for options, number in (([], 100), (["--limit", "7"], 7), (["--limit", "702"], 702)):
        ran = cli("dead", "list", *options)
        more = f"\n{number} dead letters, and there may be more: dead list "
        assert more in ran.out
        told = cli("dead", "list", *options, "--json")
        assert len(told.json["dead_letters"]) == number
        rest = cli(*shlex.split(ran.out.rpartition("more: ")[2]), "--all", "--json")
        assert rest.code == (2 if options else 0)  # --all goes without --limit
        rest = cli("dead", "list", "--all", "--json", "--cursor", told.json["cursor"])
        assert len(rest.json["dead_letters"]) == 703 - number
        assert rest.json["cursor"] is None
    for options in (["--limit", "703"], ["--all"]):
        assert cli("dead", "list", *options).out.endswith("\n703 dead letters.\n")
        told = cli("dead", "list", *options, "--json")
        assert (len(told.json["dead_letters"]), told.err) == (703, "")


# -- show


@pytest.mark.usefixtures("four_dead_letters")
def test_show_tells_all_that_is_known(cli: CommandLine) -> None:
    ran = cli("dead", "show", "ten")

    assert (ran.code, ran.err) == (0, "")
    lines = dict(re.findall(r"^(\w+(?: id)?) {2,}(.*)$", ran.out, re.MULTILINE))
    assert lines["id"] == "ten"
    assert lines["task"] == "shop.mail"
    assert lines["reason"] == "failed after 3 retries: Declined"
    assert lines["exception"] == "Declined"
    assert lines["error"] == "the card was declined"
    assert lines["retries"] == "3"
    assert lines["worker"] == "celery@one"
    assert (lines["root id"], lines["group id"]) == ("root-1", "group-1")
    assert lines["args"] == '["ten", ""]'
    assert ", 1h ago" in lines["died"] or ", 1h 0m" in lines["died"]
    assert "Traceback (most recent call last):\n" in ran.out
    assert ran.out.endswith("Declined: declined\n")
    told = cli("dead", "show", "ten", "--json").json["dead_letters"][0]
    assert told["traceback"].startswith("Traceback")
    assert json.loads(told["message"]["body"])[0] == ["ten", ""]


@pytest.mark.usefixtures("four_dead_letters")
def test_one_that_is_not_there_is_no_success(cli: CommandLine) -> None:
    for args in (["thirteen"], ["ten", "--queue", "bills"]):
        ran = cli("dead", "show", *args)
        assert (ran.code, ran.out) == (1, "")
        assert f"There is no dead letter with the id {args[0]}" in ran.err
        assert cli("dead", "show", *args, "--json").json == {"dead_letters": []}


def test_all_dead_letters_of_a_task_are_found_by_its_id(cli: CommandLine, delayq: DelayQ) -> None:
    add_dead_letter = delayq.store.dead_letters.add
    for n in range(3):
        add_dead_letter(
            "celery", "other" if n == 2 else "dead_letter", f"reason {n}", message("task-1")
        )

    told = cli("dead", "show", "task-1", "--json").json["dead_letters"]
    assert [each["reason"] for each in told] == ["reason 0", "reason 1", "reason 2"]
    [duplicate] = [each for each in dead_ids(delayq) if "\0" in each]
    shown = [line.split()[0] for line in cli("dead", "list").out.splitlines() if "%00" in line]
    assert shown == [duplicate.replace("\0", "%00")]
    assert "reason 1" in cli("dead", "show", shown[0]).out
    assert cli("dead", "purge", shown[0]).code == 0
    assert duplicate not in dead_ids(delayq)


def test_what_is_no_message_is_shown_as_bytes(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.store.dead_letters.add("celery", "rotten", "unreadable", b"\xff\x1b[31m" + b"x" * 5000)

    ran = cli("dead", "show", "rotten")

    assert ran.code == 0
    assert r"bytes   \xff\x1b[31mxxx" in ran.out
    assert "[cut]" in ran.out
    assert "?" in cli("dead", "list").out


def test_what_others_wrote_does_nothing_to_the_terminal(cli: CommandLine, delayq: DelayQ) -> None:
    told = details(HOSTILE, message=HOSTILE, traceback=HOSTILE * 2, worker=HOSTILE)
    sent = message(HOSTILE, HOSTILE, root_id=HOSTILE, argsrepr=HOSTILE)
    delayq.store.dead_letters.add("q" + HOSTILE, HOSTILE, HOSTILE * 100, sent, told)
    [id] = dead_ids(delayq)

    for columns in (40, 80, 200):
        for command in (["list"], ["show", id], ["purge", "--everything", "--dry-run"]):
            ran = cli("dead", *command, columns=columns)
            assert ran.code == 0
            assert not CONTROLS.search(ran.out + ran.err)
            if command == ["list"]:
                assert max(map(cell_len, ran.out.splitlines())) <= columns


# -- fsck


def test_fsck_shows_no_control_of_an_id_or_a_queue(
    app: Celery, delayq_redis: RedisUnderTest
) -> None:
    app.send_task("t", task_id=f"id {HOSTILE}", queue=f"queue {HOSTILE}", countdown=60)
    delayq_redis.client.zrem(f"{{queue {HOSTILE}}}:due", f"id {HOSTILE}")
    cli = CommandLine(app)

    narrow, wide, unknown = cli("fsck"), cli("fsck", columns=200), cli("fsck", "--queue", "other")

    assert narrow.code == wide.code == unknown.code == 1
    for text in (narrow.out, wide.out, unknown.err):
        assert text.replace("\n", "").isprintable()
    assert r"queue \x1b]0;" in unknown.err
    for text in (narrow.out, wide.out):
        assert r"id\x1b]0;" in "".join(text.split())
    # The queue has a column of its own, in several lines.
    assert wide.out.count(r"\x1b]") > 1
    assert "queue" in "".join(narrow.out.split())


# -- long searches


def test_a_search_by_the_id_of_a_task_says_how_far_it_is(
    cli: CommandLine, delayq: DelayQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(delayq, 250)
    calls: list[tuple[int | None, int]] = []

    def progress(total: int | None, done: int) -> None:
        calls.append((total, done))

    assert delayq.dead_letter("nobody", progress=progress) is None
    assert [*delayq.dead_letters(task_id="nobody", progress=progress)] == []
    assert calls == [(250, 100), (250, 200)] * 2

    monkeypatch.setenv("FORCE_COLOR", "1")  # so that a terminal is there
    monkeypatch.setattr(screen, "PROGRESS_BAR_SECONDS", 0.0)
    shown = {
        words: cli("dead", *words.split(), *more)
        for words, more in {
            "show nobody": (),
            "purge nobody": (),
            "list --id nobody": (),
            "show celery-000007": (),
            "show nobody --json": (),
        }.items()
    }

    for words in ("show nobody", "purge nobody", "list --id nobody"):
        assert re.search(r"search.*2[05]0/250", shown[words].err), words
    # Found at once; and scripts see no bar.
    assert shown["show celery-000007"].err == ""
    assert "search" not in shown["show nobody --json"].err
