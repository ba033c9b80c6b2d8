"""dead_letter.lua: a leased message becomes a dead letter, byte for byte."""

from __future__ import annotations

from tests.lua.bench import FAR, LAYOUT, QUEUE, Bench, Calls, counts, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/dead_letter": (lambda s: s.leases.dead_letter("q", "me", "1:1", "id", "why"), 1),
}


def test_a_message_moves_to_the_dead_letters_with_the_reason(store: Bench) -> None:
    store.hold(b"a", b"b", step=3)
    store.client.hset("{q}:deliveries", mapping=counts(b"a", b"1 0 1") | counts(b"b", b"2 0 0"))
    before = store.now_ms()

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "task-id", "unknown task\n  tasks.x")

    found = store.state()
    [(dead_letter, died)] = found.pop("{q}:dead_at").items()
    assert before <= died <= store.now_ms()
    assert found == {
        "delayq:queues": {b"q": LAYOUT},
        "delayq:lease_ends": {b"q": 10},
        "{q}:dead": {b"task-id": b"1 %d 0 unknown task tasks.x\na" % died},
        "{q}:deliveries": counts(b"b", b"2 0 0"),
        "{q}:leased:me": {b"1:2": b"3\nb"},
        "{q}:leases": {b"me": 10},
    }
    assert dead_letter == b"task-id"


def test_a_quarantined_is_kept_without_its_mark(store: Bench) -> None:
    store.quarantine(b"!deadly", step=3)
    assert store.acquire().alone

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    assert store.dead_messages() == [b"!deadly"]


def test_two_dead_letters_with_one_id_are_both_kept(store: Bench) -> None:
    store.hold(b"a", b"b")

    assert store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")
    assert store.leases.dead_letter(QUEUE, "me", "1:2", "id", "rejected")

    assert sorted(store.dead_messages()) == [
        b"a",
        b"b",
    ]
    assert set(store.client.hkeys("{q}:dead")) == set(store.client.zrange("{q}:dead_at", 0, -1))


def test_what_others_hold_or_nobody_does_is_not_touched(store: Bench) -> None:
    store.hold(b"a", who="other")
    before = store.state()

    assert not store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")
    assert store.state() == before


def test_what_was_retried_already_is_no_dead_letter(store: Bench) -> None:
    [field] = store.hold(b"a")
    store.replace(entry("r", FAR), field=field)

    assert not store.leases.dead_letter(QUEUE, "me", field, "id", "rejected")

    assert not store.client.exists("{q}:dead", "{q}:leased:me")
    assert store.scheduled(QUEUE) == 1


def test_a_layout_that_is_known_stays(store: Bench) -> None:
    store.hold(b"a")
    store.client.hset("delayq:queues", "q", "its own")

    store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    assert store.registry() == {"q": b"its own"}


def test_what_is_held_and_unreadable_is_a_dead_letter_too(store: Bench) -> None:
    store.client.hset("{q}:leased:me", "1:1", b"\xff not what we write")

    store.leases.dead_letter(QUEUE, "me", "1:1", "id", "rejected")

    assert not store.client.exists("{q}:leased:me")
    assert store.dead_messages() == [b"\xff not what we write"]
