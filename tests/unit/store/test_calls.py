"""Calls of scripts, and commands as they go over the wire."""

from __future__ import annotations

import pytest
from redis.connection import Connection

from celery_delayq.model.envelope import Due, Entry
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.scripting.calls import Call, EntriesCall, keys_of, pack
from celery_delayq.store.scripting.scripts import load


@pytest.mark.parametrize(
    "commands",
    [
        [],
        [("PING",)],
        [("SET", "key", b"\x00\xff\r\n"), ("EVALSHA", "abc", 2, "a", "b", 10**15, -1)],
        [("BRPOP", "größe {q}\x06\x163", 0.25), ("SET", "empty", "", b"")],
    ],
)
def test_they_are_packed_as_redis_py_does(commands: list[tuple[object, ...]]) -> None:
    theirs = b"".join(Connection().pack_commands(commands))

    assert pack(commands) == theirs


KEYS, LAYOUT = Keys("app:"), Layout(steps=(0, 9))
QUEUE = KEYS.queue("mail")


def test_a_call_has_the_keys_of_the_header_the_given_keys_and_the_ready_lists() -> None:
    call = Call.of(KEYS, "leases/requeue", "mail", ["first"], layout=LAYOUT, leased="me")

    *names, ready_lists = load("leases/requeue").header.keys
    keys = dict(zip(names, call.keys, strict=False))
    assert ready_lists == "ready_lists…"
    assert (keys["leased"], keys["wake"]) == (QUEUE.leased("me"), QUEUE.wake)
    assert call.keys[len(names) :] == KEYS.ready_lists("mail", LAYOUT)
    assert call.args == ["first"]


def test_a_call_without_a_key_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a call of leases/ack needs the keys leased$"):
        keys_of("leases/ack", KEYS, "mail")
    with pytest.raises(TypeError, match="needs the keys due, entries, "):
        keys_of("schedule/add", KEYS, None)


def test_a_call_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(TypeError, match=r"leases/ack has no keys lease$"):
        keys_of("leases/ack", KEYS, "mail", leased="me", lease="me")


def test_a_change_of_one_call_does_not_change_the_next_one() -> None:
    first, second = (Call.of(KEYS, "leases/ack", "mail", leased="me") for _ in range(2))
    first.keys.append("more")

    assert second.keys == [*keys_of("leases/ack", KEYS, "mail", leased="me")]


def test_entries_with_a_unique_key_add_each_list_of_ready_messages_once() -> None:
    def entry(id: str, policy: str) -> Entry:
        return Entry(id, Due(1), 9, b"", policy)

    call = EntriesCall("schedule/add", [], [], KEYS, "mail", LAYOUT)
    ready, urgent = KEYS.ready("mail", 9, LAYOUT), KEYS.ready("mail", 0, LAYOUT)
    call.add(entry("a", ""))
    assert call.keys == [ready]
    call.add(entry("b", "k 0 0"))
    call.add(entry("c", "k 0 0"))

    assert call.keys == [ready, QUEUE.quarantined, urgent]
    assert call.args[2::5] == [1, 1, 1]
