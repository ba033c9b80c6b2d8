"""revoke.lua: what was revoked is remembered for a time, for workers that start later."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.store.schedule import Store
from tests.lua.conftest import fill, push, repeating, reserve
from tests.support.keyspace import snapshot

DAY = 86_400.0


def forget(store: Store, member: str, seconds: float) -> None:
    """Make it as if something had been revoked so many seconds earlier."""
    store.client.zincrby("delayq:revoked", -seconds * 1000, member)


def test_ids_and_stamps_are_told_to_all(store: Store) -> None:
    before = store.now_ms()

    assert store.control.revoke(DAY, ["a", "b ä"], {"customer": [7, "x"]}) == 3

    ids, stamps, _, last = store.control.revoked()
    assert (sorted(ids), stamps) == (["a", "b ä"], [{"customer": [7, "x"]}])
    assert before <= last <= store.now_ms()
    assert snapshot(store.client).keys() == {"delayq:control", "delayq:revoked"}


def test_only_what_is_new_is_read_again(store: Store) -> None:
    store.control.revoke(DAY, ["a"])
    forget(store, "ia", 10)
    _, _, _, last = store.control.revoked()
    store.control.revoke(DAY, ["b"])

    assert store.control.revoked(last + 1)[0] == ["b"]
    assert store.control.revoked(last + 10**9) == ([], [], [], last + 10**9)


def test_consumers_are_told_the_revision(store: Store) -> None:
    push(store, b"{}", b"{}")
    store.control.revoke(DAY, ["a"])
    assert reserve(store, "1", 1).revision == 1
    store.control.revoke(DAY, ["a"])
    assert reserve(store, "2", 1).revision == 2


def test_what_is_revoked_again_is_remembered_from_then(store: Store) -> None:
    store.control.revoke(DAY, ["a"])
    forget(store, "ia", DAY - 1)

    assert store.control.revoke(DAY, ["a"]) == 1
    assert store.control.revoked(store.now_ms() - 5000)[0] == ["a"]


def test_a_repeat_remembers_nothing_more(store: Store) -> None:
    assert repeating(store).control.revoke(DAY, ["a"], {"x": 1}) == 2


def test_what_is_old_is_forgotten(store: Store) -> None:
    store.control.revoke(DAY, ["old", "new"], {"old": 1})
    forget(store, "iold", DAY)
    forget(store, 's{"old": 1}', DAY)

    assert store.control.revoke(DAY, ["newer"]) == 2
    assert store.control.revoked()[:2] == (["new", "newer"], [])


def test_one_call_forgets_a_thousand_at_most(store: Store) -> None:
    store.client.zadd("delayq:revoked", {f"i{n}": n for n in range(2500)})

    assert store.control.revoke(DAY, ["new"]) == 1501
    assert store.control.revoke(DAY, ["new"]) == 501
    assert store.control.revoke(DAY, ["new"]) == 1


def test_even_a_full_server_remembers(store: Store) -> None:
    store.control.revoke(DAY, ["a"])
    fill(store)

    assert store.control.revoke(DAY, ["b"]) == 2
    assert store.control.not_revoked(["a", "b"]) == []


@pytest.mark.parametrize("key", ["delayq:control", "delayq:revoked"])
def test_a_key_of_another_type_is_an_error_before_anything_is_written(
    store: Store, key: str
) -> None:
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        store.control.revoke(DAY, ["a"])

    assert snapshot(store.client) == before
