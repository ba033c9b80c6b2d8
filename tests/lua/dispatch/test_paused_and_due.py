"""What is due while its task is paused is paused and due by dispatch/promote.lua, and comes
back."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.model.envelope import Due
from celery_delayq.model.lookup import PAUSED_OFFSET
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    FAR,
    QUEUE,
    STATE_KEYS,
    as_scheduled,
    become_due,
    bodies,
    entry,
    fill,
    labelled,
    make_ready,
    member,
    message_of,
    put,
    read,
    release,
    reserve,
    state,
    taken_by,
)
from tests.lua.pausing import overdue, pause, promote, resume
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.usefixtures("watched")


# -- a paused task


def test_what_is_due_is_paused_due_behind_everything(store: Store) -> None:
    overdue(store, "a")
    put(store, labelled("b"))
    pause(store)

    look = store.promote(QUEUE, Layout(), 100)

    assert (look.moved, look.dead_lettered, look.look.due) == (0, 0, FAR)
    found = state(store)
    del found["delayq:control"]
    assert found == as_scheduled(labelled("b"), labelled("a", 1)) | {
        "delayq:next_due": {b"q": FAR},
        "{q}:due": {b"a": PAUSED_OFFSET + 1, b"b": FAR},
        "{q}:paused_due": {member("tasks.t", 1, "a"): 0},
    }
    sizes = store.sizes(QUEUE, Layout())
    assert (sizes.scheduled, sizes.overdue, sizes.first_due, sizes.paused) == (2, 0, FAR, 1)


def test_what_is_paused_due_alone_is_on_no_next_due(store: Store) -> None:
    overdue(store, "a")
    pause(store)
    promote(store)

    assert "delayq:next_due" not in state(store)
    put(store, labelled("b"))
    assert store.next_queue().due == FAR


def test_when_it_goes_on_it_is_promoted_in_order_of_due(store: Store) -> None:
    overdue(store, "c", "a", "b", due_ms=5)
    pause(store)
    promote(store)
    overdue(store, "first", due_ms=1, task="other")
    resume(store)

    assert promote(store) == 4
    expected = [labelled("first", task="other"), labelled("c"), labelled("a"), labelled("b")]
    assert bodies(reserve(store)) == [message_of(each) for each in expected]
    assert store.control.find(QUEUE, ["a"])[0].due_ms == 6
    assert {"{q}:due", "{q}:paused_due", "{q}:tasks", "delayq:next_due"}.isdisjoint(state(store))


def test_tasks_that_are_not_paused_go_past_it(store: Store) -> None:
    overdue(store, "a", "b")
    overdue(store, "c", due_ms=9, task="other")
    pause(store)

    assert promote(store, 2) == 0
    assert store.next_queue().due == 9
    assert promote(store, 2) == 1
    assert store.client.zcard("{q}:paused_due") == 2


def test_of_two_paused_tasks_each_comes_back_on_its_own(store: Store) -> None:
    for task in ("t", "t2", "t.x"):
        overdue(store, f"of {task}", f"too of {task}", task=task)
        pause(store, task=task)
    promote(store)
    assert store.client.zcard("{q}:paused_due") == 6

    for left, task in ((4, "t"), (2, "t.x"), (0, "t2")):
        resume(store, task=task)
        assert promote(store) == 2
        assert store.client.zcard("{q}:paused_due") == left


def test_many_come_back_in_batches_one_look_after_the_other(store: Store) -> None:
    ids = [f"e{n:03}" for n in range(250)]
    overdue(store, *ids)
    overdue(store, "other", due_ms=900, task="still paused")
    pause(store)
    pause(store, task="still paused")
    while store.client.zcard("{q}:paused_due") < 251:
        promote(store)
    resume(store)

    moved = []
    while store.next_queue().queue is not None:
        moved.append(promote(store))

    assert max(moved) <= 100
    assert sum(moved) == 250
    assert store.client.hkeys("{q}:entries") == [b"other"]
    popped = [each for n in range(3) for each in bodies(reserve(store, str(n + 1), 100))]
    assert popped == [message_of(labelled(id)) for id in ids]


def test_a_pause_while_it_comes_back_parks_it_again(store: Store) -> None:
    overdue(store, *(f"e{n}" for n in range(10)))
    pause(store)
    promote(store)
    resume(store)
    assert promote(store, 4) == 4
    pause(store)
    while store.next_queue().queue is not None:
        assert promote(store, 4) == 0

    assert store.client.zcard("{q}:paused_due") == 6
    assert set(store.client.zrange("{q}:tasks", 0, -1)) == set(
        store.client.zrange("{q}:paused_due", 0, -1)
    )


@pytest.mark.parametrize("what", ["cancel", "run_now", "release"])
@pytest.mark.parametrize("others", [1, 2])
def test_what_is_done_to_others_does_not_stop_it_from_coming_back(
    store: Store, what: str, others: int
) -> None:
    overdue(store, "a")
    pause(store)
    promote(store)
    put(store, *(labelled(f"e{n}", FAR + n, task="other") for n in range(others)))
    resume(store)
    if what == "cancel":
        store.control.cancel(QUEUE, Layout(), ["e0"])
    elif what == "run_now":
        store.control.run_now(QUEUE, Layout(), ["e0"])
    else:
        assert release(store, read(store, "e0")) == "d"

    assert store.next_queue().wait == 0
    assert promote(store) == 1
    assert store.next_queue().due == (FAR + 1 if others == 2 else None)


def test_duplicate_ids_are_paused_due_and_come_back(store: Store) -> None:
    one, two = labelled("a", message_id="n1"), labelled("a", message_id="n2")
    put(store, one, two)
    become_due(store, "a")
    become_due(store, "a\0n2", 2)
    pause(store)
    promote(store)
    assert state(store)["{q}:due"] == {b"a": PAUSED_OFFSET + 1, b"a\0n2": PAUSED_OFFSET + 2}

    resume(store)
    promote(store)
    assert bodies(reserve(store)) == [message_of(one), message_of(two)]


def test_what_is_unlabelled_is_paused_due_too(store: Store) -> None:
    put(store, entry("a", FAR))
    become_due(store, "a")
    pause(store)

    assert promote(store) == 0
    resume(store)
    assert promote(store) == 1


def test_what_cannot_be_read_is_dead_lettered_while_its_queue_has_paused_tasks(
    store: Store,
) -> None:
    store.client.zadd("{q}:due", {"bad": 1})
    store.client.hset("{q}:entries", "bad", b"\xff")
    pause(store)

    assert store.promote(QUEUE, Layout(), 100).dead_lettered == 1


def test_what_may_be_late_only_so_much_is_not_dead_while_it_is_paused_due(store: Store) -> None:
    put(store, labelled("a", skip_after=5000))
    become_due(store, "a")
    pause(store)
    assert store.promote(QUEUE, Layout(), 100).dead_lettered == 0

    resume(store)
    assert store.promote(QUEUE, Layout(), 100).dead_lettered == 1


def test_a_unique_key_stays_taken_while_it_is_paused_due(store: Store) -> None:
    put(store, labelled("a", unique="sk"))
    become_due(store, "a")
    pause(store)
    promote(store)
    assert state(store)["{q}:unique"] == {b"k": taken_by("a")}

    put(store, labelled("b", unique="sk"))
    found = state(store)
    del found["delayq:control"]
    assert found == as_scheduled(labelled("b", unique="sk")) | {"{q}:unique": {b"k": taken_by("b")}}


def test_what_a_worker_had_already_goes_back_and_is_paused_due(store: Store) -> None:
    what = labelled("a", unique="dk")
    make_ready(store, what)
    reserve(store)
    pause(store)

    itself = what._replace(due=Due(5))
    put_back = store.leases.replace(QUEUE, itself, QUEUE, "me", "1:1", when_due="keep")
    assert put_back == "scheduled"
    store.leases.ack(QUEUE, "me", ["1:1"])
    assert promote(store) == 0

    found = state(store)
    # It was due before it was taken.
    assert found["{q}:paused_due"] == {member("tasks.t", 1, "a"): 0}
    assert found["{q}:unique"] == {b"k": taken_by("a")}
    assert "{q}:leased_index" not in found
    resume(store)
    promote(store)
    assert bodies(reserve(store, "2")) == [message_of(what)]


def test_pausing_and_coming_back_go_on_when_the_server_is_full(store: Store) -> None:
    overdue(store, "a")
    pause(store)
    fill(store)
    promote(store)
    assert store.client.zcard("{q}:paused_due") == 1

    resume(store)
    assert promote(store) == 1


@pytest.mark.parametrize("key", ["delayq:control", "{q}:pace", *STATE_KEYS])
@pytest.mark.parametrize("paused", [False, True])
def test_a_promotion_that_meets_another_type_writes_nothing(
    store: Store, key: str, paused: bool
) -> None:
    make_ready(store, labelled("b", unique="dk"))
    overdue(store, "a")
    if paused:
        pause(store)
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        promote(store)

    assert snapshot(store.client) == before
