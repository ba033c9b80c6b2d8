"""When a unique key is free again, and what becomes of it with a retry and a repeat."""

from __future__ import annotations

import pytest

from celery_delayq.model.envelope import Due, Entry
from celery_delayq.model.publish_outcome import Put
from celery_delayq.store.keys import Layout
from celery_delayq.store.leases import Retried
from celery_delayq.store.schedule import Store
from tests.lua.conftest import (
    FAR,
    LAYOUT,
    LEASE,
    QUEUE,
    as_scheduled,
    become_due,
    labelled,
    make_ready,
    message_of,
    put,
    read,
    release,
    repeating,
    reserve,
    retried,
    state,
    states,
    taken_by,
)
from tests.lua.uniques import KEY, either_scope, owned, run_all, where_it_is
from tests.support.model_clock import pass_time

pytestmark = pytest.mark.usefixtures("watched")

# -- when the key is free again


def test_a_key_that_counts_while_scheduled_is_free_when_promoted(store: Store) -> None:
    owned(store, "ready", "sk")
    assert KEY not in state(store)


@pytest.mark.parametrize(
    "end", ["ack", "reject", "crash", "reclaim_expired", "cancel", "skip", "retry"]
)
def test_a_key_that_counts_until_it_is_done_is_free_then(store: Store, end: str) -> None:
    what = labelled("a", unique="dk", skip_after=5000 if end == "skip" else 0)
    make_ready(store, what, due_ms=store.now_ms() if end == "skip" else 1)
    if end == "cancel":
        store.control.cancel(QUEUE, Layout(), ["a"])
    elif end == "skip":
        waiting = store.client.hget("{q}:ready_index", "a") or b""
        message_id, _, rest = waiting.split(b" ", 2)
        store.client.hset("{q}:ready_index", "a", message_id + b" 5 " + rest)
    assert end == "cancel" or state(store)[KEY] == {b"k": taken_by("a")}
    reserve(store)
    if end == "ack":
        store.leases.ack(QUEUE, "me", ["1:1"])
    elif end == "reject":
        store.leases.dead_letter(QUEUE, "me", "1:1", "id", "why")
    elif end == "crash":
        store.leases.requeue(QUEUE, "me", ["1:1"], counted="crashed", most=1)
        assert state(store)[KEY] == {b"k": taken_by("a")}
        reserve(store, "2")
        store.leases.requeue(QUEUE, "me", ["2:1"], counted="crashed", most=1)
    elif end == "reclaim_expired":
        for message_id in ("2", "3"):
            pass_time(store.client, LEASE + 60)
            assert state(store)[KEY] == {b"k": taken_by("a")}
            store.leases.reclaim_expired(QUEUE, Layout(), "me", 100, 1)
            reserve(store, message_id)
    elif end == "retry":
        plain = labelled("a", message_id="plain")
        store.leases.replace(QUEUE, plain, QUEUE, "me", "1:1", when_due="push")

    assert KEY not in state(store)
    assert "{q}:ready_index" not in state(store)
    assert "{q}:leased_index" not in state(store)


def test_a_key_is_free_when_what_has_it_was_skipped_in_the_schedule(store: Store) -> None:
    put(store, labelled("a", unique="sk", skip_after=5))
    become_due(store, "a")
    assert store.promote(QUEUE, Layout(), 100).dead_lettered == 1

    assert KEY not in state(store)


def test_a_key_is_free_when_what_has_it_went_back_to_stock_workers(store: Store) -> None:
    put(store, labelled("a", unique="dk"))
    release(store, read(store, "a"))

    assert KEY not in state(store)


@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0", "k 0 0", "e 0 0", "r 0 1", "e 0 1"])
def test_what_a_stock_worker_took_has_the_key_no_more(store: Store, policy: str) -> None:
    owned(store, "ready")
    make_ready(store, labelled("other"))
    assert store.client.rpop("q") == message_of(labelled("old", unique="dk"))
    assert reserve(store).more == 0  # so nothing is ready
    new = labelled("new", unique="dk", policy=policy)

    assert states(store, new) == ["scheduled"]
    [owner] = store.client.hvals(KEY)
    assert owner.endswith(taken_by("new"))


def test_keys_of_what_stock_workers_took_are_not_kept_for_ever(store: Store) -> None:
    for n in range(5):
        make_ready(store, labelled(f"e{n}", unique=f"dk{n}"), labelled(f"e{n}", message_id=f"x{n}"))
    store.client.delete("q")
    reserve(store)

    assert state(store) == {"delayq:queues": {b"q": LAYOUT}}


# -- retries


def retry(store: Store, what: Entry, field: str = "1:1") -> Retried:
    return store.leases.replace(QUEUE, what, QUEUE, "me", field, when_due="push")


@either_scope
@pytest.mark.parametrize("policy", ["r 0 0", "l 9 0", "k 0 0", "e 0 0"])
@pytest.mark.parametrize("due_ms", [1, FAR])
def test_the_retry_of_what_has_the_key_takes_it_over(
    store: Store, scope: str, policy: str, due_ms: int
) -> None:
    what = labelled("a", unique=f"{scope}k", policy=policy)
    make_ready(store, what)
    reserve(store)

    assert retry(store, retried(what, "again", due_ms)) in ("scheduled", "ready")
    kept = scope == "d" or due_ms == FAR
    assert (KEY in state(store)) == kept
    store.leases.ack(QUEUE, "me", ["1:1"])
    assert (KEY in state(store)) == kept
    run_all(store)
    assert KEY not in state(store)


@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0"])
def test_what_has_replaced_a_running_one_stays_and_its_retry_is_not_stored(
    store: Store, policy: str
) -> None:
    old = labelled("old", unique="dk", policy=policy)
    make_ready(store, old)
    reserve(store)
    new = labelled("new", unique="dk", policy=policy)
    put(store, new)

    assert retry(store, retried(old, "again")) == "superseded"
    assert retry(store, retried(old, "again")) == "duplicate"
    store.leases.ack(QUEUE, "me", ["1:1"])
    [owner] = store.client.hvals(KEY)
    assert owner.endswith(taken_by("new"))
    assert run_all(store) == [message_of(new)]


def test_so_it_is_where_both_have_one_id(store: Store) -> None:
    old = labelled("a", unique="dk")
    make_ready(store, old)
    reserve(store)
    new = labelled("a", message_id="new", unique="dk")
    put(store, new)

    assert retry(store, retried(old, "again")) == "superseded"
    assert run_all(store) == [message_of(new)]


@either_scope
def test_what_goes_back_unstarted_leaves_its_key_to_what_has_replaced_it(
    store: Store, scope: str
) -> None:
    """Its task is paused. Without the pause both would have run."""
    old = labelled("old", unique=f"{scope}k")
    make_ready(store, old)
    reserve(store)
    new = labelled("new", unique=f"{scope}k")
    put(store, new)

    itself = old._replace(due=Due(5))
    answer = store.leases.replace(QUEUE, itself, QUEUE, "me", "1:1", when_due="keep")
    assert answer == "scheduled"
    assert state(store)[KEY] == {b"k": taken_by("new")}
    assert sorted(run_all(store)) == [message_of(new), message_of(old)]
    assert KEY not in state(store)


@pytest.mark.parametrize("policy", ["k 0 0", "e 0 0"])
def test_the_retry_of_what_lost_its_key_otherwise_is_stored_beside(
    store: Store, policy: str
) -> None:
    old = labelled("old", unique="sk", policy=policy)
    make_ready(store, old)
    reserve(store)
    new = labelled("new", FAR, unique="sk", policy=policy)
    put(store, new)
    again = retried(old, "again", FAR + 5)

    assert retry(store, again) == "scheduled"
    assert state(store)[KEY] == {b"k": taken_by("new")}
    store.control.cancel(QUEUE, Layout(), ["old"])
    assert state(store)[KEY] == {b"k": taken_by("new")}


def test_a_retry_that_was_acknowledged_before_takes_the_key_or_makes_way(store: Store) -> None:
    """The task acknowledges early, so its retry is published like any message."""
    old = labelled("old", unique="dk")
    make_ready(store, old)
    reserve(store)
    again = retried(old, "again")

    assert states(store, again) == ["scheduled"]  # its acknowledgement is still under way
    store.leases.ack(QUEUE, "me", ["1:1"])
    assert state(store) == as_scheduled(again) | {
        KEY: {b"k": taken_by("old", "again")},
        "delayq:lease_ends": {b"q": 10},
        "{q}:leases": {b"me": 10},
    }

    put(store, labelled("new", unique="dk"))
    assert put(store, retried(old, "third")) == [Put("superseded", "new")]


@pytest.mark.parametrize("unique", ["dk", "sk", "-"])
def test_a_retry_on_another_queue_has_its_key_there(store: Store, unique: str) -> None:
    old = labelled("old", unique="dk")
    make_ready(store, old)
    reserve(store)
    there = retried(labelled("old", unique=unique), "again")

    answer = store.leases.replace("p", there, QUEUE, "me", "1:1", when_due="push")
    assert answer == "scheduled"
    found = state(store)
    assert found.get("{p}:unique") == (None if unique == "-" else {b"k": taken_by("old", "again")})
    assert "{q}:leased_index" not in found
    assert states(store, labelled("new", unique="dk", policy="e 0 0")) == ["scheduled"]


# -- repeats


@where_it_is
@either_scope
@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0", "k 0 0", "e 0 0", "r 0 1"])
def test_a_message_that_is_sent_again_is_a_duplicate(
    store: Store, place: str, scope: str, policy: str
) -> None:
    what = owned(store, place, f"{scope}k")
    before = state(store)

    assert states(store, what._replace(policy=policy)) == ["duplicate"]
    assert state(store) == before


@pytest.mark.parametrize("place", ["ready", "running"])
def test_a_repeat_does_not_replace_what_has_replaced_it(store: Store, place: str) -> None:
    old = owned(store, place)
    new = labelled("new", unique="dk")
    put(store, new)
    before = state(store)

    assert states(store, old) == ["duplicate"]
    assert state(store) == before
    assert run_all(store) == [message_of(new)]


def test_a_call_that_is_repeated_replaces_once(store: Store) -> None:
    owned(store, "scheduled")

    assert states(repeating(store), labelled("new", unique="dk")) == ["duplicate"]
    assert store.client.hkeys("{q}:entries") == [b"new"]
