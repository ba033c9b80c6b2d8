"""purge.lua: scheduled and ready messages go, leased and dead ones stay."""

from __future__ import annotations

import pytest

from celery_delayq.store import store as store_module
from tests.lua.bench import FAR, LAYOUT, QUEUE, Bench, Calls, entry, labelled

#: One call of each script here, and a reply to it.
SCRIPT_CALLS: Calls = {
    "schedule/purge": (lambda s: s.purge("q"), [3, 1, 2]),
    "schedule/forget_unowned": (lambda s: s.forget_unowned("q"), b"0"),
}


@pytest.fixture
def _full_queue(store: Bench) -> None:
    """A queue with messages in every state."""
    store.hold(b"held")
    store.schedule(QUEUE, entry("a", FAR))
    store.schedule(QUEUE, entry("b", FAR + 1))
    store.schedule("other", entry("c", FAR + 2))
    store.dead_letters.add(QUEUE, "d", "undecodable", b"bytes\nof it")
    store.client.lpush("{q}:quarantined", b"0\nx", b"3\ny", b"0\nz")
    store.delivered(b"held", b"1 0 0")
    store.push(b"ready")
    store.push(b"urgent", step=3)


@pytest.mark.usefixtures("_full_queue")
def test_what_waits_is_forgotten_and_counted(store: Bench) -> None:
    before = store.state()

    assert store.purge(QUEUE) == (5, 2)

    gone = {"{q}:due", "{q}:entries", "{q}:tasks", "{q}:quarantined", "{q}:wake"}
    gone |= {"q", "q\x06\x163"}
    assert store.state() == {key: value for key, value in before.items() if key not in gone} | {
        "delayq:next_due": {b"other": FAR + 2},
    }
    assert store.registry() == {"q": LAYOUT, "other": LAYOUT}
    [dead_letter] = store.dead_letters.all(QUEUE)
    assert (dead_letter.id, dead_letter.reason, dead_letter.message) == (
        "d",
        "undecodable",
        b"bytes\nof it",
    )


@pytest.mark.usefixtures("_full_queue")
def test_a_deleted_queue_leaves_the_registry_and_its_counts_go(store: Bench) -> None:
    """The queue stays registered while it has dead letters: commands find them by the registry."""
    assert store.purge(QUEUE, deleted=True) == (5, 2)

    found = store.state()
    assert found["delayq:queues"] == {QUEUE.encode(): LAYOUT, b"other": LAYOUT}
    assert found["{q}:leased:me"] == {b"1:1": b"0\nheld"}
    assert {key for key in found if key.startswith("{q}:")} == {
        "{q}:dead",
        "{q}:dead_at",
        "{q}:leased:me",
        "{q}:leases",
    }


@pytest.mark.usefixtures("_full_queue")
def test_a_deleted_queue_without_dead_letters_leaves_the_registry(store: Bench) -> None:
    for dead_letter in [*store.dead_letters.all(QUEUE)]:
        store.dead_letters.delete(QUEUE, [(dead_letter.id, dead_letter.died_ms)])

    store.purge(QUEUE, deleted=True)

    assert store.state()["delayq:queues"] == {b"other": LAYOUT}


def test_a_queue_that_never_was_is_no_error(store: Bench) -> None:
    assert store.purge(QUEUE, deleted=True) == (0, 0)

    assert store.state() == {}


def test_what_is_scheduled_afterwards_is_found(store: Bench) -> None:
    store.schedule(QUEUE, entry("a", FAR))
    store.purge(QUEUE, deleted=True)

    store.schedule(QUEUE, entry("b", FAR + 1))

    look = store.next_queue()
    assert (look.queue, look.due) == ("q", FAR + 1)
    assert store.registry() == {"q": LAYOUT}


@pytest.mark.parametrize("most", [0, 500])
def test_unique_keys_of_what_processes_hold_stay_however_much_that_is(
    store: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """All other keys go, also with more than one call."""
    monkeypatch.setattr(store_module, "PURGE_MESSAGES", most)
    store.make_ready(labelled("held", unique="dheld"), labelled("held", message_id="second"))
    store.acquire()
    store.make_ready(labelled("ready", unique="dready"), labelled("ready", message_id="second"))
    for n in range(200):
        store.put(labelled(f"e{n}", unique=f"de{n}"), labelled(f"e{n}", message_id="second"))

    assert store.purge(QUEUE) == (400, 2)

    assert store.client.hkeys("{q}:unique") == [b"held"]
    assert store.client.zrange("{q}:duplicate_ids", 0, -1) == [b"held\0second"]
    assert store.client.hlen("{q}:leased_index") == 2
