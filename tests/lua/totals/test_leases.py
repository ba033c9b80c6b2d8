"""Each action on leased messages is counted once, and so are messages from other programs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_delayq.store.scripting.replies import Unacked
from tests.lua.bench import DEFAULT, FAR, QUEUE, Bench, entry, labelled, message_of
from tests.lua.totals.counting import Counting, counted

OTHER = "other"


def test_only_what_was_held_is_acknowledged(twice: Bench, new: Counting) -> None:
    held = twice.hold(b"one", b"two")
    new()

    twice.ack(*held, "9:9")

    assert new() == {"acked": 2}


@pytest.mark.parametrize("when_due", [1, FAR])
@pytest.mark.parametrize("message", [labelled("a"), entry("a")], ids=["labelled", "plain"])
def test_what_its_retry_has_replaced_is_not_acknowledged(
    twice: Bench, new: Counting, message: Any, when_due: int
) -> None:
    held = twice.hold(message_of(message), b"other")
    new()

    twice.replace(labelled("b", when_due), field=held[0])
    assert new() == {"retried": 1}

    twice.ack(*held)
    assert new() == {"acked": 1}
    assert twice.client.hget("{q}:totals", "empty") == b"0"


def test_a_retry_in_another_queue_moves_the_message(twice: Bench, new: Counting) -> None:
    held = twice.hold(b"one", b"two")
    new()

    twice.replace(labelled("a"), field=held[0], to=OTHER)
    twice.replace(labelled("b", 1), field=held[1], to=OTHER)

    assert new() == {"retried": 2, "moved": 2}
    assert new(OTHER) == {"accepted": 2}


def test_a_retry_whose_key_another_has_is_replaced(
    store: Bench, twice: Bench, new: Counting
) -> None:
    held = store.lease(labelled("a", unique="dk"))
    twice.put(labelled("b", unique="dk"))
    new()

    retry = labelled("a", message_id="again", unique="dk", policy="r 0 1")
    assert twice.replace(retry, field=held[0]) == "duplicate"  # the repeat

    assert new() == {"replaced": 1}


def test_a_held_message_that_is_scheduled_in_place_of_itself_is_no_retry(
    twice: Bench, new: Counting
) -> None:
    held = twice.hold(b"one")
    new()

    twice.replace(labelled("a"), field=held[0], when_due="leave")

    assert new() == {}


@pytest.mark.parametrize("how", ["requeued", "crashed", "died"])
def test_what_comes_back_is_redelivered(twice: Bench, new: Counting, how: str) -> None:
    held = twice.hold(b"one", b"two")
    new()

    twice.requeue(*held, counted=how, max_deliveries=5)

    assert new() == {"redelivered": 2}


def test_what_was_not_started_is_not_redelivered(twice: Bench, new: Counting) -> None:
    held = twice.hold(b"one")
    new()

    twice.requeue(*held)

    assert new() == {}


def test_what_crashes_too_often_is_dead(twice: Bench, new: Counting) -> None:
    held = twice.hold(b"one")
    twice.delivered(b"one", b"0 5 0")
    new()

    twice.requeue(*held, counted="crashed", max_deliveries=5)

    assert new() == {"dead:crashed": 1}


def test_an_expired_lease_redelivers(twice: Bench, new: Counting) -> None:
    held = twice.hold(b"one", b"two", b"three")
    twice.replace(labelled("a"), field=held[0])
    twice.client.hset("{q}:leased:me", "junk", "junk")
    twice.client.hincrby("{q}:totals", "accepted", 1)  # the junk
    twice.delivered(b"two", b"5 0 0")
    new()
    twice.pass_time()

    twice.reclaim_expired(max_deliveries=5)

    assert new() == {"redelivered": 2, "dead:corrupt": 1}
    assert twice.client.llen("{q}:quarantined") == 1
    assert twice.client.hget("{q}:totals", "empty") == b"0"


def test_a_quarantined_message_that_cannot_be_read_is_corrupt(twice: Bench, new: Counting) -> None:
    twice.quarantine(b"one")
    twice.client.lpush("{q}:quarantined", "junk")
    twice.acquire(others=1)  # it sees them
    assert new() == {"accepted": 2}

    twice.repair.release_quarantined(QUEUE, DEFAULT)

    assert new() == {"dead:corrupt": 1}


def test_what_others_push_is_accepted_when_it_is_first_leased(
    store: Bench, twice: Bench, new: Counting
) -> None:
    store.push(b"own")
    twice.client.lpush("q", b"stock")
    assert counted(twice) == {"accepted": 1}

    twice.requeue(*[field for field, _, _ in twice.acquire().messages])
    assert new() == {"accepted": 2}

    twice.acquire("2")
    assert new() == {}


def test_what_others_take_is_noticed(store: Bench, twice: Bench, new: Counting) -> None:
    store.push(b"one", b"two", b"three")
    twice.client.rpop("q")

    twice.acquire(limit=1)

    assert new() == {"accepted": 3, "taken": 1}


def test_entries_that_are_given_back_are_promoted(twice: Bench, new: Counting) -> None:
    twice.put(labelled("a"), labelled("b"))

    twice.release(twice.read("a"), token="token")

    assert new() == {"accepted": 2, "promoted": 1}


@pytest.mark.parametrize("due", [1, FAR])
def test_what_is_taken_over_from_stock_workers_is_accepted(
    twice: Bench, new: Counting, due: int
) -> None:
    twice.client.hset("unacked", "tag", json.dumps([]))

    twice.take_from_unacked(QUEUE, labelled("a", due), Unacked("unacked", "index", "tag"))

    assert new() == {"accepted": 1}
