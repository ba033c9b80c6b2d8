"""push_ready.lua: from the publisher into the ready lists, and consumers wake."""

from __future__ import annotations

import pytest

from celery_delayq.store.store import Store
from tests.lua.bench import Bench, Calls, bodies


def push(store: Store) -> object:
    call = store.ready_call("q")
    call.add(3, b"{}")
    return store.run(call)


#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "schedule/push_ready": (push, 1),
}


def test_messages_go_to_their_lists_behind_what_is_there(store: Bench) -> None:
    store.client.lpush("q", b"there")
    call = store.ready_call("q")
    for step, message in ((0, b"a"), (9, b"b"), (0, b"c"), (3, b"d")):
        call.add(step, message)

    assert store.run(call) == 4

    assert store.state() == {
        # Consumers pop from the right.
        "q": [b"c", b"a", b"there"],
        "q\x06\x163": [b"d"],
        "q\x06\x169": [b"b"],
        "{q}:wake": [b""],
    }


@pytest.mark.parametrize("tasks", ["none", "before", "among them"])
def test_a_queue_of_replies_has_no_counters(store: Bench, tasks: str) -> None:
    """Who answers cannot know that the queue is temporary: its counters would stay for good."""
    if tasks == "before":
        store.push(b"task")
    call = store.ready_call("q")
    call.add(0, b"reply", False)
    call.add(0, b"another", tasks == "among them")
    assert store.run(call) == 2

    pushed = {"none": None, "before": b"3", "among them": b"2"}[tasks]
    assert store.client.hget("{q}:totals", "pushed") == pushed
    assert store.client.exists("{q}:totals") == (pushed is not None)


def test_a_repeat_pushes_again(store: Bench) -> None:
    store.push(b"a")
    store.push(b"a")

    assert bodies(store.acquire()) == [b"a", b"a"]


def test_many_messages_at_once(store: Bench) -> None:
    messages = [b"%d" % n for n in range(5000)]
    store.push(*messages)

    assert store.client.lrange("q", 0, -1) == messages[::-1]
