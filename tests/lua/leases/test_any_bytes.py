"""Messages of any bytes stay as they are in each state of a lease."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.bench import FAR, QUEUE, Bench, any_bytes, bodies, counts, entry


@any_bytes
def test_any_bytes_pass_through_each_state(store: Bench, message: bytes) -> None:
    store.push(message, step=6)
    assert store.client.lrange("q\x06\x166", 0, -1) == [message]
    for _ in range(2):  # a repeat returns the same
        assert bodies(store.acquire("1")) == [message]
        assert store.client.hgetall("{q}:leased:me") == {b"1:1": b"6\n" + message}

    assert store.requeue("1:1", counted="requeued") == (1, 0)
    assert store.client.lrange("q\x06\x166", 0, -1) == [message]
    assert store.state()["{q}:deliveries"] == counts(message, b"0 0 1")

    assert bodies(store.acquire("2")) == [message]
    store.pass_time()
    assert store.reclaim_expired(max_deliveries=2).requeued == 1
    assert store.client.lrange("q\x06\x166", 0, -1) == [message]
    assert store.state()["{q}:deliveries"] == counts(message, b"1 0 1")

    assert bodies(store.acquire("3")) == [message]
    store.pass_time()
    assert store.reclaim_expired(max_deliveries=2).quarantined == 1
    for request in ("4", "5"):
        assert store.client.lrange("{q}:quarantined", 0, -1) == [b"6\n" + message]
        assert bodies(store.acquire(request)) == [message]
        assert store.client.hvals("{q}:leased:me") == [b"6!\n" + message]
        if request == "4":
            assert store.requeue("4:1") == (1, 0)

    store.pass_time()
    assert store.reclaim_expired(max_deliveries=2).dead_lettered == 1
    assert store.dead_messages() == [message]
    assert store.state().keys() == {"{q}:dead", "{q}:dead_at"}


#: By name: a call that ends the message under ``1:2``, and whether it becomes a dead letter.
ENDS: dict[str, tuple[Callable[[Bench], object], bool]] = {
    "ack": (lambda s: s.ack("1:2"), False),
    "replace": (lambda s: s.replace(entry("r", FAR), field="1:2"), False),
    "crash": (lambda s: s.requeue("1:2", counted="crashed", max_deliveries=1), True),
    "reject": (lambda s: s.leases.dead_letter(QUEUE, "me", "1:2", "id", "rejected"), True),
}


@any_bytes
@pytest.mark.parametrize("end", ENDS)
def test_any_bytes_end_with_the_count_of_their_deliveries(
    store: Bench, message: bytes, end: str
) -> None:
    store.hold(b"!other", message)
    store.delivered(b"!other", b"3 0 0")
    store.delivered(message, b"1 1 2")

    call, dead = ENDS[end]
    assert call(store)

    assert store.state()["{q}:deliveries"] == counts(b"!other", b"3 0 0")
    assert store.client.hget("{q}:leased:me", "1:1") == b"0\n!other"
    assert not store.client.hget("{q}:leased:me", "1:2")
    assert store.dead_messages() == [message] * dead
    assert not store.client.exists("{q}:wake")
