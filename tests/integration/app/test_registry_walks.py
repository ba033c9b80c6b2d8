"""Ten times as many queues take no more round trips: what walks over them goes in pipelines.

Each function that reads the registry is in the table.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis.connection import AbstractConnection

import celery_delayq
from celery_delayq import DelayQ, Filter
from celery_delayq.admin.doctor import diagnose
from celery_delayq.admin.repair import check
from celery_delayq.metrics.exporter import Exporter
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.settings import Settings
from celery_delayq.store.keys import Layout
from celery_delayq.web.pages import dead, fleet, overview, scheduled
from celery_delayq.web.query import Query
from celery_delayq.web.site import Site
from tests.support.cli import CommandLine
from tests.support.dead_letters import details, message, stored

TASK = "shop.remind"
FEW, MANY = 4, 40
SOME = Filter(task=TASK)


def all_of(found: Any) -> list[Any]:
    return [*found]


def purge_all(delayq: DelayQ) -> Any:
    return delayq.purge_all(DeadFilter(task="shop.mail"))


def command(*args: str) -> Callable[[DelayQ], Any]:
    def run(delayq: DelayQ) -> Any:
        ran = CommandLine(delayq.app)(*args)
        assert ran.code == 0, ran
        return ran

    return run


def read_slow(delayq: DelayQ) -> None:
    Exporter(delayq).refresh()


def scrape(delayq: DelayQ) -> None:
    assert b"delayq_up 1" in Exporter(delayq).scrape()


def list_limits(delayq: DelayQ) -> None:
    for store in delayq.session.stores:
        store.task_limits.announce({"mail": "0 1 2 0"})
    assert [each.name for each in delayq.limits.list()] == ["mail"]


def page(delayq: DelayQ, read: Callable[[Site, Query], Any], **fields: list[str]) -> None:
    with closing(Site(delayq.app)) as site:
        read(site, Query("", fields))


#: By name: a call that walks over all queues. There are entries and dead letters in one of them.
CALLS: dict[str, Callable[[DelayQ], Any]] = {
    "get": lambda delayq: delayq.get("e1"),
    "find": lambda delayq: delayq.find("e1"),
    "list": lambda delayq: delayq.list(limit=5),
    "list a task": lambda delayq: delayq.list(task=TASK),
    "entries": lambda delayq: all_of(delayq.entries(page=5)),
    "count": lambda delayq: delayq.count(),
    "count a priority": lambda delayq: delayq.count(priority=0),
    "cancel": lambda delayq: delayq.cancel("e1"),
    "cancel what is unknown": lambda delayq: delayq.cancel("none"),
    "cancel_ids": lambda delayq: delayq.cancel_ids(["e1", "none", "e2"]),
    "cancel_all": lambda delayq: delayq.cancel_all(SOME),
    "reschedule": lambda delayq: delayq.reschedule("e1", countdown=60),
    "reschedule by": lambda delayq: delayq.reschedule("e1", by=60),
    "reschedule_all": lambda delayq: delayq.reschedule_all(SOME, by=60),
    "run_now": lambda delayq: delayq.run_now("e1"),
    "update": lambda delayq: delayq.update("e1", priority=3),
    "run_all_now": lambda delayq: delayq.run_all_now(SOME),
    "revoke": lambda delayq: delayq.revocation.revoke(["e1", "none"]),
    "revoke_by_stamps": lambda delayq: delayq.revocation.revoke_by_stamps({"a": "b"}),
    "cancel_canvas": lambda delayq: delayq.cancel_canvas(root_id="e1"),
    "pause": lambda delayq: delayq.pause(task=TASK),
    "resume": lambda delayq: delayq.resume(task=TASK),
    "stats": lambda delayq: delayq.stats(),
    "dead_letters": lambda delayq: all_of(delayq.dead_letters()),
    "list_dead": lambda delayq: delayq.list_dead(limit=5),
    "dead_letter": lambda delayq: delayq.dead_letter("d1"),
    "dead_letter, unknown": lambda delayq: delayq.dead_letter("none"),
    "count_dead": lambda delayq: delayq.count_dead(),
    "replay": lambda delayq: delayq.replay("d1"),
    "replay_all": lambda delayq: delayq.replay_all(DeadFilter(), everything=True),
    "purge_all": purge_all,
    "export_to": lambda delayq: delayq.export_to(io.BytesIO()),
    "export_dead": lambda delayq: delayq.export_dead(io.BytesIO()),
    "archive_dead": lambda delayq: delayq.archive_dead("sqlite:///dead.db"),
    "limits": list_limits,
    "compat": lambda delayq: delayq.compat(),
    "rename": lambda delayq: delayq.rename(TASK, "another"),
    "rewrite": lambda delayq: delayq.rewrite(lambda _: None),
    "why": lambda delayq: delayq.why("e1", ask_workers=False),
    "why, unknown": lambda delayq: delayq.why("none", ask_workers=False),
    "exporter": scrape,
    "exporter, slow": read_slow,
    "pages, overview": lambda delayq: page(delayq, overview.read),
    "pages, overview by task": lambda delayq: page(delayq, overview.read, by=["task"]),
    "pages, scheduled": lambda delayq: page(delayq, scheduled.read),
    "pages, fleet": lambda delayq: page(delayq, fleet.read),
    "pages, dead letters": lambda delayq: page(delayq, dead.read),
    "delayq cancel": command("cancel", "--task", TASK, "--yes"),
    "delayq pause": command("pause", "--task", TASK),
    "delayq list": command("list"),
    "delayq stats": command("stats"),
    "delayq purge": command("dead", "purge", "--queue", "q1", "--dry-run"),
}

#: Those that look at each queue by itself.
EACH: dict[str, tuple[Callable[[DelayQ], Any], int]] = {
    # Every key of a queue is read, and repaired in calls that are bounded.
    "fsck": (lambda delayq: all_of(check(delayq.session.stores, Settings())), 40),
    "doctor": (lambda delayq: diagnose(delayq.session), 40),
}

#: Functions of the package that read the registry, by what of the tables runs them.
SITES = {
    "admin/compat.py ask": "compat",
    "admin/rewrite.py ask": "rewrite",
    "admin/doctor/settings.py queues": "doctor",
    "admin/doctor/work.py consumers": "doctor",
    "admin/doctor/work.py dead_letters": "doctor",
    "admin/doctor/work.py dispatchers": "doctor",
    "admin/doctor/work.py stock_etas": "doctor",
    "admin/repair.py run": "fsck",
    "admin/stock_migration.py etas_in_lists": "each queue by itself: all messages are read",
    "admin/stats.py gather": "stats",
    "admin/why/reading.py _read": "why",
    "cli/screen.py scheduled_tasks": "delayq pause",
    "cli/commands/show.py _count_entries": "delayq cancel",
    "cli/complete.py queues": "one read of the registry",
    "cli/screen.py check_priority": "one read of the registry",
    "cli/screen.py unknown_queue": "one read of the registry",
    "deadletters/client.py _change_in_place": "replay_all",
    "deadletters/client.py _replay_change": "replay",
    "deadletters/client.py read": "dead_letter",
    "deadletters/client.py counts_of": "count_dead",
    "deadletters/reading.py with_dead_letters": "dead_letters",
    "dispatch/dispatcher.py _trim": "one queue at a time",
    "dispatch/ready_looks.py _reread": "one read of the registry",
    "admin/load_ahead.py read": "pages, overview",
    "web/pages/fleet.py _processes": "pages, fleet",
    "web/pages/overview.py read_store": "pages, overview",
    "web/pages/scheduled.py _suggested": "pages, scheduled",
    "limits/client.py _held_by_queue": "limits",
    "metrics/from_redis.py _read_store": "exporter",
    "metrics/slow_numbers.py _count": "exporter, slow",
    "schedule/bulk.py change_all": "cancel_all",
    "schedule/client.py make": "cancel",
    "schedule/client.py _find": "find",
    "schedule/client.py count": "count",
    "schedule/revocation.py _queues_with_ready": "cancel_canvas",
    "schedule/update.py _find": "update",
    "spark/read/partitions.py plan": "a plan of Spark",
    "store/paging.py queues_of": "find",
    "store/paging.py read_page": "list",
    "store/stores.py registry": "find",
    "store/stores.py write_pause": "resume",
    "transfer/schedule.py ask": "export_to",
    "admin/stock_migration.py to_stock": "each queue by itself: all of it is moved",
    "store/store.py repair_types": "once, where a key of another type was deleted",
}


class Trips:
    """Counts what is sent to Redis: one round trip each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        send = AbstractConnection.send_packed_command

        def counted(connection: Any, *args: Any, **options: Any) -> Any:
            self.number += 1
            return send(connection, *args, **options)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", counted)

    def of(self, call: Callable[[], Any]) -> int:
        before = self.number
        call()
        return self.number - before


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trips:
    monkeypatch.chdir(tmp_path)
    return Trips(monkeypatch)


def fill(delayq: DelayQ, number: int) -> None:
    """Register so many queues; one has entries and dead letters."""
    for n in range(number):
        store = delayq.session.stores.of(f"q{n}")
        store.client.hset(store.keys.queues, f"q{n}", Layout().text)
    for n in range(12):
        delayq.app.send_task(TASK, task_id=f"e{n}", countdown=1800 + n, queue="q1")
        data = stored(1000 + n, "it failed", message(f"d{n}"), details())
        store = delayq.session.stores.of("q1")
        store.dead_letters.restore("q1", [(f"d{n}", 1000 + n, data)])


def sites() -> Iterator[str]:
    """Yield each function that reads the registry, or asks for the queues in it."""
    root = Path(celery_delayq.__file__).parent
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        walks = {"with_entries"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "celery_delayq.store.paging":
                walks |= {each.name for each in node.names} & {"queues_of"}
        if path.name == "paging.py":
            walks |= {"queues_of"}
        name = str(path.relative_to(root))
        yield from (f"{name} {function}" for function in _functions(tree, walks))


def _functions(tree: ast.AST, walks: set[str], inside: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        here = node.name if isinstance(node, ast.FunctionDef) else inside
        if getattr(node, "attr", None) == "registry" or getattr(node, "id", None) in walks:
            yield here
        yield from _functions(node, walks, here)


def test_each_function_that_reads_the_registry_is_in_the_table() -> None:
    assert {*sites()} == SITES.keys()


@pytest.mark.parametrize("name", CALLS)
def test_many_queues_take_no_more_round_trips_than_few(
    delayq: DelayQ, trips: Trips, name: str
) -> None:
    counts = []
    for number in (FEW, MANY):
        delayq.store.client.flushdb()
        fill(delayq, number)
        counts.append(trips.of(lambda: CALLS[name](delayq)))

    few, many = counts
    assert many <= few + 3  # of a few there may be less to merge
    assert few > 0


@pytest.mark.parametrize("name", EACH)
def test_what_looks_at_each_queue_takes_so_many_round_trips_for_one(
    delayq: DelayQ, trips: Trips, name: str
) -> None:
    call, most = EACH[name]
    fill(delayq, MANY)

    assert trips.of(lambda: call(delayq)) <= most * MANY


ON_CLUSTER = [name for name in CALLS if name not in ("Flower", "archive_dead")]


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if n % 12 == 0 else pytest.mark.nightly)
        for n, name in enumerate(ON_CLUSTER)
    ],
)
def test_on_a_cluster_each_hash_tag_takes_as_many_round_trips_with_many_queues(
    delayq_cluster: str, trips: Trips, name: str
) -> None:
    with Celery("shop", broker=delayq_cluster, set_as_current=False) as app, DelayQ(app) as delayq:
        counts = []
        for number in (48, 480):  # some for each of twelve tags
            for _ in range(2):  # the first time opens connections
                delayq.cancel_all(Filter(), everything=True)
                delayq.purge_all(DeadFilter(), everything=True)
                fill(delayq, number)
                count = trips.of(lambda: CALLS[name](delayq))
            counts.append(count)

    few, many = counts
    assert many <= few + 2 * 12
