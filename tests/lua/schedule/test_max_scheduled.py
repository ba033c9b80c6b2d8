"""add.lua refuses an entry that would be one too many."""

from __future__ import annotations

import pytest

from celery_delayq.settings import Limits
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.schedule import Store
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.conftest import (
    FAR,
    QUEUE,
    as_scheduled,
    become_due,
    labelled,
    make_ready,
    put,
    repeating,
    reserve,
    retried,
    state,
    states,
)

pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Store:
    """A store with room for three."""
    return Store(delayq_redis.client, Keys(), Layout(), lambda _queue: Limits(max_scheduled=3))


def some(number: int, first: int = 0) -> list[str]:
    return [f"e{n}" for n in range(first, first + number)]


def test_as_many_as_allowed_are_stored_and_no_more(store: Store) -> None:
    entries = [labelled(id, FAR + n) for n, id in enumerate(some(5))]

    assert states(store, *entries) == ["scheduled"] * 3 + ["full"] * 2
    assert state(store) == as_scheduled(*entries[:3])
    assert states(store, entries[3]) == ["full"]
    assert state(store) == as_scheduled(*entries[:3])


def test_there_is_room_again_when_one_has_gone(store: Store) -> None:
    put(store, *map(labelled, some(3)))
    store.control.cancel(QUEUE, Layout(), ["e1"])
    assert states(store, *map(labelled, some(2, 3))) == ["scheduled", "full"]

    become_due(store, "e0")
    store.promote(QUEUE, Layout(), 100)
    assert states(store, *map(labelled, some(2, 5))) == ["scheduled", "full"]


def test_what_is_due_needs_no_room(store: Store) -> None:
    put(store, *map(labelled, some(3)))

    assert states(store, labelled("now", 1)) == ["ready"]


def test_what_is_paused_due_takes_room(store: Store) -> None:
    put(store, *map(labelled, some(3)))
    store.control.pause([], task="tasks.t")
    become_due(store, "e0")
    store.promote(QUEUE, Layout(), 100)

    assert states(store, labelled("new")) == ["full"]


def test_queues_have_room_of_their_own(store: Store) -> None:
    put(store, *map(labelled, some(3)))

    assert put(store, labelled("new"), queue="other")[0].state == "scheduled"


@pytest.mark.parametrize("place", ["scheduled", "ready", "running"])
@pytest.mark.parametrize("unique", ["-", "dk", "sk"])
def test_a_message_that_is_sent_again_is_a_duplicate_though_it_is_full(
    store: Store, place: str, unique: str
) -> None:
    what = labelled("a", unique=unique)
    if place == "scheduled":
        put(store, what)
    else:
        make_ready(store, what)
    if place == "running":
        reserve(store)
    put(store, *map(labelled, some(3)))
    before = state(store)

    assert states(store, what) == ["duplicate"]
    assert state(store) == before


def test_one_may_replace_another_though_it_is_full(store: Store) -> None:
    put(store, labelled("old", unique="sk"), *map(labelled, some(2)))
    found = states(
        store, labelled("new", unique="sk"), labelled("x"), labelled("newer", unique="sk")
    )

    assert found == ["replaced", "full", "replaced"]
    assert store.scheduled(QUEUE) == 3


@pytest.mark.parametrize("running", [False, True])
def test_what_is_ready_or_runs_makes_no_room_and_stays_when_it_is_full(
    store: Store, running: bool
) -> None:
    make_ready(store, labelled("old", unique="dk"))
    if running:
        reserve(store)
    put(store, *map(labelled, some(3)))
    before = state(store)

    assert states(store, labelled("new", unique="dk")) == ["full"]
    assert state(store) == before
    assert states(store, labelled("new", 1, unique="dk")) == ["ready" if running else "replaced"]


@pytest.mark.parametrize(("policy", "answer"), [("k 0 0", "kept"), ("e 0 0", "conflict")])
def test_that_there_is_another_is_said_first(store: Store, policy: str, answer: str) -> None:
    put(store, labelled("old", unique="sk"), *map(labelled, some(2)))

    assert states(store, labelled("new", unique="sk", policy=policy)) == [answer]


def test_a_retry_in_place_of_its_message_is_stored_all_the_same(store: Store) -> None:
    what = labelled("a")
    make_ready(store, what)
    reserve(store)
    put(store, *map(labelled, some(3)))

    again = retried(what, "again")
    answer = store.leases.replace(QUEUE, again, QUEUE, "me", "1:1", when_due="push")
    assert answer == "scheduled"
    assert store.scheduled(QUEUE) == 4


def test_a_call_that_is_repeated_stores_no_more(store: Store) -> None:
    twice = repeating(store)
    twice.limits = store.limits

    assert states(twice, *map(labelled, some(5))) == ["duplicate"] * 3 + ["full"] * 2
    assert store.scheduled(QUEUE) == 3
