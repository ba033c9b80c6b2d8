"""promote.lua: an entry that is due while its task is paused waits, and comes back later."""

from __future__ import annotations

import pytest

from celery_delayq.model.envelope import Due
from celery_delayq.model.script_values import PAUSED_OFFSET_MS
from celery_delayq.store.keys import Layout
from tests.lua.bench import (
    FAR,
    QUEUE,
    Bench,
    Calls,
    as_scheduled,
    bodies,
    entry,
    labelled,
    member,
    message_of,
    taken_by,
)

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "repair/paused_and_due": (
        lambda s: s.repair_tracking.check_paused_due("q", 0, repair=True),
        [b"0", 1, [b"left"]],
    ),
}

# -- a paused task


def test_what_is_due_is_paused_due_behind_everything(store: Bench) -> None:
    store.overdue("a")
    store.put(labelled("b"))
    store.pause()

    look = store.promote()

    assert (look.moved, look.dead_lettered, look.look.due) == (0, 0, FAR)
    found = store.state()
    del found["delayq:control"]
    assert found == as_scheduled(labelled("b"), labelled("a", 1)) | {
        "delayq:next_due": {b"q": FAR},
        "{q}:due": {b"a": PAUSED_OFFSET_MS + 1, b"b": FAR},
        "{q}:paused_due": {member("tasks.t", 1, "a"): 0},
    }
    sizes = store.gauges.sizes(QUEUE, Layout())
    assert (sizes.scheduled, sizes.overdue, sizes.first_due, sizes.paused) == (2, 0, FAR, 1)


def test_what_is_paused_due_alone_is_on_no_next_due(store: Bench) -> None:
    store.overdue("a")
    store.pause()
    store.promote()

    assert "delayq:next_due" not in store.state()
    store.put(labelled("b"))
    assert store.next_queue().due == FAR


def test_when_it_goes_on_it_is_promoted_in_order_of_due(store: Bench) -> None:
    store.overdue("c", "a", "b", due_ms=5)
    store.pause()
    store.promote()
    store.overdue("first", due_ms=1, task="other")
    store.resume()

    assert store.promote().moved == 4
    expected = [labelled("first", task="other"), labelled("c"), labelled("a"), labelled("b")]
    assert bodies(store.acquire()) == [message_of(each) for each in expected]
    assert store.control.find(QUEUE, ["a"])[0].due_ms == 6
    assert {"{q}:due", "{q}:paused_due", "{q}:tasks", "delayq:next_due"}.isdisjoint(store.state())


def test_of_very_many_paused_tasks_a_call_looks_at_some(store: Bench) -> None:
    tasks = [f"task{n:03}" for n in range(250)]
    for task in tasks:
        store.overdue(f"of-{task}", task=task)
        store.pause(task=task)
    while store.client.zcard("{q}:paused_due") < 250:
        store.promote()
    store.resume(task=tasks[10])
    store.resume(task=tasks[240])

    moved = [store.promote().moved for _ in range(4)]

    assert moved == [1, 0, 1, 0]
    assert store.next_queue().due is None
    store.resume(task=tasks[10])
    assert [store.promote().moved for _ in range(3)] == [0, 0, 0]


def test_tasks_that_are_not_paused_go_past_it(store: Bench) -> None:
    store.overdue("a", "b")
    store.overdue("c", due_ms=9, task="other")
    store.pause()

    assert store.promote(limit=2).moved == 0
    assert store.next_queue().due == 9
    assert store.promote(limit=2).moved == 1
    assert store.client.zcard("{q}:paused_due") == 2


def test_of_two_paused_tasks_each_comes_back_on_its_own(store: Bench) -> None:
    for task in ("t", "t2", "t.x"):
        store.overdue(f"of {task}", f"too of {task}", task=task)
        store.pause(task=task)
    store.promote()
    assert store.client.zcard("{q}:paused_due") == 6

    for left, task in ((4, "t"), (2, "t.x"), (0, "t2")):
        store.resume(task=task)
        assert store.promote().moved == 2
        assert store.client.zcard("{q}:paused_due") == left


def test_many_come_back_in_batches_one_batch_a_look(store: Bench) -> None:
    ids = [f"e{n:03}" for n in range(250)]
    store.overdue(*ids)
    store.overdue("other", due_ms=900, task="still paused")
    store.pause()
    store.pause(task="still paused")
    while store.client.zcard("{q}:paused_due") < 251:
        store.promote()
    store.resume()

    moved = []
    while store.next_queue().queue is not None:
        moved.append(store.promote().moved)

    assert max(moved) <= 100
    assert sum(moved) == 250
    assert store.client.hkeys("{q}:entries") == [b"other"]
    popped = [each for n in range(3) for each in bodies(store.acquire(str(n + 1), 100))]
    assert popped == [message_of(labelled(id)) for id in ids]


def test_a_pause_while_it_comes_back_holds_it_again(store: Bench) -> None:
    store.overdue(*(f"e{n}" for n in range(10)))
    store.pause()
    store.promote()
    store.resume()
    # Four entries come back, which is half of the work.
    assert store.promote(limit=4).moved == 2
    store.pause()
    while store.next_queue().queue is not None:
        assert store.promote(limit=4).moved == 0

    assert store.client.zcard("{q}:paused_due") == 8
    assert set(store.client.zrange("{q}:tasks", 0, -1)) == set(
        store.client.zrange("{q}:paused_due", 0, -1)
    )


@pytest.mark.parametrize("what", ["cancel", "run_now", "release"])
@pytest.mark.parametrize("others", [1, 2])
def test_what_is_done_to_others_does_not_stop_it_from_coming_back(
    store: Bench, what: str, others: int
) -> None:
    store.overdue("a")
    store.pause()
    store.promote()
    store.put(*(labelled(f"e{n}", FAR + n, task="other") for n in range(others)))
    store.resume()
    if what == "cancel":
        store.cancel("e0")
    elif what == "run_now":
        store.run_now("e0")
    else:
        assert store.release(store.read("e0")) == "d"

    assert store.next_queue().wait == 0
    assert store.promote().moved == 1
    assert store.next_queue().due == (FAR + 1 if others == 2 else None)


def test_duplicate_ids_are_paused_due_and_come_back(store: Bench) -> None:
    one, two = labelled("a", message_id="n1"), labelled("a", message_id="n2")
    store.put(one, two)
    store.become_due("a")
    store.become_due("a\0n2", 2)
    store.pause()
    store.promote()
    assert store.state()["{q}:due"] == {b"a": PAUSED_OFFSET_MS + 1, b"a\0n2": PAUSED_OFFSET_MS + 2}

    store.resume()
    store.promote()
    assert bodies(store.acquire()) == [message_of(one), message_of(two)]


def test_what_is_unlabelled_is_paused_due_too(store: Bench) -> None:
    store.put(entry("a", FAR))
    store.become_due("a")
    store.pause()

    assert store.promote().moved == 0
    store.resume()
    assert store.promote().moved == 1


def test_what_cannot_be_read_is_dead_lettered_while_its_queue_has_paused_tasks(
    store: Bench,
) -> None:
    store.client.zadd("{q}:due", {"bad": 1})
    store.client.hset("{q}:entries", "bad", b"\xff")
    store.pause()

    assert store.promote().dead_lettered == 1


def test_what_may_be_late_only_so_much_is_not_dead_while_it_is_paused_due(store: Bench) -> None:
    store.put(labelled("a", skip_after=5000))
    store.become_due("a")
    store.pause()
    assert store.promote().moved == 0

    store.resume()
    assert store.promote().moved == 1
    store.acquire()
    assert [dead_letter.id for dead_letter in store.dead_letters.all(QUEUE)] == ["a"]


def test_a_unique_key_stays_taken_while_it_is_paused_due(store: Bench) -> None:
    store.put(labelled("a", unique="sk"))
    store.become_due("a")
    store.pause()
    store.promote()
    assert store.state()["{q}:unique"] == {b"k": taken_by("a")}

    store.put(labelled("b", unique="sk"))
    found = store.state()
    del found["delayq:control"]
    assert found == as_scheduled(labelled("b", unique="sk")) | {"{q}:unique": {b"k": taken_by("b")}}


def test_what_a_worker_had_already_goes_back_and_is_paused_due(store: Bench) -> None:
    what = labelled("a", unique="dk")
    store.lease(what)
    store.pause()

    itself = what._replace(due=Due(5))
    put_back = store.replace(itself, when_due="keep")
    assert put_back == "scheduled"
    store.ack("1:1")
    assert store.promote().moved == 0

    found = store.state()
    # Its due was before the read.
    assert found["{q}:paused_due"] == {member("tasks.t", 1, "a"): 0}
    assert found["{q}:unique"] == {b"k": taken_by("a")}
    assert "{q}:leased_index" not in found
    store.resume()
    store.promote()
    assert bodies(store.acquire("2")) == [message_of(what)]
