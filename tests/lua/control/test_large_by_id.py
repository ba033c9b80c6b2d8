"""What looks for messages by id reads about 1 MB of them in a call, but one at least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_delayq.model.envelope import Due
from celery_delayq.store.keys import Layout
from celery_delayq.store.scripting.calls import Call
from tests.lua.conftest import FAR, QUEUE, Bench, entry

#: How many messages there are, and how large they are: four of them make a call.
COUNT, SIZE, CALLS = 12, 300_000, 3

IDS = [f"id{n:02}" for n in range(COUNT)]


class Counting(Bench):
    """A store that counts its calls."""

    calls = 0

    def run(self, call: Call) -> Any:
        """Make a call."""
        self.calls += 1
        return super().run(call)


@pytest.fixture
def counting(store: Bench) -> Counting:
    return Counting(store.client, store.keys, store.layout)


def schedule(store: Bench, ids: list[str]) -> None:
    """Schedule the messages under these ids, one after the other."""
    for n in range(COUNT):
        message = b"{%02d" % n + b"." * SIZE
        store.schedule(
            QUEUE, entry(ids[n % len(ids)], FAR + n, message_id=f"n{n:02}", message=message)
        )


CHANGES: dict[str, Callable[[Bench, list[str]], list[Any]]] = {
    "find": lambda store, ids: store.control.find(QUEUE, ids),
    "reschedule": lambda store, ids: store.control.reschedule(
        QUEUE, [(id, Due(FAR), None) for id in ids]
    ),
    "run_now": lambda store, ids: store.control.run_now(QUEUE, Layout(), ids),
    "cancel": lambda store, ids: store.control.cancel(QUEUE, Layout(), ids),
}


@pytest.mark.parametrize("ids", [IDS, ["id"]], ids=["of their own", "one for all"])
@pytest.mark.parametrize("name", CHANGES)
def test_entries_are_found_about_a_megabyte_at_once(
    store: Bench, counting: Counting, name: str, ids: list[str]
) -> None:
    schedule(store, ids)

    found = CHANGES[name](counting, ids)

    assert len(found) == COUNT if name == "find" else found == ["d"] * len(ids)
    assert counting.calls == CALLS


def test_messages_are_known_about_a_megabyte_at_once(store: Bench, counting: Counting) -> None:
    schedule(store, IDS)
    asked = [(id, "other" if n % 3 == 0 else f"n{n:02}") for n, id in enumerate(IDS)]

    assert counting.control.exists(QUEUE, asked) == "-dd" * (COUNT // 3)
    assert counting.calls == CALLS
