"""exists.lua: whether messages exist, so that the caller does not make them again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.bench import QUEUE, Bench, Calls, labelled

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "schedule/exists": (lambda s: s.control.exists("q", [("id", "message_id")]), b"-"),
}


@pytest.mark.parametrize("bring", [Bench.put, Bench.make_ready, Bench.lease])
def test_one_is_known_wherever_it_is(store: Bench, bring: Callable[..., object]) -> None:
    bring(store, labelled("a"))
    before = store.state()

    assert store.control.exists(QUEUE, [("a", "n-a"), ("a", "another"), ("b", "n-b")]) == "d--"
    assert store.state() == before


def test_each_of_several_with_one_id_is_known(store: Bench) -> None:
    store.put(labelled("a"), labelled("a", message_id="second"))

    assert store.control.exists(QUEUE, [("a", "n-a"), ("a", "second"), ("a", "third")]) == "dd-"


def test_none_is_known_of_an_empty_queue(store: Bench) -> None:
    assert store.control.exists(QUEUE, [("a", "n-a")]) == "-"


def test_many_are_looked_for_in_parts(store: Bench) -> None:
    store.put(*(labelled(f"{n}") for n in range(0, 1200, 2)))

    asked = [(f"{n}", f"n-{n}") for n in range(1200)]
    assert store.control.exists(QUEUE, asked) == "d-" * 600
