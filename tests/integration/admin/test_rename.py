"""``rename`` reaches all calls of a task that wait, wherever they are."""

from __future__ import annotations

from typing import Any

import pytest
from celery import chain, chord, group
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.admin.rewrite import RewriteReport
from celery_delayq.errors import ConfigError, InvalidCursor, InvalidFilter, UniqueConflict
from celery_delayq.model.envelope import Record, limit_of
from celery_delayq.model.scheduled import Outcome
from tests.apps.renamed_tasks import TASKS
from tests.integration.admin.conftest import Version
from tests.support.dead_letters import details, message, stored


def serve(tenant: str) -> None:
    """Stand for any task."""


def send_all(delayq: DelayQ) -> int:
    """Send a message of each form; return their number."""
    task = delayq.app.tasks
    remind, total = task["shop.remind"], task["shop.total"]
    failed = delayq.app.signature("shop.failed")
    later = {"countdown": 3600}
    remind.apply_async(("plain",), **later)
    remind.apply_async(("yaml",), serializer="yaml", **later)  # Celery cannot send a link by it
    for serializer in ("json", "msgpack", "pickle"):
        for options in ({}, {"compression": "zlib"}):
            remind.apply_async(
                (serializer,), serializer=serializer, link=remind.s(1), **options, **later
            )
    remind.apply_async(("x" * 100_000,), **later)
    remind.apply_async(("linked",), link=remind.s(1).set(link=remind.s(2)), **later)
    remind.apply_async(("errback",), link_error=failed, **later)
    remind.apply_async(("priority",), priority=6, **later)
    chain(remind.s(1), remind.s(), group(remind.s(), remind.s())).apply_async(**later)
    group(remind.s(1), remind.s(2)).apply_async(**later)
    chord([remind.s(1), remind.s(2)], total.s().set(link=remind.s())).apply_async(**later)
    remind.map(["a", "b"]).apply_async(**later)
    remind.starmap([("a",), ("b",)]).apply_async(**later)
    # Only what is inside has the former name.
    delayq.app.send_task("other.task", (1,), link=remind.s(), **later)
    task["shop.unique"].apply_async(("k",), **later)
    return delayq.count()


def rename_all(delayq: DelayQ, **options: Any) -> list[RewriteReport]:
    return [delayq.rename(f"shop.{task}", f"mail.{task}", **options) for task in TASKS]


def test_a_rename_reaches_all_that_waits(client: Version, redis: Redis) -> None:
    old, after = client("before"), client("after")
    after.app.task(name="other.task", shared=False)(serve)
    number = send_all(old)
    for queue in ("celery", "mail"):
        dead = stored(
            1000, "it failed", message(f"dead-{queue}", task="shop.remind", args=["a"]), details()
        )
        old.session.stores.of(queue).dead_letters.restore(queue, [(f"dead-{queue}", 1000, dead)])
        old.store.register(queue)
    link = old.app.signature("shop.remind")
    old.periodic.add("entry", 3600, "shop.remind", ("a",), link=[dict(link)])
    before = after.compat(unpickle=True)
    assert before.fails == before.number == number + 3
    due = {each.id: each.due for each in old.entries()}
    dry = rename_all(after, dry_run=True, unpickle=True)
    assert after.compat(unpickle=True).fails == number + 3

    reports = rename_all(after, unpickle=True)

    assert [each.outcomes for each in reports] == [each.outcomes for each in dry]
    assert [each.failures for each in reports] == [[]] * len(TASKS)
    assert all(each.is_complete for each in reports), reports
    found = after.compat(unpickle=True)
    assert [row.as_dict() for row in found.rows] == []
    assert found.number == number + 3
    assert {each.id: each.due for each in after.entries()} == due
    assert after.count(task="mail.remind") == old.count(task="mail.remind") > 0
    assert old.count(task="shop.remind") == 0
    assert rename_all(after, unpickle=True)[0].outcomes.total() == 0
    # Its unique key is that of the new name.
    with pytest.raises(UniqueConflict):
        after.app.tasks["mail.unique"].apply_async(("k",), countdown=60, on_conflict="error")
    assert all(key.startswith(b"mail.unique:") for key in redis.hgetall("{celery}:unique"))
    # There and back.
    for task in TASKS:
        assert after.rename(f"mail.{task}", f"shop.{task}", unpickle=True).is_complete
    found = after.compat(unpickle=True)
    assert found.fails == found.number


def test_without_unpickle_messages_are_renamed_and_not_looked_into(client: Version) -> None:
    old = client("before")
    remind = old.app.tasks["shop.remind"]
    for name in ("shop.remind", "other.task"):
        old.app.send_task(
            name, ("a",), serializer="pickle", link=remind.s(), countdown=60, task_id=name
        )

    report = old.rename("shop.remind", "mail.remind")

    assert (report.done, report.undecoded, report.failed) == (1, 2, 0)
    assert not report.is_complete
    assert {each.task for each in old.entries()} == {"mail.remind", "other.task"}


def test_pauses_and_held_tasks_follow_a_rename(client: Version) -> None:
    old, after = client("before"), client("after")
    old.pause(task="shop.remind")
    old.app.tasks["shop.remind"].apply_async(("a",), countdown=3600, task_id="a")
    old.run_now("a")
    old.store.promote("celery", old.store.layout, 10)
    entry = old.get("a")
    assert entry is not None
    assert entry.state == "paused"

    assert after.rename("shop.remind", "mail.remind", dry_run=True).pauses == ["mail.remind"]
    assert "mail.remind" not in after.paused().tasks
    report = after.rename("shop.remind", "mail.remind")

    assert (report.pauses, report.done) == (["mail.remind"], 1)
    assert {*after.paused().tasks} == {"shop.remind", "mail.remind"}
    after.store.promote("celery", after.store.layout, 10)
    entry = after.get("a")
    assert entry is not None
    assert (entry.state, entry.task) == ("paused", "mail.remind")


@pytest.mark.parametrize("of_another", [False, True])
def test_a_wrong_cursor_is_refused_before_a_pause(client: Version, of_another: bool) -> None:
    old, after = client("before"), client("after")
    old.pause(task="shop.remind")
    cursors: list[str] = []
    for n in range(2):
        old.app.tasks["shop.remind"].apply_async(("a",), countdown=3600 + n)
    after.rename("other.task", "mail.other", progress=lambda each: cursors.append(str(each.cursor)))
    cursor = cursors[0] if of_another else "nonsense"

    with pytest.raises(InvalidCursor, match="resume the same" if of_another else "is no cursor"):
        after.rename("shop.remind", "mail.remind", resume=cursor)

    assert {*after.paused().tasks} == {"shop.remind"}
    assert after.count(task="shop.remind") == 2


def test_another_task_with_the_unique_key_wins(client: Version) -> None:
    old, after = client("before"), client("after")
    old.app.tasks["shop.unique"].apply_async(("k",), countdown=60, task_id="old")
    after.app.tasks["mail.unique"].apply_async(("k",), countdown=60, task_id="new")

    report = after.rename("shop.unique", "mail.unique")

    assert report.outcomes == {Outcome.CONFLICT: 1}
    assert not report.is_complete
    assert [(each.id, each.task) for each in after.entries()] == [
        ("old", "shop.unique"),
        ("new", "mail.unique"),
    ]


def test_wrong_names_are_refused(client: Version) -> None:
    after = client("after")
    with pytest.raises(ConfigError, match="two names"):
        after.rename("a", "a")
    with pytest.raises(InvalidFilter, match="name=''"):
        after.rename("a", "")
    with pytest.raises(InvalidFilter, match="queue=''"):
        after.rename("a", "b", queue="")
    with pytest.raises(ConfigError, match="former=None"):
        after.rename(None, "a")  # type: ignore[arg-type]
    cursor = after.rename("a", "b", queue="c", progress=lambda _: None).cursor
    assert cursor is None


def test_another_app_keeps_its_task_of_the_same_name(client: Version) -> None:
    """Two apps share a broker, and each has a task of this name."""
    ours, theirs, after = client("before"), client("before"), client("after")
    for delayq, queue in ((ours, "ours"), (theirs, "theirs")):
        task = delayq.app.tasks["shop.remind"]
        for number in range(3):
            task.apply_async((number,), queue=queue, countdown=60 + number)
        dead = stored(1000, "it failed", message(queue, task="shop.remind"), details())
        delayq.session.stores.of(queue).dead_letters.restore(queue, [(queue, 1000, dead)])
        delayq.periodic.add(queue, 3600, "shop.remind", ("a",), queue=queue)
    ours.pause(task="shop.remind")
    cursors: list[str | None] = []

    report = after.rename(
        "shop.remind",
        "mail.remind",
        queue="ours",
        progress=lambda report: cursors.append(report.cursor),
    )

    assert (report.done, report.pauses, report.is_complete) == (5, [], True)
    assert "mail.remind" not in after.paused().tasks
    named = {(each.queue, each.task) for each in after.entries()}
    named |= {(each.queue, each.task or "") for each in after.dead_letters()}
    named |= {(each.name, each.definition.task) for each in after.periodic.list()}
    assert named == {("ours", "mail.remind"), ("theirs", "shop.remind")}
    for dry_run in (False, True):
        with pytest.raises(InvalidCursor, match="resume the same rewrite"):
            after.rename("shop.remind", "mail.remind", resume=cursors[0], dry_run=dry_run)
    assert "mail.remind" not in after.paused().tasks


#: Limits of a task before its rename, and after it.
LIMITS: dict[str, Any] = {
    "none": None,
    "plain": Limit("plain", rate="1/s"),
    "by tenant": Limit("keyed", rate="1/s", key="{tenant}"),
    "by place": Limit("keyed", rate="1/s", key="{0}"),
}


@pytest.mark.parametrize("way", ["rename", "rewrite", "rewrite with arguments"])
def test_a_task_of_another_name_has_the_limit_of_this_name(client: Version, way: str) -> None:
    old, new = client("before"), client("after")
    pairs = [f"{former} to {limit}" for former in LIMITS for limit in LIMITS]
    for pair in pairs:
        former, limit = (LIMITS[each] for each in pair.split(" to "))
        old.app.task(name=f"shop.{pair}", shared=False, limit=former)(serve)
        new.app.task(name=f"mail.{pair}", shared=False, limit=limit)(serve)
        old.app.tasks[f"shop.{pair}"].apply_async(("ada",), countdown=3600, task_id=pair)
    key, args = ("bob", {"args": ["bob"]}) if way == "rewrite with arguments" else ("ada", {})

    if way == "rename":
        reports = [new.rename(f"shop.{pair}", f"mail.{pair}") for pair in pairs]
    else:
        reports = [new.rewrite(lambda call: {"task": f"mail.{call.id}", **args})]

    assert [each.failures for each in reports if each.failures] == []
    expected = {"none": ("", ""), "plain": ("plain", "")}
    for pair in pairs:
        entry = new.get(pair)
        assert entry is not None
        its = expected.get(pair.split(" to ")[1], ("keyed", key))
        assert (entry.limit, entry.limit_key) == its, pair
        # What scripts read of it.
        mark = limit_of(Record.unpack(new.store.client.hget("{celery}:entries", pair)).message)
        assert (None if mark is None else mark.lane) == (":".join(its) if its[0] else None), pair


@pytest.mark.parametrize("former", LIMITS)
def test_without_its_arguments_a_message_keeps_its_key_or_stays_as_it_is(
    client: Version, former: str
) -> None:
    old, new, others = client("before"), client("after"), client("after")
    old.app.task(name="shop.limited", shared=False, limit=LIMITS[former])(serve)
    new.app.task(name="mail.limited", shared=False, limit=LIMITS["by tenant"])(serve)
    task = old.app.tasks["shop.limited"]
    task.apply_async(("ada",), countdown=3600, task_id="a", serializer="pickle")
    task.apply_async(("ada",), countdown=3600, task_id="b")

    report = new.rename("shop.limited", "mail.limited")
    # An app that does not know the task cannot know its limit.
    assert others.rename("mail.limited", "mail.unknown").failures == []

    keyed = ("keyed", "ada")
    entries = {each.id: each for each in new.entries()}
    assert (entries["b"].task, entries["b"].limit, entries["b"].limit_key) == (
        "mail.unknown",
        *keyed,
    )
    if LIMITS[former] is not None and LIMITS[former].name == "keyed":
        assert (report.done, report.failed) == (2, 0)
        assert (entries["a"].limit, entries["a"].limit_key) == keyed
    else:
        [failure] = report.failures
        assert "the key of its limit cannot be computed" in failure.problem
        assert entries["a"].task == "shop.limited"
