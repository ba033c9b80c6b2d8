"""A unique key is free as soon as its owner is not to run: another call runs instead.

Each script that releases unique keys is in the table here, with the ways that lead to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pytest
from celery.canvas import StampingVisitor
from celery.result import AsyncResult

from celery_delayq.admin.stock_migration import to_stock
from celery_delayq.model.scheduled import Filter
from celery_delayq.store.leases import AcquireReply
from celery_delayq.store.scripting import scripts
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.leases import ack
from tests.support.scene import Control

QUEUE = "celery"

Place = Literal["scheduled", "ready"]


class Stamp(StampingVisitor):
    """Stamps a task with its customer."""

    def on_signature(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"customer": "us"}


def call(control: Control, id: str, **options: Any) -> AsyncResult:
    """Call the task whose unique key counts until it is done, and keeps its first call."""
    task = control.tasks["keep.done"]
    signature = task.s("k").set(task_id=id, group_id="the group", **options)
    signature.stamp(Stamp())
    return signature.apply_async()


def lease(control: Control) -> AcquireReply:
    """Lease as a process that reports nothing."""
    return control.delayq.store.leases.acquire(QUEUE, "me", 30.0, "1", 5)


def leased(end: Callable[[Store], object]) -> Callable[[Control], object]:
    """Lease what is ready, and end it by the store."""

    def act(control: Control) -> None:
        assert lease(control).messages
        end(control.delayq.store)

    return act


def promoted(act: Callable[[Control], object]) -> Callable[[Control], object]:
    """Promote what is due, and go on."""

    def promote_and_act(control: Control) -> None:
        store = control.delayq.store
        store.promote(QUEUE, store.layout_of(QUEUE), 10)
        act(control)

    return promote_and_act


def crash(store: Store) -> None:
    store.leases.requeue(QUEUE, "me", ["1:1"], counted="crashed", max_deliveries=1)
    store.leases.acquire(QUEUE, "me", 30.0, "2", 5)
    _, dead_lettered = store.leases.requeue(
        QUEUE, "me", ["2:1"], counted="crashed", max_deliveries=1
    )
    assert dead_lettered == 1


def delete_queue(control: Control) -> None:
    with control.app.connection() as connection:
        queue = control.app.amqp.queues[QUEUE].bind(connection.default_channel)
        queue.declare()
        queue.delete()


class Way(NamedTuple):
    """A way in which the owner of a key ends, or lives on.

    Parameters
    ----------
    act : Callable[[Control], object]
        What is done.
    scripts : str
        The scripts that do it.
    places : tuple[Place, ...]
        Where the owner may be before.
    owner : str
        Who has the key afterwards, ``""`` for nobody.
    options : Mapping
        Of the call of the owner.
    """

    act: Callable[[Control], object]
    scripts: str
    places: tuple[Place, ...] = ("scheduled", "ready")
    owner: str = ""
    options: Mapping[str, Any] = MappingProxyType({})


def past() -> datetime:
    return datetime.now(timezone.utc) - timedelta(hours=1)


WAYS: dict[str, Way] = {
    "revoked by id": Way(lambda c: c.app.control.revoke("owner"), "control/cancel"),
    "revoked by its result": Way(
        lambda c: AsyncResult("owner", app=c.app).revoke(), "control/cancel"
    ),
    "revoked by stamped header": Way(
        lambda c: c.app.control.revoke_by_stamped_headers({"customer": "us"}), "control/cancel"
    ),
    "canvas cancelled by root": Way(
        lambda c: c.delayq.cancel_canvas(root_id="owner"), "control/cancel"
    ),
    "canvas cancelled by group": Way(
        lambda c: c.delayq.cancel_canvas(group_id="the group"), "control/cancel"
    ),
    "cancelled": Way(lambda c: c.delayq.cancel("owner"), "control/cancel control/find"),
    "cancelled by a filter": Way(
        lambda c: c.delayq.cancel_all(Filter(QUEUE)), "control/cancel", ("scheduled",)
    ),
    "purged": Way(lambda c: c.app.control.purge(), "schedule/purge"),
    "queue deleted": Way(delete_queue, "schedule/purge"),
    "replaced": Way(
        lambda c: call(c, "new", countdown=600, on_conflict="replace"), "schedule/add", owner="new"
    ),
    "skipped": Way(
        promoted(lease),
        "dispatch/promote leases/acquire",
        ("ready",),
        options={"skip_after": 1, "eta": past},
    ),
    "done": Way(leased(lambda store: ack(store, QUEUE, "me", ["1:1"])), "leases/ack", ("ready",)),
    "dead letter": Way(
        leased(lambda store: store.leases.dead_letter(QUEUE, "me", "1:1", "owner", "rejected")),
        "leases/dead_letter",
        ("ready",),
    ),
    "crashed too often": Way(leased(crash), "leases/requeue", ("ready",)),
    "moved to stock": Way(
        lambda c: list(to_stock(Session(c.app))), "migration/give_back repair/forget_ready"
    ),
    "requeued": Way(
        leased(lambda store: store.leases.requeue(QUEUE, "me", ["1:1"])),
        "leases/requeue",
        ("ready",),
        owner="owner",
    ),
    "paused": Way(lambda c: c.delayq.pause(task="keep.done"), "control/pause", owner="owner"),
    "moved": Way(
        lambda c: c.delayq.reschedule("owner", countdown=900),
        "control/reschedule",
        ("scheduled",),
        owner="owner",
    ),
    "updated": Way(
        lambda c: c.delayq.update("owner", args=["another key"]), "control/swap", ("scheduled",)
    ),
    "updated, same key": Way(
        lambda c: c.delayq.update("owner", priority=9), "control/swap", ("scheduled",), "owner"
    ),
    "run now": Way(
        lambda c: c.delayq.run_now("owner"), "control/run_now", ("scheduled",), owner="owner"
    ),
}

#: Scripts that release keys and are in no way here, and why.
OTHERS = {
    "deadletters/replay": "a replay takes the key: tests/lua/deadletters",
    "leases/reclaim_expired": "as leases/requeue, by the same function: test_unique_ends.py",
    "leases/replace": "a retry takes the key over: test_unique_ends.py",
    "periodic/fire": "ticks come by the function of schedule/add",
    "schedule/import": "entries come by the function of schedule/add",
    "schedule/forget_unowned": "frees keys without an owner after a purge",
    **dict.fromkeys(
        ("repair/drop_cancelled", "repair/gone"), "repairs what is gone: tests of fsck"
    ),
}


def test_each_script_that_releases_keys_is_here() -> None:
    key = r"KEYS\[(\d+)\]"
    releases = re.compile(rf"'(?:HDEL|UNLINK)', (?:{key}, )?{key}")
    found = {
        name
        for name in scripts.names()
        for *_, number in releases.findall(scripts.load(name).source)
        if scripts.load(name).header.keys[int(number) - 1] == "unique"
    }
    known = {script for way in WAYS.values() for script in way.scripts.split()}

    assert OTHERS.keys() <= found <= known | OTHERS.keys()
    assert not known & OTHERS.keys()


@pytest.mark.parametrize(
    ("way", "place"), [(way, place) for way in WAYS for place in WAYS[way].places]
)
def test_another_call_runs_unless_the_owner_will(control: Control, way: str, place: Place) -> None:
    act, _, _, owner, options = WAYS[way]
    given = {name: each() if callable(each) else each for name, each in options.items()}
    when = {} if place == "ready" else {"countdown": 600}
    assert call(control, "owner", **when, **given).id == "owner"

    act(control)
    other = call(control, "other", countdown=600)

    if owner:
        assert other.id == owner
        assert owner in {entry.id for entry in control.delayq.find(owner)}
    else:
        assert other.id == "other"
        assert [entry.state for entry in control.delayq.find("other")] == ["scheduled"]


@pytest.mark.parametrize("how", ["by id", "by stamped header", "with its canvas"])
def test_a_task_that_waits_for_a_child_is_refused_at_once(control: Control, how: str) -> None:
    """It owns its key until then; when its turn comes, nothing more happens."""
    control.start("prefork", concurrency=1, prefetch=4)
    busy = control.tasks["work"].apply_async(kwargs={"gate": "busy"})
    control.wait_runs(1)
    call(control, "owner")
    wait_until(lambda: "owner" in control.leased_ids(), TIMEOUT, "the worker has it")

    if how == "by id":
        control.app.control.revoke("owner")
    elif how == "by stamped header":
        control.app.control.revoke_by_stamped_headers({"customer": "us"})
    else:
        control.delayq.cancel_canvas(root_id="owner")
        control.tasks["work"].apply_async(task_id="next")  # with this it learns what is cancelled

    wait_until(lambda: not control.owners(), TIMEOUT, "the key is free")
    assert AsyncResult("owner", app=control.app).state == "REVOKED"
    other = control.tasks["keep.done"].apply_async(("k",), task_id="other")
    assert other.id == "other"
    control.open("busy")
    assert busy.get(timeout=TIMEOUT) == ""
    assert other.get(timeout=TIMEOUT) == "k"
    control.wait_empty()
    assert "owner" not in control.runs("id")
