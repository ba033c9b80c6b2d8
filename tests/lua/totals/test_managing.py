"""Cancelled, purged, dead-lettered and replayed messages are counted, each once."""

from __future__ import annotations

from uuid import uuid4

import pytest

from celery_delayq.store.dead_letters import Replay, digest_of
from celery_delayq.store.repair_tracking import Tracked
from tests.lua.bench import DEFAULT, FAR, QUEUE, Bench, labelled, message_of
from tests.lua.totals.counting import MESSAGE, Counting, counted

OTHER = "other"


def test_scheduled_ones_are_cancelled_at_once_and_ready_ones_when_they_are_dropped(
    store: Bench, twice: Bench, new: Counting
) -> None:
    store.make_ready(labelled("ready"))
    twice.put(labelled("a"), labelled("b"))
    new()

    twice.cancel("a", "ready", "unknown")
    assert new() == {"cancelled": 1}

    twice.acquire()
    assert new() == {"cancelled": 1}


@pytest.mark.parametrize("deleted", [False, True])
def test_a_purge_counts_all_that_it_forgets(
    store: Bench, twice: Bench, new: Counting, deleted: bool
) -> None:
    store.hold(b"held")
    twice.quarantine(b"alone")
    twice.put(labelled("a"), labelled("b"))
    store.push(b"ready", step=3)
    twice.client.lpush("q", b"stock")
    before = counted(twice)

    twice.purge(QUEUE, deleted=deleted)

    assert before == {"accepted": 4}
    assert new() == {"accepted": 6, "purged": 5}


def test_the_counters_of_a_deleted_queue_go_with_it(store: Bench) -> None:
    store.put(labelled("a"))

    store.purge(QUEUE, deleted=True)

    assert not store.client.exists("{q}:totals")


def test_cancelled_messages_that_are_removed_for_stock_workers_are_counted(
    store: Bench, twice: Bench, new: Counting
) -> None:
    store.make_ready(labelled("a"), labelled("b", unique="dk"))
    twice.put(labelled("c", unique="dk"))
    twice.cancel("a")
    new()

    index = twice.client.hgetall("{q}:ready_index")
    messages = {b"a": message_of(labelled("a")), b"b": message_of(labelled("b", unique="dk"))}
    some = [(Tracked(name, value), messages[name]) for name, value in index.items()]
    twice.repair_tracking.forget_ready(QUEUE, DEFAULT, some)

    assert new() == {"cancelled": 1, "replaced": 1}


def test_an_entry_without_a_record_is_corrupt(twice: Bench, new: Counting) -> None:
    twice.put(labelled("a"))
    twice.client.hdel("{q}:entries", "a")

    twice.repair.check_due(QUEUE, 0, repair=True)

    assert new() == {"accepted": 1, "dead:corrupt": 1}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("failed: ValueError: no", "failed"),
        ("failed after 3 retries: ValueError: no", "failed"),
        ("rejected", "rejected"),
        ("no such address", "rejected"),
        ("unknown task 'a'", "unknown_task"),
        ("undecodable message: bad", "undecodable"),
        ("no queue is bound to exchange 'a' with routing key 'b'", "unbound"),
    ],
)
def test_dead_letters_are_counted_by_reason(
    twice: Bench, new: Counting, reason: str, kind: str
) -> None:
    held = twice.hold(b"held")
    new()

    twice.leases.dead_letter(QUEUE, "me", held[0], "id", reason)
    assert new() == {f"dead:{kind}": 1}

    # No process has it: its task failed after its acknowledgement.
    twice.dead_letters.add(QUEUE, "another", reason, b"another")
    assert new() == {f"dead:{kind}": 1, "aside": 1}


@pytest.mark.parametrize("due", [1, FAR])
def test_a_replayed_dead_letter_is_present_again(twice: Bench, new: Counting, due: int) -> None:
    twice.dead_letters.add(QUEUE, "a", "rejected", b"{}")
    [dead] = twice.dead_letters.all(QUEUE)
    new()

    replay = Replay(dead.id, dead.died_ms, labelled("a", due), digest_of(dead.data))
    twice.run(twice.dead_letters.replay_call(QUEUE, OTHER, DEFAULT, [replay], "token"))

    assert new() == {}
    assert new(OTHER) == {"replayed": 1}


def test_dead_letters_that_are_replayed_in_place_are_present_again(
    twice: Bench, new: Counting
) -> None:
    twice.dead_letters.add(QUEUE, "a", "rejected", MESSAGE)
    new()

    twice.dead_letters.replay_in_place(QUEUE, DEFAULT, "-inf", "+inf", b"", uuid4().hex)

    assert new() == {"replayed": 1}
