"""From stock here and back to stock: whatever was done meanwhile, each task goes back as it is now.

A task that is scheduled has its due as ETA, wherever it was moved to; one that is due has none; one
that was cancelled is gone. All else in its message is as a stock producer sent it, and nothing of
ours is left in Redis.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any, NamedTuple

import pytest
from celery import Celery
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from celery_delayq import DelayQ
from celery_delayq.admin.stock_migration import from_stock, to_stock
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.delivery import split_leased
from celery_delayq.model.envelope import Due, Entry
from celery_delayq.model.scheduled import Filter
from celery_delayq.store.session import Session
from celery_delayq.testing import FAST_START, WorkerProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import MakeApp, add
from tests.support import TIMEOUT
from tests.support.faults.scale import LONG, scaled
from tests.support.keyspace import snapshot
from tests.support.leases import ack, replace

BASE = datetime(2100, 1, 1, tzinfo=timezone.utc)
STEPS = (0, 3, 6, 9)
LISTS = ("celery", *(f"celery\x06\x16{step}" for step in STEPS[1:]))
IDS = [f"id-{n}" for n in range(6)]
NAMES = ("shop.a", "shop.b")


class Sent(NamedTuple):
    """A task as a producer sends it: stock's, or ours with a unique key."""

    task: str
    eta: timedelta | None
    priority: int
    expires: bool
    ours: bool


class Shop:
    """Both apps on one Redis, and the tasks that were sent."""

    def __init__(self, stock: Celery, app: Celery, redis: RedisUnderTest) -> None:
        self.stock, self.app, self.client = stock, app, redis.client
        self.delayq = DelayQ.of(app)
        self.store = self.delayq.store
        self.client.flushall()
        self.numbers = count(1)

    def send(self, id: str, sent: Sent) -> None:
        """Send a task; stock's go through kombu's unacked hash, as a killed worker leaves them."""
        options: dict[str, Any] = {
            "task_id": id,
            "eta": None if sent.eta is None else BASE + sent.eta,
            "priority": sent.priority,
            "expires": BASE + timedelta(days=999) if sent.expires else None,
            "group_id": "the group",
            "headers": {"empty": [], "big": 2**60 + 1},
        }
        if sent.ours:
            unique = {"unique_key": f"{sent.task} key", "on_conflict": "later"}
            self.app.tasks[sent.task].apply_async((id, 0), **options, **unique, unique_scope="done")
            return
        key = self.list_of(sent.priority)
        before = self.client.llen(key)
        self.stock.send_task(sent.task, (id, 0), **options)
        assert self.client.llen(key) == before + 1
        message = json.loads(self.client.lpop(key))
        tag = message["properties"]["delivery_tag"]
        self.client.hset("unacked", tag, json.dumps([message, "", "celery"]))
        list(from_stock(Session(self.app)))

    def list_of(self, priority: int) -> str:
        return LISTS[STEPS.index(max(step for step in STEPS if step <= priority))]

    def promote(self) -> None:
        for _ in range(2):  # what goes on first comes back to the schedule
            self.store.promote("celery", self.store.layout, 100)

    def lease(self, who: str, limit: int = 1) -> list[tuple[str, bytes]]:
        """Take messages as a process does."""
        number = str(next(self.numbers))
        acquired = self.store.leases.acquire("celery", who, 600.0, number, limit)
        return [(field, message) for field, message, _ in acquired.messages]

    def replaced(self, due: Due, when_due: Any, **headers: Any) -> None:
        """Lease a message and schedule another one in its place, as for a retry or a pause."""
        for field, data in self.lease("alive"):
            raw = json.loads(data)
            raw["headers"] |= headers
            entry = Entry.of(raw, raw["properties"]["priority"] // 3 * 3, due)
            replace(self.store, "celery", entry, "celery", "alive", field, when_due=when_due)
            ack(self.store, "celery", "alive", [field])

    def add_dead_letter(self) -> None:
        for field, data in self.lease("alive"):
            id = json.loads(data)["headers"]["id"]
            self.store.leases.dead_letter("celery", "alive", field, id, "it failed")


Operation = Callable[[Shop], object]
ids = st.sampled_from(IDS)
names = st.sampled_from(NAMES)
moves = st.integers(-80, 80).map(lambda days: timedelta(days=days, milliseconds=7 * days))
etas = moves.map(lambda move: BASE + timedelta(days=100) + move)

#: What may be done between the two moves; each is made of what it is about.
OPERATIONS: dict[str, st.SearchStrategy[Operation]] = {
    "reschedule": st.builds(lambda id, eta: lambda s: s.delayq.reschedule(id, eta=eta), ids, etas),
    "reschedule by": st.builds(lambda id, by: lambda s: s.delayq.reschedule(id, by=by), ids, moves),
    "reschedule_all": st.builds(
        lambda name, by: lambda s: s.delayq.reschedule_all(Filter(task=name), by=by), names, moves
    ),
    "cancel": st.builds(lambda id: lambda s: s.delayq.cancel(id), ids),
    "cancel_all": st.builds(lambda eta: lambda s: s.delayq.cancel_all(Filter(due_from=eta)), etas),
    "run_now": st.builds(lambda id: lambda s: s.delayq.run_now(id), ids),
    "pause": st.builds(lambda name: lambda s: s.delayq.pause(task=name), names),
    "resume": st.builds(lambda name: lambda s: s.delayq.resume(task=name), names),
    "pause a queue": st.just(lambda s: s.delayq.pause(queue="celery")),
    "resume a queue": st.just(lambda s: s.delayq.resume(queue="celery")),
    "promote": st.just(Shop.promote),
    "send again": st.builds(
        lambda id, sent: lambda s: s.send(f"{id}-again", sent._replace(ours=True)),
        ids,
        st.builds(Sent, names, moves, st.just(0), st.booleans(), st.just(True)),
    ),
    "retry": st.builds(
        lambda eta: lambda s: s.replaced(Due(int(eta.timestamp() * 1000)), "push", retries=1), etas
    ),
    "pause_due": st.just(lambda s: s.replaced(Due(s.store.now_ms()), "keep")),
    "die with a message": st.just(lambda s: s.lease("dead", 2)),
    "add_dead_letter": st.just(Shop.add_dead_letter),
    "replay": st.just(lambda s: s.delayq.replay_all(DeadFilter(), everything=True)),
    "replay at a rate": st.just(
        lambda s: s.delayq.replay_all(DeadFilter(), everything=True, rate=0.001)
    ),
    "replay later": st.just(
        lambda s: [s.delayq.replay(each, countdown=9999) for each in s.delayq.dead_letters()]
    ),
}

tasks = st.builds(
    Sent, names, st.none() | moves, st.sampled_from([0, 1, 3, 9]), st.booleans(), st.booleans()
)


class Waiting(NamedTuple):
    """A task that waits, as it is to be when it has gone back."""

    eta: str | None
    message: str


def comparable(message: dict[str, Any]) -> str:
    """Return a message without its ETA, what is ours, and what is new in each delivery."""
    headers = {**message["headers"], "eta": None}
    properties = {**message["properties"]}
    for name in ("delayq", "delivery_tag"):
        properties.pop(name, None)
    return json.dumps({**message, "headers": headers, "properties": properties}, sort_keys=True)


def expected_of(shop: Shop) -> Counter[tuple[str, Waiting]]:
    """Return what there is, by what the public interface and the lists say of it."""
    now = datetime.fromtimestamp(shop.store.now_ms() / 1000, timezone.utc)
    found: Counter[tuple[str, Waiting]] = Counter()
    for entry in shop.delayq.entries():
        eta = entry.due.isoformat() if entry.due > now else None
        assert entry.message is not None
        found[entry.id, Waiting(eta, comparable(entry.message))] += 1
    cancelled = [
        name.partition(b"\0")[0].decode()
        for name, value in shop.client.hgetall("{celery}:ready_index").items()
        if value.startswith(b"!")
    ]
    held = [value for value in shop.client.hvals("{celery}:leased:dead") if value]
    ready = [data for key in LISTS for data in shop.client.lrange(key, 0, -1)]
    for data in (*ready, *(split_leased(value)[1] for value in held)):
        message = json.loads(data)
        if message["headers"]["id"] in cancelled and data in ready:
            cancelled.remove(message["headers"]["id"])
        else:
            found[message["headers"]["id"], Waiting(None, comparable(message))] += 1
    assert not cancelled
    return found


def back_in(shop: Shop) -> Counter[tuple[str, Waiting]]:
    """Return what stock workers find, and check that it is where they look for it."""
    found: Counter[tuple[str, Waiting]] = Counter()
    for key in LISTS:
        for data in shop.client.lrange(key, 0, -1):
            message = json.loads(data)
            assert shop.list_of(message["properties"]["priority"]) == key
            waiting = Waiting(message["headers"]["eta"], comparable(message))
            found[message["headers"]["id"], waiting] += 1
    return found


@pytest.fixture
def ours(make_app: MakeApp) -> Celery:
    app = make_app(result_backend=None)
    for name in NAMES:
        app.task(name=name, shared=False)(add)
    return app


@pytest.mark.full
@settings(
    max_examples=scaled(40, 1000),
    phases=[Phase.generate],  # an example takes too long to be made smaller
    derandomize=not LONG,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(tasks, min_size=1, max_size=len(IDS)),
    st.lists(st.one_of(*OPERATIONS.values()), max_size=15),
)
def test_each_task_goes_back_as_it_is_by_now(
    stock: Celery,
    ours: Celery,
    delayq_redis: RedisUnderTest,
    sent: list[Sent],
    operations: list[Operation],
) -> None:
    shop = Shop(stock, ours, delayq_redis)
    for id, each in zip(IDS, sent, strict=False):
        shop.send(id, each)
    for operation in operations:
        operation(shop)
    expected, dead = expected_of(shop), shop.delayq.count_dead()

    moved = list(to_stock(Session(ours)))[-1]

    assert back_in(shop) == expected
    assert (moved.unmovable, moved.leased, moved.gone) == (0, 0, 0)
    assert shop.delayq.count_dead() == dead
    own = {key for key in snapshot(shop.client) if not key.startswith("_kombu.")}
    kept = {"{celery}:wake", "delayq:queues", "delayq:control"}
    dead_letters = {"{celery}:dead", "{celery}:dead_at"} if dead else set()
    assert own - kept - dead_letters <= {*LISTS}
    assert list(to_stock(Session(ours)))[-1].total == 0


@pytest.mark.full
def test_a_stock_worker_runs_what_was_moved_not_before_its_new_time(
    app: Celery, delayq: DelayQ, start_stock: Callable[..., WorkerProcess]
) -> None:
    """Sent for soon and moved later, for much later and moved to soon, and paused at once."""
    later, earlier = (
        app.send_task("stock.add", (n, 0), countdown=countdown)
        for n, countdown in enumerate((0.5, 3600))
    )
    delayq.pause(task="stock.add")
    waits = app.send_task("stock.add", (2, 0), countdown=0.001)
    start = datetime.now(timezone.utc)
    moved = {later.id: start + timedelta(seconds=20), earlier.id: start + timedelta(seconds=2)}
    for id, eta in moved.items():
        delayq.reschedule(id, eta=eta)
    assert list(to_stock(Session(app)))[-1].ready == 3

    start_stock(extra_args=FAST_START)

    assert [each.get(timeout=TIMEOUT) for each in (waits, earlier, later)] == [2, 1, 0]
    for result in (earlier, later):
        assert result.date_done is not None
        assert result.date_done.replace(tzinfo=timezone.utc) >= moved[result.id]
