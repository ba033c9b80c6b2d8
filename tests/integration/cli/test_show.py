"""``get``, ``list`` and ``count`` on the command line."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery, chain, chord
from rich.cells import cell_len

from celery_delayq import DelayQ
from celery_delayq.schedule.items import Item
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.cli.conftest import CONTROLS
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine, Ran
from tests.support.dead_letters import stored

FAR = datetime(2100, 1, 31, 9, tzinfo=timezone.utc)

#: Ids that would break a table, a markup, a shell or a terminal.
HOSTILE = (
    "a b  c",
    "line\nbreak\r\n\ttab",
    "[red]boom[/red]",
    "[/]",
    "{id!r} %s",
    'it\'s "$HOME" `id`',
    "\x1b]0;title\x07\x1b[31mred\x1b[2J",
    "\x9b31m",
    "right\u202eleft\u200b",
    "Grüße 你好 🎉",
    "nul\0nul",
    "--yes",
    "-rf",
)


@pytest.fixture
def filled(app: Celery) -> None:
    """Three tasks at nine, ten and eleven, two of them in another queue."""
    app.send_task("shop.mail", ("Ann",), {"n": 1}, eta=FAR, task_id="nine")
    for n, id in enumerate(("ten", "eleven")):
        eta = FAR + timedelta(hours=n + 1)
        app.send_task("shop.bill", eta=eta, task_id=id, queue="bills", priority=6 * n)


def ids(ran: Ran) -> list[str]:
    return [each["id"] for each in ran.json["entries"]]


# -- get


@pytest.mark.usefixtures("filled")
def test_get_shows_what_is_known(cli: CommandLine) -> None:
    shown = cli("get", "nine")

    assert (shown.code, shown.err) == (0, "")
    lines = dict(re.findall(r"^(\w+) {2,}(.*)$", shown.out, re.MULTILINE))
    assert lines["id"] == "nine"
    assert lines["task"] == "shop.mail"
    assert lines["queue"] == "celery"
    assert lines["state"] == "scheduled"
    assert lines["due"].startswith("2100-01-31T09:00:00+00:00, in ")
    assert lines["args"] == '["Ann"]'
    assert lines["kwargs"] == '{"n": 1}'


@pytest.mark.usefixtures("filled")
def test_get_tells_scripts_the_same_in_utc(cli: CommandLine, delayq: DelayQ) -> None:
    [entry] = cli("get", "nine", "--json").json["entries"]

    found = delayq.get("nine")
    assert found is not None
    assert entry == {**found.as_dict(), "calls": []}
    assert entry["due"] == "2100-01-31T09:00:00+00:00"


def test_get_and_dead_show_say_what_a_message_calls(cli: CommandLine, delayq: DelayQ) -> None:
    task = delayq.app.signature
    body = chord([task("shop.part", (n,)) for n in range(3)], task("shop.sum"))
    first = task("shop.mail").set(countdown=60, task_id="a").on_error(task("shop.failed"))
    chain(first, task("shop.next"), body).apply_async()
    called = {
        "errback shop.failed",
        "chain shop.next",
        "group shop.part (3 times)",
        "chord body shop.sum",
    }
    [entry] = cli("get", "a", "--json").json["entries"]
    shown = cli("get", "a", columns=200).out
    kept = delayq.get("a")
    assert kept is not None
    dead = stored(1000, "it failed", json.dumps(kept.message).encode())
    delayq.store.dead_letters.restore("celery", [("dead", 1000, dead)])

    for out in (shown, cli("dead", "show", "dead", columns=200).out):
        (line,) = re.findall(r"^calls +(.*)$", out, re.MULTILINE)
        assert {*line.split(", ")} == called
    assert {"part": "group", "task": "shop.part", "number": 3} in entry["calls"]
    assert len(entry["calls"]) == 4


@pytest.mark.usefixtures("filled")
def test_what_nobody_knows_is_no_success(cli: CommandLine) -> None:
    shown = cli("get", "twelve")
    told = cli("get", "twelve", "--json")
    elsewhere = cli("get", "nine", "--queue", "bills")

    assert (shown.code, shown.out) == (1, "")
    assert "id twelve" in shown.err
    assert (told.code, told.json["entries"]) == (1, [])
    assert told.json["why"]["state"] == "unknown"
    assert elsewhere.code == 1
    assert "in queue bills" in elsewhere.err


@pytest.mark.usefixtures("four_dead_letters")
def test_what_is_dead_is_said_to_be(cli: CommandLine) -> None:
    shown = cli("get", "ten")

    assert (shown.code, shown.out) == (1, "")
    assert "No waiting or running task is known by the id ten. It has been dead since " in shown.err
    assert "failed after 3 retries: Declined" in shown.err


def test_a_task_in_two_queues_is_shown_twice(app: Celery, cli: CommandLine) -> None:
    for queue in ("one", "two"):
        app.send_task("shop.mail", task_id="same", queue=queue, countdown=3600)

    assert [e["queue"] for e in cli("get", "same", "--json").json["entries"]] == ["one", "two"]
    assert cli("get", "same").out.count("shop.mail") == 2


def test_a_running_task_is_shown_with_who_runs_it(cli: CommandLine, napper: str) -> None:
    [entry] = cli("get", napper, "--json").json["entries"]
    shown = cli("get", napper).out

    assert entry["state"] == "running"
    assert entry["worker"] in shown
    assert re.search(r"^state +running$", shown, re.MULTILINE)


# -- list


@pytest.mark.usefixtures("filled")
def test_list_and_count_are_by_filter_and_list_in_order_of_due(cli: CommandLine) -> None:
    for filter, wanted in (
        ([], "nine ten eleven"),
        (["--queue", "bills"], "ten eleven"),
        (["--queue", "bills", "--due-to", "2100-01-31T10:00Z"], "ten"),
        (["--task", "shop.mail"], "nine"),
        (["--priority", "6"], "eleven"),
        (["--due-from", "2100-01-31T10:00"], "ten eleven"),
        (["--due-from", "2100-01-31T11:00+01:00"], "ten eleven"),
        (["--due-to", "2100-01-31 10:00:00"], "nine ten"),
        (["--due-to", "1h"], ""),
        (["--due-from", "1h"], "nine ten eleven"),
    ):
        for more in ([], ["--all"]):
            assert ids(cli("list", "--json", *more, *filter)) == wanted.split(), filter
        assert cli("count", "--json", *filter).json == {"count": len(wanted.split())}
    assert cli("count").out == "3 entries\n"
    assert cli("count", "--task", "none").out.startswith("0 entries")


def test_a_duration_is_from_now(app: Celery, cli: CommandLine) -> None:
    for minutes in (5, 90, 300):
        app.send_task("shop.mail", countdown=minutes * 60, task_id=f"in {minutes}")

    assert ids(cli("list", "--json", "--due-to", "1h30m5s")) == ["in 5", "in 90"]
    assert ids(cli("list", "--json", "--due-from", "1h", "--due-to", "2h")) == ["in 90"]
    assert cli("count", "--due-to", "1h").out == "1 entry\n"


def test_pages_lead_from_one_to_the_next(app: Celery, cli: CommandLine) -> None:
    for n in range(7):
        app.send_task("shop.mail", eta=FAR + timedelta(seconds=n), task_id=f"id-{n}")
    seen, cursor = [], None
    while True:
        more = () if cursor is None else ("--cursor", cursor)
        page = cli("list", "--limit", "3", "--json", *more)
        seen.append(ids(page))
        cursor = page.json["cursor"]
        if cursor is None:
            break

    assert seen == [["id-0", "id-1", "id-2"], ["id-3", "id-4", "id-5"], ["id-6"]]


def test_the_command_that_is_shown_leads_to_the_next_page(
    app: Celery, cli: CommandLine, shop: list[str]
) -> None:
    for n in range(5):
        app.send_task("it's $a\ntask", countdown=60 + n, task_id=f"id-{n}")

    first = cli("list", "--task", "it's $a\ntask", "--due-to", "1h", "--limit", "3").out
    told = first.split("there are more: ")[1].strip()
    second = subprocess.run(
        ["bash", "-c", f'"$@" {told}', "-", *shop], capture_output=True, text=True, check=True
    ).stdout

    assert all(f"id-{n}" in first for n in range(3))
    assert all(f"id-{n}" in second for n in (3, 4))
    assert "id-2" not in second
    assert "2 entries." in second


def test_all_are_shown_and_written_page_by_page(app: Celery, cli: CommandLine) -> None:
    expected = [f"id-{n:04}" for n in range(1203)]
    items = (Item(countdown=3600 + n, id=id) for n, id in enumerate(expected))
    DelayQ.of(app).schedule_many(items, task="t")

    assert ids(cli("list", "--all", "--json")) == expected
    shown = cli("list", "--all", columns=200).out
    assert re.findall(r"id-\d{4}", shown) == expected
    assert shown.endswith("1,203 entries.\n")
    assert "1,203 entries" in cli("count").out


def test_what_is_paused_is_shown_as_such(app: Celery, cli: CommandLine, delayq: DelayQ) -> None:
    delayq.pause(task="shop.mail")
    app.send_task("shop.mail", countdown=0.01, task_id="held")
    store = delayq.store
    wait_until(
        lambda: (
            store.promote("celery", store.layout, 10)
            and store.gauges.sizes("celery", store.layout)[6]
        )
    )

    [entry] = cli("list", "--json").json["entries"]

    assert entry["state"] == "paused"
    assert "paused" in cli("list").out
    assert "paused" in cli("list", columns=200).out
    stats = cli("stats", "--json").json
    assert (stats["paused"], stats["overdue"], stats["scheduled"]) == (1, 0, 1)


@pytest.mark.usefixtures("filled")
def test_a_malformed_or_foreign_cursor_is_reported_in_one_line(cli: CommandLine) -> None:
    cursor = cli("list", "--limit", "1", "--json").json["cursor"]

    for args in (["--cursor", "nonsense"], ["--cursor", cursor, "--queue", "bills"]):
        ran = cli("list", *args)
        assert (ran.code, ran.out) == (2, "")
        assert re.fullmatch(r"Error: .*cursor.*", ran.err.splitlines()[-1])


@pytest.mark.usefixtures("filled")
def test_a_step_that_there_is_not_is_reported(cli: CommandLine) -> None:
    for command in ("list", "count", "cancel"):
        ran = cli(command, "--priority", "5", *(["--yes"] if command == "cancel" else []))
        assert ran.code == 2
        assert "steps 0, 3, 6, 9" in ran.err


@pytest.mark.usefixtures("filled")
def test_a_slip_of_the_pen_is_reported(cli: CommandLine) -> None:
    for command in ("list", "count"):
        ran = cli(command, "--queue", "blils")
        assert ran.code == 0
        assert "no queue blils in Redis or in the app; known: bills, celery" in ran.out.replace(
            "\n", " "
        )


def test_nothing_is_reported_in_words(cli: CommandLine) -> None:
    assert cli("list").out == "Nothing is scheduled.\n"
    assert cli("list", "--all").out == "Nothing is scheduled.\n"
    for how in ([], ["--all"]):
        assert cli("list", "--held", *how).out == "Nothing is held.\n"
    assert cli("list", "--json").json == {"entries": [], "cursor": None}
    assert cli("list", "--all", "--json").json == {"entries": [], "cursor": None}


# -- names that others chose


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_hostile_ids_neither_break_the_table_nor_steer_the_terminal(
    app: Celery, cli: CommandLine, columns: int
) -> None:
    for n, id in enumerate(HOSTILE):
        app.send_task(f"task {id}", (id,), task_id=id, countdown=3600 + n, queue=f"q{n}")

    ran = cli("list", columns=columns)

    assert ran.code == 0
    table = ran.out
    assert not CONTROLS.search(table)
    assert max(map(cell_len, table.splitlines())) <= columns
    assert "…" not in table
    if columns == 200:
        assert "'[red]boom[/red]'" in table
        assert r"$'line\nbreak\r\n\ttab'" in table
        assert r"\x1b[31mred" in table
    for id in HOSTILE:
        paused = cli("pause", "--task", f"task {id}", columns=columns)
        assert not CONTROLS.search(paused.out + paused.err)
    for command in (["stats"], ["paused"], ["cancel", "--dry-run"]):
        ran = cli(*command, columns=columns)
        assert ran.code == 0
        assert not CONTROLS.search(ran.out + ran.err)
        assert max(map(cell_len, ran.out.splitlines())) <= columns


def test_hostile_ids_are_found_cancelled_and_told_exactly(app: Celery, cli: CommandLine) -> None:
    for n, id in enumerate(HOSTILE):
        app.send_task("t", (id,), task_id=id, countdown=3600 + n)

    for id in (id.replace("\0", "%00") for id in HOSTILE):
        shown = cli("get", "--", id)
        assert shown.code == 0
        assert not CONTROLS.search(shown.out)
    assert ids(cli("list", "--json")) == list(HOSTILE)
    cancelled = cli("cancel", "--", *(id.replace("\0", "%00") for id in HOSTILE))
    assert cancelled.code == 0, cancelled.out
    assert cancelled.out.count("cancelled") == len(HOSTILE)
    assert not CONTROLS.search(cancelled.out)
    assert cli("count", "--json").json == {"count": 0}


def test_a_long_id_is_folded_and_whole(app: Celery, cli: CommandLine) -> None:
    long = "".join(f"{n:05}" for n in range(2048))
    app.send_task("t", task_id=long, countdown=3600)

    for columns in (80, 200):
        table = cli("list", columns=columns).out
        rows = table.splitlines()[2:]
        assert max(map(len, rows)) <= columns
        assert "".join(re.findall(r"\b\d{24,}\b|\b\d+ *$", table, re.MULTILINE)) == long
    assert f"{long}\n" in cli("get", long).out
    assert ids(cli("list", "--json")) == [long]


def test_a_uuid_is_in_one_line_at_80_columns(app: Celery, cli: CommandLine) -> None:
    id = app.send_task("shop.invoices.monthly.send_statement", countdown=60, queue="invoices").id

    table = cli("list").out

    assert id in table
    assert "".join(table.split()).count("statement") == 1
    assert max(map(len, table.splitlines())) <= 80


def test_an_unreadable_entry_is_listed(
    app: Celery, cli: CommandLine, delayq_redis: RedisUnderTest
) -> None:
    app.send_task("t", task_id="broken", countdown=60)
    delayq_redis.client.hset("{celery}:entries", "broken", b"\xff\x1b[31m no record")

    assert "?" in cli("list").out
    assert ids(cli("list", "--json")) == ["broken"]
    assert cli("get", "broken").code == 0
    assert "1 entry" in cli("cancel", "--queue", "celery", "--dry-run").out


# -- errors


def test_a_broker_that_is_none_of_ours_is_reported_in_one_line(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    ran = CommandLine(make_app(broker=delayq_redis.url))("list")

    assert ran.code == 1
    assert re.fullmatch(r"Error: the broker is .+ delayq\+.+\n", ran.err)
