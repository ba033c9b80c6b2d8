"""Which queue is asked for how much, and how much is taken at once. No I/O."""

from __future__ import annotations

import pytest

from celery_delayq.transport.fair_share import (
    MAX_BATCH,
    QUICK_DELIVERY_SECONDS,
    BatchSize,
    FairShare,
    Share,
)

STEPS = 4


def deal(
    fair_share: FairShare, order: str, credit: int, *, fair: bool = True
) -> list[tuple[str, int, int]]:
    shares = fair_share.deal(list(order), credit, STEPS, fair=fair)
    return [(share.queue, share.limit, share.lists) for share in shares]


@pytest.fixture
def fair_share() -> FairShare:
    """Of queue a, b and c it knows: something urgent in a and b, something less urgent in c."""
    fair_share = FairShare()
    for queue, first in {"a": 1, "b": 1, "c": 3}.items():
        fair_share.note_first_list(queue, first)
    return fair_share


def test_a_single_queue_is_asked_for_all_of_its_lists() -> None:
    assert FairShare().deal(["a"], 5, STEPS, fair=True) == [Share("a", 5, STEPS)]


def test_queues_of_which_nothing_is_known_are_asked_for_what_is_urgent() -> None:
    assert deal(FairShare(), "ab", 4) == [("a", 2, 1), ("b", 2, 1)]


def test_queues_with_something_as_urgent_share_and_the_others_wait(fair_share: FairShare) -> None:
    assert deal(fair_share, "abc", 6) == [("a", 3, 1), ("b", 3, 1)]


@pytest.mark.parametrize(
    ("credit", "shares"),
    [
        (0, []),
        (-1, []),
        (1, [("b", 1, 1)]),
        (2, [("b", 1, 1), ("a", 1, 1)]),
        (3, [("b", 2, 1), ("a", 1, 1)]),
        (7, [("b", 4, 1), ("a", 3, 1)]),
    ],
)
def test_whose_turn_it_is_gets_the_odd_one(
    fair_share: FairShare, credit: int, shares: list[tuple[str, int, int]]
) -> None:
    assert deal(fair_share, "bac", credit) == shares


@pytest.mark.parametrize(
    ("credit", "limits"), [(1, [1]), (2, [1, 1]), (8, [4, 4]), (10, [4, 3, 3]), (12, [1] * 12)]
)
def test_more_queues_than_messages_may_be_taken_are_asked_for_a_few_each_in_turns(
    credit: int, limits: list[int]
) -> None:
    fair_share = FairShare()
    for queue in "abcdefghijkl":
        fair_share.note_first_list(queue, 1)

    shares = deal(fair_share, "abcdefghijkl", credit)

    assert [limit for _, limit, _ in shares] == limits
    assert "".join(queue for queue, _, _ in shares) == "abcdefghijkl"[: len(limits)]


def test_what_is_left_in_a_queue_that_is_not_consumed_changes_nothing() -> None:
    fair_share = FairShare()
    fair_share.note_first_list("cancelled", 1)

    assert not fair_share.has_more("abcdef")
    assert deal(fair_share, "abcdef", 4) == [(queue, 1, 1) for queue in "abcd"]


def test_many_queues_that_may_have_something_are_asked_for_one_each() -> None:
    assert deal(FairShare(), "abcdef", 4) == [(queue, 1, 1) for queue in "abcd"]


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
def test_without_sharing_the_first_with_something_urgent_gets_all(
    fair_share: FairShare, order: str
) -> None:
    first = next(queue for queue in order if queue != "c")

    assert deal(fair_share, order, 6, fair=False) == [(first, 6, 1)]


def test_less_urgent_lists_are_asked_for_when_nothing_urgent_is_left(fair_share: FairShare) -> None:
    fair_share.note_first_list("a", 3)
    fair_share.note_first_list("b", 4)

    assert deal(fair_share, "abc", 4) == [("a", 2, 3), ("c", 2, 3)]


def test_an_empty_queue_is_not_asked_until_it_may_have_got_something(fair_share: FairShare) -> None:
    fair_share.note_first_list("b", 0)
    assert fair_share.find_empty("abc") == ["b"]
    assert deal(fair_share, "ab", 4) == [("a", 4, STEPS)]

    fair_share.forget("b")
    assert fair_share.find_empty("abc") == []
    assert deal(fair_share, "ab", 4) == [("a", 2, 1), ("b", 2, 1)]


def test_nothing_is_asked_for_when_all_are_empty(fair_share: FairShare) -> None:
    for queue in "abc":
        fair_share.note_first_list(queue, 0)

    assert deal(fair_share, "abc", 4) == []
    assert deal(fair_share, "", 4) == []
    assert fair_share.find_empty("abc") == ["a", "b", "c"]


def test_forgetting_what_was_not_known_changes_nothing() -> None:
    fair_share = FairShare()
    fair_share.forget(["a"])

    assert deal(fair_share, "a", 1) == [("a", 1, STEPS)]


def test_a_batch_doubles_while_messages_go_quickly_up_to_its_most() -> None:
    batch, sizes = BatchSize(), []
    for _ in range(9):
        sizes.append(batch.size)
        batch.note_delivery(batch.size, batch.size * QUICK_DELIVERY_SECONDS)

    assert sizes == [1, 2, 4, 8, 16, 32, MAX_BATCH, MAX_BATCH, MAX_BATCH]


def test_one_slow_message_makes_the_batch_single_again() -> None:
    batch = BatchSize(32)
    batch.note_delivery(1, QUICK_DELIVERY_SECONDS + 0.001)

    assert batch.size == 1


def test_a_batch_is_quick_when_its_messages_are_on_average() -> None:
    batch = BatchSize(8)
    batch.note_delivery(8, 8 * QUICK_DELIVERY_SECONDS)
    assert batch.size == 16
    batch.note_delivery(8, 8 * QUICK_DELIVERY_SECONDS + 0.001)
    assert batch.size == 1


@pytest.mark.parametrize(
    ("first_lists", "fair", "expected"),
    [
        ({}, True, ["a", "b", "c"]),
        ({}, False, ["a"]),
        ({"a": 0}, False, ["b"]),
        ({"a": 2, "b": 2, "c": 3}, True, ["a", "b"]),
        ({"a": 2}, True, ["b", "c"]),
        ({"a": 0, "b": 0, "c": 0}, True, []),
    ],
)
def test_a_queue_behind_more_urgent_ones_is_not_in_turn(
    first_lists: dict[str, int], fair: bool, expected: list[str]
) -> None:
    share = FairShare()
    for queue, first in first_lists.items():
        share.note_first_list(queue, first)

    assert share.in_turn(["a", "b", "c"], fair=fair) == expected
