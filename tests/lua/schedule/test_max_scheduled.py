"""add.lua refuses an entry beyond the limit."""

from __future__ import annotations

import pytest

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import FAR, QUEUE, Bench, as_scheduled, bench, labelled, repeating, retried
from tests.lua.uniques import owned, where_it_is


@pytest.fixture
def store(delayq_redis: RedisUnderTest) -> Bench:
    """A store with room for three entries."""
    return bench(delayq_redis, max_scheduled=3)


def some(number: int, first: int = 0) -> list[str]:
    return [f"e{n}" for n in range(first, first + number)]


def test_as_many_as_allowed_are_stored_and_no_more(store: Bench) -> None:
    entries = [labelled(id, FAR + n) for n, id in enumerate(some(5))]

    assert store.states(*entries) == ["scheduled"] * 3 + ["full"] * 2
    assert store.state() == as_scheduled(*entries[:3])
    assert store.states(entries[3]) == ["full"]
    assert store.state() == as_scheduled(*entries[:3])


def test_there_is_room_again_when_one_has_gone(store: Bench) -> None:
    store.put(*map(labelled, some(3)))
    store.cancel("e1")
    assert store.states(*map(labelled, some(2, 3))) == ["scheduled", "full"]

    store.become_due("e0")
    store.promote()
    assert store.states(*map(labelled, some(2, 5))) == ["scheduled", "full"]


def test_what_is_due_needs_no_room(store: Bench) -> None:
    store.put(*map(labelled, some(3)))

    assert store.states(labelled("now", 1)) == ["ready"]


def test_what_is_paused_due_takes_room(store: Bench) -> None:
    store.put(*map(labelled, some(3)))
    store.pause_due("e0")

    assert store.states(labelled("new")) == ["full"]


def test_queues_have_room_of_their_own(store: Bench) -> None:
    store.put(*map(labelled, some(3)))

    assert store.put(labelled("new"), queue="other")[0].state == "scheduled"


@where_it_is
@pytest.mark.parametrize("unique", ["-", "dk", "sk"])
def test_a_message_that_is_sent_again_is_a_duplicate_though_it_is_full(
    store: Bench, place: str, unique: str
) -> None:
    what = owned(store, place, unique, "a")
    store.put(*map(labelled, some(3)))
    before = store.state()

    assert store.states(what) == ["duplicate"]
    assert store.state() == before


def test_one_may_replace_another_though_it_is_full(store: Bench) -> None:
    store.put(labelled("old", unique="sk"), *map(labelled, some(2)))
    found = store.states(
        labelled("new", unique="sk"), labelled("x"), labelled("newer", unique="sk")
    )

    assert found == ["replaced", "full", "replaced"]
    assert store.scheduled(QUEUE) == 3


@pytest.mark.parametrize("running", [False, True])
def test_what_is_ready_or_runs_makes_no_room_and_stays_when_it_is_full(
    store: Bench, running: bool
) -> None:
    store.make_ready(labelled("old", unique="dk"))
    if running:
        store.acquire()
    store.put(*map(labelled, some(3)))
    before = store.state()

    assert store.states(labelled("new", unique="dk")) == ["full"]
    assert store.state() == before
    assert store.states(labelled("new", 1, unique="dk")) == ["ready" if running else "replaced"]


@pytest.mark.parametrize(("policy", "answer"), [("k 0 0", "kept"), ("e 0 0", "conflict")])
def test_that_there_is_another_is_said_first(store: Bench, policy: str, answer: str) -> None:
    store.put(labelled("old", unique="sk"), *map(labelled, some(2)))

    assert store.states(labelled("new", unique="sk", policy=policy)) == [answer]


def test_a_retry_in_place_of_its_message_is_stored_all_the_same(store: Bench) -> None:
    what = labelled("a")
    store.lease(what)
    store.put(*map(labelled, some(3)))

    assert store.replace(retried(what, "again")) == "scheduled"
    assert store.scheduled(QUEUE) == 4


def test_a_call_that_is_repeated_stores_no_more(store: Bench) -> None:
    assert repeating(store).states(*map(labelled, some(5))) == ["duplicate"] * 3 + ["full"] * 2
    assert store.scheduled(QUEUE) == 3
