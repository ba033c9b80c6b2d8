"""A message with skip_after that is too late becomes a dead letter."""

from __future__ import annotations

import pytest

from tests.lua.bench import QUEUE, REGISTERED, Bench, bodies, labelled, member, message_of


def scheduled(store: Bench, skip_after: int, *, late: int, unique: str = "-") -> None:
    """Store an entry that was due *late* ms ago."""
    store.put(labelled("a", skip_after=skip_after, unique=unique))
    store.become_due("a", store.now_ms() - late)


@pytest.mark.parametrize(("skip_after", "late"), [(0, 10**9), (60_000, 0), (60_000, 50_000)])
def test_what_is_in_time_runs(store: Bench, skip_after: int, late: int) -> None:
    scheduled(store, skip_after, late=late)

    assert store.promote().moved == 1
    assert len(store.acquire().messages) == 1


def test_what_is_late_in_the_schedule_is_dead_when_its_turn_comes(store: Bench) -> None:
    scheduled(store, 1000, late=5000, unique="dk")
    due = int(store.client.zscore("{q}:due", "a") or 0)

    promoted = store.promote()
    assert (promoted.moved, promoted.dead_lettered, promoted.look.queue) == (1, 0, None)
    assert store.acquire().messages == []

    [dead_letter] = store.dead_letters.all(QUEUE)
    assert (dead_letter.id, dead_letter.due_ms) == ("a", due)
    assert dead_letter.message == message_of(labelled("a", skip_after=1000, unique="dk"))
    assert dead_letter.reason.startswith("skipped: 5")
    assert dead_letter.reason.endswith(" ms after it was due, at most 1000 allowed")
    assert store.state().keys() == {"delayq:queues", "{q}:dead", "{q}:dead_at"}


def test_others_beside_it_run(store: Bench) -> None:
    scheduled(store, 1000, late=5000)
    store.put(labelled("b"), labelled("a", message_id="duplicate", skip_after=1000))
    store.become_due("b")
    store.become_due("a\0duplicate")

    assert store.promote().moved == 3
    assert bodies(store.acquire()) == [message_of(labelled("b"))]
    assert len({dead_letter.id for dead_letter in store.dead_letters.all(QUEUE)}) == 2
    assert {"{q}:due", "{q}:entries", "{q}:tasks", "{q}:duplicate_ids"}.isdisjoint(store.state())


def test_what_is_late_in_the_ready_list_is_dead(store: Bench) -> None:
    late, other = labelled("a", skip_after=1000, unique="dk"), labelled("b", skip_after=1000)
    store.make_ready(late, other, due_ms=store.now_ms())
    store.set_ready_index_due("a", 5)

    acquired = store.acquire()

    assert bodies(acquired) == [message_of(other)]
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert (dead_letter.id, dead_letter.due_ms, dead_letter.message) == ("a", 5, message_of(late))
    store.ack("1:1")
    found = store.state()
    assert found.keys() - {"{q}:dead", "{q}:dead_at", "delayq:lease_ends", "{q}:leases"} == {
        "delayq:queues"
    }


def test_what_was_cancelled_is_not_dead_for_being_late(store: Bench) -> None:
    store.make_ready(labelled("a", skip_after=1000), due_ms=store.now_ms())
    store.set_ready_index_due("a", 5)
    store.cancel("a")

    assert store.acquire().messages == []
    assert store.state() == REGISTERED


def test_a_late_one_leaves_no_count_of_its_deliveries(store: Bench) -> None:
    store.make_ready(labelled("a", skip_after=1000), due_ms=store.now_ms())
    store.acquire()
    store.pass_time()
    store.reclaim_expired()
    store.set_ready_index_due("a", 5)

    assert store.acquire("2").messages == []
    assert [dead_letter.id for dead_letter in store.dead_letters.all(QUEUE)] == ["a"]
    assert "{q}:deliveries" not in store.state()


def test_what_was_taken_in_time_is_not_late_when_it_comes_back(store: Bench) -> None:
    store.make_ready(labelled("a", skip_after=1000), due_ms=store.now_ms())
    store.acquire()
    store.pass_time()
    store.reclaim_expired()

    # Without a due it is never late.
    assert store.state()["{q}:ready_index"] == {b"a": b"n-a 0 - tasks.t"}
    assert len(store.acquire("2").messages) == 1


def test_what_is_to_be_delivered_alone_may_be_late_too(store: Bench) -> None:
    store.make_ready(labelled("a", skip_after=1000), due_ms=store.now_ms())
    store.acquire()
    store.pass_time()
    assert store.reclaim_expired(max_deliveries=1).quarantined == 1
    store.set_ready_index_due("a", 5)

    assert store.acquire("2").messages == []
    assert {"{q}:quarantined", "{q}:deliveries", "{q}:ready_index"}.isdisjoint(store.state())


def test_what_stock_workers_gave_back_has_no_due_and_runs(store: Bench) -> None:
    store.make_ready(labelled("a", skip_after=1000), due_ms=store.now_ms())
    message = store.client.rpop("q")
    store.acquire()  # no message is ready, so READY_INDEX is empty
    store.client.rpush("q", message)

    assert bodies(store.acquire("2")) == [message]
    assert store.state()["{q}:leased_index"] == {b"a": b"n-a 0 -  me"}


def test_what_is_run_manual_is_due_then(store: Bench) -> None:
    scheduled(store, 1000, late=5000)

    assert store.run_now("a") == ["d"]
    assert len(store.acquire().messages) == 1


def test_one_that_is_sent_to_run_at_once_counts_from_then(store: Bench) -> None:
    store.put(labelled("a", 0, skip_after=60_000))

    assert len(store.acquire().messages) == 1


def test_a_late_one_keeps_its_index_right_when_it_was_paused_due(store: Bench) -> None:
    scheduled(store, 1000, late=5000)
    due = int(store.client.zscore("{q}:due", "a") or 0)
    store.pause()
    store.promote()
    assert store.state()["{q}:paused_due"] == {member("tasks.t", due, "a"): 0}
    store.resume()

    store.promote()
    assert store.acquire().messages == []
    assert len([*store.dead_letters.all(QUEUE)]) == 1
    assert {"{q}:due", "{q}:paused_due", "{q}:tasks"}.isdisjoint(store.state())
