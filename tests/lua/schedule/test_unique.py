"""include/unique_policy.lua: one entry for each unique key, and the outcome of a second one."""

from __future__ import annotations

import pytest

from celery_delayq.errors import StoreFull
from celery_delayq.model.envelope import Due
from celery_delayq.model.publish_outcome import Put
from tests.lua.bench import FAR, QUEUE, Bench, as_scheduled, bodies, labelled, message_of, taken_by
from tests.lua.uniques import KEY, either_scope, owned, run_all, where_it_is

# -- the first entry


@either_scope
def test_the_first_has_the_key_while_it_is_scheduled(store: Bench, scope: str) -> None:
    what = labelled("a", unique=f"{scope}k")

    assert store.states(what) == ["scheduled"]
    assert store.state() == as_scheduled(what) | {KEY: {b"k": taken_by("a")}}


def test_one_that_is_due_has_it_until_it_is_done(store: Bench) -> None:
    assert store.states(labelled("a", 1, unique="dk")) == ["ready"]
    assert store.state()[KEY] == {b"k": taken_by("a")}


def test_one_that_is_due_has_it_no_longer_where_it_counts_while_scheduled(store: Bench) -> None:
    assert store.states(labelled("a", 1, unique="sk"), labelled("b", 1, unique="sk")) == [
        "ready",
        "ready",
    ]
    assert KEY not in store.state()


@either_scope
@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0", "k 0 0", "e 0 0"])
def test_different_keys_are_strangers(store: Bench, scope: str, policy: str) -> None:
    entries = [
        labelled(f"e{n}", unique=f"{scope}{key}", policy=policy)
        for n, key in enumerate(("k", "kk", "K", "%6B", "-", "d"))
    ]

    assert store.states(*entries) == ["scheduled"] * 6


def test_queues_are_strangers(store: Bench) -> None:
    store.put(labelled("a", unique="dk"))
    assert store.put(labelled("b", unique="dk", policy="e 0 0"), queue="p") == [Put("scheduled")]


# -- replace


@either_scope
def test_a_scheduled_one_makes_way(store: Bench, scope: str) -> None:
    owned(store, "scheduled", f"{scope}k")
    new = labelled("new", FAR, unique=f"{scope}k")

    assert store.put(new) == [Put("replaced", "old")]
    assert store.state() == as_scheduled(new) | {KEY: {b"k": taken_by("new")}}


def test_a_ready_one_is_dropped_when_its_turn_comes(store: Bench) -> None:
    owned(store, "ready")
    new = labelled("new", FAR, unique="dk")

    assert store.put(new) == [Put("replaced", "old")]
    assert store.state()["{q}:ready_index"] == {b"old": b"!!n-old 1 dk tasks.t"}

    assert store.acquire().messages == []
    assert store.state() == as_scheduled(new) | {KEY: {b"k": taken_by("new")}}


def test_a_running_one_runs_on_and_the_key_is_that_of_the_new_one(store: Bench) -> None:
    owned(store, "running")
    new = labelled("new", FAR, unique="dk")

    assert store.put(new) == [Put("scheduled")]
    assert store.state()[KEY] == {b"k": taken_by("new")}

    store.ack("1:1")
    assert store.state()[KEY] == {b"k": taken_by("new")}
    assert run_all(store) == [message_of(new)]
    assert KEY not in store.state()


@pytest.mark.parametrize("place", ["ready", "running"])
def test_where_it_counts_while_scheduled_what_has_left_is_a_stranger(
    store: Bench, place: str
) -> None:
    owned(store, place, "sk")
    new = labelled("new", FAR, unique="sk", policy="e 0 0")

    assert store.states(new) == ["scheduled"]
    assert store.state()[KEY] == {b"k": taken_by("new")}
    assert len(run_all(store)) == (2 if place == "ready" else 1)


def test_one_that_is_due_replaces_too(store: Bench) -> None:
    owned(store, "scheduled")
    assert store.put(labelled("new", 1, unique="dk")) == [Put("replaced", "old")]
    assert store.put(labelled("newer", 1, unique="dk")) == [Put("replaced", "new")]

    assert bodies(store.acquire()) == [message_of(labelled("newer", unique="dk"))]
    assert store.state()[KEY] == {b"k": taken_by("newer")}


@where_it_is
def test_the_same_id_may_replace_itself(store: Bench, place: str) -> None:
    """A debounce with its own id: duplicate ids, of which one has the key."""
    owned(store, place, id="a")
    new = labelled("a", FAR, message_id="new", unique="dk")

    store.put(new)
    assert store.state()[KEY] == {b"k": taken_by("a", "new")}
    if place == "running":
        store.ack("1:1")
    assert store.state()[KEY] == {b"k": taken_by("a", "new")}

    assert run_all(store) == [message_of(new)]
    left = {"delayq:queues", "delayq:lease_ends", "{q}:leases"}
    assert store.state().keys() <= left


@where_it_is
@pytest.mark.parametrize(("policy", "became"), [("k 0 0", "kept"), ("e 0 0", "conflict")])
def test_another_message_with_the_same_id_gives_way_as_any_other(
    store: Bench, place: str, policy: str, became: str
) -> None:
    owned(store, place, id="a")
    before = store.state()

    new = labelled("a", message_id="new", unique="dk", policy=policy)
    assert store.put(new) == [Put(became, "a")]  # type: ignore[arg-type]
    assert store.state() == before


def test_a_replaced_one_that_is_dropped_leaves_the_key_to_a_ready_one_of_its_id(
    store: Bench,
) -> None:
    owned(store, "ready", id="a")
    store.make_ready(labelled("a", message_id="new", unique="dk"))
    store.acquire(limit=1)  # drops the old one

    assert store.state()[KEY] == {b"k": taken_by("a", "new")}
    assert store.states(labelled("b", unique="dk", policy="e 0 0")) == ["conflict"]


def test_many_in_a_row_leave_one(store: Bench) -> None:
    entries = [labelled(f"e{n}", FAR + n % 3, unique="dk") for n in range(20)]
    for each in entries:
        store.put(each)

    assert store.state() == as_scheduled(entries[-1]) | {KEY: {b"k": taken_by("e19")}} | {
        "delayq:next_due": {b"q": FAR}
    }


def test_what_is_paused_due_makes_way(store: Bench) -> None:
    owned(store, "scheduled")
    store.pause_due("old")
    new = labelled("new", unique="dk")

    assert store.put(new) == [Put("replaced", "old")]
    found = store.state()
    del found["delayq:control"]
    assert found == as_scheduled(new) | {KEY: {b"k": taken_by("new")}}


# -- keep, error


@either_scope
@where_it_is
@pytest.mark.parametrize(("policy", "answer"), [("k 0 0", "kept"), ("e 0 0", "conflict")])
@pytest.mark.parametrize("due_ms", [1, FAR])
def test_keep_and_error_store_nothing(
    store: Bench, scope: str, place: str, policy: str, answer: str, due_ms: int
) -> None:
    owned(store, place, f"{scope}k")
    before = store.state()

    found = store.put(labelled("new", due_ms, unique=f"{scope}k", policy=policy))

    if scope == "s" and place != "scheduled":
        assert found[0].state in ("scheduled", "ready")
    else:
        assert found == [Put(answer, "old")]  # type: ignore[arg-type]
        assert store.state() == before


# -- later


def since(store: Bench) -> int:
    [owner] = store.client.hvals(KEY)
    return int(owner.partition(b"=")[0])


def test_later_moves_to_the_later_of_both_dues(store: Bench) -> None:
    store.put(labelled("a", FAR + 10, unique="sk", policy="l 0 0"))
    began = since(store)
    for id, due, expected in (
        ("b", FAR + 20, FAR + 20),
        ("c", FAR + 5, FAR + 20),
        ("d", 1, FAR + 20),
    ):
        new = labelled(id, due, unique="sk", policy="l 0 0")
        assert [each.state for each in store.put(new)] == ["replaced"]
        assert store.state() == as_scheduled(new._replace(due=Due(expected))) | {
            "delayq:next_due": {b"q": FAR + 10},
            KEY: {b"k": taken_by(id, since=began)},
        }


def test_later_waits_no_longer_than_max_wait_after_the_first(store: Bench) -> None:
    policy = "l 60000 0"
    store.put(labelled("a", 50_000, relative=True, unique="sk", policy=policy))
    began = since(store)
    store.put(labelled("b", 55_000, relative=True, unique="sk", policy=policy))
    assert int(store.client.zscore("{q}:due", "b") or 0) >= began + 55_000

    store.put(labelled("c", 90_000, relative=True, unique="sk", policy=policy))
    assert store.client.zscore("{q}:due", "c") == began + 60_000

    store.client.hset(KEY, "k", taken_by("c", since=began - 70_000))  # it began earlier
    last = labelled("d", FAR, unique="sk", policy=policy)
    assert store.put(last) == [Put("replaced", "c")]
    assert bodies(store.acquire()) == [message_of(last)]
    assert {KEY, "{q}:due", "{q}:ready_index"}.isdisjoint(store.state())


def test_later_takes_the_place_of_a_ready_one(store: Bench) -> None:
    owned(store, "ready")
    new = labelled("new", unique="dk", policy="l 0 0")

    assert store.put(new) == [Put("replaced", "old")]
    assert store.acquire().messages == []
    assert store.client.zscore("{q}:due", "new") == FAR


def test_later_begins_anew_when_the_other_runs(store: Bench) -> None:
    what = labelled("a", unique="dk", policy="l 60000 0")
    store.lease(what)
    store.client.hset(KEY, "k", taken_by("a", since=5))  # long ago

    assert store.states(labelled("b", unique="dk", policy="l 60000 0")) == ["scheduled"]
    assert store.client.zscore("{q}:due", "b") == FAR
    assert store.now_ms() - 5000 < since(store) <= store.now_ms()


# -- in one call


@either_scope
@pytest.mark.parametrize(
    ("policy", "expected", "left"),
    [
        ("r 0 0", [("scheduled", ""), ("replaced", "a"), ("replaced", "b")], b"c"),
        ("l 0 0", [("scheduled", ""), ("replaced", "a"), ("replaced", "b")], b"c"),
        ("k 0 0", [("scheduled", ""), ("kept", "a"), ("kept", "a")], b"a"),
        ("e 0 0", [("scheduled", ""), ("conflict", "a"), ("conflict", "a")], b"a"),
    ],
)
def test_several_with_one_key_in_one_call(
    store: Bench, scope: str, policy: str, expected: list[tuple[str, str]], left: bytes
) -> None:
    entries = [labelled(id, unique=f"{scope}k", policy=policy) for id in "abc"]
    plain = [labelled(f"plain {id}") for id in "abc"]

    found = store.put(*(each for pair in zip(plain, entries, strict=True) for each in pair))

    assert found[1::2] == [Put(*each) for each in expected]  # type: ignore[arg-type]
    assert [each.state for each in found[::2]] == ["scheduled"] * 3
    names = {each.id.encode() for each in plain} | {left}
    assert set(store.client.hkeys("{q}:entries")) == names
    assert set(store.client.zrange("{q}:due", 0, -1)) == names
    assert store.scheduled(QUEUE, "tasks.t") == 4


def test_several_that_are_due_in_one_call(store: Bench) -> None:
    found = store.put(*(labelled(id, 1, unique="dk") for id in "abc"))

    assert found == [Put("ready"), Put("replaced", "a"), Put("replaced", "b")]
    assert bodies(store.acquire()) == [message_of(labelled("c", unique="dk"))]


# -- a full server, and unreadable values


@where_it_is
@pytest.mark.parametrize("due_ms", [1, FAR])
@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0"])
def test_a_full_server_leaves_nothing_half_stored(
    store: Bench, place: str, due_ms: int, policy: str
) -> None:
    owned(store, place)
    new = labelled("new", due_ms, unique="dk", policy=policy)
    before = store.state()
    store.fill()

    if place == "scheduled":  # memory use stays
        assert store.put(new) == [Put("replaced", "old")]
        store.make_room()
        assert store.client.hvals(KEY)[0].endswith(taken_by("new"))
        assert run_all(store) == [message_of(new)]
    else:
        with pytest.raises(StoreFull):
            store.put(new)
        assert store.state() == before


# -- former names of the task


@either_scope
@where_it_is
@pytest.mark.parametrize("policy", ["k 0 0 x old", "e 0 0 old x", "r 0 0 x old", "l 0 0 old"])
def test_a_key_under_a_former_name_is_the_same_key(
    store: Bench, scope: str, place: str, policy: str
) -> None:
    owned(store, place, f"{scope}old:k:2")
    new = labelled("new", FAR, unique=f"{scope}name:k:2", policy=policy)
    has_left = scope == "s" and place != "scheduled"

    [put] = store.put(new)

    refused = {"k": "kept", "e": "conflict"}.get(policy[0])
    if has_left or (refused is None and place == "running"):
        assert put == Put("scheduled")
    else:
        assert put == Put(refused or "replaced", "old")  # type: ignore[arg-type]
    is_refused = put.state in ("kept", "conflict")
    keys = store.state()[KEY]
    assert (b"name:k:2" in keys) is not is_refused
    assert (b"old:k:2" in keys) is (is_refused or (place == "running" and scope == "d"))
    run_all(store)
    if place == "running":
        store.ack("1:1")
    assert KEY not in store.state()


def test_another_key_of_a_former_name_is_a_stranger(store: Bench) -> None:
    owned(store, "scheduled", "sold:k")
    for number, key in enumerate(("name:kk", "name:", "name", "name:%6B")):
        new = labelled(f"e{number}", unique=f"s{key}", policy="e 0 0 old")
        assert store.states(new) == ["scheduled"]


def test_entries_of_one_call_have_one_key_under_all_names(store: Bench) -> None:
    first = labelled("a", unique="sold:k", policy="r 0 0 name")
    second = labelled("b", unique="sname:k", policy="r 0 0 old")

    assert store.states(first, second, first) == ["scheduled", "replaced", "replaced"]
    assert store.state()[KEY] == {b"old:k": taken_by("a")}
