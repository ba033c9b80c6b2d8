"""Marks, members and definitions that other programs have written: no lane stops a queue."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.model.envelope import limit_of
from tests.lua.bench import FAR, Bench, labelled
from tests.lua.leases.test_limits import HOUR, ids
from tests.support.leases import ack

#: Marks behind a label, and whether they are marks.
MARKS: dict[bytes, bool] = {
    b"api: 0": True,
    b"api:x 999999999999999": True,
    b"api:a:b 0": True,
    b"api:%s%n%00 0": True,
    b"api:[a-z]*(%%) 0": True,
    b"api:" + b"x" * 496 + b" 0": True,
    b"another:x 0": True,
    b"api:" + b"x" * 497 + b" 0": False,
    b"api:" + b"x" * 100_000 + b" 0": False,
    b"api 0": False,
    b":x 0": False,
    b": 0": False,
    b"": False,
    b"api:\0evil 0": False,
    b"api:a\0000 0": False,
    b"api:\xc3\xa9 0": False,
    b"api:\xff 0": False,
    b"api:\x1f 0": False,
    b'api:a"b 0': False,
    b"api:x": False,
    b"api:x -1": False,
    b"api:x 1.5": False,
    b"api:x 0 0": False,
    b"api:x " + b"9" * 400: False,
}

DEFINITIONS: dict[str, dict[str, Any]] = {
    "concurrency": {"concurrency": 1},
    "rate": {"interval_us": HOUR, "burst": 3},
    "fair": {"fair": True},
}


def marked(id: str, mark: bytes) -> bytes:
    """Return a message with a label and a mark."""
    head = b'{"properties": {"delayq": {"label": "%b n-%b 0 -", "limit": "%b"}}}'
    return head % (id.encode(), id.encode(), mark)


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("mark", MARKS)
def test_each_mark_is_read_in_the_same_way_and_stops_nothing(
    store: Bench, mark: bytes, definition: str
) -> None:
    store.define_limit(**DEFINITIONS[definition])
    store.put(labelled("first", 0, lane="api:"))
    assert ids(store.acquire("1", who="you")) == ["first"]
    store.push(*(marked(id, mark) for id in ("a", "b")), marked("free", b""))
    there = {"a", "b", "free"}

    has_permit = set()
    for number in range(2, 12):
        found = store.acquire(str(number))
        leased = ids(found)
        there -= {*leased}
        for each in store.client.zrange("delayq:permits", 0, -1):
            has_permit.add(each.split(b"\0")[2].decode())
        if number == 4:
            ack(store, "q", "you", ["1:1"])
        store.ack(*(field for field, _, _ in found.messages))
        store.promote()
        store.next_queue()

    is_mark = MARKS[mark]
    assert (limit_of(marked("a", mark)) is not None) == is_mark
    assert not there
    assert has_permit - {"first"} == ({"a", "b"} if is_mark else set())
    assert store.client.exists("delayq:permits", "{q}:held", "{q}:lanes", "{q}:due") == 0


#: Members that other programs may add to the keys of lanes of a queue.
MEMBERS = (b"", b"api:", b"api:\0", b"api:\0junk", b"api:\0000\0x\0a", b"api:\0000\0005\0", b"\xff")


@pytest.mark.parametrize("garbage", MEMBERS)
@pytest.mark.parametrize("key", ["{q}:held", "{q}:lanes", "delayq:freed_lanes"])
def test_garbage_in_the_keys_of_lanes_stops_nothing(store: Bench, key: str, garbage: bytes) -> None:
    store.define_limit(concurrency=1)
    store.put(labelled("first", 0, lane="api:"))
    assert ids(store.acquire("1")) == ["first"]
    store.put(labelled("held", FAR, lane="api:"))
    store.become_due("held")
    store.promote()
    store.acquire("2")
    assert store.client.zrange("{q}:lanes", 0, -1) == [b"api:"]
    store.client.zadd(key, {(b"q\0" if key.startswith("d") else b"") + garbage: 0})
    store.put(labelled("also", 0, lane="api:"), labelled("free", 0))

    assert ids(store.acquire("3")) == ["free"]
    store.run_now("held")
    store.ack("1:1", "3:1")
    leased = []
    for number in range(4, 10):
        store.promote()
        found = store.acquire(str(number))
        leased += ids(found)
        store.ack(*(field for field, _, _ in found.messages))
    assert sorted(leased) == ["also", "held"]


@pytest.mark.parametrize(
    "definition",
    [
        *(
            b"",
            b"\xff",
            b"none",
            b"1 1 1 1 1",
            b"-1 1 1 0",
            b"nan 1 0 0",
            b"inf 1 0 0",
            b"1e9 1 0 0",
        ),
        *(b"0 0 1 0", b"0 1 0 1", b"1 0 0 0", b"9" * 400 + b" 1 0 0", b"1 " + b"9" * 400 + b" 0 0"),
        *(b"0 1 " + b"9" * 400 + b" 0", b"1" * 15 + b" " + b"1" * 15 + b" 1 1"),
    ],
)
def test_garbage_in_a_definition_stops_no_other_task(store: Bench, definition: bytes) -> None:
    store.client.hset("delayq:limits", "capi", definition)
    for number in range(1, 4):
        store.put(labelled(f"a{number}", 0, lane="api:"), labelled(f"free{number}", 0))
        store.promote()
        assert f"free{number}" in ids(store.acquire(str(number)))
        store.next_queue()
    store.client.hset("delayq:limits", "capi", "0 1 9 0")
    store.run_steps(store.task_limits.wake_lanes_steps("q", "api"))
    for number in range(4, 8):
        store.acquire(str(number))
    assert store.client.zcard("{q}:held") == 0


@pytest.mark.parametrize(
    "changed", [b"", b"\xff", b"nan", b"inf", b"-inf", b"9" * 400, b"-5", b"0x7"]
)
def test_garbage_in_the_time_of_a_change_stops_nothing(store: Bench, changed: bytes) -> None:
    store.define_limit(interval_us=HOUR, burst=2)
    store.client.hset("delayq:limits", "rapi", changed)
    store.put(*(labelled(id, 0, lane="api:") for id in "abc"), labelled("free", 0))

    assert ids(store.acquire("1")) == ["a", "b", "free"]
    assert ids(store.acquire("2")) == []
