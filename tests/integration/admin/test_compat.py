"""``delayq.compat()``: every message that waits, wherever it waits, against the code of an app."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random
from typing import Any

import pytest
from celery import Celery, chain
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.admin import accounts
from celery_delayq.admin import compat as module
from celery_delayq.admin.compat import MAX_EXAMPLES, CompatReport, CompatRow
from celery_delayq.errors import ConfigError, InvalidFilter, TransferError
from celery_delayq.model.compat.binding import Verdict
from celery_delayq.model.compat.calls import Part
from celery_delayq.periodic.code_version import would_be_active
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp
from tests.integration.periodic.versions import VERSIONS, deploy, keep, silent
from tests.support.dead_letters import message, stored

#: Where ``waiting`` has one message of the task ``shop.old``, and one that binds.
EVERYWHERE = {"scheduled": 4, "ready": 2, "dead": 2, "periodic": 2}


def one(x: Any) -> None:
    """Stand for a task with one argument."""


def hides_signature(function: Any) -> Any:
    """Decorate a function, and lose its signature."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.fixture
def waiting(app: Celery, delayq: DelayQ) -> None:
    """A message of a task that is gone, and one that binds, in every state."""
    limit = Limit("slow", rate="1/h", key="{0}", fair=True)
    delayq.store.task_limits.announce({"slow": limit.definition.text})
    delayq.store.register("celery")
    tasks = [app.task(name=name, shared=False)(one) for name in ("shop.held", "shop.old")]
    for task, id in zip(tasks, ("fine", "old"), strict=True):
        task.limit = limit
        task.apply_async((1,), task_id=f"held-{id}")
    app.tasks.pop("shop.old")
    for name, id in (("tasks.add", "fine"), ("shop.old", "old")):
        app.send_task(name, (1, 2), task_id=f"far-{id}", countdown=3600)
        app.send_task(name, (1, 2), task_id=f"ready-{id}", queue="mail", priority=9)
        dead = stored(1000, "it failed", message(f"dead-{id}", name))
        delayq.store.dead_letters.restore("celery", [(f"dead-{id}", 1000, dead)])
        delayq.periodic.add(f"each-{id}", 3600.0, name, ("a", "b"))


def row_of(report: CompatReport, task: str) -> CompatRow:
    (found,) = (row for row in report.rows if row.problem.task == task)
    return found


def test_every_state_is_looked_at(delayq: DelayQ, waiting: None) -> None:
    report = delayq.compat()

    assert report.looked == EVERYWHERE
    assert (report.binds, report.fails, report.unknown) == (5, 5, 0)
    row = row_of(report, "shop.old")
    assert row.problem.verdict is Verdict.NOT_REGISTERED
    assert row.places == {"scheduled": 2, "ready": 1, "dead": 1, "periodic": 1}
    assert {*row.ids} == {"held-old", "far-old", "ready-old", "dead-old", "each-old"}
    far, each = delayq.get("far-old"), delayq.periodic.get("each-old")
    assert far is not None
    assert each is not None
    assert each.next is not None
    shown = row.as_dict()
    assert shown["last_due"] == max(far.due, each.next).isoformat(timespec="milliseconds")


def test_only_some_queues_are_looked_at(delayq: DelayQ, waiting: None) -> None:
    report, both = delayq.compat(queue="mail"), delayq.compat(queue=["mail", "celery"])

    assert (report.looked, report.fails) == ({"ready": 2}, 1)
    assert (both.looked, both.fails) == (EVERYWHERE, 5)
    for wrong in ("", 7, [""], [7]):
        with pytest.raises((InvalidFilter, TypeError)):
            delayq.compat(queue=wrong)  # type: ignore[arg-type]


def test_an_account_that_only_reads_may_check(
    app: Celery, delayq: DelayQ, make_app: MakeApp, redis: Redis, delayq_redis: RedisUnderTest
) -> None:
    delayq.store.register("celery")
    for number in range(250):
        app.send_task("tasks.add", (number,), task_id=f"far-{number}", countdown=3600)
    app.send_task("tasks.add", (1,))
    dead = stored(1000, "it failed", message("dead", "tasks.add", 5))
    delayq.store.dead_letters.restore("celery", [("dead", 1000, dead)])
    delayq.periodic.add("each", 3600.0, "tasks.add", (1, 2))
    rules = accounts.rules("exporter", ["celery"])
    redis.execute_command("ACL", "SETUSER", "reader", "on", ">secret", *rules)
    before = {name: redis.dump(name) for name in redis.scan_iter()}
    try:
        url = f"delayq+redis://reader:secret@127.0.0.1:{delayq_redis.port}/0"
        report = DelayQ.of(make_app(broker=url)).compat()
        refused = {entry["object"] for entry in redis.acl_log()}
    finally:
        redis.acl_deluser("reader")

    assert {**report.looked} == {"scheduled": 250, "ready": 1, "dead": 1, "periodic": 1}
    assert report.fails == 251
    assert {name: redis.dump(name) for name in redis.scan_iter()} == before
    refused -= {"client", "client|setinfo"}  # Redis 6 tells no subcommand
    assert refused <= {"zadd", "pexpire", "zrem", "unlink", "config|get"}


def test_pages_follow_each_other(app: Celery, delayq: DelayQ) -> None:
    queues = ["celery", "mail"]
    for number in range(1300):
        app.send_task(
            "tasks.add", (number,), queue=queues[number % 2], countdown=60 if number % 3 else None
        )
    seen: list[int] = []

    report = delayq.compat(progress=lambda report: seen.append(report.number))

    assert (report.number, report.fails, seen) == (1300, 1300, [500, 1000])
    assert [len(row.ids) for row in report.rows] == [MAX_EXAMPLES]


def test_rows_are_bounded(app: Celery, delayq: DelayQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    for number in range(10):
        app.send_task(f"shop.gone-{number}", countdown=60)

    report = delayq.compat()

    assert sorted(row.count for row in report.rows) == [1, 1, 1, 7]
    assert row_of(report, "…").problem.verdict is Verdict.NOT_REGISTERED


def test_what_a_message_embeds_is_looked_at(app: Celery, delayq: DelayQ) -> None:
    add = app.tasks["tasks.add"]
    app.strict_typing = add.typing = False
    chain(add.s(1, 2), add.s(), app.signature("shop.gone")).apply_async(countdown=60)

    report = delayq.compat()

    assert (report.number, report.fails) == (1, 1)
    assert {(row.problem.task, row.problem.part) for row in report.rows} == {
        ("tasks.add", Part.CHAIN),
        ("shop.gone", Part.CHAIN),
    }


def test_a_message_counts_at_its_worst(app: Celery, delayq: DelayQ) -> None:
    hidden = app.task(name="shop.hidden", shared=False)(hides_signature(one))
    hidden.apply_async((1,), countdown=60)
    hidden.apply_async((1,), link=app.signature("shop.gone"), countdown=60)

    report = delayq.compat()

    assert (report.binds, report.fails, report.unknown) == (0, 1, 1)
    assert [(row.count, row.problem.verdict.level) for row in report.rows] == [
        (1, "fails"),
        (2, "unknown"),
    ]


def test_entries_that_nobody_can_read_fail(delayq: DelayQ, redis: Redis, app: Celery) -> None:
    app.send_task("tasks.add", (1, 2), task_id="far", countdown=60)
    keys = delayq.store.keys.queue("celery")
    (name,) = redis.zrange(keys.due, 0, -1)
    redis.hset(keys.entries, name, b"9 no record")
    redis.lpush("celery", b"no message")
    redis.hset(delayq.store.keys.periodic, "each", "no record")

    report = delayq.compat()

    assert (report.looked, report.fails) == ({"scheduled": 1, "ready": 1, "periodic": 1}, 3)
    assert {row.problem.verdict for row in report.rows} == {Verdict.UNREADABLE}


def test_an_export_is_looked_at_in_place_of_the_broker(
    app: Celery, delayq: DelayQ, make_app: MakeApp, tmp_path: Path
) -> None:
    for number in range(3):
        app.send_task("tasks.add", (1,), queue=f"q{number}", task_id=f"far-{number}", countdown=60)
    path = str(tmp_path / "schedule.jsonl.gz")
    delayq.export_to(path)
    without_broker = DelayQ.of(make_app(broker="delayq+redis://127.0.0.1:1/0"))

    report = without_broker.compat(path)
    one = without_broker.compat(path, queue="q1")

    assert (report.looked, report.fails, report.total) == ({"scheduled": 3}, 3, 3)
    assert (one.rows[0].ids, one.number) == (["far-1"], 1)


def test_an_export_of_dead_letters_is_looked_at_too(
    delayq: DelayQ, waiting: None, make_app: MakeApp, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/test.db"
    delayq.export_to(str(tmp_path / "both.jsonl"))
    delayq.export_dead(str(tmp_path / "dead.jsonl"))
    with (tmp_path / "both.jsonl").open("ab") as file:
        file.write((tmp_path / "dead.jsonl").read_bytes())
    dead, both = {"dead": 2}, {"scheduled": 4, "dead": 2}
    without_broker = DelayQ.of(make_app(broker="delayq+redis://127.0.0.1:1/0"))

    with pytest.raises(TransferError, match="no such file"):
        without_broker.compat(database)
    delayq.export_dead(database)
    for place, looked in (("dead.jsonl", dead), ("both.jsonl", both)):
        report = without_broker.compat(str(tmp_path / place))
        assert (report.looked, report.refused) == (looked, 0)
        assert row_of(report, "shop.old").count == report.number / 2
    assert without_broker.compat(database).looked == dead
    delayq.export_to(database)
    report = without_broker.compat(database, queue="celery")
    assert (report.looked, report.total) == (both, 6)
    assert without_broker.compat(database, queue="mail").looked == {}


def test_lines_that_cannot_be_read_are_counted(delayq: DelayQ) -> None:
    cut_off = b'{"format": "celery_delayq.schedule", "version": 1}\n{"queue": "q"}\n'
    later = b'{"format": "celery_delayq.schedule", "version": 99}\n'

    report = delayq.compat(io.BytesIO(cut_off))

    assert [line for line, _ in report.refusals] == [2, 3]
    with pytest.raises(TransferError, match="version 99"):
        delayq.compat(io.BytesIO(later))
    with pytest.raises(TransferError):
        delayq.compat("/nowhere/schedule.jsonl")


#: Entries in the old code, and in the new code; in Redis, and whether the check of the new code has
#: a problem with them.
CODE_ENTRIES: dict[str, tuple[Any, Any, bool]] = {
    "removed": ("shop.old", None, False),
    "renamed": ("shop.old", "tasks.add", False),
    "changed for the worse": ("tasks.add", "shop.gone", True),
    "kept, and gone": ("shop.old", "shop.old", True),
    "kept": ("tasks.add", "tasks.add", False),
    "wrong in code": ("shop.old", "", True),
    "new": (None, "tasks.add", False),
}


def code_of(make_app: MakeApp, version: int) -> Celery:
    app = make_app()
    app.conf.beat_schedule = {
        name: {"task": tasks[version], "schedule": 3600.0, "args": (1, 2)}
        for name, tasks in CODE_ENTRIES.items()
        if tasks[version] is not None
    }
    return app


def test_entries_that_the_code_replaces_are_checked_as_it_has_them(
    delayq: DelayQ, make_app: MakeApp
) -> None:
    old, new = (code_of(make_app, version) for version in (0, 1))
    deploy(old)
    delayq.periodic.add("of a call", 3600.0, "shop.old")

    report = DelayQ.of(new).compat()

    assert report.looked == {"periodic": 7}
    failing = {name for name, (_, _, fails) in CODE_ENTRIES.items() if fails} | {"of a call"}
    assert {id for row in report.rows for id in row.ids} == failing
    assert (report.fails, report.replaced) == (4, 2)
    assert report.as_dict()["replaced"] == 2
    deploy(new)  # the first worker
    after = DelayQ.of(new).compat()
    assert {id for row in after.rows for id in row.ids} == failing
    assert (after.looked, after.replaced) == ({"periodic": 7}, 0)


def test_before_a_rollback_entries_count_as_they_are_while_the_later_code_is_active(
    make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    """The old workers write no entry until the later version is no longer live."""
    old, new = make_app(), make_app()
    for app, task in ((old, "tasks.add"), (new, "shop.new")):
        entry = {"task": task, "schedule": 3600.0, "args": (1, 2)}
        app.conf.beat_schedule = {"each": entry}
    before = deploy(old)
    later = deploy(new)
    check = DelayQ.of(old).compat

    assert (check().fails, check().replaced) == (1, 0)
    keep(before, old)  # an old worker that still runs
    assert (check().fails, check().replaced) == (1, 0)
    silent(delayq_redis, later)
    assert (check().fails, check().replaced) == (0, 1)
    keep(before, old)
    assert (check().fails, check().replaced, check().binds) == (0, 0, 1)


def test_whether_code_would_be_active_is_what_redis_decides(
    delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    store, random = delayq.store.periodic, Random(45)
    active = set()
    for number in range(200):
        source = f"code {number}"
        now = delayq.session.stores.now_ms()
        for version in "abcd"[: random.randint(0, 4)]:
            last = now - random.choice([-9000, 0, 15_000, 39_500, 45_500, 59_500, 90_000, 10**9])
            since = last - random.choice([0, 1000, 100_000])
            delayq_redis.client.hset(VERSIONS, f"{source}\0{version}", f"{since} {last}")

        told = would_be_active("b", store.announced_versions(source), now)

        assert told == (store.announce_version(source, "b", None, 60_000).version == "b")
        active.add(told)
    assert active == {True, False}


def test_a_module_that_cannot_be_imported_is_an_error(delayq: DelayQ, app: Celery) -> None:
    app.conf.imports = ["shop.no_such_module"]

    with pytest.raises(ConfigError, match="shop"):
        delayq.compat()
