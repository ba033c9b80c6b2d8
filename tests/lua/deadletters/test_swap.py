"""swap.lua: dead letters are swapped as a whole, or nothing changes."""

from __future__ import annotations

from celery_delayq.model.script_values import Swap
from tests.lua.bench import QUEUE, Bench, Calls, repeating
from tests.lua.dead_letters import seed

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "deadletters/swap": (lambda s: s.dead_letters.swap("q", [Swap("id", b"a", b"b")]), b"d"),
}


def stored(store: Bench, id: str) -> bytes:
    found: bytes = store.client.hget("{q}:dead", id)
    return found


def test_what_is_as_it_was_read_is_swapped_and_nothing_else_changes(store: Bench) -> None:
    seed(store, "a", "b", "c")
    state = store.state()
    swaps = [Swap(id, stored(store, id), b"new " + stored(store, id)) for id in "ab"]
    other = Swap("c", stored(store, "c")[:-1] + b"?", b"new")

    codes = store.dead_letters.swap(QUEUE, [*swaps, other, Swap("none", b"", b"new")])

    assert codes == ["d", "d", "c", "u"]
    for each in swaps:
        state["{q}:dead"][each.name.encode()] = each.after
    assert store.state() == state
    assert store.dead_letters.swap(QUEUE, swaps) == ["c", "c"]


def test_many_large_ones_take_several_calls(store: Bench) -> None:
    seed(store, "a", "b", "c")
    swaps = [Swap(id, stored(store, id), b"x" * 700_000) for id in "abc"]

    assert store.dead_letters.swap(QUEUE, swaps, "token") == ["d"] * 3
    assert store.dead_letters.swap(QUEUE, swaps, "token") == ["d"] * 3
    assert store.dead_letters.swap(QUEUE, []) == []


def test_a_repeat_gives_the_same_answer_and_undoes_no_later_change(store: Bench) -> None:
    seed(store, "a")
    before = stored(store, "a")
    again = repeating(store, lambda: store.client.hset("{q}:dead", "a", b"later"))

    assert again.dead_letters.swap(QUEUE, [Swap("a", before, b"new")]) == ["d"]
    assert stored(store, "a") == b"later"
