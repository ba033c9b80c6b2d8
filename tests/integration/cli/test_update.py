"""``update`` on the command line."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from celery import Celery

from celery_delayq import DelayQ
from tests.support.cli import CommandLine

FAR = datetime(2100, 1, 31, 9, tzinfo=timezone.utc)


def pay(order: int) -> None:
    """Stand for any task."""


@pytest.fixture
def entry(app: Celery) -> str:
    app.send_task("shop.mail", (1,), {"x": 2}, eta=FAR, task_id="a", headers={"old": "1"})
    return "a"


def test_what_is_given_is_changed_and_all_else_stays(
    cli: CommandLine, delayq: DelayQ, entry: str
) -> None:
    changed = cli(
        *("update", entry, "--args", '["ö", 3]', "--priority", "4", "--expires", "2099-01-31"),
        *("--header", "tenant=a=b", "--header", "empty=", "--no-header", "old"),
    )

    assert (changed.code, changed.out) == (0, "updated  a\n")
    found = delayq.get(entry)
    assert found is not None
    assert (found.due, found.args, found.kwargs, found.priority) == (FAR, ["ö", 3], {"x": 2}, 3)
    assert found.headers["expires"].startswith("2099-01-3")
    assert {"tenant": "a=b", "empty": ""}.items() <= found.headers.items()
    assert "old" not in found.headers

    assert cli("update", entry, "--kwargs", "{}", "--no-expires").code == 0
    found = delayq.get(entry)
    assert found is not None
    assert (found.args, found.kwargs, found.headers["expires"]) == (["ö", 3], {}, None)


def test_what_is_not_changed_is_reported(cli: CommandLine, app: Celery, entry: str) -> None:
    app.send_task("shop.mail", eta=FAR, task_id="b")
    cli("run-now", "b")

    unknown = cli("update", "none", "--args", "[]")
    ready = cli("update", "b", "--args", "[]", "--json")
    moved = cli("update", entry, "--args", "[]", "--if-eta", "2100-01-31T09:00:01Z")
    elsewhere = cli("update", entry, "--args", "[]", "--queue", "other")

    assert [each.code for each in (unknown, ready, moved, elsewhere)] == [1] * 4
    assert unknown.out.startswith("not updated  none  unknown: it has finished")
    assert ready.json == {"outcomes": [{"id": "b", "outcome": "ready"}]}
    assert "changed: it is due at another time" in moved.out


def test_a_conflict_is_reported(cli: CommandLine, app: Celery) -> None:
    app.task(name="shop.pay", unique_key="{order}", shared=False)(pay)
    for order in (1, 2):
        app.tasks["shop.pay"].apply_async((order,), eta=FAR, task_id=f"p{order}")

    refused = cli("update", "p1", "--args", "[2]")

    assert (refused.code, refused.out) == (
        1,
        "not updated  p1  conflict: another task has its new unique key\n",
    )
    assert cli("update", "p1", "--args", "[1, 2]").code == 2
    assert "does not take the arguments" in cli("update", "p1", "--args", "[1, 2]").err


def test_nothing_is_unpickled_unless_asked(cli: CommandLine, app: Celery, entry: str) -> None:
    app.send_task("shop.mail", eta=FAR, task_id="pickled", serializer="pickle")

    refused = cli("update", "pickled", "--args", "[1]")

    assert refused.code == 1
    assert "may run code" in refused.err
    assert cli("update", "pickled", "--args", "[1]", "--unpickle").code == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "give what is to be changed"),
        ("--unpickle", "give what is to be changed"),
        ("--args {}", "expected JSON such as"),
        ("--kwargs []", "expected JSON such as"),
        ("--priority high", "--priority"),
        ("--expires soon", "expected a time such as"),
        ("--expires 2h --no-expires", "give one of --expires and --no-expires"),
        ("--header tenant", "expected NAME=VALUE"),
        ("--header =a", "expected NAME=VALUE"),
        ("--header id=a", "expected other names than id"),
    ],
)
def test_wrong_use_exits_with_2(cli: CommandLine, entry: str, words: str, text: str) -> None:
    ran = cli("update", entry, *words.split())

    assert (ran.code, text in ran.err) == (2, True), ran
