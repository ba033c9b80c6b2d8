"""Every way by which a message becomes ready: its limit holds it all the same.

The scripts that push to ready lists are found in the Lua source. A script that is not in
:data:`DOORS` fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_delayq.deadletters.replay import ReplayChanges, replay_entry
from celery_delayq.model.dead_letter import DeadLetter
from celery_delayq.model.envelope import Due, Record
from celery_delayq.store.keys import Layout
from celery_delayq.store.periodic import EntryTicks, EntryWrite
from celery_delayq.store.repair_tracking import Tracked
from celery_delayq.store.scripting import scripts
from celery_delayq.store.scripting.replies import Unacked
from celery_delayq.utils.message_json import encode
from tests.contract.test_lua_includes import INCLUDES, LUA, calls_in, code, expected, reached
from tests.lua.bench import FAR, QUEUE, Bench, bodies, entry, labelled, large, message_of
from tests.lua.dead_letters import DIED, replay, seed
from tests.lua.deadletters.test_replay_in_place import add_dead_letter, sent
from tests.lua.leases.test_limits import ids
from tests.support.leases import ack

LANE = "api:"
X = labelled("x", 0, lane=LANE)
LATER = labelled("x", FAR, lane=LANE)


def lease_x(store: Bench) -> list[str]:
    """Lease the message while the limit allows a second one; return its field."""
    store.define_limit(concurrency=2)
    store.put(X)
    assert ids(store.acquire("1")) == ["x"]
    store.define_limit(concurrency=1)
    return ["1:1"]


def replace_by_x(store: Bench) -> None:
    fields = store.hold(b"without a limit")
    assert store.replace(X, field=fields[0]) == "ready"


def replay_dead_letter(store: Bench) -> None:
    seed(store, "d")
    assert replay(store, ("d", DIED, X)) == ["d"]


def replay_in_place(store: Bench) -> None:
    """A message with a mark is not replayed in place: its label and its mark belong together."""
    message = sent(own={"label": "x n-old 0 -", "limit": f"{LANE} 0"})
    message["headers"]["id"] = "x"
    add_dead_letter(store, encode(message))
    reply = store.dead_letters.replay_in_place(
        QUEUE, Layout(), "-inf", "+inf", b"", "0000" + "f" * 28
    )
    assert (reply.number, [id for id, _ in reply.unread]) == (0, [b"0"])

    [dead_letter] = store.dead_letters.all(QUEUE)
    made = replay_entry(
        DeadLetter.of(QUEUE, dead_letter), Layout(), Due(0), ReplayChanges(), "n-x", "run"
    )
    assert made.priority == 3
    assert replay(store, ("0", DIED, made)) == ["d"]


def take_from_unacked(store: Bench) -> None:
    store.client.hset("unacked", "tag", "[{}, '', 'q']")
    store.client.zadd("unacked_index", {"tag": 5})
    store.take_from_unacked(QUEUE, X, Unacked("unacked", "unacked_index", "tag"))


def fire(store: Bench) -> None:
    store.periodic.write([EntryWrite("tick", "", "old\n{}", 5)])
    ticks = EntryTicks("tick", "old", "new", 70, "old", 60, [X])
    store.run(store.periodic.fire_call(QUEUE, [ticks]))


def promote(store: Bench) -> None:
    store.put(LATER)
    store.become_due("x", store.now_ms())
    store.promote()


def run_now(store: Bench) -> None:
    store.put(LATER)
    assert store.run_now("x") == ["d"]


def release_quarantined(store: Bench) -> None:
    store.quarantine(message_of(X))
    assert store.repair.release_quarantined(QUEUE, Layout()) == (1, 0)


def reclaim_expired(store: Bench) -> None:
    lease_x(store)
    store.client.zadd("{q}:leases", {"me": 1})
    assert store.reclaim_expired().requeued == 1


def give_back(store: Bench) -> None:
    store.put(LATER)
    assert store.release(store.read("x", message_of(X))) == "d"


def drop_cancelled(store: Bench) -> None:
    store.put(X, labelled("gone", 0))
    store.cancel("gone")
    value = store.client.hget("{q}:ready_index", "gone") or b""
    store.repair_tracking.drop_cancelled(QUEUE, QUEUE, {b"gone": Tracked(b"gone", value)})


#: The scripts that make a message ready, by the cases of each.
DOORS: dict[str, dict[str, Callable[[Bench], Any]]] = {
    "schedule/add": {
        "at once": lambda s: s.put(X),
        "large": lambda s: s.put(large(X, 1_500_000)),
        "with priority": lambda s: s.put(labelled("x", 0, lane=LANE, priority=3)),
        "unique": lambda s: s.put(labelled("x", 0, lane=LANE, unique="dk")),
    },
    "schedule/import": {"": lambda s: s.run(s.import_call(QUEUE, [X], "token"))},
    "schedule/push_ready": {"": lambda s: s.push(message_of(X))},
    "periodic/fire": {"": fire},
    "dispatch/promote": {"": promote},
    "control/run_now": {"": run_now},
    "leases/replace": {"": replace_by_x},
    "leases/requeue": {
        "first": lambda s: s.requeue(*lease_x(s)),
        "last": lambda s: s.requeue(*lease_x(s), last=True),
        "crashed": lambda s: s.requeue(*lease_x(s), counted="crashed", max_deliveries=5),
        "died": lambda s: s.requeue(*lease_x(s), counted="died", max_deliveries=5),
    },
    "leases/reclaim_expired": {"": reclaim_expired},
    "leases/release_quarantined": {"": release_quarantined},
    "deadletters/replay": {"": replay_dead_letter},
    "deadletters/replay_in_place": {"": replay_in_place},
    "migration/take_from_unacked": {"": take_from_unacked},
    "migration/give_back": {"": give_back},
    "repair/drop_cancelled": {"": drop_cancelled},
}

#: What scripts push that is no message: the signs for consumers. Nor does it make a message ready
#: to quarantine one.
_NOT_READY = {"marker", "KEYS.wake", "KEYS.lanes_wake", "KEYS.quarantined"}
_PUSH = re.compile(
    r"'(?:[LR]PUSHX?|LMOVE|RPOPLPUSH|LINSERT)',\s*([\w.]+)|redis\.call\((\w+),\s*([\w.]+)"
)


def pushes(text: str) -> bool:
    """Return whether Lua source pushes to a list that may be a ready list."""
    calls = _PUSH.findall(re.sub(r"--.*", "", text))
    return any({key or other} - _NOT_READY for key, _, other in calls)


def test_all_scripts_that_make_messages_ready_are_known() -> None:
    calls: dict[str, set[str]] = {}
    for text in INCLUDES.values():
        calls |= calls_in(code(text))
    of_includes = {
        name
        for text in INCLUDES.values()
        for part in re.split(r"^(?=local function )", text, flags=re.MULTILINE)
        if pushes(part)
        for name in re.findall(r"^local function (\w+)", part)
    }
    sources = {name: (LUA / f"{name}.lua").read_text("utf-8") for name in scripts.names()}
    found = {
        name
        for name, text in sources.items()
        if pushes(text) or of_includes & reached(expected(code(text)), calls)
    }
    assert of_includes == {"put_ready"}
    assert found == DOORS.keys()


@pytest.mark.parametrize("fair", [False, True], ids=["", "fair"])
@pytest.mark.parametrize(
    ("door", "case"), [(door, case) for door, cases in DOORS.items() for case in cases]
)
def test_a_message_of_a_blocked_lane_is_held_whatever_makes_it_ready(
    store: Bench, door: str, case: str, fair: bool
) -> None:
    store.define_limit(concurrency=1)
    store.put(labelled("first", 0, lane=LANE))
    assert ids(store.acquire("1", who="you")) == ["first"]

    DOORS[door][case](store)
    store.define_limit(concurrency=1, fair=fair)
    free = Record.unpack(entry("free", 0).data)
    store.push(free.message)
    # A call ends after 1 MB, so a large message may take a call of its own.
    assert [*bodies(store.acquire("7")), *bodies(store.acquire("8"))] == [free.message]
    [member] = store.client.zrange("{q}:held", 0, -1)
    assert (member.split(b"\0")[0], member.split(b"\0")[-1]) == (LANE.encode(), b"x")
    assert store.client.zrange("{q}:lanes", 0, -1) == [LANE.encode()]
    assert store.client.zrange("delayq:permits", 0, -1) == [b"api:\0q\0first\0n-first"]

    assert ack(store, QUEUE, "you", ["1:1"]) == 1
    assert ids(store.acquire("9")) == ["x"]
    assert [each.split(b"\0")[2] for each in store.client.zrange("delayq:permits", 0, -1)] == [b"x"]
    assert store.client.exists("{q}:held", "{q}:lanes", "delayq:blocked_lanes") == 0
    store.ack("9:1")
    assert store.client.exists("delayq:permits", "{q}:due", "{q}:entries", "{q}:tasks") == 0
