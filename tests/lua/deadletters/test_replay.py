"""replay.lua: dead letters become entries again, in one step."""

from __future__ import annotations

import pytest

from celery_delayq.store.dead_letters import Replay, digest_of
from celery_delayq.store.keys import Layout
from tests.lua.bench import (
    ENTRY,
    FAR,
    LAYOUT,
    QUEUE,
    REGISTERED,
    Bench,
    Calls,
    as_scheduled,
    bodies,
    labelled,
    message_of,
    repeating,
    retried,
    taken_by,
)
from tests.lua.dead_letters import DETAILS, DIED, dead, dead_letters_left, replay, seed
from tests.lua.uniques import KEY, owned, run_all, where_it_is

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/replay": (
        lambda s: s.run(
            s.dead_letters.replay_call(
                "p", "q", Layout(), [Replay("id", 5, ENTRY, digest_of(b""))], "token"
            )
        ),
        b"d",
    ),
}


def test_a_dead_letter_is_ready_and_dead_no_more(store: Bench) -> None:
    seed(store, "a", "b")
    before = store.now_ms()

    assert replay(store, ("a", DIED, labelled("a", 0, priority=3))) == ["d"]

    due = store.ready_index_due("a")
    assert before <= due <= store.now_ms()
    assert store.state() == REGISTERED | dead("b", died_ms=DIED + 1) | {
        "q\x06\x163": [message_of(labelled("a"))],
        "{q}:ready_index": {b"a": b"n-a %d - tasks.t" % due},
        "{q}:wake": [b""],
    }


def test_one_that_is_to_run_later_is_scheduled(store: Bench) -> None:
    seed(store, "a", "b")
    one, two = labelled("a", FAR + 5), labelled("b", FAR)

    assert replay(store, ("a", DIED, one), ("b", DIED + 1, two)) == ["d", "d"]
    assert store.state() == as_scheduled(one, two)


@pytest.mark.parametrize("more", [b"", b"longer"], ids=["as long", "longer"])
def test_one_with_another_message_than_was_read_stays(store: Bench, more: bytes) -> None:
    seed(store, "a", "b", "c")
    read = {id: digest_of(store.client.hget("{q}:dead", id)) for id in "ab"}
    store.client.hset("{q}:dead", "a", store.client.hget("{q}:dead", "b") + more)
    one, two = labelled("a", 0), labelled("b", FAR)

    codes = replay(store, ("a", DIED, one, read["a"]), ("b", DIED + 1, two, read["b"]))

    assert codes == ["c", "d"]
    assert dead_letters_left(store) == {"a", "c"}


def test_without_a_digest_none_is_replayed(store: Bench) -> None:
    seed(store, "a")

    assert replay(store, ("a", DIED, labelled("a", 0), "")) == ["c"]
    assert dead_letters_left(store) == {"a"}


def test_a_countdown_counts_from_redis_clock(store: Bench) -> None:
    seed(store, "a")
    before = store.now_ms()

    replay(store, ("a", DIED, labelled("a", 60_000, relative=True)))

    due = int(store.client.zscore("{q}:due", "a") or 0)
    assert before + 60_000 <= due <= store.now_ms() + 60_001
    assert store.state() == as_scheduled(labelled("a", due))


def test_several_run_in_the_order_of_the_call(store: Bench) -> None:
    seed(store, "a", "b", "c")
    entries = {id: labelled(id, 0) for id in "cab"}
    died = {"a": DIED, "b": DIED + 1, "c": DIED + 2}

    assert replay(store, *((id, died[id], each) for id, each in entries.items())) == ["d"] * 3
    assert bodies(store.acquire()) == [message_of(each) for each in entries.values()]


def test_a_dead_letter_with_details_is_known_by_when_it_died_too(store: Bench) -> None:
    seed(store, "a", details=DETAILS)

    assert replay(store, ("a", DIED + 1, labelled("a", FAR))) == ["c"]
    assert replay(store, ("a", DIED, labelled("a", FAR)), token="t2") == ["d"]
    assert store.state() == as_scheduled(labelled("a", FAR))


def test_another_dead_letter_with_that_id_stays(store: Bench) -> None:
    """It died after the caller read the first one, which others have replayed."""
    seed(store, "a", died_ms=DIED + 1000)
    before = store.state()

    assert replay(store, ("a", DIED, labelled("a", 0)), ("never", DIED, labelled("b"))) == [
        "c",
        "u",
    ]
    assert store.state() == before


def test_what_does_not_say_when_it_died_is_meant_all_the_same(store: Bench) -> None:
    seed(store, "a")
    store.client.hset("{q}:dead", "a", b"\xff not what we write")

    assert replay(store, ("a", 0, labelled("a", FAR))) == ["d"]
    assert store.state() == as_scheduled(labelled("a", FAR))


def test_dead_letters_with_one_task_id_all_run(store: Bench) -> None:
    seed(store, "a", "a\0second", "a\0third")
    first, second, third = (labelled("a", 0, message_id=f"n{n}") for n in (1, 2, 3))

    assert replay(
        store, ("a", DIED, first), ("a\0second", DIED + 1, second), ("a\0third", DIED + 2, third)
    ) == ["d", "d", "d"]
    assert not dead_letters_left(store)
    assert set(store.state()["{q}:ready_index"]) == {b"a", b"a\0n2", b"a\0n3"}
    assert run_all(store) == [message_of(each) for each in (first, second, third)]
    assert store.state().keys() == {"delayq:queues", "delayq:lease_ends", "{q}:leases"}


def test_a_scheduled_entry_with_that_id_stays_beside_it(store: Bench) -> None:
    seed(store, "a")
    there, again = labelled("a", FAR, message_id="n1"), labelled("a", FAR + 1, message_id="n2")
    store.put(there)

    assert replay(store, ("a", DIED, again)) == ["d"]
    assert store.state() == as_scheduled(there, **{"a\0n2": again}) | {
        "{q}:duplicate_ids": {b"a\0n2": 0}
    }


# -- to another queue


def test_it_may_go_to_another_queue(store: Bench) -> None:
    seed(store, "a", "b", queue="p")

    found = replay(store, ("a", DIED, labelled("a", FAR)), queue="p", to=QUEUE)

    assert found == ["d"]
    assert dead_letters_left(store, "p") == {"b"}
    expected = as_scheduled(labelled("a", FAR))
    expected["delayq:queues"] = {b"q": LAYOUT, b"p": LAYOUT}
    assert {name: value for name, value in store.state().items() if "{p}" not in name} == expected


# -- unique keys


@where_it_is
@pytest.mark.parametrize("due", [0, FAR])
def test_a_dead_letter_whose_unique_key_is_taken_stays(store: Bench, place: str, due: int) -> None:
    seed(store, "a", "free")
    owned(store, place)
    before = store.state()

    told = replay(
        store,
        ("a", DIED, labelled("a", due, unique="dk", policy="e 0 0")),
        ("free", DIED + 1, labelled("free", FAR + 9)),
    )

    assert told == ["k", "d"]
    assert dead_letters_left(store) == {"a"}
    for name in ("{q}:unique", "{q}:ready_index", "{q}:leased_index"):
        assert store.state().get(name) == before.get(name)


def test_a_key_that_is_free_is_taken(store: Bench) -> None:
    seed(store, "a", "b")
    policy = "e 0 0"

    told = replay(
        store,
        ("a", DIED, labelled("a", 0, unique="dk", policy=policy)),
        ("b", DIED + 1, labelled("b", 0, unique="dk", policy=policy)),
    )

    assert told == ["d", "k"]
    assert store.state()[KEY] == {b"k": taken_by("a")}
    assert run_all(store) == [message_of(labelled("a", unique="dk"))]
    assert KEY not in store.state()
    assert dead_letters_left(store) == {"b"}


def test_a_key_of_what_a_stock_worker_took_is_free(store: Bench) -> None:
    owned(store, "ready")
    store.client.delete("q")  # as a stock worker does; no script sees it
    seed(store, "a")

    assert replay(store, ("a", DIED, labelled("a", FAR, unique="dk", policy="e 0 0"))) == ["d"]
    assert store.state()[KEY] == {b"k": taken_by("a")}


def test_the_retry_of_what_was_replayed_keeps_its_key(store: Bench) -> None:
    seed(store, "a")
    what = labelled("a", 0, unique="dk", policy="e 0 0")
    replay(store, ("a", DIED, what))
    store.acquire()

    again = retried(what, "n2")
    assert store.replace(again) == "scheduled"
    assert store.state()[KEY] == {b"k": taken_by("a", "n2")}


# -- repeats, and a full server


@pytest.mark.parametrize("due", [0, FAR])
def test_a_repeat_gets_the_same_answer_and_makes_nothing_more(store: Bench, due: int) -> None:
    seed(store, "a", "b")
    store.put(labelled("owner", unique="dk"))

    told = replay(
        repeating(store),
        ("a", DIED, labelled("a", due)),
        ("b", DIED + 1, labelled("b", due, unique="dk", policy="e 0 0")),
        ("c", DIED, labelled("c", due)),
    )

    assert told == ["d", "k", "u"]
    assert dead_letters_left(store) == {"b"}
    assert len(run_all(store)) == 2


def test_a_repeat_finds_nothing_new_even_when_it_has_run_and_died_again(store: Bench) -> None:
    seed(store, "a")

    def run_and_die() -> None:
        store.acquire()
        store.leases.dead_letter(QUEUE, "me", "1:1", "a", "failed")

    assert replay(repeating(store, run_and_die), ("a", DIED, labelled("a", 0))) == ["d"]
    assert dead_letters_left(store) == {"a"}
    assert store.client.llen("q") == 0


def test_a_second_call_finds_no_dead_letter(store: Bench) -> None:
    seed(store, "a")
    replay(store, ("a", DIED, labelled("a", 0)), token="one")

    assert replay(store, ("a", DIED, labelled("a", 0, message_id="n2")), token="two") == ["u"]
    assert store.client.llen("q") == 1


def test_one_call_takes_a_hundred(store: Bench) -> None:
    ids = [f"e{n}" for n in range(100)]
    seed(store, *ids)

    told = replay(
        store,
        *((id, DIED + n, labelled(id, FAR - n, priority=n % 10)) for n, id in enumerate(ids)),
    )

    assert told == ["d"] * 100
    assert not dead_letters_left(store)
    assert store.scheduled(QUEUE) == store.scheduled(QUEUE, "tasks.t") == 100
    assert store.client.zscore("delayq:next_due", "q") == FAR - 99
