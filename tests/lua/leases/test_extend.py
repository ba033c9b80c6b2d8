"""extend.lua: a heartbeat extends the lease on all messages of a process in a queue."""

from __future__ import annotations

from tests.lua.bench import FAR, LEASE, QUEUE, Bench, Calls, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/extend": (lambda s: s.leases.extend("q", "me", 30.0), 1),
}


def test_a_beat_extends_the_lease_and_tells_how_much_is_held(store: Bench) -> None:
    store.hold(b"a", b"b")
    store.pass_time(300)

    assert store.leases.extend(QUEUE, "me", LEASE) == 2

    assert store.state() == {
        # A look that is too early costs little, and plans one at the end of the lease.
        "delayq:lease_ends": {b"q": 5},
        "{q}:leased:me": {b"1:1": b"0\na", b"1:2": b"0\nb"},
        "{q}:leases": {b"me": 10},
    }


def test_repeated_beats_keep_the_lease_for_ever(store: Bench) -> None:
    store.hold(b"a")

    for _ in range(5):
        store.pass_time(LEASE - 60)
        assert store.leases.extend(QUEUE, "me", LEASE) == 1
        assert store.reclaim_expired() == (False, 0, 0, 0)

    assert store.state() == {
        "delayq:lease_ends": {b"q": 10},
        "{q}:leased:me": {b"1:1": b"0\na"},
        "{q}:leases": {b"me": 10},
    }


def test_a_lease_may_be_shortened(store: Bench) -> None:
    store.hold(b"a")

    store.leases.extend(QUEUE, "me", 120)

    assert store.state()["{q}:leases"] == {b"me": 2}


def test_who_holds_nothing_gets_no_lease(store: Bench) -> None:
    assert store.leases.extend(QUEUE, "me", LEASE) == 0

    assert store.state() == {}


def test_who_is_done_with_all_does_not_extend_its_lease(store: Bench) -> None:
    [field] = store.hold(b"a")
    store.ack(field)
    store.pass_time(300)

    assert store.leases.extend(QUEUE, "me", LEASE) == 0

    assert store.state() == {"delayq:lease_ends": {b"q": 5}, "{q}:leases": {b"me": 5}}


def test_what_others_hold_is_not_extended(store: Bench) -> None:
    store.hold(b"a", who="me")
    store.hold(b"b", who="other")
    store.pass_time(300)

    store.leases.extend(QUEUE, "me", LEASE)

    assert store.state()["{q}:leases"] == {b"me": 10, b"other": 5}


def test_an_extension_after_the_reclaim_reports_that_all_is_lost(store: Bench) -> None:
    store.hold(b"a")
    store.pass_time()
    store.reclaim_expired()
    before = store.state()

    assert store.leases.extend(QUEUE, "me", LEASE) == 0
    assert store.state() == before


def test_a_retried_message_counts_as_held_until_it_is_acknowledged(store: Bench) -> None:
    [field] = store.hold(b"a")
    store.replace(entry("r", FAR), field=field)

    assert store.leases.extend(QUEUE, "me", LEASE) == 1


def test_a_full_server_that_has_lost_a_worker_id_still_extends_its_lease(store: Bench) -> None:
    store.hold(b"a")
    store.pass_time(300)
    store.fill()

    store.leases.renew("me", 30)  # the id cannot be claimed again
    held = store.leases.extend(QUEUE, "me", LEASE)

    store.make_room()
    assert held == 1
    assert store.state() == {
        "delayq:lease_ends": {b"q": 5},
        "{q}:leased:me": {b"1:1": b"0\na"},
        "{q}:leases": {b"me": 10},
    }
