"""find.lua: the place of every message with an id, and its values there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.model.envelope import Entry
from celery_delayq.model.script_values import Location, Name
from celery_delayq.store import control
from tests.lua.bench import FAR, QUEUE, Bench, Calls, entry, labelled

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "control/find": (lambda s: s.control.find("q", ["id"]), [1, b"["]),
    "control/queues_with": (lambda s: s.control.queues_with(["q"], ["id"]), [1]),
}


def find(store: Bench, *ids: str) -> list[Location]:
    return sorted(store.control.find(QUEUE, ids), key=lambda place: (place.name, place.state))


@pytest.mark.parametrize("what", [labelled("a"), entry("a", FAR)], ids=["labelled", "unlabelled"])
def test_a_scheduled_entry_is_found_with_its_record(store: Bench, what: Entry) -> None:
    store.put(what)

    assert find(store, "a") == [Location("a", "scheduled", FAR, what.data)]


def test_find_reports_the_due_time_of_a_paused_due_entry(store: Bench) -> None:
    store.put(labelled("a"))
    store.pause_due("a", due_ms=7)

    assert find(store, "a") == [Location("a", "paused", 7, labelled("a").data)]


def test_a_ready_one_is_found_with_what_is_known_of_it(store: Bench) -> None:
    store.make_ready(labelled("a", unique="dk", task="shop.send mail"), due_ms=7)

    assert find(store, "a") == [Location("a", "ready", 7, None, "shop.send mail", "dk")]


def test_one_that_was_due_when_it_was_sent_is_due_then(store: Bench) -> None:
    store.put(labelled("a", 5), labelled("b", 0))

    [a, b] = find(store, "a", "b")
    assert a.due_ms == 5
    assert store.now_ms() - 5000 < b.due_ms <= store.now_ms()


def test_a_running_one_is_found_with_its_holder(store: Bench) -> None:
    store.make_ready(labelled("a"), due_ms=7)
    store.acquire(who="host 1:x y")

    assert find(store, "a") == [Location("a", "running", 7, None, "tasks.t", "-", "host 1:x y")]


def test_what_came_back_is_ready_with_its_due(store: Bench) -> None:
    store.make_ready(labelled("a"), labelled("b"), due_ms=7)
    store.acquire()
    store.requeue("1:1")
    store.pass_time()
    store.reclaim_expired(max_deliveries=1)

    assert find(store, "a", "b") == [
        Location("a", "ready", 7, None, "tasks.t"),
        Location("b", "ready", 7, None, "tasks.t"),
    ]


def test_what_is_gone_cancelled_or_never_was_is_not_found(store: Bench) -> None:
    store.lease(labelled("acked"), labelled("rejected"))
    store.ack("1:1")
    store.leases.dead_letter(QUEUE, "me", "1:2", "id", "why")
    store.make_ready(labelled("cancelled"))
    store.put(labelled("cancelled", message_id="x"), entry("unlabelled", 1))
    store.cancel("cancelled")
    store.push(b"{}")

    assert find(store, "acked", "rejected", "cancelled", "unlabelled", "", "never was") == []


def test_all_with_one_id_are_found_and_a_name_alone(store: Bench) -> None:
    store.lease(labelled("a", message_id="n1"), labelled("a", message_id="n2"))
    store.make_ready(labelled("a", message_id="n3"), labelled("a", message_id="n4"))
    store.put(labelled("a", FAR, message_id="n5"), labelled("a", FAR + 1, message_id="n6"))

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

    store.ack("1:1", "1:2")
    store.cancel("a")
    store.acquire("2")
    assert "{q}:duplicate_ids" not in store.state()


def test_a_name_that_is_no_text_is_found(store: Bench) -> None:
    store.client.zadd("{q}:due", {b"\xff\xfe": 7})
    store.client.hset("{q}:entries", b"\xff\xfe", b"\x00")

    assert find(store, Name(b"\xff\xfe".decode(errors="surrogateescape"))) == [
        Location("\udcff\udcfe", "scheduled", 7, b"\x00")
    ]


#: The ways in which a message comes to a queue.
PLACES: dict[str, Callable[[Bench], object]] = {
    "scheduled": lambda s: s.put(labelled("a")),
    "ready": lambda s: s.make_ready(labelled("a")),
    "running": lambda s: s.lease(labelled("a")),
    "as the second with its id": lambda s: (
        [s.put(labelled("a", message_id=each)) for each in ("m", "n")] + [s.cancel(Name("a"))]
    ),
    "in a key of another type": lambda s: s.client.set("{q}:leased_index", "broken"),
}


@pytest.mark.parametrize("comes", PLACES.values(), ids=PLACES)
def test_of_many_queues_those_that_may_have_an_id_are_reported(
    store: Bench, comes: Callable[[Bench], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [f"other-{number}" for number in range(7)]
    store.put(labelled("b"), queue="other-3")
    comes(store)
    # Three queues with two ids in one call.
    monkeypatch.setattr(control, "MAX_CALL_KEYS", 24)

    assert store.control.queues_with([*others, QUEUE], ["none", "a"]) == [QUEUE]
    assert store.control.queues_with([*others, QUEUE], ["none"]) in ([], [QUEUE])
    assert store.control.queues_with([*others, QUEUE], ["b", Name("b")])[0] == "other-3"
    assert store.control.queues_with([], ["a"]) == []
