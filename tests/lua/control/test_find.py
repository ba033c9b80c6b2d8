"""find.lua: where everything with an id is, and what is known of it there."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.model.lookup import Location, Name
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    FAR,
    LEASE,
    QUEUE,
    become_due,
    entry,
    fill,
    labelled,
    make_ready,
    push,
    put,
    reserve,
    state,
)
from tests.support.model_clock import pass_time

pytestmark = pytest.mark.usefixtures("watched")


def find(store: Store, *ids: str) -> list[Location]:
    return sorted(store.control.find(QUEUE, ids), key=lambda place: (place.name, place.state))


@pytest.mark.parametrize("what", [labelled("a"), entry("a", FAR)], ids=["labelled", "unlabelled"])
def test_a_scheduled_entry_is_found_with_its_record(store: Store, what: object) -> None:
    put(store, what)  # type: ignore[arg-type]

    assert find(store, "a") == [Location("a", "scheduled", FAR, what.data)]  # type: ignore[attr-defined]


def test_of_a_paused_due_entry_the_due_is_told(store: Store) -> None:
    put(store, labelled("a"))
    store.control.pause([], task="tasks.t")
    become_due(store, "a", 7)
    store.promote(QUEUE, Layout(), 100)

    assert find(store, "a") == [Location("a", "paused", 7, labelled("a").data)]


def test_a_ready_one_is_found_with_what_is_known_of_it(store: Store) -> None:
    make_ready(store, labelled("a", unique="dk", task="shop.send mail"), due_ms=7)

    assert find(store, "a") == [Location("a", "ready", 7, None, "shop.send mail", "dk")]


def test_one_that_was_due_when_it_was_sent_is_due_then(store: Store) -> None:
    put(store, labelled("a", 5), labelled("b", 0))

    [a, b] = find(store, "a", "b")
    assert a.due_ms == 5
    assert store.now_ms() - 5000 < b.due_ms <= store.now_ms()


def test_a_running_one_is_found_with_its_holder(store: Store) -> None:
    make_ready(store, labelled("a"), due_ms=7)
    reserve(store, who="host 1:x y")

    assert find(store, "a") == [Location("a", "running", 7, None, "tasks.t", "-", "host 1:x y")]


def test_what_came_back_is_ready_with_its_due(store: Store) -> None:
    make_ready(store, labelled("a"), labelled("b"), due_ms=7)
    reserve(store)
    store.leases.requeue(QUEUE, "me", ["1:1"])
    pass_time(store.client, LEASE + 60)
    store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 1)

    assert find(store, "a", "b") == [
        Location("a", "ready", 7, None, "tasks.t"),
        Location("b", "ready", 7, None, "tasks.t"),
    ]


def test_what_is_gone_cancelled_or_never_was_is_not_found(store: Store) -> None:
    make_ready(store, labelled("acked"), labelled("rejected"))
    reserve(store)
    store.leases.ack(QUEUE, "me", ["1:1"])
    store.leases.dead_letter(QUEUE, "me", "1:2", "id", "why")
    make_ready(store, labelled("cancelled"))
    put(store, labelled("cancelled", message_id="x"), entry("unlabelled", 1))
    store.control.cancel(QUEUE, Layout(), ["cancelled"])
    push(store, b"{}")

    assert find(store, "acked", "rejected", "cancelled", "unlabelled", "", "never was") == []


def test_all_with_one_id_are_found_and_a_name_alone(store: Store) -> None:
    make_ready(store, labelled("a", message_id="n1"), labelled("a", message_id="n2"))
    reserve(store)
    make_ready(store, labelled("a", message_id="n3"), labelled("a", message_id="n4"))
    put(store, labelled("a", FAR, message_id="n5"), labelled("a", FAR + 1, message_id="n6"))

    places = find(store, "a")
    assert [(place.name, place.state) for place in places] == [
        ("a", "ready"),
        ("a", "running"),
        ("a", "scheduled"),
        ("a\0n2", "running"),
        ("a\0n4", "ready"),
        ("a\0n6", "scheduled"),
    ]
    assert find(store, Name("a\0n6")) == places[5:]
    assert find(store, Name("a")) == places[:3]
    assert find(store, *(Name(place.name) for place in places[:1])) == places[:3]

    store.leases.ack(QUEUE, "me", ["1:1", "1:2"])
    store.control.cancel(QUEUE, Layout(), ["a"])
    reserve(store, "2")
    assert "{q}:duplicate_ids" not in state(store)


def test_a_name_that_is_no_text_is_found(store: Store) -> None:
    store.client.zadd("{q}:due", {b"\xff\xfe": 7})
    store.client.hset("{q}:entries", b"\xff\xfe", b"\x00")

    assert find(store, Name(b"\xff\xfe".decode(errors="surrogateescape"))) == [
        Location("\udcff\udcfe", "scheduled", 7, b"\x00")
    ]


def test_looking_changes_nothing_and_passes_on_a_full_server(store: Store) -> None:
    make_ready(store, labelled("a"))
    fill(store)
    before = state(store)

    assert len(find(store, "a")) == 1
    assert state(store) == before


@pytest.mark.parametrize(
    "key", ["{q}:entries", "{q}:duplicate_ids", "{q}:ready_index", "{q}:leased_index"]
)
def test_a_key_of_another_type_is_an_error(store: Store, key: str) -> None:
    store.client.set(key, "not ours")

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        find(store, "a")
