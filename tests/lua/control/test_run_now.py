"""run_now.lua: from the schedule to the front of the ready list, manually."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError

from celery_delayq.model.lookup import Name, StatusCode
from celery_delayq.store.keys import Layout
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    FAR,
    LAYOUT,
    QUEUE,
    STATE_KEYS,
    as_scheduled,
    become_due,
    bodies,
    entry,
    fill,
    labelled,
    make_ready,
    message_of,
    push,
    put,
    repeating,
    reserve,
    state,
    taken_by,
)
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.usefixtures("watched")

REGISTERED = {"delayq:queues": {b"q": LAYOUT}}


def run_now(store: Store, *ids: str, if_due: int | None = None) -> list[StatusCode]:
    return store.control.run_now(QUEUE, Layout(), ids, if_due=if_due)


def due_in_index(store: Store, name: str) -> int:
    """Return the due that WAITING tells."""
    return int((store.client.hget("{q}:ready_index", name) or b"").split(b" ")[1])


def test_an_entry_is_the_next_to_run(store: Store) -> None:
    push(store, b"waits", b"longer", step=3)
    what = labelled("a", priority=3)
    put(store, what)
    before = store.now_ms()

    assert run_now(store, "a") == ["d"]
    due = due_in_index(store, "a")
    assert before <= due <= store.now_ms()
    assert state(store) == REGISTERED | {
        "q\x06\x163": [b"longer", b"waits", message_of(what)],
        "{q}:ready_index": {b"a": b"n-a %d - tasks.t" % due},
        "{q}:wake": [b""],
    }


def test_without_a_label_it_is_not_found_afterwards(store: Store) -> None:
    put(store, entry("a", FAR))

    assert run_now(store, "a") == ["d"]
    assert state(store) == REGISTERED | {"q": [b'{"id": "a"}'], "{q}:wake": [b""]}


def test_the_last_of_a_call_is_the_first_to_run(store: Store) -> None:
    put(store, labelled("a"), labelled("b"), labelled("c", FAR + 9))

    assert run_now(store, "b", "nobody", "a") == ["d", "u", "d"]
    assert bodies(reserve(store)) == [message_of(labelled("a")), message_of(labelled("b"))]
    assert state(store)["delayq:next_due"] == {b"q": FAR + 9}


def test_a_priority_that_this_layout_lacks_is_not_lost(store: Store) -> None:
    put(store, labelled("a", priority=6))

    assert store.control.run_now(QUEUE, Layout(steps=(0, 9)), ["a"]) == ["d"]
    assert store.client.lrange("q", 0, -1) == [message_of(labelled("a"))]


def test_what_has_left_the_schedule_is_told_and_left_alone(store: Store) -> None:
    make_ready(store, labelled("running"))
    reserve(store)
    make_ready(store, labelled("ready"))
    before = state(store)

    assert run_now(store, "running", "ready", "never was") == ["r", "w", "u"]
    assert state(store) == before


def test_only_what_is_due_then_is_run(store: Store) -> None:
    put(store, labelled("a"))
    before = state(store)

    assert run_now(store, "a", if_due=FAR + 1) == ["c"]
    assert state(store) == before
    assert run_now(store, "a", if_due=FAR) == ["d"]


def test_all_that_have_the_id_run_or_a_name_alone(store: Store) -> None:
    one, two, three = (labelled("a", FAR + n, message_id=f"n{n}") for n in (1, 2, 3))
    put(store, one, two, three)

    assert run_now(store, Name("a\0n3")) == ["d"]
    assert store.client.zrange("{q}:due", 0, -1) == [b"a", b"a\0n2"]
    assert run_now(store, "a") == ["w"]
    assert sorted(bodies(reserve(store))) == sorted(map(message_of, (one, two, three)))
    assert len(store.control.find(QUEUE, ["a"])) == 3

    store.leases.ack(QUEUE, "me", ["1:1", "1:2", "1:3"])
    assert state(store).keys() == {"delayq:queues", "delayq:lease_ends", "{q}:leases"}


def test_a_duplicate_is_found_while_it_is_ready_beside_another(store: Store) -> None:
    make_ready(store, labelled("a", message_id="n1"))
    put(store, labelled("a", message_id="n2"), labelled("a", FAR + 1, message_id="n3"))

    assert run_now(store, Name("a\0n3")) == ["d"]
    assert state(store)["{q}:duplicate_ids"] == {b"a\0n3": 0}
    assert store.control.cancel(QUEUE, Layout(), ["a"]) == ["d"]
    assert reserve(store).messages == []
    assert state(store) == REGISTERED


# -- of a paused task or queue


@pytest.mark.parametrize("paused", [{"task": "tasks.t"}, {"queue": "q"}])
def test_what_is_paused_is_due_now_and_stays(store: Store, paused: dict[str, str]) -> None:
    put(store, labelled("a"))
    store.control.pause([], **paused)  # type: ignore[arg-type]

    assert run_now(store, "a") == ["d"]
    due = int(store.client.zscore("{q}:due", "a") or 0)
    assert store.now_ms() - 5000 < due <= store.now_ms()
    found = state(store)
    del found["delayq:control"]
    assert found == as_scheduled(labelled("a", due))

    store.control.pause([QUEUE], resume=True, **paused)
    assert store.promote(QUEUE, Layout(), 100).moved == 1


def test_what_is_paused_due_gets_a_new_due_and_is_paused_due_again(store: Store) -> None:
    put(store, labelled("a"))
    store.control.pause([], task="tasks.t")
    become_due(store, "a")
    store.promote(QUEUE, Layout(), 100)

    assert run_now(store, "a", if_due=1) == ["d"]
    assert "{q}:paused_due" not in state(store)
    due = int(store.client.zscore("{q}:due", "a") or 0)
    store.promote(QUEUE, Layout(), 100)
    paused_due = f"tasks.t\0{due:015d}\0a".encode()
    assert state(store)["{q}:paused_due"] == state(store)["{q}:tasks"] == {paused_due: 0}


def test_an_unreadable_record_is_due_now_so_that_it_is_dead_lettered(store: Store) -> None:
    store.client.zadd("{q}:due", {"a": FAR})
    store.client.hset("{q}:entries", "a", b"\xff no record")

    assert run_now(store, "a") == ["d"]
    assert store.promote(QUEUE, Layout(), 100).dead_lettered == 1


# -- unique keys


def test_a_key_that_counts_while_scheduled_is_free_again(store: Store) -> None:
    put(store, labelled("a", unique="sk"))

    run_now(store, "a")
    assert "{q}:unique" not in state(store)


def test_a_key_that_counts_until_it_is_done_stays_taken(store: Store) -> None:
    put(store, labelled("a", unique="dk", policy="l 0 0"))
    [owner] = store.client.hvals("{q}:unique")
    assert owner.endswith(taken_by("a"))
    assert len(owner) > 10

    run_now(store, "a")
    assert store.client.hvals("{q}:unique") == [owner]
    reserve(store)
    assert store.client.hvals("{q}:unique") == [owner]
    store.leases.ack(QUEUE, "me", ["1:1"])
    assert "{q}:unique" not in state(store)


def test_what_does_not_have_the_key_leaves_it_to_who_has(store: Store) -> None:
    put(store, labelled("owner", unique="dk"))
    beside = labelled("a", unique="dk", policy="e 0 1")  # a retry, whose key was taken meanwhile
    put(store, beside)

    assert run_now(store, "a") == ["d"]
    assert state(store)["{q}:unique"] == {b"k": taken_by("owner")}


# -- repeats, and what may be in the way


def test_a_repeat_gets_the_same_answer_and_runs_nothing_more(store: Store) -> None:
    put(store, labelled("a"))
    again = repeating(store, lambda: put(store, labelled("a", message_id="new")))

    assert run_now(again, "a") == ["d"]
    assert bodies(reserve(store)) == [message_of(labelled("a"))]


def test_a_full_server_lets_it_pass(store: Store) -> None:
    put(store, labelled("a", unique="dk"), labelled("b"))
    fill(store)

    assert run_now(repeating(store), "a", "b") == ["d", "d"]
    assert len(reserve(store).messages) == 2


@pytest.mark.parametrize("key", ["delayq:next_due", "delayq:control", "q\x06\x163", *STATE_KEYS])
def test_a_key_of_another_type_is_an_error_before_anything_is_written(
    store: Store, key: str
) -> None:
    put(store, labelled("a", unique="dk", priority=3))
    store.client.set(key, "not ours")
    before = snapshot(store.client)

    with pytest.raises(ResponseError, match="WRONGTYPE"):
        run_now(store, "a")

    assert snapshot(store.client) == before
