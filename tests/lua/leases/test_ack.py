"""ack.lua: finished messages and their counts of deliveries are forgotten."""

from __future__ import annotations

from tests.lua.bench import FAR, Bench, Calls, counts, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/ack": (lambda s: s.run(s.leases.ack_call("q", "me", {"1:1": b""})), [1, 1]),
}


def test_what_is_done_is_forgotten_and_the_rest_stays_held(store: Bench) -> None:
    store.hold(b"a", b"b", b"c")

    assert store.ack("9:9", "1:1", "1:7", "1:3") == 2

    assert store.state() == {
        "delayq:lease_ends": {b"q": 10},
        "{q}:leased:me": {b"1:2": b"0\nb"},
        "{q}:leases": {b"me": 10},
    }


def test_what_others_hold_or_nobody_does_is_not_touched(store: Bench) -> None:
    store.hold(b"a", who="other")
    store.delivered(b"a", b"1 0 0")
    before = store.state()

    assert store.ack("1:1", "1:2", "no:field") == 0
    assert store.state() == before


def test_a_message_that_was_delivered_alone_is_forgotten_with_its_counts(store: Bench) -> None:
    store.quarantine(b"deadly", step=3)
    assert store.acquire().alone

    assert store.ack("1:1") == 1

    assert store.state() == {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}


def test_a_retried_message_counts_as_held_until_it_is_acknowledged(store: Bench) -> None:
    [field] = store.hold(b"a")
    store.delivered(b"other", b"3 0 0")
    store.replace(entry("r", FAR), field=field)

    assert store.ack(field) == 1
    assert store.ack(field) == 0
    assert store.state()["{q}:deliveries"] == counts(b"other", b"3 0 0")
    assert not store.client.exists("{q}:leased:me")


def test_many_acknowledgements_at_once(store: Bench) -> None:
    fields = store.hold(*(b"%d" % n for n in range(500)))
    store.delivered(b"499", b"1 0 0")

    assert store.ack(*fields) == 500
    assert store.state() == {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}
