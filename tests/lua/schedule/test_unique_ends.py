"""When a unique key is free again, and its owner after a retry and a repeat."""

from __future__ import annotations

import pytest

from celery_delayq.model.envelope import Due
from celery_delayq.model.publish_outcome import Put
from tests.lua.bench import (
    FAR,
    QUEUE,
    REGISTERED,
    Bench,
    as_scheduled,
    labelled,
    message_of,
    retried,
    taken_by,
)
from tests.lua.uniques import KEY, either_scope, owned, run_all, where_it_is

# -- when the key is free again


def test_a_key_that_counts_while_scheduled_is_free_when_promoted(store: Bench) -> None:
    owned(store, "ready", "sk")
    assert KEY not in store.state()


@pytest.mark.parametrize(
    "end", ["ack", "reject", "crash", "reclaim_expired", "cancel", "skip", "retry"]
)
def test_a_key_that_counts_until_it_is_done_is_free_then(store: Bench, end: str) -> None:
    what = labelled("a", unique="dk", skip_after=5000 if end == "skip" else 0)
    store.make_ready(what, due_ms=store.now_ms() if end == "skip" else 1)
    if end == "cancel":
        store.cancel("a")
    elif end == "skip":
        store.set_ready_index_due("a", 5)
    assert end == "cancel" or store.state()[KEY] == {b"k": taken_by("a")}
    store.acquire()
    if end == "ack":
        store.ack("1:1")
    elif end == "reject":
        store.leases.dead_letter(QUEUE, "me", "1:1", "id", "why")
    elif end == "crash":
        store.requeue("1:1", counted="crashed", max_deliveries=1)
        assert store.state()[KEY] == {b"k": taken_by("a")}
        store.acquire("2")
        store.requeue("2:1", counted="crashed", max_deliveries=1)
    elif end == "reclaim_expired":
        for message_id in ("2", "3"):
            store.pass_time()
            assert store.state()[KEY] == {b"k": taken_by("a")}
            store.reclaim_expired(max_deliveries=1)
            store.acquire(message_id)
    elif end == "retry":
        plain = labelled("a", message_id="plain")
        store.replace(plain)

    assert KEY not in store.state()
    assert "{q}:ready_index" not in store.state()
    assert "{q}:leased_index" not in store.state()


def test_a_key_is_free_when_what_has_it_was_skipped_in_the_schedule(store: Bench) -> None:
    store.put(labelled("a", unique="sk", skip_after=5))
    store.become_due("a")
    store.promote()

    assert KEY not in store.state()


def test_a_key_is_free_when_what_has_it_went_back_to_stock_workers(store: Bench) -> None:
    store.put(labelled("a", unique="dk"))
    store.release(store.read("a"))

    assert KEY not in store.state()


@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0", "k 0 0", "e 0 0", "r 0 1", "e 0 1"])
def test_what_a_stock_worker_took_has_the_key_no_more(store: Bench, policy: str) -> None:
    owned(store, "ready")
    store.make_ready(labelled("other"))
    assert store.client.rpop("q") == message_of(labelled("old", unique="dk"))
    assert store.acquire().first_list == 0  # so no message is ready
    new = labelled("new", unique="dk", policy=policy)

    assert store.states(new) == ["scheduled"]
    [owner] = store.client.hvals(KEY)
    assert owner.endswith(taken_by("new"))


def test_keys_of_what_stock_workers_took_are_not_kept_for_ever(store: Bench) -> None:
    for n in range(5):
        store.make_ready(labelled(f"e{n}", unique=f"dk{n}"), labelled(f"e{n}", message_id=f"x{n}"))
    store.client.delete("q")
    store.acquire()

    assert store.state() == REGISTERED


# -- retries


@either_scope
@pytest.mark.parametrize("policy", ["r 0 0", "l 9 0", "k 0 0", "e 0 0"])
@pytest.mark.parametrize("due_ms", [1, FAR])
def test_the_retry_of_what_has_the_key_takes_it_over(
    store: Bench, scope: str, policy: str, due_ms: int
) -> None:
    what = labelled("a", unique=f"{scope}k", policy=policy)
    store.lease(what)

    assert store.replace(retried(what, "again", due_ms)) in ("scheduled", "ready")
    kept = scope == "d" or due_ms == FAR
    assert (KEY in store.state()) == kept
    store.ack("1:1")
    assert (KEY in store.state()) == kept
    run_all(store)
    assert KEY not in store.state()


@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0"])
def test_what_has_replaced_a_running_one_stays_and_its_retry_is_not_stored(
    store: Bench, policy: str
) -> None:
    old = labelled("old", unique="dk", policy=policy)
    store.lease(old)
    new = labelled("new", unique="dk", policy=policy)
    store.put(new)

    assert store.replace(retried(old, "again")) == "superseded"
    assert store.replace(retried(old, "again")) == "duplicate"
    store.ack("1:1")
    [owner] = store.client.hvals(KEY)
    assert owner.endswith(taken_by("new"))
    assert run_all(store) == [message_of(new)]


def test_so_it_is_where_both_have_one_id(store: Bench) -> None:
    old = labelled("a", unique="dk")
    store.lease(old)
    new = labelled("a", message_id="new", unique="dk")
    store.put(new)

    assert store.replace(retried(old, "again")) == "superseded"
    assert run_all(store) == [message_of(new)]


@either_scope
def test_what_goes_back_unstarted_leaves_its_key_to_what_has_replaced_it(
    store: Bench, scope: str
) -> None:
    """Its task is paused. Without the pause both would have run."""
    old = labelled("old", unique=f"{scope}k")
    store.lease(old)
    new = labelled("new", unique=f"{scope}k")
    store.put(new)

    itself = old._replace(due=Due(5))
    answer = store.replace(itself, when_due="keep")
    assert answer == "scheduled"
    assert store.state()[KEY] == {b"k": taken_by("new")}
    assert sorted(run_all(store)) == [message_of(new), message_of(old)]
    assert KEY not in store.state()


@pytest.mark.parametrize("policy", ["k 0 0", "e 0 0"])
def test_the_retry_of_what_lost_its_key_otherwise_is_stored_beside(
    store: Bench, policy: str
) -> None:
    old = labelled("old", unique="sk", policy=policy)
    store.lease(old)
    new = labelled("new", FAR, unique="sk", policy=policy)
    store.put(new)
    again = retried(old, "again", FAR + 5)

    assert store.replace(again) == "scheduled"
    assert store.state()[KEY] == {b"k": taken_by("new")}
    store.cancel("old")
    assert store.state()[KEY] == {b"k": taken_by("new")}


def test_a_retry_that_was_acknowledged_before_takes_the_key_or_makes_way(store: Bench) -> None:
    """The task acknowledges early, so its retry is published like any message."""
    old = labelled("old", unique="dk")
    store.lease(old)
    again = retried(old, "again")

    assert store.states(again) == ["scheduled"]  # its acknowledgement is still under way
    store.ack("1:1")
    assert store.state() == as_scheduled(again) | {
        KEY: {b"k": taken_by("old", "again")},
        "delayq:lease_ends": {b"q": 10},
        "{q}:leases": {b"me": 10},
    }

    store.put(labelled("new", unique="dk"))
    assert store.put(retried(old, "third")) == [Put("superseded", "new")]


@pytest.mark.parametrize("unique", ["dk", "sk", "-"])
def test_a_retry_on_another_queue_has_its_key_there(store: Bench, unique: str) -> None:
    old = labelled("old", unique="dk")
    store.lease(old)
    there = retried(labelled("old", unique=unique), "again")

    assert store.replace(there, to="p") == "scheduled"
    found = store.state()
    assert found.get("{p}:unique") == (None if unique == "-" else {b"k": taken_by("old", "again")})
    assert "{q}:leased_index" not in found
    assert store.states(labelled("new", unique="dk", policy="e 0 0")) == ["scheduled"]


# -- repeats


@where_it_is
@either_scope
@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0", "k 0 0", "e 0 0", "r 0 1"])
def test_a_message_that_is_sent_again_is_a_duplicate(
    store: Bench, place: str, scope: str, policy: str
) -> None:
    what = owned(store, place, f"{scope}k")
    before = store.state()

    assert store.states(what._replace(policy=policy)) == ["duplicate"]
    assert store.state() == before


@pytest.mark.parametrize("place", ["ready", "running"])
def test_a_repeat_does_not_replace_what_has_replaced_it(store: Bench, place: str) -> None:
    old = owned(store, place)
    new = labelled("new", unique="dk")
    store.put(new)
    before = store.state()

    assert store.states(old) == ["duplicate"]
    assert store.state() == before
    assert run_all(store) == [message_of(new)]
