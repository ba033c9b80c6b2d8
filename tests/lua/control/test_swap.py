"""swap.lua: records of scheduled entries are swapped as a whole, or nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_delayq.errors import StoreFull
from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.model.script_values import StatusCode, Swap
from tests.lua.bench import (
    FAR,
    QUEUE,
    Bench,
    Calls,
    as_scheduled,
    bodies,
    entry,
    labelled,
    large,
    member,
    message_of,
    repeating,
    taken_by,
)
from tests.lua.uniques import either_scope, owned, where_it_is

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "control/swap": (lambda s: s.control.swap("q", [Swap("id", b"a", b"b", 5)]), b"d"),
}


def with_body(what: Entry, body: bytes = b"new") -> Entry:
    """Return an entry whose message has another body."""
    record = Record.unpack(what.data)
    message = record.message.removesuffix(b"}") + b', "body": "%b"}' % body
    return what._replace(data=record._replace(message=message).pack())


def swap(
    store: Bench, before: Entry, after: Entry, *, name: str = "", if_due: int | None = None
) -> StatusCode:
    swaps = [Swap(name or before.id, before.data, after.data, if_due)]
    [code] = store.control.swap(QUEUE, swaps)
    return code


A = labelled("a")
NEW = with_body(A)

#: What may differ between two records of one message, by name: the record before, and that after.
PAIRS: dict[str, tuple[Entry, Entry]] = {
    "body": (A, NEW),
    "priority": (A, labelled("a", priority=9)),
    "task": (A, labelled("a", task="tasks.new ä")),
    "all": (
        labelled("a", unique="sk", lane="api:1", priority=3),
        with_body(labelled("a", unique="dl", lane="api:2", priority=6, task="tasks.new")),
    ),
    "large": (A, large(A, 100_000)),
    "small again": (large(A, 100_000), NEW),
    "large, with another task": (large(A, 100_000), large(labelled("a", task="t2"), 100_000)),
    "gets a label": (entry("a", FAR), A),
    "gets a unique key": (A, labelled("a", unique="dk")),
    "loses a unique key": (labelled("a", unique="dk"), A),
    "gets a lane": (A, labelled("a", lane="api:1")),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_afterwards_all_is_as_if_it_had_been_sent_so(
    store: Bench, pair: tuple[Entry, Entry]
) -> None:
    before, after = pair
    store.put(after)
    expected = store.state()
    store.client.flushall()
    store.put(before)

    assert swap(store, before, after) == "d"
    assert store.state() == expected

    store.cancel("a")
    assert {"{q}:due", "{q}:tasks", "{q}:entries", "{q}:unique"}.isdisjoint(store.state())


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_nothing_changes_where_it_is_not_as_it_was_read(
    store: Bench, pair: tuple[Entry, Entry]
) -> None:
    before, after = pair
    store.put(before)
    state = store.state()

    assert swap(store, before._replace(data=before.data + b" "), after) == "c"
    assert swap(store, before, after, if_due=FAR + 1) == "c"
    assert store.state() == state
    assert swap(store, before, after, if_due=FAR) == "d"
    assert swap(store, before, after) == "c"


def test_a_moved_entry_is_swapped_where_it_is(store: Bench) -> None:
    store.put(A)
    store.control.reschedule(QUEUE, [("a", Due(FAR - 9), None)])

    assert swap(store, A, NEW) == "d"
    assert store.state() == as_scheduled(NEW._replace(due=Due(FAR - 9)))


def test_what_has_left_the_schedule_is_reported_and_left_alone(store: Bench) -> None:
    running, ready, gone = labelled("running"), labelled("ready"), labelled("gone")
    store.lease(running)
    store.make_ready(ready, gone)
    store.cancel("gone")
    before = store.state()

    codes = [swap(store, each, with_body(each)) for each in (running, ready, gone, A)]
    assert codes == ["r", "w", "u", "u"]
    assert store.state() == before


def test_another_message_with_its_id_is_left_alone(store: Bench) -> None:
    other = labelled("a", message_id="other")
    store.put(other)
    before = store.state()

    assert swap(store, A, NEW) == "c"
    assert store.state() == before


def test_one_of_two_with_one_id_is_swapped(store: Bench) -> None:
    second = labelled("a", FAR + 1, message_id="second")
    store.put(A, second)

    assert swap(store, second, with_body(second), name="a\0second") == "d"
    assert store.client.hget("{q}:entries", "a") == A.data
    assert store.client.hget("{q}:entries", "a\0second") == with_body(second).data


@pytest.mark.parametrize(
    "wrong", [labelled("b"), labelled("a", message_id="other"), entry("a", FAR)]
)
def test_the_record_of_another_message_is_refused(store: Bench, wrong: Entry) -> None:
    store.put(A)
    before = store.state()

    assert swap(store, A, wrong) == "x"
    assert store.state() == before


def test_each_of_a_call_has_its_own_outcome(store: Bench) -> None:
    some = [labelled(id) for id in "abcd"]
    store.put(*some)
    store.cancel("b")
    store.control.reschedule(QUEUE, [("c", Due(FAR + 1), None)])

    swaps = [Swap(each.id, each.data, with_body(each).data, FAR) for each in some]
    assert store.control.swap(QUEUE, swaps) == ["d", "u", "c", "d"]


def test_many_large_ones_take_several_calls(store: Bench) -> None:
    some = [large(labelled(f"{n}"), 400_000) for n in range(5)]
    store.put(*some)

    swaps = [Swap(each.id, each.data, with_body(each).data) for each in some]
    assert store.control.swap(QUEUE, swaps, "token") == ["d"] * 5
    assert store.control.swap(QUEUE, swaps, "token") == ["d"] * 5


def test_a_repeat_gets_the_same_answer_and_undoes_no_later_change(store: Bench) -> None:
    store.put(A)
    later = with_body(A, b"later")
    again = repeating(store, lambda: swap(store, NEW, later))

    assert swap(again, A, NEW) == "d"
    assert store.state() == as_scheduled(later)


def test_a_full_server_refuses_it_and_changes_nothing(store: Bench) -> None:
    before = labelled("a", unique="dk")
    store.put(before)
    state = store.state()
    store.fill()
    try:
        with pytest.raises(StoreFull):
            swap(store, before, labelled("a", unique="dl", task="t2"))
    finally:
        store.make_room()
    assert store.state() == state


# -- unique keys


@either_scope
@where_it_is
def test_a_key_that_another_message_has_is_not_taken(store: Bench, place: str, scope: str) -> None:
    owned(store, place, unique=f"{scope}k")
    before = labelled("a", unique=f"{scope}mine")
    store.put(before)
    state = store.state()

    is_taken = scope == "d" or place == "scheduled"
    code = swap(store, before, labelled("a", unique=f"{scope}k"))
    assert code == ("k" if is_taken else "d")
    assert (store.state() == state) is is_taken


@either_scope
@where_it_is
def test_a_key_under_another_name_of_the_task_is_not_taken(
    store: Bench, place: str, scope: str
) -> None:
    owned(store, place, unique=f"{scope}old:k:2")
    before = labelled("a", unique=f"{scope}name:mine")
    store.put(before)
    state = store.state()

    after = labelled("a", unique=f"{scope}name:k:2")
    names = ("name", "old")
    [code] = store.control.swap(QUEUE, [Swap("a", before.data, after.data, names=names)])
    is_taken = scope == "d" or place == "scheduled"
    assert code == ("k" if is_taken else "d")
    assert (store.state() == state) is is_taken


def test_its_own_key_under_another_name_of_the_task_is_no_conflict(store: Bench) -> None:
    before, after = labelled("a", unique="dold:k"), labelled("a", unique="dname:k")
    store.put(before)

    swap = Swap("a", before.data, after.data, names=("name", "old"))
    assert store.control.swap(QUEUE, [swap]) == ["d"]
    assert store.state()["{q}:unique"] == {b"name:k": taken_by("a")}


def test_a_key_without_its_message_is_free(store: Bench) -> None:
    store.client.hset("{q}:unique", "k", taken_by("gone"))
    store.put(A)

    assert swap(store, A, labelled("a", unique="dk")) == "d"
    assert store.state()["{q}:unique"] == {b"k": taken_by("a")}


def test_the_former_key_is_free_and_the_next_of_a_call_gets_it(store: Bench) -> None:
    one, two = labelled("a", unique="dk"), labelled("b", unique="dl")
    store.put(one, two)

    swaps = [
        Swap("a", one.data, labelled("a", unique="dm").data),
        Swap("b", two.data, labelled("b", unique="dk").data),
    ]
    assert store.control.swap(QUEUE, swaps) == ["d", "d"]
    assert store.state()["{q}:unique"] == {b"k": taken_by("b"), b"m": taken_by("a")}


def test_the_key_of_another_message_is_not_freed(store: Bench) -> None:
    """A retry that waits beside the message that has replaced it has the key in its label only."""
    before = labelled("a", unique="dk")
    store.put(before)
    store.client.hset("{q}:unique", "k", taken_by("b"))

    assert swap(store, before, labelled("a", unique="dl")) == "d"
    assert store.state()["{q}:unique"] == {b"k": taken_by("b"), b"l": taken_by("a")}


def test_the_time_since_which_a_key_is_put_off_stays(store: Bench) -> None:
    before = labelled("a", unique="sk", policy="l 5 0")
    store.put(before)
    store.client.hset("{q}:unique", "k", taken_by("a", since=77))

    assert swap(store, before, labelled("a", unique="sl")) == "d"
    assert store.state()["{q}:unique"] == {b"l": taken_by("a", since=77)}


# -- paused and held entries


def paused(store: Bench) -> None:
    store.pause_due("a", due_ms=7)


def held(store: Bench) -> None:
    store.define_limit(concurrency=1)
    store.put(labelled("first", 3, lane="api:1"))
    assert len(store.acquire().messages) == 1
    store.become_due("a", 7)
    store.promote()
    store.acquire("2")  # the lane waits for a permit


#: By name: the entry, how it comes to wait, and another record with which it waits on.
WAITING: dict[str, tuple[Entry, Callable[[Bench], object], Entry]] = {
    "paused": (A, paused, NEW),
    "paused, another unique key": (A, paused, labelled("a", unique="dk")),
    "held": (labelled("a", lane="api:1"), held, with_body(labelled("a", lane="api:1"))),
    "held, another expiry": (
        labelled("a", lane="api:1"),
        held,
        labelled("a", lane="api:1", expires=9),
    ),
}


@pytest.mark.parametrize("case", WAITING.values(), ids=WAITING)
def test_what_waits_for_more_than_its_due_waits_on(
    store: Bench, case: tuple[Entry, Callable[[Bench], object], Entry]
) -> None:
    before, wait, after = case
    store.put(before)
    wait(store)
    state: dict[str, Any] = store.state()
    state["{q}:entries"][b"a"] = after.data

    assert swap(store, before, after, if_due=7) == "d"
    found = store.state()
    found.pop("{q}:unique", None)
    assert found == state


def test_a_paused_entry_with_a_task_that_is_not_paused_runs(store: Bench) -> None:
    store.put(A)
    paused(store)
    after = labelled("a", task="tasks.new")

    assert swap(store, A, after, if_due=7) == "d"
    assert store.state()["{q}:tasks"] == {member("tasks.new", 7, "a"): 0}
    assert "{q}:paused_due" not in store.state()
    assert store.client.zscore("delayq:next_due", "q") == 7
    assert store.promote().moved == 1
    assert bodies(store.acquire()) == [message_of(after)]


def test_an_entry_with_a_paused_task_waits_for_the_task(store: Bench) -> None:
    store.put(A)
    store.pause(task="tasks.new")

    assert swap(store, A, labelled("a", task="tasks.new")) == "d"
    store.become_due("a", 7)
    assert store.promote().moved == 0
    assert list(store.state()["{q}:paused_due"]) == [member("tasks.new", 7, "a")]


@pytest.mark.parametrize("size", [0, 100_000])
def test_a_held_entry_goes_to_the_lane_of_its_new_record(store: Bench, size: int) -> None:
    before, after = labelled("a", lane="api:1"), labelled("a", lane="api:2")
    if size:
        before, after = large(before, size), large(after, size)
    store.put(before)
    held(store)
    assert [each.split(b"\0")[0] for each in store.state()["{q}:held"]] == [b"api:1"]

    assert swap(store, before, after) == "d"
    found = store.state()
    assert {"{q}:held", "{q}:lanes"}.isdisjoint(found)
    assert found["{q}:due"] == {b"a": 7}
    store.promote()
    assert bodies(store.acquire("3")) == [message_of(after)]


def test_a_held_entry_of_another_priority_goes_on_in_its_lane(store: Bench) -> None:
    before = labelled("a", lane="api:1")
    store.put(before)
    held(store)
    after = labelled("a", lane="api:1", priority=9)

    assert swap(store, before, after) == "d"
    store.promote()
    assert store.acquire("3").messages == []
    assert list(store.state()["{q}:held"]) == [b"api:1\x00009\x00000000000000007\x00a"]


def test_of_two_in_a_lane_the_other_one_stays(store: Bench) -> None:
    before = labelled("a", lane="api:1")
    store.put(before, labelled("b", lane="api:1"))
    held(store)
    store.become_due("b", 8)
    store.promote()
    assert len(store.state()["{q}:held"]) == 2

    assert swap(store, before, labelled("a", lane="api:2")) == "d"
    found = store.state()
    assert [each[-1:] for each in found["{q}:held"]] == [b"b"]
    assert list(found["{q}:lanes"]) == [b"api:1"]
