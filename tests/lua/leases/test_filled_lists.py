"""filled_lists.lua: the lists that exist."""

from __future__ import annotations

import pytest

from celery_delayq.store.scripting.calls import Call
from tests.lua.bench import Bench, Calls

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "leases/filled_lists": (
        lambda s: s.run(Call("leases/filled_lists", [s.keys.queue("q").wake], [])),
        [1],
    ),
}


@pytest.mark.parametrize(
    ("number", "there"),
    [(1, []), (1, [1]), (3, [2, 3]), (99, [99]), (100, [1, 100]), (250, [100, 101, 200, 201, 250])],
)
def test_it_tells_the_places_of_the_lists_that_are_there(
    store: Bench, number: int, there: list[int]
) -> None:
    for place in there:
        store.client.lpush(f"list-{place}", "")
    before = store.state()

    names = [f"list-{place}" for place in range(1, number + 1)]

    assert store.run(Call("leases/filled_lists", names, [])) == there
    assert store.state() == before
