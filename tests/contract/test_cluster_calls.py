"""Each public call and each command works on a Redis Cluster, or names the reason why not.

The tables must have the names of all calls.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.aio.limits import AsyncTaskLimits
from celery_delayq.aio.periodic import AsyncPeriodicTasks
from celery_delayq.errors import NotSupported
from celery_delayq.limits.client import TaskLimits
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Filter, Outcome, ScheduledTask
from celery_delayq.periodic.client import PeriodicTasks
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support.cli import CommandLine, leaves
from tests.support.cluster import QUEUES
from tests.support.dead_letters import details, message, stored
from tests.support.runs import finished

pytestmark = pytest.mark.full

#: A queue of each of twelve hash tags.
NAMES = [*QUEUES.values()]
IDS = {f"far-{number}" for number in range(len(NAMES))}
DEAD = {f"dead-{number}" for number in range(len(NAMES))}
ALL = len(NAMES)
LAST = f"-{ALL - 1}"
NOT_ON_A_CLUSTER = "Redis Cluster"


def mail(number: int) -> None:
    """Stand for any task."""


@pytest.fixture
def app(delayq_cluster: str, delayq_redis: RedisUnderTest, tmp_path: Path) -> Iterator[Celery]:
    """An app with an entry, a dead letter, a run and a periodic entry in each hash tag."""
    app = Celery("shop", broker=delayq_cluster, backend=delayq_redis.url, set_as_current=False)
    app.task(name="shop.mail", shared=False)(mail)
    app.conf.task_ignore_result = True
    delayq = DelayQ(app)
    now = delayq.session.now_ms()
    with app.producer_pool.acquire() as producer:
        for number, queue in enumerate(NAMES):
            options = {"queue": queue, "producer": producer, "countdown": 3600 + number}
            app.send_task("shop.mail", (number,), task_id=f"far-{number}", **options)
            store, id = delayq.session.stores.of(queue), f"dead-{number}"
            dead_letter = stored(now - 60_000, "it failed", message(id), details())
            store.dead_letters.restore(queue, [(id, now - 60_000, dead_letter)])
            store.history.add("me", 1, 100, [finished(f"run-{number}", now, queue=queue)])
            store.task_limits.announce({"one": "0 1 1 0"})
            delayq.periodic.add(f"each-{number}", 3600.0, "shop.mail", (1,), queue=queue)
    delayq.export_to(str(tmp_path / "entries.jsonl"))
    delayq.export_dead(str(tmp_path / "dead.jsonl"))
    entries = [json.dumps(each.as_dict()) for each in delayq.periodic.list()]
    (tmp_path / "periodic.jsonl").write_text("\n".join(entries))
    yield app
    delayq.close()
    app.close()


class Case(NamedTuple):
    """Arguments of a call and a check of its result; ``@`` in the arguments is a folder."""

    check: Callable[[Any], Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    def given(self, folder: Path) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments with paths in the folder."""
        args = [
            each.replace("@", f"{folder}/") if isinstance(each, str) else each for each in self.args
        ]
        return args, dict(self.kwargs)


def ids(found: Any) -> set[str]:
    return {each.id for each in found}


def is_done(outcome: Any) -> bool:
    return outcome is Outcome.DONE


def all_done(bulk: Any) -> bool:
    return bool(bulk.done == ALL)


EVERYTHING = {"everything": True}
ITEMS = [{"id": f"new-{queue}", "args": (1,), "queue": queue, "countdown": 60} for queue in NAMES]

CALLS: dict[str, Case] = {
    "archive_dead": Case(lambda told: told.moved == ALL, ("sqlite:///@dead.db",)),
    "cancel": Case(is_done, (f"far{LAST}",)),
    "cancel_all": Case(all_done, (Filter(),), EVERYTHING),
    "cancel_canvas": Case(lambda bulk: bulk.done == 1, (), {"root_id": f"far{LAST}"}),
    "cancel_ids": Case(lambda found: all(map(is_done, found)), (sorted(IDS),)),
    "compat": Case(lambda report: (report.binds, report.fails) == (2 * ALL, ALL)),
    "count": Case(lambda number: number == ALL),
    "count_dead": Case(lambda number: number == ALL),
    "dead_letter": Case(lambda found: found.queue == NAMES[-1], (f"dead{LAST}",)),
    "dead_letters": Case(lambda found: ids(found) == DEAD),
    "entries": Case(lambda found: ids(found) == IDS),
    "export_dead": Case(lambda told: told.dead_letters == ALL, ("@x.jsonl",)),
    "export_to": Case(lambda told: told.entries == ALL, ("@x.jsonl",)),
    "find": Case(lambda found: ids(found) == {f"far{LAST}"}, (f"far{LAST}",)),
    "get": Case(lambda found: found.queue == NAMES[-1], (f"far{LAST}",)),
    "history": Case(lambda found: len(found) == ALL),
    "import_dead": Case(lambda told: told.outcomes == {"duplicate": ALL}, ("@dead.jsonl",)),
    "import_from": Case(lambda told: told.outcomes == {"duplicate": ALL}, ("@entries.jsonl",)),
    "list": Case(lambda found: ids(found) == IDS),
    "list_dead": Case(lambda found: ids(found) == DEAD),
    "pause": Case(bool, (), {"queue": NAMES[3]}),
    "paused": Case(lambda found: not found.queues),
    "purge": Case(is_done, (f"dead{LAST}",)),
    "purge_all": Case(all_done, (DeadFilter(),), EVERYTHING),
    "replay": Case(is_done, (f"dead{LAST}",)),
    "replay_all": Case(all_done, (DeadFilter(),), EVERYTHING),
    "reschedule": Case(is_done, (f"far{LAST}",), {"countdown": 60}),
    "reschedule_all": Case(all_done, (Filter(),), {**EVERYTHING, "by": timedelta(hours=1)}),
    "resume": Case(lambda done: not done, (), {"queue": NAMES[3]}),
    "run_all_now": Case(all_done, (Filter(),), EVERYTHING),
    "run_now": Case(is_done, (f"far{LAST}",)),
    "schedule_many": Case(
        lambda told: told.counts == {"scheduled": ALL}, (ITEMS,), {"task": "shop.mail"}
    ),
    "rename": Case(lambda report: report.done == 3 * ALL, ("shop.mail", "shop.post")),
    "rewrite": Case(
        lambda report: report.done == 3 * ALL, (lambda _: {"args": [100]},), {"task": "shop.mail"}
    ),
    "update": Case(is_done, (f"far{LAST}",), {"args": [2], "priority": 3}),
    "why": Case(lambda found: found.queue == NAMES[-1], (f"far{LAST}",)),
    "stats": Case(lambda told: (told.scheduled, told.dead) == (ALL, ALL)),
}

PERIODIC: dict[str, Case] = {
    "add": Case(lambda entry: entry.next, ("new", 60.0, "shop.mail", (1,)), {"queue": NAMES[2]}),
    "get": Case(lambda entry: entry.name == f"each{LAST}", (f"each{LAST}",)),
    "iterate": Case(lambda found: len(found) == ALL),
    "list": Case(lambda found: len(found) == ALL),
    "next": Case(lambda times: len(times) == 2, (f"each{LAST}", 2)),
    "pause": Case(lambda entry: entry.status == "paused", (f"each{LAST}",)),
    "remove": Case(bool, (f"each{LAST}",)),
    "resume": Case(lambda entry: entry.status == "on", (f"each{LAST}",)),
    "run_now": Case(bool, (f"each{LAST}",)),
    "unreadable": Case(lambda found: found == []),
    "update": Case(lambda entry: entry.next, (f"each{LAST}",), {"schedule": 120.0}),
}

#: Is not held.
FAR = ScheduledTask("far-0", "shop.mail", NAMES[0], "scheduled", datetime.now(timezone.utc))

LIMITS: dict[str, Case] = {
    "ahead": Case(lambda number: number is None, (FAR,)),
    "get": Case(lambda limit: limit.definition.concurrency == 1, ("one",)),
    "lanes": Case(lambda found: found == [], ("one",)),
    "list": Case(lambda found: [each.name for each in found] == ["one"]),
    "set": Case(lambda limit: limit.definition.concurrency == 2, ("one",), {"concurrency": 2}),
    "unset": Case(lambda done: not done, ("one",)),
}

#: Names that need no broker, and objects whose calls have rows of their own.
QUIET = {
    *("add_context_provider", "admin", "app", "close", "context", "current_context", "init_app"),
    *(
        "of",
        "limits",
        "periodic",
        "revocation",
        "runs",
        "schedule",
        "transfer",
        "connect",
        "updates",
    ),
}
#: Calls that have a test of their own below.
OWN = {"apply_async", "has_store", "result", "store"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_tables_are_complete() -> None:
    assert public(DelayQ) | public(AsyncDelayQ) == {*CALLS} | QUIET | OWN
    assert public(PeriodicTasks) | public(AsyncPeriodicTasks) == {*PERIODIC}
    # `get` of the command line calls `ahead`.
    assert public(TaskLimits) | public(AsyncTaskLimits) == {*LIMITS, "ahead"}


TABLES = {"": CALLS, "periodic": PERIODIC, "limits": LIMITS}


@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, table in TABLES.items() for name in table]
)
def test_a_call(app: Celery, tmp_path: Path, part: str, name: str) -> None:
    delayq = DelayQ.of(app)
    case, target = TABLES[part][name], getattr(delayq, part) if part else delayq
    args, kwargs = case.given(tmp_path)

    result = getattr(target, name)(*args, **kwargs)

    assert case.check([*result] if isinstance(result, Iterator) else result)


def test_the_store_of_a_single_redis_is_refused(app: Celery) -> None:
    assert DelayQ.of(app).has_store
    with pytest.raises(NotSupported, match=NOT_ON_A_CLUSTER):
        _ = DelayQ.of(app).store


@pytest.mark.parametrize("arg", [None, {"1": ""}])
def test_pages_of_dead_letters_lead_over_all_hash_tags(
    app: Celery, arg: dict[str, str] | None
) -> None:
    delayq, found, cursor = DelayQ.of(app), list[str](), None
    for _ in range(ALL):
        page = delayq.list_dead(limit=1, cursor=cursor, arg=arg)
        found += [each.id for each in page]
        cursor = page.cursor

    assert cursor is None
    assert sorted(found) == sorted(DEAD)


async def _result(called: Any) -> Any:
    if isinstance(called, AsyncIterator):
        return [each async for each in called]
    return await called


def test_calls_of_asyncio_that_change_nothing_and_a_few_that_do(
    app: Celery, tmp_path: Path
) -> None:
    """The calls above on one event loop: asyncio hands them on."""

    async def use() -> None:
        async with AsyncDelayQ(DelayQ.of(app)) as client:
            sent = await client.apply_async("shop.mail", (1,), countdown=60, queue=NAMES[1])
            assert await client.cancel(sent.id) is Outcome.DONE
            reading = [
                *("count", "count_dead", "dead_letter", "dead_letters", "entries", "export_dead"),
                *("export_to", "find", "get", "history", "import_dead", "import_from", "list"),
                *("list_dead", "compat", "why", "pause", "resume", "paused"),
                *("reschedule", "replay", "purge", "cancel_ids"),
                *("schedule_many", "purge_all", "archive_dead", "cancel_all", "cancel_canvas"),
                *(
                    "replay_all",
                    "reschedule_all",
                    "run_all_now",
                    "run_now",
                    "stats",
                    "update",
                    "rename",
                    "rewrite",
                    "cancel",
                ),
            ]
            assert {*reading} == {*CALLS}
            for name in reading[: reading.index("paused") + 1]:
                case = CALLS[name]
                args, kwargs = case.given(tmp_path)
                result = await _result(getattr(client, name)(*args, **kwargs))
                assert name == "resume" or case.check(result), name
            for name in reading[reading.index("paused") + 1 :]:
                args, kwargs = CALLS[name].given(tmp_path)
                await _result(getattr(client, name)(*args, **kwargs))
            for name, case in PERIODIC.items():
                args, kwargs = case.given(tmp_path)
                if name in ("resume", "run_now", "update"):
                    args[0] = "each-0"
                await _result(getattr(client.periodic, name)(*args, **kwargs))
            for name, case in LIMITS.items():
                await _result(getattr(client.limits, name)(*case.args, **case.kwargs))

    asyncio.run(use())


# -- commands

#: Options of a command, its exit code, and its output. Of any other command the first example of
#: its help must work.
COMMANDS: dict[str, tuple[str, int, str]] = {
    "cancel": (f"far{LAST}", 0, "cancelled"),
    "cancel-canvas": (f"--root far{LAST}", 0, "1"),
    "compat": ("", 1, f"{2 * ALL} bind, {ALL} would fail"),
    "count": ("", 0, f"{ALL} entries"),
    "dead archive": ("sqlite:///@dead.db", 0, f"{ALL} dead letters"),
    "dead export": ("@x.jsonl", 0, f"{ALL} dead letters"),
    "dead import": ("@dead.jsonl", 0, f"{ALL}"),
    "dead list": ("", 0, f"{ALL} dead letters."),
    "dead purge": ("--everything --yes", 0, f"{ALL} dead letters purged"),
    "dead replay": ("--everything --yes", 0, f"{ALL} dead letters replayed"),
    "dead show": (f"dead{LAST}", 0, NAMES[-1]),
    "doctor": ("", 1, "checks: "),
    "export": ("@x.jsonl", 0, f"{ALL} entries"),
    "fsck": ("", 0, ""),
    "get": (f"far{LAST}", 0, NAMES[-1]),
    "health": ("--ready", 0, ""),
    "history": ("", 0, f"{ALL} runs"),
    "import": ("@entries.jsonl", 0, f"{ALL}"),
    "limits lanes": ("one", 0, ""),
    "limits list": ("", 0, "one"),
    "limits set": ("one --concurrency 3", 0, "3 at once"),
    "limits unset": ("one", 1, "nothing was set"),
    "list": ("", 0, f"{ALL} entries."),
    "migrate": ("--to stock", 1, "delayq export"),
    "pause": (f"--queue {NAMES[3]}", 0, NAMES[3]),
    "paused": ("", 0, ""),
    "periodic add": (f"new shop.mail --args '[1]' --every 30 --queue {NAMES[2]}", 0, "new"),
    "periodic import": ("--from list @periodic.jsonl", 0, ""),
    "periodic list": ("", 0, f"each{LAST}"),
    "periodic next": (f"each{LAST}", 0, ""),
    "periodic pause": (f"each{LAST}", 0, "paused"),
    "periodic remove": (f"each{LAST} --yes", 0, "removed"),
    "periodic resume": (f"each{LAST}", 0, ""),
    "periodic run-now": (f"each{LAST}", 0, ""),
    "periodic show": (f"each{LAST}", 0, "shop.mail"),
    "periodic update": (f"each{LAST} --every 60", 0, ""),
    "plot": ("--step day", 0, "Load to come"),
    "rename": ("shop.mail shop.post --force --yes", 0, f"{3 * ALL} renamed"),
    "reschedule": (f"far{LAST} --in 60", 0, "moved"),
    "resume": (f"--queue {NAMES[3]}", 0, ""),
    "rewrite": ("operator:not_ --dry-run", 1, f"{3 * ALL} failed"),
    "run-now": ("--task shop.mail --yes", 0, f"{ALL} entries"),
    "stats": ("", 0, NAMES[-1]),
    "timeline": (f"run{LAST}", 0, "SUCCESS"),
    "top": ("--once", 0, NAMES[-1]),
    "topology": ("", 1, "RabbitMQ"),
    "update": (f"far{LAST} --args [2]", 0, "updated"),
    "why": (f"far{LAST}", 0, NAMES[-1]),
}


def ending() -> Iterator[Any]:
    """Yield all commands but those that run until they are ended.

    Tests of those on a cluster: `test_faults.py` of clusters, `test_cluster.py` of metrics.
    """
    for words, command in leaves():
        if "until TERM or INT" not in (command.help or ""):
            yield pytest.param(words, command.help, id=words)


def example_of(words: str, help: str) -> str:
    """Return the options of the first example in the help of a command."""
    found = re.search(rf"celery -A shop delayq {words}\b([^|>\n]*)", help)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("words", "help"), [*ending()])
def test_a_command(app: Celery, tmp_path: Path, words: str, help: str) -> None:
    options, code, said = COMMANDS.get(words) or (example_of(words, help), None, "")

    ran = CommandLine(app)(*words.split(), *shlex.split(options.replace("@", f"{tmp_path}/")))

    assert ran.code in ((0, 1) if code is None else (code,)), ran
    assert said in ran.out + ran.err, ran
    assert code is not None or NOT_ON_A_CLUSTER not in ran.err, ran
