"""A task and its former names are one task: for filters, pauses and unique keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import UniqueConflict
from celery_delayq.model.scheduled import Filter, Outcome
from tests.apps.renamed_tasks import VERSIONS, extend
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.dead_letters import fill

Version = Callable[[str], DelayQ]


@pytest.fixture
def client(make_app: MakeApp) -> Version:
    def make(version: str) -> DelayQ:
        return extend(make_app(extension=False), version)

    return make


def send(delayq: DelayQ, task: str, key: str, **options: Any) -> Any:
    [name] = [name for name in delayq.app.tasks if name.endswith(f".{task}")]
    return delayq.app.tasks[name].apply_async((key,), **{"countdown": 3600, **options})


def test_calls_that_take_a_task_find_its_former_names(client: Version) -> None:
    old, new = client("before"), client("renamed")
    for number in range(7):
        for version, delayq in (("old", old), ("new", new)):
            for queue in ("celery", "mail"):
                id = f"{number} {version} {queue}"
                send(delayq, "remind", id, task_id=id, queue=queue, countdown=1000 + number)
    send(new, "total", "other")

    found: list[str] = []
    page = new.list(task="mail.remind", limit=3)
    found += [each.id for each in page]
    while page.cursor:
        page = new.list(task="mail.remind", limit=3, cursor=page.cursor)
        found += [each.id for each in page]

    assert len(found) == len({*found}) == 28
    assert [id[0] for id in found] == sorted(id[0] for id in found)
    assert [each.id for each in new.entries(Filter(task="mail.remind"), page=4)] == found
    assert new.count(task="mail.remind") == 28
    assert new.count(task="mail.remind", queue="mail", due_to=page.entries[-1].due) <= 14
    # A former name is what was sent with it.
    assert new.count(task="shop.remind") == 14
    assert {each.task for each in new.list(task="shop.remind")} == {"shop.remind"}
    assert old.count(task="mail.remind") == 14
    bulk = new.reschedule_all(Filter("mail", "mail.remind"), by=60)
    assert (bulk.total, bulk.done) == (14, 14)
    bulk = new.cancel_all(Filter(task="mail.remind"))
    assert (bulk.total, bulk.done) == (28, 28)
    assert new.count() == 1


def test_the_command_line_counts_and_lists_former_names(client: Version) -> None:
    old, new = client("before"), client("renamed")
    send(old, "remind", "a", task_id="a")
    send(new, "remind", "b", task_id="b")
    cli = CommandLine(new.app)

    assert cli("count", "--task", "mail.remind", "--json").json == {"count": 2}
    ids = [each["id"] for each in cli("list", "--task", "mail.remind", "--json").json["entries"]]
    assert sorted(ids) == ["a", "b"]
    dry = cli("cancel", "--task", "mail.remind", "--dry-run", "--json").json
    assert {each["task"]: each["entries"] for each in dry["meant"]} == {
        "mail.remind": 1,
        "shop.remind": 1,
    }
    assert "no task" not in cli("pause", "--task", "shop.remind").err


def test_a_pause_of_a_task_is_one_of_its_former_names(client: Version) -> None:
    old, new = client("before"), client("renamed")
    assert new.pause(task="mail.remind")
    assert {*old.paused().tasks} == {"mail.remind", "shop.remind"}
    assert not new.pause(task="mail.remind")
    assert old.resume(task="shop.remind")

    assert new.resume(task="mail.remind")

    assert new.paused().tasks == {}
    assert new.pause(task="shop.remind")
    assert {*new.paused().tasks} == {"shop.remind"}


def test_compat_knows_former_names(client: Version) -> None:
    delayqs = {version: client(version) for version in VERSIONS}
    send(delayqs["before"], "remind", "old")
    fails = {version: delayq.compat().fails for version, delayq in delayqs.items()}
    assert fails == {"before": 0, "prepared": 0, "renamed": 0, "after": 1}
    send(delayqs["renamed"], "remind", "new")
    fails = {version: delayq.compat().fails for version, delayq in delayqs.items()}
    assert fails == {"before": 1, "prepared": 0, "renamed": 0, "after": 1}


def policies(delayq: DelayQ, policy: str, key: str, **options: Any) -> Any:
    return send(delayq, "unique", key, on_conflict=policy, **options)


@pytest.mark.parametrize(
    ("first", "second"), [("before", "renamed"), ("prepared", "renamed"), ("renamed", "prepared")]
)
@pytest.mark.parametrize("due", ["scheduled", "ready"])
def test_a_unique_key_is_that_of_the_former_names(
    client: Version, first: str, second: str, due: str
) -> None:
    one, other = client(first), client(second)
    options: dict[str, Any] = {} if due == "scheduled" else {"countdown": None}

    held = policies(one, "error", "k", **options)
    with pytest.raises(UniqueConflict, match=held.id):
        policies(other, "error", "k")
    assert policies(other, "keep", "k").id == held.id
    replacing = policies(other, "replace", "k")
    gone = one.get(held.id)
    assert gone is None or gone.state == "ready"
    assert other.get(replacing.id) is not None
    # Now the other name has the key.
    with pytest.raises(UniqueConflict, match=replacing.id):
        policies(client("prepared"), "error", "k")
    assert policies(other, "error", "another").id
    assert other.cancel(replacing.id) is Outcome.DONE
    assert policies(client("prepared"), "error", "k").id


def die_ready(delayq: DelayQ) -> None:
    """Dead-letter the ready task, as a worker does it."""
    leases = delayq.store.leases
    [(field, message, _)] = leases.acquire("celery", "me", 600, "1", 10).messages
    leases.dead_letter("celery", "me", field, str(json.loads(message)["headers"]["id"]), "failed")


@pytest.mark.parametrize(
    ("first", "second"),
    [("before", "renamed"), ("prepared", "renamed"), ("renamed", "prepared"), ("after", "renamed")],
)
@pytest.mark.parametrize("call", ["replay", "changed replay", "import", "update"])
def test_a_message_that_exists_takes_no_unique_key_of_another_name(
    client: Version, tmp_path: Path, first: str, second: str, call: str
) -> None:
    """The version *first* sends what is replayed, imported or changed by the version *second*."""
    one, other = client(first), client(second)
    [taking] = [each for each in ("before", "after") if VERSIONS[each][0] != VERSIONS[first][0]]
    if call == "update":
        sent = send(one, "unique", "own")
    else:
        sent = send(one, "unique", "k", countdown=None if "replay" in call else 3600)
    if "replay" in call:
        die_ready(one)
    if call == "import":
        assert one.export_to(tmp_path / "export").entries == 1
        assert one.cancel(sent.id) is Outcome.DONE
    holder = send(client(taking), "unique", "k", on_conflict="error")

    def act() -> object:
        if call == "import":
            return dict(other.import_from(tmp_path / "export").outcomes)
        if call == "update":
            return other.update(sent.id, args=["k"])
        return other.replay(sent.id, args=["k"] if call == "changed replay" else None)

    assert act() == ({"kept": 1} if call == "import" else Outcome.CONFLICT)
    assert other.get(holder.id) is not None
    assert other.cancel(holder.id) is Outcome.DONE
    assert act() == ({"scheduled": 1} if call == "import" else Outcome.DONE)
    assert other.get(sent.id) is not None


def test_many_calls_have_the_unique_keys_of_former_names(client: Version) -> None:
    old, new = client("before"), client("renamed")
    keys = [str(number) for number in range(5)]
    for key in keys[:3]:
        send(old, "unique", key)
    items = [{"args": (key,), "countdown": 3600} for key in [*keys, "1", "4"]]

    report = new.schedule_many(items, task="shop.unique")

    # Those of the former name, and those of an earlier item.
    assert report.counts == {"replaced": 5, "scheduled": 2}
    assert [each.task for each in new.list(task="mail.unique")] == ["mail.unique"] * 5
    assert new.schedule_many(items[:1], task="mail.unique", on_conflict="keep").counts == {
        "kept": 1
    }


def test_databases_find_former_names(client: Version, tmp_path: Path) -> None:
    old, new = client("before"), client("renamed")
    place, task = f"sqlite:///{tmp_path}/rows.db", "mail.remind"
    for name in ("shop", "mail"):
        fill(new, 1, task=f"{name}.remind", queue=name)
    sent = [send(delayq, "remind", "x").id for delayq in (old, new)]
    send(new, "total", "other")

    assert new.export_to(place).entries == 3
    assert [*map(new.cancel, sent)] == [Outcome.DONE] * 2
    assert new.import_from(place, task=task, dry_run=True).outcomes == {"scheduled": 2}
    assert old.import_from(place, task=task, dry_run=True).outcomes == {"scheduled": 1}
    assert new.export_to(place, task=task, prune=True).pruned == 2
    assert old.archive_dead(place, task=task).moved == 1
    assert new.archive_dead(place, task=task).moved == 1
    assert old.import_dead(place, task=task, dry_run=True).outcomes == {"restored": 1}
    assert new.import_dead(place, task=task).outcomes == {"restored": 2}
    assert new.count_dead(task=task) == 2


def test_messages_of_an_app_without_former_names_have_no_note_of_them(
    app: Celery, delayq: DelayQ
) -> None:
    app.tasks["tasks.add"].apply_async(("k", 1), countdown=60, task_id="a", unique_key="{x}")

    entry = delayq.get("a")
    assert entry is not None
    assert entry.own["unique"] == {"policy": "replace"}
