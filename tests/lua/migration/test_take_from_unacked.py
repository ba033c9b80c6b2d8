"""take_from_unacked.lua: from stock workers into the schedule."""

from __future__ import annotations

import pytest

from celery_delayq.store.scripting.replies import Unacked
from tests.lua.bench import ENTRY, FAR, QUEUE, Bench, Calls, as_scheduled, entry

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "migration/take_from_unacked": (
        lambda s: s.take_from_unacked("q", ENTRY, Unacked("u", "ui", "tag")),
        b"gone",
    ),
}

LEASED = Unacked("unacked", "unacked_index", "tag-1")


@pytest.fixture(autouse=True)
def _held(store: Bench) -> None:
    """Give a message to a stock worker."""
    store.client.hset("unacked", "tag-1", b"[{}, '', 'q']")
    store.client.zadd("unacked_index", {"tag-1": 5})


def test_a_held_message_with_a_future_eta_moves_to_the_schedule(store: Bench) -> None:
    assert store.take_from_unacked(QUEUE, entry("a", FAR), LEASED) == "scheduled"

    assert store.state() == as_scheduled(entry("a", FAR))


def test_a_held_message_that_is_due_goes_to_ready(store: Bench) -> None:
    assert store.take_from_unacked(QUEUE, entry("a", 1, priority=9), LEASED) == "ready"

    assert store.state() == {"q\x06\x169": [b'{"id": "a"}'], "{q}:wake": [b""]}


@pytest.mark.parametrize("due_ms", [1, FAR])
def test_adopting_again_after_a_lost_reply_changes_nothing(store: Bench, due_ms: int) -> None:
    store.take_from_unacked(QUEUE, entry("a", due_ms), LEASED)
    before = store.state()

    assert store.take_from_unacked(QUEUE, entry("a", due_ms), LEASED) == "gone"
    assert store.state() == before
