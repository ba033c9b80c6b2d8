"""Every change that `DelayQ` offers, with the reply of each of its calls lost after Redis made it.

What is returned, what is in Redis and what the result backend was told is then as if nothing had
been lost: nothing is done, told or counted twice, and nothing is forgotten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery, chord, signals

from celery_delayq import DelayQ, Limit
from celery_delayq.limits.client import TaskLimits
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter, ScheduledTask
from celery_delayq.periodic.client import PeriodicTasks
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.importers import FoundEntry, take_over
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import Through
from tests.support.dead_letters import fill
from tests.support.keyspace import snapshot
from tests.support.proxy import Fault
from tests.support.runs import finished

ETA = datetime(2100, 1, 1, tzinfo=timezone.utc)
PAST = datetime(2020, 1, 1, tzinfo=timezone.utc)

#: How the id of a run of a periodic entry ends, and the name of a second message with one id.
RUN = re.compile(rb":[0-9a-f]{16}$")
SECOND = re.compile(rb"\0[0-9a-f]{16}$")

#: What a connection says of itself, and its events for others: lost, it changes nothing.
APART = {"AUTH", "CLIENT", "HELLO", "INFO", "PING", "SELECT", "PUBLISH", "SMEMBERS"}


class Stage(NamedTuple):
    """What an operation works on."""

    app: Celery
    redis: RedisUnderTest
    folder: Path

    @property
    def delayq(self) -> DelayQ:
        return DelayQ.of(self.app)


class Operation(NamedTuple):
    """How a change is prepared, and how it is made."""

    prepare: Callable[[Stage], object]
    make: Callable[[DelayQ, Stage], Any]


def schedule(stage: Stage) -> None:
    """Six tasks in two queues, three of which a chord waits for."""
    add = stage.app.tasks["tasks.add"]
    for n in range(3):
        queue = "other" if n == 2 else "celery"
        add.apply_async((n, n), eta=ETA + timedelta(days=n), task_id=f"id-{n}", queue=queue)
    header = [add.s(n, n).set(eta=ETA, task_id=f"member-{n}") for n in range(3)]
    body = chord(header, app=stage.app)(add.s(1).set(task_id="body"))
    (stage.folder / "group").write_text(body.parent.id)


def same_id(stage: Stage) -> None:
    """So many tasks with one id that a call does not look at all of them."""
    with stage.app.pool.acquire() as connection, connection.Producer() as producer:
        for n in range(205):
            eta = ETA + timedelta(days=n)
            stage.app.tasks["tasks.add"].apply_async(
                (n, n), eta=eta, task_id="same", producer=producer
            )


def group_of(stage: Stage) -> str:
    return (stage.folder / "group").read_text()


def dead_letters(stage: Stage) -> None:
    for queue in ("celery", "other"):
        fill(stage.delayq, 3, queue=queue)


def exported(stage: Stage) -> None:
    schedule(stage)
    stage.delayq.export_to(stage.folder / "schedule.jsonl")
    stage.redis.client.flushall()


def exported_dead(stage: Stage) -> None:
    dead_letters(stage)
    stage.delayq.export_dead(stage.folder / "dead.jsonl")
    stage.redis.client.flushall()


def pausing(**what: str) -> Callable[[Stage], object]:
    def prepare(stage: Stage) -> None:
        schedule(stage)
        stage.delayq.pause(**what)

    return prepare


def entry(stage: Stage) -> None:
    stage.delayq.periodic.add("hourly", 3600, "tasks.add", (1, 2), start=ETA)


def paused_entry(stage: Stage) -> None:
    entry(stage)
    stage.delayq.periodic.pause("hourly")


def limited(stage: Stage) -> None:
    """Two held tasks of a limit, which people have set."""
    task, limit = stage.app.tasks["tasks.add"], Limit("api", rate="1/d", fair=True)
    stage.delayq.store.task_limits.announce({"api": limit.definition.text})
    stage.delayq.store.register("celery")
    task.limit = limit
    for n in range(2):
        task.apply_async((n, n), eta=PAST, task_id=f"held-{n}")
    task.limit = None
    stage.delayq.limits.set("api", rate="2/d")


def nothing(_: Stage) -> None:
    pass


def taken_over(delayq: DelayQ, _: Stage) -> list[str]:
    definition = Definition.from_fields(
        3600, zone=timezone.utc, name="found", task="tasks.add", start=ETA
    )
    found = FoundEntry(name="found", definition=definition)
    return [result for _, result in take_over(delayq.session, [found])]


def archived(delayq: DelayQ, stage: Stage) -> tuple[int, ...]:
    report = delayq.archive_dead(f"sqlite:///{stage.folder}/archive.db")
    return report.looked, report.dead_letters, report.new, report.moved, report.gone


ADDS = Filter(task="tasks.add")

#: By the method's name, and what is special about the call.
OPERATIONS: dict[str, Operation] = {
    "cancel": Operation(schedule, lambda q, _: q.cancel("member-1")),
    "cancel, one id of many": Operation(same_id, lambda q, _: q.cancel("same")),
    "reschedule, one id of many": Operation(same_id, lambda q, _: q.reschedule("same", eta=ETA)),
    "run_now, one id of many": Operation(same_id, lambda q, _: q.run_now("same")),
    "cancel_ids": Operation(
        schedule, lambda q, _: q.cancel_ids(["id-0", "member-0", "id-2", "none"])
    ),
    "cancel_all": Operation(schedule, lambda q, _: q.cancel_all(ADDS)),
    "cancel_all, one queue": Operation(schedule, lambda q, _: q.cancel_all(Filter("celery"))),
    "cancel_canvas": Operation(schedule, lambda q, s: q.cancel_canvas(group_id=group_of(s))),
    "reschedule": Operation(
        schedule, lambda q, _: q.reschedule("id-0", eta=ETA + timedelta(hours=1))
    ),
    "reschedule, by": Operation(schedule, lambda q, _: q.reschedule("id-2", by=60)),
    "reschedule_all": Operation(
        schedule, lambda q, _: q.reschedule_all(ADDS, eta=ETA + timedelta(hours=1))
    ),
    "reschedule_all, by": Operation(schedule, lambda q, _: q.reschedule_all(ADDS, by=-60)),
    "update": Operation(schedule, lambda q, _: q.update("id-0", args=[4, 5], priority=3)),
    "update, one id of many": Operation(same_id, lambda q, _: q.update("same", headers={"a": 1})),
    "rename": Operation(schedule, lambda q, _: q.rename("tasks.add", "tasks.new").outcomes),
    "rename, dead letters": Operation(
        dead_letters, lambda q, _: q.rename("shop.mail", "shop.post").outcomes
    ),
    "rename, periodic": Operation(entry, lambda q, _: q.rename("tasks.add", "tasks.b").outcomes),
    "rewrite": Operation(
        schedule, lambda q, _: q.rewrite(lambda _: {"args": [7, 7]}, task="tasks.add").outcomes
    ),
    "run_now": Operation(schedule, lambda q, _: q.run_now("id-2")),
    "run_all_now": Operation(schedule, lambda q, _: q.run_all_now(ADDS)),
    "pause, queue": Operation(schedule, lambda q, _: q.pause(queue="celery")),
    "pause, task": Operation(schedule, lambda q, _: q.pause(task="tasks.add")),
    "resume, queue": Operation(pausing(queue="celery"), lambda q, _: q.resume(queue="celery")),
    "resume, task": Operation(pausing(task="tasks.add"), lambda q, _: q.resume(task="tasks.add")),
    "replay": Operation(dead_letters, lambda q, _: q.replay("other-000001")),
    "replay_all": Operation(dead_letters, lambda q, _: q.replay_all(DeadFilter(), everything=True)),
    "replay_all, arguments": Operation(
        dead_letters, lambda q, _: q.replay_all(DeadFilter(), args=["new"], everything=True)
    ),
    "replay_all, by task": Operation(
        dead_letters, lambda q, _: q.replay_all(DeadFilter(task="shop.mail"))
    ),
    "purge": Operation(dead_letters, lambda q, _: q.purge("celery-000001")),
    "purge_all": Operation(dead_letters, lambda q, _: q.purge_all(DeadFilter(), everything=True)),
    "export_to": Operation(schedule, lambda q, s: q.export_to(s.folder / "new.jsonl").entries),
    "export_dead": Operation(
        dead_letters, lambda q, s: q.export_dead(s.folder / "new.jsonl").dead_letters
    ),
    "import_from": Operation(
        exported, lambda q, s: q.import_from(s.folder / "schedule.jsonl").outcomes
    ),
    "import_from, dry": Operation(
        exported, lambda q, s: q.import_from(s.folder / "schedule.jsonl", dry_run=True).outcomes
    ),
    "import_from, overdue": Operation(
        exported,
        lambda q, s: q.import_from(s.folder / "schedule.jsonl", overdue="skip").outcomes,
    ),
    "import_dead": Operation(
        exported_dead, lambda q, s: q.import_dead(s.folder / "dead.jsonl").outcomes
    ),
    "archive_dead": Operation(dead_letters, archived),
    "periodic.add": Operation(
        nothing, lambda q, _: q.periodic.add("hourly", 3600, "tasks.add", (1, 2), start=ETA).status
    ),
    "periodic.update": Operation(entry, lambda q, _: q.periodic.update("hourly", schedule=60).name),
    "periodic.remove": Operation(entry, lambda q, _: q.periodic.remove("hourly")),
    "periodic.pause": Operation(entry, lambda q, _: q.periodic.pause("hourly").name),
    "periodic.resume": Operation(paused_entry, lambda q, _: q.periodic.resume("hourly").status),
    "periodic.run_now": Operation(entry, lambda q, _: q.periodic.run_now("hourly") is not None),
    "periodic import": Operation(nothing, taken_over),
    "limits.set": Operation(limited, lambda q, _: q.limits.set("api", concurrency=3).as_dict()),
    "limits.set, off": Operation(limited, lambda q, _: q.limits.set("api", off=True).as_dict()),
    "limits.unset": Operation(limited, lambda q, _: q.limits.unset("api")),
    "limits.unset, code": Operation(limited, lambda q, _: q.limits.unset("api", code=True)),
}


def waiting(stage: Stage) -> None:
    """Scheduled, ready and dead tasks, a finished run, and periodic entries."""
    schedule(stage)
    dead_letters(stage)
    entry(stage)
    for n in range(3):
        stage.app.send_task("tasks.add", (n, n), task_id=f"ready-{n}")
    stage.delayq.pause(task="tasks.add")
    stage.delayq.store.history.add("me", 1, 100, [finished("run", 1)])


def held(delayq: DelayQ, id: str) -> ScheduledTask:
    """Return a held task."""
    task = delayq.get(id)
    assert task is not None
    return task


def names_of(found: Iterable[Any]) -> list[str]:
    """Return the ids of what was read, or the names of periodic entries."""
    return [getattr(each, "name", None) or each.id for each in found]


#: Public methods that only read; a lost reply changes nothing of what they return.
READERS: dict[str, Operation] = {
    "get": Operation(waiting, lambda q, _: names_of([q.get("id-0")])),
    "find": Operation(waiting, lambda q, _: names_of(q.find("id-0"))),
    "list": Operation(waiting, lambda q, _: names_of(q.list())),
    "entries": Operation(waiting, lambda q, _: names_of(q.entries(page=2))),
    "count": Operation(waiting, lambda q, _: q.count(ADDS)),
    "paused": Operation(waiting, lambda q, _: [*q.paused().tasks]),
    "stats": Operation(waiting, lambda q, _: (q.stats().scheduled, q.stats().dead)),
    "dead_letter": Operation(waiting, lambda q, _: names_of([q.dead_letter("celery-000001")])),
    "dead_letters": Operation(waiting, lambda q, _: sorted(names_of(q.dead_letters()))),
    "list_dead": Operation(waiting, lambda q, _: sorted(names_of(q.list_dead()))),
    "count_dead": Operation(waiting, lambda q, _: q.count_dead()),
    "history": Operation(waiting, lambda q, _: names_of(q.history())),
    "why": Operation(waiting, lambda q, _: names_of([q.why("id-0"), q.why("ready-0")])),
    "compat": Operation(waiting, lambda q, _: [q.compat().looked, q.compat().fails]),
    "periodic.get": Operation(waiting, lambda q, _: names_of([q.periodic.get("hourly")])),
    "periodic.list": Operation(waiting, lambda q, _: names_of(q.periodic.list())),
    "periodic.iterate": Operation(waiting, lambda q, _: names_of(q.periodic.iterate())),
    "periodic.unreadable": Operation(waiting, lambda q, _: names_of(q.periodic.unreadable())),
    "periodic.next": Operation(waiting, lambda q, _: q.periodic.next("hourly")),
    "limits.get": Operation(limited, lambda q, _: q.limits.get("api").as_dict()),
    "limits.list": Operation(limited, lambda q, _: [each.as_dict() for each in q.limits.list()]),
    "limits.lanes": Operation(limited, lambda q, _: [each.held for each in q.limits.lanes("api")]),
    "limits.ahead": Operation(limited, lambda q, _: q.limits.ahead(held(q, "held-1"))),
}

#: Public methods without calls to Redis, and `schedule_many`, which says that it tells of
#: duplicates when the reply to a first attempt was lost (`test_schedule_many.py`).
OTHERS = {
    *("schedule_many", "close", "init_app", "of", "context", "add_context_provider"),
    "current_context",
}


def public(kind: type, prefix: str = "") -> set[str]:
    return {
        prefix + name
        for name in dir(kind)
        if not name.startswith("_") and callable(getattr(kind, name))
    }


def test_every_change_is_here() -> None:
    here = {name.partition(",")[0] for name in OPERATIONS} - {"periodic import"}

    every = public(DelayQ)
    every |= public(PeriodicTasks, "periodic.") | public(TaskLimits, "limits.")
    assert here | {*READERS} | OTHERS == every | {"dead_letters"}
    assert not here & OTHERS


# -- what there is afterwards


class Seen(NamedTuple):
    """What an operation has returned and left behind; *revoked* was told by signal."""

    returned: Any
    redis: dict[str, Any]
    revoked: list[str]


def told_of(value: bytes) -> Any:
    """Return what the result backend keeps of a task, without when."""
    found = json.loads(value)
    return found["status"], found["result"]


def left_in(stage: Stage) -> dict[str, Any]:
    """Return the whole of Redis but for message ids and times at which something was done."""
    path = stage.folder / "group"
    group = path.read_bytes() if path.exists() else b"no group"

    def named(text: bytes) -> bytes:
        return SECOND.sub(b"\0SECOND", RUN.sub(b":RUN", text.replace(group, b"GROUP")))

    seen: dict[str, Any] = {}
    for key, value in snapshot(stage.redis.client).items():
        name = named(key.encode()).decode()
        if key.startswith("celery-task-meta-"):
            seen[name] = told_of(value)
        elif key.endswith((":due", ":tasks", ":paused_due")):
            seen[name] = sorted((named(member), score) for member, score in value.items())
        elif isinstance(value, list):
            ids = [json.loads(each)["headers"]["id"] if each else "" for each in value]
            seen[name] = [named(id.encode()) for id in ids]
        # The names of others are times.
        elif not (key.startswith("_kombu.") or key.endswith((":readers", ":history"))):
            seen[name] = sorted(map(named, value)) if isinstance(value, (dict, set)) else None
    return seen


@contextmanager
def revoked_ids() -> Iterator[list[str]]:
    ids: list[str] = []

    def note(request: Any, **_: Any) -> None:
        ids.append(request.id)

    signals.task_revoked.connect(note)
    try:
        yield ids
    finally:
        signals.task_revoked.disconnect(note)


#: Those that run in each tier: one of each way in which a repeat may go wrong.
SHORT = {
    *("cancel", "cancel_all", "cancel_ids", "reschedule, by", "pause, task"),
    *("import_from", "import_dead", "purge_all", "compat", "periodic.list", "limits.unset"),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.full)
        for name in (*OPERATIONS, *READERS)
    ],
)
def test_a_lost_reply_changes_nothing_of_what_is_done_and_told(
    name: str, app: Celery, through: Through, delayq_redis: RedisUnderTest, tmp_path: Path
) -> None:
    operation = {**OPERATIONS, **READERS}[name]
    proxy, delayq = through()

    def run(which: str, *lost: Any) -> Seen:
        delayq_redis.client.flushall()
        folder = tmp_path / which.replace("/", "-")
        folder.mkdir()
        operation.prepare(Stage(app, delayq_redis, folder))
        delayq.count()
        proxy.traffic.clear()
        rules = [proxy.on(what, Fault.DROP_REPLY, nth=nth) for what, nth in lost]
        stage = Stage(delayq.app, delayq_redis, folder)
        with revoked_ids() as ids:
            returned = operation.make(delayq, stage)
        assert all(rule.fired.is_set() for rule in rules)
        proxy.forget_rules()
        return Seen(returned, left_in(stage), sorted(ids))

    run("first")  # so that Redis knows the scripts
    expected = run("undisturbed")
    calls = [
        (what, nth)
        for what, times in sorted(proxy.traffic.items())
        if what not in APART
        for nth in range(1, times + 1)
    ]
    assert calls
    for what, nth in calls:
        seen = run(f"{what} {nth}", (what, nth))
        assert seen == expected, f"the reply to {what}, call {nth}, was lost"
