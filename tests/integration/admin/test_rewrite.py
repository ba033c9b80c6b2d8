"""``rename`` and ``rewrite`` reach all calls that wait, and change each message once or not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.admin.rewrite import PAGE_ENTRIES, RewriteOutcome, RewriteReport
from celery_delayq.errors import ConfigError, InvalidCursor, InvalidFilter, UniqueConflict
from celery_delayq.model.changes.calls import WaitingCall
from celery_delayq.model.scheduled import Outcome
from tests.apps.renamed_tasks import TASKS, extend
from tests.integration.conftest import MakeApp
from tests.support.dead_letters import details, message, stored

Version = Callable[[str], DelayQ]


@pytest.fixture
def client(make_app: MakeApp) -> Version:
    """Make a client of a version of the code."""

    def make(version: str) -> DelayQ:
        app = make_app(extension=False)
        app.conf.accept_content = ["json", "yaml", "msgpack", "pickle"]
        return extend(app, version)

    return make


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


# -- rewrites


def send_numbers(delayq: DelayQ, number: int, queue: str = "celery") -> None:
    items = [{"args": (n,), "countdown": 1000 + n, "id": f"{queue} {n}"} for n in range(number)]
    delayq.schedule_many(items, task="mail.remind", queue=queue)


def add_more(call: WaitingCall) -> dict[str, Any] | None:
    return None if "more" in call.kwargs else {"kwargs": {**call.kwargs, "more": "b"}}


def kwargs_of(delayq: DelayQ) -> dict[str, Any]:
    return {each.id: each.as_dict()["kwargs"] for each in delayq.entries()}


def test_a_function_gets_each_call_of_its_task(client: Version) -> None:
    after = client("after")
    remind, total = after.app.tasks["mail.remind"], after.app.tasks["mail.total"]
    remind.apply_async(("a",), {"more": 1}, countdown=60, task_id="a", link=remind.s("b"))
    total.apply_async(([],), countdown=120, task_id="t", link=remind.si("c"), queue="mail")
    total.apply_async(([],), countdown=180, task_id="u")
    after.periodic.add("entry", 3600, "mail.remind", ("d",))
    calls: list[WaitingCall] = []

    def note(call: WaitingCall) -> None:
        calls.append(call)

    report = after.rewrite(note, task="mail.remind")

    assert (report.looked, report.outcomes.total()) == (4, 0)
    assert {(each.id, each.part, each.args, each.place) for each in calls} == {
        ("a", "message", ("a",), "scheduled"),
        ("a", "callback", ("b",), "scheduled"),
        ("t", "callback", ("c",), "scheduled"),
        ("entry", "message", ("d",), "periodic"),
    }
    [whole] = [each for each in calls if each.id == "a" and each.part == "message"]
    entry = after.get("a")
    assert entry is not None
    assert (whole.task, whole.kwargs, whole.due) == ("mail.remind", {"more": 1}, entry.due)
    calls.clear()
    after.rewrite(note, queue="mail")
    assert [(each.id, each.task) for each in calls] == [("t", "mail.remind"), ("t", "mail.total")]
    calls.clear()
    after.rewrite(note, due_to=entry.due)
    assert {each.id for each in calls} == {"a"}


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ["new"], "kwargs": {"more": 5}},
        {"args": ("new",)},
        {"kwargs": {"more": [1, {"é": None}]}},
        {"priority": 6},
        {"headers": {"tenant": "a"}, "expires": 600},
        {"task": "mail.total", "args": [[1]], "kwargs": {}},
    ],
)
def test_changes_of_a_message_are_those_of_an_update(
    client: Version, changes: dict[str, Any]
) -> None:
    after = client("after")
    for id in ("a", "b"):
        after.app.tasks["mail.remind"].apply_async(("old",), {"more": 1}, countdown=60, task_id=id)

    report = after.rewrite(lambda call: changes if call.id == "a" else None)
    assert report.outcomes == {Outcome.DONE: 1}
    if "task" in changes:
        assert after.count(task="mail.total") == 1
        return
    after.update("b", **changes)

    found = []
    for id in ("a", "b"):
        entry = after.get(id)
        assert entry is not None
        shown = entry.as_dict()
        found.append(
            {
                **{name: shown[name] for name in ("task", "args", "kwargs", "priority")},
                **{name: entry.headers.get(name) for name in ("argsrepr", "kwargsrepr", "tenant")},
            }
        )
    assert found[0] == found[1]


def test_a_rewrite_moves_unique_keys_and_lanes(client: Version) -> None:
    after = client("after")
    limit = Limit("one", rate=1, key="{tenant}")
    after.app.task(name="limited", shared=False, limit=limit, acks_late=True)(serve)
    after.app.tasks["mail.unique"].apply_async(("old",), countdown=60, task_id="u")
    after.app.tasks["limited"].apply_async(("old",), countdown=60, task_id="l")

    assert after.rewrite(lambda _: {"args": ["new"]}).is_complete

    unique, limited = after.get("u"), after.get("l")
    assert unique is not None
    assert limited is not None
    assert unique.unique_key == "mail.unique:new"
    assert limited.limit_key == "new"


@pytest.mark.parametrize("stop", [False, True])
def test_a_function_that_fails_at_the_500th(client: Version, stop: bool) -> None:
    after = client("after")
    send_numbers(after, PAGE_ENTRIES + 120)
    outcomes: list[RewriteOutcome] = []

    def fails_at_500th(call: WaitingCall) -> dict[str, Any] | None:
        if call.args == (499,):
            raise ValueError("as told")
        return add_more(call)

    dry = after.rewrite(fails_at_500th, dry_run=True)
    assert (dry.done, dry.failed) == (PAGE_ENTRIES + 119, 1)
    report = after.rewrite(fails_at_500th, stop_on_error=stop, on_outcome=outcomes.append)

    [failure] = report.failures
    assert (failure.id, failure.problem) == ("celery 499", "ValueError: as told")
    assert not report.is_complete
    assert report.done == (PAGE_ENTRIES - 1 if stop else PAGE_ENTRIES + 119)
    assert len(outcomes) == report.done + 1
    if stop:
        report = after.rewrite(fails_at_500th, stop_on_error=True, resume=report.cursor)
        assert (report.looked, report.done, report.failed, report.cursor) == (120, 120, 0, None)
    found = kwargs_of(after)
    assert found.pop("celery 499") == {}
    assert set(map(str, found.values())) == {"{'more': 'b'}"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (5, "expected None, or a dict with"),
        ({"arg": [1]}, "expected None, or a dict with"),
        ({"args": "a"}, "expected a list"),
        ({"kwargs": {1: 2}}, "expected arguments by name"),
        ({"task": ""}, "expected the name of a task"),
        ({"args": [1, 2, 3, 4]}, "does not take"),
        ({"args": [object()]}, "cannot encode"),
        ({"priority": "high"}, "expected a whole number"),
    ],
)
def test_an_answer_that_is_no_change_is_a_failure(
    client: Version, answer: Any, problem: str
) -> None:
    after = client("after")
    send_numbers(after, 2)

    report = after.rewrite(lambda call: answer if call.args == (0,) else None)

    assert (report.done, report.failed, report.looked) == (0, 1, 2)
    assert problem in report.failures[0].problem
    assert set(map(str, kwargs_of(after).values())) == {"{}"}


def test_two_rewrites_at_once_are_one(client: Version) -> None:
    clients = [client("after"), client("after")]
    send_numbers(clients[0], 1200)
    barrier = threading.Barrier(2)
    reports: list[RewriteReport] = []

    def rewrite(delayq: DelayQ) -> None:
        barrier.wait()
        reports.append(delayq.rewrite(add_more))

    threads = [threading.Thread(target=rewrite, args=(each,)) for each in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(each.done for each in reports) == 1200
    assert {outcome for each in reports for outcome in each.outcomes} <= {
        Outcome.DONE,
        Outcome.CHANGED,
    }
    assert set(map(str, kwargs_of(clients[0]).values())) == {"{'more': 'b'}"}


def test_what_others_change_meanwhile_is_theirs(client: Version) -> None:
    after, other = client("after"), client("after")
    send_numbers(after, 6)

    def interfering(call: WaitingCall) -> dict[str, Any] | None:
        if call.args == (0,):
            other.cancel(call.id)
        elif call.args == (1,):
            other.run_now(call.id)
        elif call.args == (2,):
            other.update(call.id, args=["theirs"])
        elif call.args == (3,):
            other.reschedule(call.id, countdown=9999)
        return add_more(call)

    outcomes: dict[str, Any] = {}
    report = after.rewrite(
        interfering, on_outcome=lambda each: outcomes.update({each.id: each.outcome})
    )

    assert outcomes == {
        "celery 0": Outcome.UNKNOWN,
        "celery 1": Outcome.READY,
        "celery 2": Outcome.CHANGED,
        "celery 3": Outcome.DONE,
        "celery 4": Outcome.DONE,
        "celery 5": Outcome.DONE,
    }
    assert not report.is_complete
    entry = after.get("celery 2")
    assert entry is not None
    assert entry.as_dict()["args"] == ["theirs"]


class Interrupted(BaseException):
    """What a person does with Ctrl-C."""


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_an_interrupted_rewrite_continues(client: Version, pages: int) -> None:
    after = client("after")
    for queue in ("celery", "mail"):
        send_numbers(after, PAGE_ENTRIES + 10, queue)
    latest: list[RewriteReport] = []
    number = 0

    def progress(report: RewriteReport) -> None:
        nonlocal number
        latest.append(report)
        number += 1
        if number == pages:
            raise Interrupted

    with pytest.raises(Interrupted):
        after.rewrite(add_more, progress=progress)
    cursor, looked = latest[-1].cursor, latest[-1].looked
    with pytest.raises(InvalidCursor, match="resume the same rewrite"):
        after.rewrite(add_more, queue="mail", resume=cursor)

    report = after.rewrite(add_more, resume=cursor)

    assert looked + report.looked == 2 * (PAGE_ENTRIES + 10)
    assert set(map(str, kwargs_of(after).values())) == {"{'more': 'b'}"}


def test_wrong_calls_are_refused(client: Version) -> None:
    after = client("after")
    with pytest.raises(ConfigError, match="expected a function"):
        after.rewrite("module:function")  # type: ignore[arg-type]
    with pytest.raises(InvalidCursor, match="no cursor"):
        after.rewrite(add_more, resume="x")
    with pytest.raises(InvalidFilter, match="task=''"):
        after.rewrite(add_more, task="")
    with pytest.raises(ConfigError, match="two names"):
        after.rename("a", "a")
    with pytest.raises(InvalidFilter, match="name=''"):
        after.rename("a", "")
    with pytest.raises(ConfigError, match="former=None"):
        after.rename(None, "a")  # type: ignore[arg-type]


def test_a_rewrite_reads_what_others_may_not_decode(client: Version, app: Celery) -> None:
    after = client("after")
    after.app.send_task("x", ("a",), serializer="pickle", countdown=60, task_id="p")
    after.store.client.hset("{celery}:entries", "garbage", b"no record")
    after.store.client.zadd("{celery}:due", {"garbage": 10**12})

    report = after.rewrite(add_more)
    assert (report.looked, report.failed) == (2, 1)
    assert "unpickle=True" in report.failures[0].problem
    assert after.rewrite(add_more, unpickle=True).done == 1
    assert after.count(queue="celery") == 2
