"""use_retry_budget.lua: the retries that all members of a canvas share."""

from __future__ import annotations

import pytest

from celery_delayq.errors import StoreFull
from tests.lua.bench import Bench, Calls

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/use_retry_budget": (lambda s: s.control.use_retry_budget("root", 5, "id 0", 60), 1),
}

KEY = "delayq:budget:root"


def spend(store: Bench, *members: str, most: int = 2, name: str = "root") -> list[bool]:
    return [bool(store.control.use_retry_budget(name, most, member, 60)) for member in members]


def test_so_many_may_be_spent_and_no_more(store: Bench) -> None:
    assert spend(store, "a 0", "b 0", "a 1", "c 0") == [True, True, False, False]
    assert store.state() == {KEY: {b"a 0", b"b 0"}}


def test_what_is_spent_may_be_asked_for_again(store: Bench) -> None:
    """A task that is delivered again uses its earlier retry."""
    assert spend(store, "a 0", "b 0", "c 0", "a 0", "b 0") == [True, True, False, True, True]


def test_of_nothing_nothing_is_spent(store: Bench) -> None:
    assert spend(store, "a 0", most=0) == [False]
    assert store.state() == {}


def test_each_canvas_has_its_own(store: Bench) -> None:
    assert spend(store, "a 0", "b 0", "c 0") == [True, True, False]
    assert spend(store, "c 0", name="another") == [True]
    assert spend(store, "d 0", name="binary \xff {}") == [True]


def test_it_is_remembered_from_the_last_one_on(store: Bench) -> None:
    spend(store, "a 0")
    assert 0 < store.client.ttl(KEY) <= 60
    store.client.expire(KEY, 30)

    spend(store, "a 0")
    assert store.client.ttl(KEY) <= 30
    spend(store, "b 0")
    assert store.client.ttl(KEY) > 30


def test_a_full_server_refuses_what_is_new(store: Bench) -> None:
    spend(store, "a 0")
    store.fill()

    assert spend(store, "a 0") == [True]
    with pytest.raises(StoreFull):
        spend(store, "b 0")

    assert store.state() == {KEY: {b"a 0"}}
