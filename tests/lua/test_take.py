"""take.lua: a popped message is noted as held, and more of its list come along."""

from __future__ import annotations

import pytest

from celery_delayq.store import Held, Store
from tests.support.keyspace import snapshot

HELD = Held("unacked", "unacked_index", "t1")
BEHIND = ', "", "q"]'


def take(store: Store, tags: list[str]) -> list[bytes]:
    return store.take("q", HELD, 5.5, BEHIND, b'{"n": 1}', tags)


def test_one_popped_message_is_noted_as_kombu_notes_it(store: Store) -> None:
    assert take(store, []) == []

    assert snapshot(store.client) == {
        "unacked": {b"t1": b'[{"n": 1}, "", "q"]'},
        "unacked_index": {b"t1": 5.5},
    }


def test_more_come_in_the_order_in_which_they_would_be_popped(store: Store) -> None:
    store.client.lpush("q", b'{"n": 2}', b'{"n": 3}', b'{"n": 4}')

    assert take(store, ["t2", "t3"]) == [b'{"n": 2}', b'{"n": 3}']

    assert snapshot(store.client) == {
        "q": [b'{"n": 4}'],
        "unacked": {b"t%d" % n: b'[{"n": %d}, "", "q"]' % n for n in (1, 2, 3)},
        "unacked_index": {b"t1": 5.5, b"t2": 5.5, b"t3": 5.5},
    }


def test_an_empty_list_leaves_the_further_tags_unused(store: Store) -> None:
    store.client.lpush("q", b'{"n": 2}')

    assert take(store, ["t2", "t3", "t4"]) == [b'{"n": 2}']
    assert set(store.client.hkeys("unacked")) == {b"t1", b"t2"}


@pytest.mark.parametrize("more", [[], ["t2"]])
def test_a_full_server_takes_it_all_the_same(store: Store, more: list[str]) -> None:
    store.client.lpush("q", b'{"n": 2}')
    store.client.config_set("maxmemory-policy", "noeviction")
    store.client.config_set("maxmemory", 1)

    assert len(take(store, more)) == len(more)
    assert store.client.hlen("unacked") == store.client.zcard("unacked_index") == 1 + len(more)


@pytest.mark.parametrize("tags", [[], ["t2", "t3"], ["t2", "t3", "t4", "t5"]])
def test_a_repeat_after_a_lost_reply_returns_the_same(store: Store, tags: list[str]) -> None:
    store.client.lpush("q", *(b'{"n": %d}' % n for n in range(2, 5)))
    first = take(store, tags)
    before = snapshot(store.client)

    assert take(store, tags) == first
    assert snapshot(store.client) == before


def test_what_was_not_started_goes_back_where_it_was(store: Store) -> None:
    store.client.lpush("q", b'{"n": 2}', b'{"n": 3}', b'{"n": 4}')
    take(store, ["t2", "t3"])
    store.client.hdel("unacked", "t1")
    store.client.zrem("unacked_index", "t1")

    assert store.untake("q", HELD, BEHIND, ["t2", "t3"]) == 2

    expected = {"q": [b'{"n": 4}', b'{"n": 3}', b'{"n": 2}']}
    assert snapshot(store.client) == expected
    assert store.untake("q", HELD, BEHIND, ["t2", "t3"]) == 0
    assert snapshot(store.client) == expected
