"""``delayq limits``: limits as they are, and as people change them."""

from __future__ import annotations

import json
import shlex

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Filter, Limit
from tests.support.cli import CommandLine


@pytest.fixture(autouse=True)
def _limit(app: Celery, cli: CommandLine, delayq: DelayQ) -> None:
    """Two tasks of one key and one of another, which are held."""
    limit = Limit("stripe", rate="100/m", burst=20, concurrency=8, key="{0}", fair=True)
    pay = app.tasks["shop.bill"]
    pay.limit, pay.acks_late = limit, True
    delayq.store.task_limits.announce({"stripe": limit.definition.text})
    delayq.store.register("celery")
    for customer in ("ada", "ada", "b:1"):
        pay.apply_async((customer,))


def test_limits_are_listed(cli: CommandLine) -> None:
    row = " ".join(cli("limits", "list").out.splitlines()[2].split())
    assert row == "stripe 100/m, burst 20, 8 at once, fair 3 2 0"
    found = cli("limits", "list", "--json").json
    assert (found["name"], found["held"], found["lanes"], found["used"]) == ("stripe", 3, 2, 0)
    assert found["definition"] == {"rate": "100/m", "burst": 20, "concurrency": 8, "fair": True}
    assert found["override"] is None


def test_a_limit_is_set_and_unset(cli: CommandLine) -> None:
    ran = cli("limits", "set", "stripe", "--rate", "7/m", "--not-fair", "--no", "concurrency")
    assert ran.out == ("Limit stripe: 7/m, burst 20\ncode: 100/m, burst 20, 8 at once, fair\n")
    assert "7/m, burst 20" in cli("limits", "list").out
    assert cli("limits", "set", "stripe", "--off").out.startswith("Limit stripe: off\ncode: 100/m")
    assert cli("limits", "set", "stripe", "--burst", "2", "--json").json["override"] == {
        **{"rate": "100/m", "burst": 2, "concurrency": 8, "fair": True}
    }
    assert cli("limits", "unset", "stripe").out == "Limit stripe: the code counts.\n"
    ran = cli("limits", "unset", "stripe")
    assert (ran.code, ran.out) == (1, "Limit stripe: nothing was set.\n")
    assert cli("limits", "unset", "stripe", "--json").json == {"name": "stripe", "changed": False}


def test_only_a_limit_that_the_code_does_not_have_is_forgotten(
    app: Celery, cli: CommandLine, delayq: DelayQ
) -> None:
    ran = cli("limits", "unset", "stripe", "--code")
    assert (ran.code, ran.out) == (1, "")
    assert "the code of this app has it" in ran.err
    assert [each.name for each in delayq.limits.list()] == ["stripe"]

    app.tasks["shop.bill"].limit = None
    told = "A running worker of older code stores it again within a minute.\n"
    assert cli("limits", "unset", "stripe", "--code").out == f"Limit stripe: forgotten. {told}"
    assert delayq.limits.list() == []
    told = "No limit is stored: workers store those of their code when they start.\n"
    assert cli("limits", "list").out == told


def test_the_longest_lanes_are_shown(cli: CommandLine) -> None:
    assert [line.split()[:3] for line in cli("limits", "lanes", "stripe").out.splitlines()[2:]] == [
        ["ada", "2", "0"],
        ["b:1", "1", "0"],
    ]
    lines = cli("limits", "lanes", "stripe", "--limit", "1", "--json").out.splitlines()
    [found] = map(json.loads, lines)
    assert (found["limit"], found["key"], found["held"]) == ("stripe", "ada", 2)


def test_the_next_start_of_a_lane_is_now_a_time_or_empty(
    cli: CommandLine, delayq: DelayQ, redis: Redis
) -> None:
    """Whatever the next tries of the lanes are: busy workers try none."""
    past = delayq.store.now_us() - 19e6
    redis.zadd("{celery}:lanes", {"stripe:ada": past, "stripe:b%3A1": past})

    def nexts() -> list[str]:
        lines = cli("limits", "lanes", "stripe").out.splitlines()[2:]
        return [" ".join(line.split()[3:]) for line in lines]

    assert nexts() == ["now", "now"]
    redis.zadd("delayq:permits", {f"stripe:ada\0celery\0{n}\0m": 0 for n in range(8)})
    redis.zadd("delayq:slots", {"stripe:b%3A1": delayq.store.now_us() + 3600e6})
    full, later = nexts()
    assert full == ""
    assert later not in ("", "now")


def test_of_a_limit_without_held_tasks_no_lane_is_shown(cli: CommandLine, delayq: DelayQ) -> None:
    delayq.cancel_all(Filter(), everything=True)

    assert cli("limits", "lanes", "stripe").out == "No task is held.\n"


def test_held_tasks_are_listed_apart_from_others(
    app: Celery, cli: CommandLine, delayq: DelayQ
) -> None:
    app.send_task("shop.mail", countdown=60)
    listed = cli("list", "--json").json["entries"]
    held = cli("list", "--held", "--json").json["entries"]

    assert [each["state"] for each in listed] == ["held"] * 3 + ["scheduled"]
    assert held == listed[:3]
    assert {(each["limit"], each["limit_key"]) for each in held} == {
        ("stripe", "ada"),
        ("stripe", "b:1"),
    }
    assert "held" in cli("list", "--held", "--limit", "1").out
    assert cli("list", "--held", "--due-from", "1h", "--json").json["entries"] == []
    assert cli("list", "--held", "--cursor", "x").code == 2
    delayq.pause(task="shop.bill")
    states = [each["state"] for each in cli("list", "--held", "--json").json["entries"]]
    assert states == ["paused"] * 3


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_held_tasks_are_listed_page_by_page(
    app: Celery, cli: CommandLine, delayq: DelayQ, limit: int
) -> None:
    """Beside entries that nobody has promoted yet, and entries that are not due."""
    for number in range(9):
        app.send_task("shop.mail", countdown=60, task_id=f"later-{number}")
        delayq.store.client.zadd("{celery}:due", {f"later-{number}": number + 1}, xx=True)
    app.send_task("shop.mail", countdown=60)
    held = [each.id for each in delayq.list() if each.state == "held"]
    assert len(held) == 3

    found, words = [], ["list", "--held", "--limit", str(limit)]
    told = cli(*words, "--json").json
    while told["cursor"]:
        found += told["entries"]
        told = cli(*words, "--json", "--cursor", told["cursor"]).json
    found += told["entries"]
    shown = cli(*words).out

    assert [each["id"] for each in found] == held
    if limit < len(held):
        next_page = shlex.split(shown.rpartition("there are more: ")[2])
        assert next_page[0] == "list"
        assert "--held" in next_page
        assert held[limit] in cli(*next_page).out


def test_a_held_task_tells_its_limit_and_how_many_are_ahead(
    cli: CommandLine, delayq: DelayQ
) -> None:
    held = delayq.list()  # those of one millisecond in any order
    first, second, other = sorted(held, key=lambda each: each.limit_key or "")

    assert "limit     stripe, key ada; at most 1 of this key ahead\n" in cli("get", second.id).out
    ahead = [
        cli("get", each.id, "--json").json["entries"][0]["ahead"] for each in (first, second, other)
    ]
    assert ahead == [0, 1, 0]
    delayq.pause(task="shop.bill")
    shown = cli("get", second.id)
    assert "limit     stripe, key ada\n" in shown.out
    assert "state     paused\n" in shown.out


def test_held_tasks_count_apart(cli: CommandLine) -> None:
    stats = cli("stats", "--json").json

    assert (stats["held"], stats["paused"], stats["overdue"], stats["scheduled"]) == (3, 0, 0, 3)


@pytest.mark.parametrize("words", ["set strip --off", "unset strip", "lanes strip"])
def test_an_unknown_limit_is_refused(cli: CommandLine, words: str) -> None:
    ran = cli("limits", *words.split())

    assert (ran.code, ran.out) == (1, "")
    assert "no limit 'strip' in Redis or in the app; there are: stripe" in ran.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("set stripe", "give --off, or at least one value"),
        ("set stripe --off --burst 2", "give --off, or at least one value"),
        ("set stripe --rate 1 --no rate", "give one of them"),
    ],
)
def test_wrong_use_is_refused(cli: CommandLine, words: str, expected: str) -> None:
    ran = cli("limits", *words.split())

    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err
