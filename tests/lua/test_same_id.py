"""Many messages with one id: what a call does is bounded, however many there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.keys import Layout
from celery_delayq.store import Store
from tests.lua.conftest import FAR, QUEUE, become_due, labelled, put, reserve, states
from tests.lua.uniques import owned, where_it_is

pytestmark = pytest.mark.usefixtures("watched")


def put_many(store: Store, count: int, id: str = "a") -> None:
    """Schedule messages with one id."""
    for start in range(0, count, 500):
        numbers = range(start, min(start + 500, count))
        put(store, *(labelled(id, FAR + n, nonce=f"n{n:06}") for n in numbers))


def commands(store: Store) -> int:
    """Return how many commands the server has run, also those of scripts."""
    stats = store.client.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_info")


def cost(store: Store, change: Callable[[], object]) -> int:
    """Return how many commands a change takes."""
    before = commands(store)
    change()
    return commands(store) - before


# -- unique keys


def leave(store: Store, place: str) -> None:
    """Have the owner of a key leave its place."""
    if place == "scheduled":
        become_due(store, "a")
        assert store.promote(QUEUE, Layout(), 100).moved == 1
    elif place == "ready":
        assert len(reserve(store).messages) == 1
    else:
        assert store.leases.ack(QUEUE, "me", ["1:1"]) == 1


@where_it_is
@pytest.mark.parametrize("policy", ["r 0 0", "l 0 0", "k 0 0", ""])
def test_a_key_takes_no_more_commands_when_many_have_the_id_of_its_owner(
    store: Store, place: str, policy: str
) -> None:
    """Another wants to have it or, without a policy, the owner leaves its place."""

    def change() -> None:
        if policy:
            [became] = states(store, labelled("new", unique="dk", policy=policy))
            assert became in ("kept", "replaced", "scheduled")
        else:
            leave(store, place)

    costs = []
    for number in (2, 2, 1000):
        store.client.flushall()
        store.agenda()
        owned(store, place, id="a")
        put_many(store, number)
        costs.append(cost(store, change))

    # The first time the server has to be sent some of the scripts.
    assert costs[1] == costs[2]
