"""requeue.lua: leased messages go back to their lists."""

from __future__ import annotations

import pytest

from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import Counted
from tests.lua.bench import FAR, QUEUE, Bench, Calls, bodies, counts, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/requeue": (lambda s: s.leases.requeue("q", "me", ["1:1"]), [1, 0, 1]),
}


def test_messages_go_back_to_where_they_were_in_the_same_order(store: Bench) -> None:
    store.push(b"a", b"b", b"c", b"d")
    ready = store.state()
    store.acquire("1", 3)

    assert store.requeue("1:1", "1:2", "1:3") == (3, 0)

    # The rest of the lease ends by itself.
    assert store.state() == ready | {"delayq:lease_ends": {b"q": 10}, "{q}:leases": {b"me": 10}}


def test_messages_may_go_behind_all_that_is_ready_in_the_same_order(store: Bench) -> None:
    store.push(b"a", b"b", b"c")
    store.acquire("1", 2)

    assert store.requeue("1:1", "1:2", last=True) == (2, 0)

    assert bodies(store.acquire("2")) == [b"c", b"a", b"b"]


@pytest.mark.parametrize("last", [False, True])
def test_each_message_goes_to_the_list_of_its_step(store: Bench, last: bool) -> None:
    for step in (0, 3, 6, 9):
        store.push(b"first %d" % step, b"second %d" % step, step=step)
    ready = store.state()
    store.acquire("1", 8)

    fields = [f"1:{place}" for place in range(1, 9)]
    assert store.requeue(*fields, last=last) == (8, 0)

    lists = {key: value for key, value in store.state().items() if key.startswith("q")}
    assert lists == {key: value for key, value in ready.items() if key.startswith("q")}


def test_only_what_is_named_goes_back(store: Bench) -> None:
    store.hold(b"a", b"b", b"c")

    assert store.requeue("1:2") == (1, 0)

    assert store.state() == {
        "delayq:lease_ends": {b"q": 10},
        "q": [b"b"],
        "{q}:leased:me": {b"1:1": b"0\na", b"1:3": b"0\nc"},
        "{q}:leases": {b"me": 10},
        "{q}:wake": [b""],
    }


@pytest.mark.parametrize("counted", ["nothing", "requeued", "crashed"])
@pytest.mark.parametrize("last", [False, True])
def test_doing_it_again_changes_nothing(store: Bench, last: bool, counted: Counted) -> None:
    fields = store.hold(b"a", b"b")
    store.requeue(*fields, last=last, counted=counted, max_deliveries=5)
    before = store.state()

    again = store.requeue(*fields, last=last, counted=counted, max_deliveries=5)

    assert again == (0, 0)
    assert store.state() == before


def test_what_others_hold_is_not_touched(store: Bench) -> None:
    store.hold(b"a", who="other")
    before = store.state()

    assert store.requeue("1:1", counted="requeued") == (0, 0)
    assert store.state() == before


def test_a_step_that_the_layout_lacks_goes_to_the_first_list(store: Bench) -> None:
    fields = store.hold(b"a", step=6)

    moved = store.requeue(*fields, layout=Layout(steps=(0, 9)))

    assert moved == (1, 0)
    assert store.client.lrange("q", 0, -1) == [b"a"]


def test_a_retried_message_is_not_put_back(store: Bench) -> None:
    fields = store.hold(b"a", b"b")
    store.replace(entry("r", FAR), field=fields[0])

    assert store.requeue(*fields) == (1, 0)

    assert store.client.lrange("q", 0, -1) == [b"b"]
    assert not store.client.exists("{q}:leased:me")


# -- counts


@pytest.mark.parametrize(
    ("counted", "most", "before", "after"),
    [
        ("nothing", 100, b"1 2 3", b"1 2 3"),
        ("requeued", 100, b"1 2 3", b"1 2 4"),
        ("crashed", 100, b"1 2 3", b"1 3 3"),
        ("died", 100, b"1 2 3", b"2 2 3"),
        ("crashed", 0, b"0 999 0", b"0 1000 0"),
        ("requeued", 1, b"9 9 9", b"9 9 10"),
        ("nothing", 100, None, None),
    ],
)
def test_only_what_is_asked_for_is_counted(
    store: Bench, counted: Counted, most: int, before: bytes | None, after: bytes | None
) -> None:
    store.hold(b"a")
    if before:
        store.delivered(b"a", before)

    assert store.requeue("1:1", counted=counted, max_deliveries=most) == (1, 0)

    assert store.state().get("{q}:deliveries") == (after and counts(b"a", after))


def test_what_was_held_too_often_when_its_worker_died_is_delivered_alone_and_then_dead(
    store: Bench,
) -> None:
    store.push(b"innocent", b"deadly", step=3)
    results = []
    for message_id, fields in (("1", ["1:1", "1:2"]), ("2", ["2:1", "2:2"]), ("3", ["3:1"])):
        store.acquire(message_id)
        results.append(store.requeue(*fields, counted="died", max_deliveries=2))

    assert results == [(2, 0), (2, 0), (0, 1)]
    assert store.state()["{q}:quarantined"] == [b"3\ninnocent"]
    assert store.state()["{q}:deliveries"] == counts(b"innocent", b"2 0 0")
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert dead_letter.message == b"deadly"
    assert dead_letter.reason == "its worker died 3 times, the last time with no other message"
    assert dead_letter.details == b'{"worker": "me", "deliveries": 3}'


def test_a_message_that_killed_its_process_too_often_is_dead(store: Bench) -> None:
    store.push(b"deadly\nbytes", step=3)
    before, results = store.now_ms(), []
    for message_id in ("1", "2", "3"):
        store.acquire(message_id)
        fields = [f"{message_id}:1"]
        results.append(store.requeue(*fields, counted="crashed", max_deliveries=2, details=b"{}"))

    assert results == [(1, 0), (1, 0), (0, 1)]
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert dead_letter.details == b"{}"
    assert (dead_letter.reason, dead_letter.message) == (
        "killed its process 3 times",
        b"deadly\nbytes",
    )
    assert before <= dead_letter.died_ms <= store.now_ms()
    assert set(store.state()) == {"delayq:lease_ends", "{q}:leases", "{q}:dead", "{q}:dead_at"}


def test_the_others_of_a_batch_go_back_when_one_is_dead(store: Bench) -> None:
    fields = store.hold(b"a", b"deadly", b"c")
    store.delivered(b"deadly", b"0 1 0")

    moved = store.requeue(*fields, counted="crashed", max_deliveries=1)

    assert moved == (2, 1)
    assert bodies(store.acquire("2")) == [b"a", b"c"]


@pytest.mark.parametrize("last", [False, True])
def test_a_quarantined_that_goes_back_is_still_delivered_alone(store: Bench, last: bool) -> None:
    # A worker that shuts down returns it unstarted.
    store.push(b"a")
    store.quarantine(b"deadly")
    assert bodies(store.acquire("1")) == [b"deadly"]

    assert store.requeue("1:1", last=last) == (1, 0)
    assert store.client.exists("{q}:wake")

    batches = []
    for message_id in ("2", "3"):
        batches.append(bodies(store.acquire(message_id)))
        store.ack(f"{message_id}:1", f"{message_id}:2")
    assert sorted(batches) == [[b"a"], [b"deadly"]]


# -- a full server, and unreadable values


def test_what_is_held_and_unreadable_is_a_dead_letter(store: Bench) -> None:
    store.hold(b"a")
    store.client.hset("{q}:leased:me", "1:2", b"\xff not what we write")

    assert store.requeue("1:1", "1:2") == (1, 1)

    assert not store.client.exists("{q}:leased:me")
    assert store.dead_messages() == [b"\xff not what we write"]
