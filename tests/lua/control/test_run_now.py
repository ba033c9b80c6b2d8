"""run_now.lua: from the schedule to the front of the ready list."""

from __future__ import annotations

import pytest

from celery_delayq.model.script_values import Name
from celery_delayq.store.keys import Layout
from tests.lua.bench import (
    FAR,
    QUEUE,
    REGISTERED,
    Bench,
    Calls,
    as_scheduled,
    bodies,
    entry,
    labelled,
    message_of,
    repeating,
    taken_by,
)

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "control/run_now": (lambda s: s.control.run_now("q", Layout(), ["id"]), b"d"),
}


def test_an_entry_is_the_next_to_run(store: Bench) -> None:
    store.push(b"waits", b"longer", step=3)
    what = labelled("a", priority=3)
    store.put(what)
    before = store.now_ms()

    assert store.run_now("a") == ["d"]
    due = store.ready_index_due("a")
    assert before <= due <= store.now_ms()
    assert store.state() == REGISTERED | {
        "q\x06\x163": [b"longer", b"waits", message_of(what)],
        "{q}:ready_index": {b"a": b"n-a %d - tasks.t" % due},
        "{q}:wake": [b""],
    }


def test_without_a_label_it_is_not_found_afterwards(store: Bench) -> None:
    store.put(entry("a", FAR))

    assert store.run_now("a") == ["d"]
    assert store.state() == REGISTERED | {"q": [b'{"id": "a"}'], "{q}:wake": [b""]}


def test_the_last_of_a_call_is_the_first_to_run(store: Bench) -> None:
    store.put(labelled("a"), labelled("b"), labelled("c", FAR + 9))

    assert store.run_now("b", "nobody", "a") == ["d", "u", "d"]
    assert bodies(store.acquire()) == [message_of(labelled("a")), message_of(labelled("b"))]
    assert store.state()["delayq:next_due"] == {b"q": FAR + 9}


def test_a_priority_that_this_layout_lacks_is_not_lost(store: Bench) -> None:
    store.put(labelled("a", priority=6))

    assert store.control.run_now(QUEUE, Layout(steps=(0, 9)), ["a"]) == ["d"]
    assert store.client.lrange("q", 0, -1) == [message_of(labelled("a"))]


def test_what_has_left_the_schedule_is_reported_and_left_alone(store: Bench) -> None:
    store.lease(labelled("running"))
    store.make_ready(labelled("ready"))
    before = store.state()

    assert store.run_now("running", "ready", "never was") == ["r", "w", "u"]
    assert store.state() == before


def test_only_what_is_due_then_is_run(store: Bench) -> None:
    store.put(labelled("a"))
    before = store.state()

    assert store.run_now("a", if_due=FAR + 1) == ["c"]
    assert store.state() == before
    assert store.run_now("a", if_due=FAR) == ["d"]


def test_all_that_have_the_id_run_or_a_name_alone(store: Bench) -> None:
    one, two, three = (labelled("a", FAR + n, message_id=f"n{n}") for n in (1, 2, 3))
    store.put(one, two, three)

    assert store.run_now(Name("a\0n3")) == ["d"]
    assert store.client.zrange("{q}:due", 0, -1) == [b"a", b"a\0n2"]
    assert store.run_now("a") == ["w"]
    assert sorted(bodies(store.acquire())) == sorted(map(message_of, (one, two, three)))
    assert len(store.control.find(QUEUE, ["a"])) == 3

    store.ack("1:1", "1:2", "1:3")
    assert store.state().keys() == {"delayq:queues", "delayq:lease_ends", "{q}:leases"}


def test_a_duplicate_is_found_while_it_is_ready_beside_another(store: Bench) -> None:
    store.make_ready(labelled("a", message_id="n1"))
    store.put(labelled("a", message_id="n2"), labelled("a", FAR + 1, message_id="n3"))

    assert store.run_now(Name("a\0n3")) == ["d"]
    assert store.state()["{q}:duplicate_ids"] == {b"a\0n3": 0}
    assert store.cancel("a") == ["d"]
    assert store.acquire().messages == []
    assert store.state() == REGISTERED


# -- of a paused task or queue


@pytest.mark.parametrize("paused", [{"task": "tasks.t"}, {"queue": "q"}])
def test_what_is_paused_is_due_now_and_stays(store: Bench, paused: dict[str, str]) -> None:
    store.put(labelled("a"))
    store.pause(**paused)

    assert store.run_now("a") == ["d"]
    due = int(store.client.zscore("{q}:due", "a") or 0)
    assert store.now_ms() - 5000 < due <= store.now_ms()
    found = store.state()
    del found["delayq:control"]
    assert found == as_scheduled(labelled("a", due))

    store.resume(**paused)
    assert store.promote().moved == 1


def test_what_is_paused_due_gets_a_new_due_and_is_paused_due_again(store: Bench) -> None:
    store.put(labelled("a"))
    store.pause_due("a")

    assert store.run_now("a", if_due=1) == ["d"]
    assert "{q}:paused_due" not in store.state()
    due = int(store.client.zscore("{q}:due", "a") or 0)
    store.promote()
    paused_due = f"tasks.t\0{due:015d}\0a".encode()
    assert store.state()["{q}:paused_due"] == store.state()["{q}:tasks"] == {paused_due: 0}


def test_an_unreadable_record_is_due_now_so_that_it_is_dead_lettered(store: Bench) -> None:
    store.client.zadd("{q}:due", {"a": FAR})
    store.client.hset("{q}:entries", "a", b"\xff no record")

    assert store.run_now("a") == ["d"]
    assert store.promote().dead_lettered == 1


# -- unique keys


def test_a_key_that_counts_while_scheduled_is_free_again(store: Bench) -> None:
    store.put(labelled("a", unique="sk"))

    store.run_now("a")
    assert "{q}:unique" not in store.state()


def test_a_key_that_counts_until_it_is_done_stays_taken(store: Bench) -> None:
    store.put(labelled("a", unique="dk", policy="l 0 0"))
    [owner] = store.client.hvals("{q}:unique")
    assert owner.endswith(taken_by("a"))
    assert len(owner) > 10

    store.run_now("a")
    assert store.client.hvals("{q}:unique") == [owner]
    store.acquire()
    assert store.client.hvals("{q}:unique") == [owner]
    store.ack("1:1")
    assert "{q}:unique" not in store.state()


def test_what_does_not_have_the_key_leaves_it_to_who_has(store: Bench) -> None:
    store.put(labelled("owner", unique="dk"))
    beside = labelled("a", unique="dk", policy="e 0 1")  # a retry, whose key was taken meanwhile
    store.put(beside)

    assert store.run_now("a") == ["d"]
    assert store.state()["{q}:unique"] == {b"k": taken_by("owner")}


# -- repeats, and a full server


def test_a_repeat_gets_the_same_answer_and_runs_nothing_more(store: Bench) -> None:
    store.put(labelled("a"))
    again = repeating(store, lambda: store.put(labelled("a", message_id="new")))

    assert again.run_now("a") == ["d"]
    assert bodies(store.acquire()) == [message_of(labelled("a"))]
