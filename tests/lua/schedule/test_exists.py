"""exists.lua: whether messages are there, so that those need not be made."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.model.envelope import Entry
from celery_delayq.store.schedule import Store
from tests.lua.conftest import QUEUE, labelled, make_ready, put, reserve, state


def hold(store: Store, *entries: Entry) -> None:
    make_ready(store, *entries)
    reserve(store)


@pytest.mark.parametrize("bring", [put, make_ready, hold], ids=["scheduled", "ready", "held"])
def test_one_is_known_wherever_it_is(store: Store, bring: Callable[..., object]) -> None:
    bring(store, labelled("a"))
    before = state(store)

    assert store.control.exists(QUEUE, [("a", "n-a"), ("a", "another"), ("b", "n-b")]) == "d--"
    assert state(store) == before


def test_each_of_several_with_one_id_is_known(store: Store) -> None:
    put(store, labelled("a"), labelled("a", message_id="second"))

    assert store.control.exists(QUEUE, [("a", "n-a"), ("a", "second"), ("a", "third")]) == "dd-"


def test_none_is_known_of_an_empty_queue(store: Store) -> None:
    assert store.control.exists(QUEUE, [("a", "n-a")]) == "-"


def test_many_are_looked_for_in_parts(store: Store) -> None:
    put(store, *(labelled(f"{n}") for n in range(0, 1200, 2)))

    asked = [(f"{n}", f"n-{n}") for n in range(1200)]
    assert store.control.exists(QUEUE, asked) == "d-" * 600
