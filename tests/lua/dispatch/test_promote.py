"""promote.lua: from the schedule to the ready lists, each entry once; bad ones become dead."""

from __future__ import annotations

import pytest

from celery_delayq.store.keys import Keys, Layout
from tests.lua.bench import FAR, LAYOUT, QUEUE, Bench, Calls, as_scheduled, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "dispatch/promote": (lambda s: s.promote("q", Layout(), 100), [5, b"", b"", 1, 0, 0]),
}


def overdue(store: Bench, id: str, due_ms: int, **options: object) -> None:
    """Store a due entry, as after a period without a dispatcher."""
    store.schedule(QUEUE, entry(id, FAR + due_ms, **options))  # type: ignore[arg-type]
    store.become_due(id, due_ms)


def test_what_is_due_is_consumed_in_order_and_nothing_of_it_is_left(store: Bench) -> None:
    for id, due in (("c", 3), ("a", 1), ("b", 2)):
        overdue(store, id, due)

    promoted = store.promote()

    assert (promoted.moved, promoted.dead_lettered, promoted.look.queue) == (3, 0, None)
    # Consumers pop from the right.
    assert store.state() == {
        "delayq:queues": {b"q": LAYOUT},
        "q": [b'{"id": "c"}', b'{"id": "b"}', b'{"id": "a"}'],
        "{q}:wake": [b""],
    }


def test_what_is_not_due_stays_and_is_what_to_look_at_next(store: Bench) -> None:
    overdue(store, "now", 1)
    store.schedule(QUEUE, entry("later", FAR))

    promoted = store.promote()

    assert promoted.moved == 1
    assert (promoted.look.queue, promoted.look.due) == ("q", FAR)
    assert store.state() == as_scheduled(entry("later", FAR)) | {
        "q": [b'{"id": "now"}'],
        "{q}:wake": [b""],
    }


def test_the_marker_tells_of_what_was_moved_and_of_nothing_else(store: Bench) -> None:
    store.client.zadd("{q}:due", {"no record": 1})
    assert store.promote().dead_lettered == 1
    assert not store.client.exists("{q}:wake")

    overdue(store, "a", 1)
    store.promote()
    assert store.client.lrange("{q}:wake", 0, -1) == [b""]


def test_each_priority_goes_to_its_list(store: Bench) -> None:
    for step in (0, 3, 6, 9):
        overdue(store, f"p{step}", 1, priority=step)

    store.promote()

    lists = {key: value for key, value in store.state().items() if key.startswith("q")}
    assert lists == {
        "q": [b'{"id": "p0"}'],
        "q\x06\x163": [b'{"id": "p3"}'],
        "q\x06\x166": [b'{"id": "p6"}'],
        "q\x06\x169": [b'{"id": "p9"}'],
    }


def test_a_call_moves_no_more_than_its_batch_the_earliest_first(store: Bench) -> None:
    for n in range(1, 251):
        overdue(store, f"e{n:03}", n)

    moved = [store.promote().moved for _ in range(4)]

    assert moved == [100, 100, 50, 0]
    popped = [store.client.rpop("q") for _ in range(250)]
    assert popped == [b'{"id": "e%03d"}' % n for n in range(1, 251)]


def test_the_biggest_batch_does_not_overflow_the_stack_of_lua(store: Bench) -> None:
    for n in range(1000):
        overdue(store, f"e{n}", 1)

    assert store.promote(limit=1000).moved == 1000


def test_a_thousand_corrupt_entries_at_the_head_do_not_hold_up_valid_ones(store: Bench) -> None:
    for n in range(500):
        store.client.zadd("{q}:due", {f"no-record-{n}": 1})
        store.client.zadd("{q}:due", {f"garbage-{n}": 1})
        store.client.hset("{q}:entries", f"garbage-{n}", b"\xff\x00 not a record %d" % n)
    overdue(store, "valid", 2)

    promoted = [store.promote() for _ in range(11)]

    assert sum(p.dead_lettered for p in promoted) == 1000
    assert store.client.lrange("q", 0, -1) == [b'{"id": "valid"}']
    dead_letters = {dead_letter.id: dead_letter for dead_letter in store.dead_letters.all("q")}
    assert len(dead_letters) == 1000
    assert dead_letters["garbage-7"].message == b"\xff\x00 not a record 7"
    assert dead_letters["garbage-7"].reason == "unreadable record"
    assert (dead_letters["no-record-7"].reason, dead_letters["no-record-7"].due_ms) == (
        "no record",
        1,
    )
    assert {"{q}:due", "{q}:entries", "{q}:tasks"}.isdisjoint(store.state())


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"1 0 message id task\n",
        b"1 0 message id task\nnot json",
        b"2 0 message id task\n{}",
        b"1 x message id task\n{}",
        b'{"body": ""}',
    ],
)
def test_a_record_that_cannot_be_read_is_kept_as_a_dead_letter(store: Bench, record: bytes) -> None:
    store.client.zadd("{q}:due", {"bad": 7})
    store.client.hset("{q}:entries", "bad", record)

    promoted = store.promote()

    assert (promoted.moved, promoted.dead_lettered) == (0, 1)
    [dead_letter] = store.dead_letters.all("q")
    assert (dead_letter.id, dead_letter.due_ms, dead_letter.message) == ("bad", 7, record)


def test_two_dead_letters_with_one_id_are_both_kept(store: Bench) -> None:
    for record in (b"first", b"second"):
        store.client.zadd("{q}:due", {"bad": 7})
        store.client.hset("{q}:entries", "bad", record)
        store.promote()

    assert sorted(dead_letter.message for dead_letter in store.dead_letters.all("q")) == [
        b"first",
        b"second",
    ]
    assert store.client.zcard("{q}:dead_at") == 2


def test_a_priority_that_this_layout_lacks_is_not_lost(store: Bench) -> None:
    overdue(store, "a", 1, priority=6)
    two_steps = Layout(steps=(0, 9))

    store.promote(QUEUE, two_steps, 100)

    assert store.client.lrange("q", 0, -1) == [b'{"id": "a"}']


def test_the_earliest_of_all_queues_is_what_to_look_at_next(store: Bench) -> None:
    overdue(store, "a", 1)
    store.schedule("other", entry("b", FAR - 5))
    store.schedule(QUEUE, entry("c", FAR))

    look = store.promote().look

    assert (look.queue, look.due) == ("other", FAR - 5)
    assert store.next_queue()[1:4] == look[1:4]


def test_every_key_carries_the_prefix(store: Bench) -> None:
    prefixed = Bench(store.client, Keys("app1."), Layout())
    prefixed.next_queue()
    prefixed.schedule(QUEUE, entry("a", 1, relative=True))
    prefixed.schedule(QUEUE, entry("b", FAR))
    prefixed.client.zadd("app1.{q}:due", {"bad": 0})
    prefixed.promote_soon()
    prefixed.push(b"c", step=3)
    prefixed.acquire(limit=1)

    assert set(store.client.keys()) - {b"delayq:clock"} == {
        b"app1." + key
        for key in (
            b"delayq:clock",
            b"delayq:lease_ends",
            b"delayq:next_due",
            b"delayq:queues",
            b"q\x06\x163",
            b"{q}:dead",
            b"{q}:dead_at",
            b"{q}:due",
            b"{q}:entries",
            b"{q}:leased:me",
            b"{q}:leases",
            b"{q}:request_numbers",
            b"{q}:tasks",
            b"{q}:totals",
            b"{q}:wake",
        )
    }
