"""Count the copies of a message that a script makes in Lua.

Lua hashes each byte of a new string. For 5 MB this takes 6 ms, several times as long as the write.
The test counts copies by the growth of Lua's heap while the garbage collector is off.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from celery_delayq.model.envelope import Due, Record
from celery_delayq.model.script_values import Swap
from celery_delayq.store.dead_letters import digest_of
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting import scripts
from tests.lua.bench import FAR, QUEUE, Bench, Recording, labelled, large, retried
from tests.lua.dead_letters import DIED, dead_letters_left, replay, seed, stored

#: Bytes of the message.
SIZE = 1_000_000

LARGE = large(labelled("a"), SIZE)
NEW = large(labelled("a", task="tasks.new"), SIZE)
MESSAGE = Record.unpack(LARGE.data).message
DEAD = digest_of(stored(MESSAGE))


def make_due(store: Bench) -> None:
    store.put(LARGE)
    store.become_due("a")


def lease(store: Bench) -> None:
    store.lease(LARGE)


def expire(store: Bench) -> None:
    lease(store)
    store.pass_time()


#: By script: preparation, call, and number of copies. Copies are the strings that the script
#: receives, reads or makes. A concatenated string counts twice, since Lua's buffer has it too.
COPIES: dict[str, tuple[Callable[[Bench], object], Callable[[Bench], object], int]] = {
    "schedule/add": (lambda _: None, lambda s: s.put(LARGE), 1),
    "schedule/push_ready": (lambda _: None, lambda s: s.push(MESSAGE), 1),
    "dispatch/promote": (
        make_due,
        lambda s: s.promote(),
        1,
    ),
    "leases/acquire": (lambda s: s.make_ready(LARGE), lambda s: s.acquire(), 1),
    "leases/ack": (lease, lambda s: s.ack("1:1"), 1),
    "leases/requeue": (lease, lambda s: s.requeue("1:1"), 1),
    "leases/reclaim_expired": (expire, lambda s: s.reclaim_expired(), 1),
    "leases/replace": (lease, lambda s: s.replace(retried(LARGE, "n-r")), 1),
    "leases/dead_letter": (
        lease,
        lambda s: s.leases.dead_letter(QUEUE, "me", "1:1", "a", "why"),
        3,
    ),
    "leases/release_quarantined": (
        lambda s: s.quarantine(MESSAGE),
        lambda s: s.repair.release_quarantined(QUEUE, Layout()),
        2,
    ),
    "control/cancel": (lambda s: s.put(LARGE), lambda s: s.cancel("a"), 1),
    "control/reschedule": (
        lambda s: s.put(LARGE),
        lambda s: s.control.reschedule(QUEUE, [("a", Due(FAR + 1), None)]),
        1,
    ),
    "control/swap": (
        lambda s: s.put(LARGE),
        lambda s: s.control.swap(QUEUE, [Swap("a", LARGE.data, NEW.data)]),
        2,
    ),
    "control/run_now": (lambda s: s.put(LARGE), lambda s: s.run_now("a"), 1),
    "deadletters/add": (
        lambda _: None,
        lambda s: s.dead_letters.add(QUEUE, "a", "why", MESSAGE),
        3,
    ),
    "deadletters/replay": (
        lambda s: seed(s, "a", message=MESSAGE),
        lambda s: replay(s, ("a", DIED, LARGE, DEAD)),
        2,
    ),
    "deadletters/delete": (
        lambda s: seed(s, "a", message=MESSAGE),
        lambda s: s.run(s.dead_letters.delete_call(QUEUE, [("a", DIED)], "token", digests=[DEAD])),
        1,
    ),
}

#: Calls of scripts that compare a dead letter with what the caller has read.
COMPARE: dict[str, Callable[[Bench], object]] = {
    "deadletters/replay": lambda s: replay(s, ("a", DIED, labelled("a"), digest_of(b"small"))),
    "deadletters/delete": lambda s: s.run(
        s.dead_letters.delete_call(QUEUE, [("a", DIED)], "token", digests=[digest_of(b"small")])
    ),
    "deadletters/swap": lambda s: s.dead_letters.swap(QUEUE, [Swap("a", b"small", b"new")]),
}

#: Functions and commands with which a script moves messages.
MOVES = re.compile(r"\b(?:message_in|store_message|put_ready|add_dead_letter)\(|'[LR](?:PUSH|POP)'")

#: Scripts that move messages, but not for each task, and scripts without messages.
OTHERS = {
    *("deadletters/replay_in_place", "dispatch/wake_ready"),
    *("limits/forgotten_lanes", "limits/wake_lanes", "migration/give_back"),
    *("migration/take_from_unacked", "periodic/fire"),
    *("repair/drop_cancelled", "repair/due", "repair/lanes", "schedule/import"),
}


def test_every_script_that_moves_messages_is_listed() -> None:
    moving = {name for name in scripts.names() if MOVES.search(scripts.load(name).source)}

    assert OTHERS <= moving <= {*COPIES, *OTHERS}


def copies(store: Bench, call: Callable[[Bench], object]) -> float:
    """Return the number of copies of the message that a call makes."""
    collect = "collectgarbage('collect') collectgarbage('stop') return collectgarbage('count')"
    before = store.client.eval(collect, 0)
    call(store)
    after = store.client.eval("return collectgarbage('count')", 0)
    store.client.eval("collectgarbage('restart') collectgarbage('collect')", 0)
    return (int(after) - int(before)) * 1024 / SIZE


@pytest.mark.parametrize("name", COPIES)
def test_no_script_makes_more_copies_than_listed(store: Bench, name: str) -> None:
    arrange, call, most = COPIES[name]
    recording = Recording(store)
    made = []
    for _ in range(2):  # Redis collects garbage after each 50th script, so not in both rounds
        store.client.flushall()
        store.next_queue()
        arrange(store)
        made.append(copies(recording, call))

    assert {each.name for each in recording.calls} == {name}
    assert round(max(made)) == most


@pytest.mark.parametrize("name", COMPARE)
def test_a_dead_letter_that_became_large_is_not_read(store: Bench, name: str) -> None:
    recording = Recording(store)
    made = []
    for _ in range(2):
        store.client.flushall()
        store.next_queue()
        seed(store, "a", message=MESSAGE)
        made.append(copies(recording, COMPARE[name]))

    assert {each.name for each in recording.calls} == {name}
    assert dead_letters_left(store) == {"a"}
    assert round(max(made)) == 0
