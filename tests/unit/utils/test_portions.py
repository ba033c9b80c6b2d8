"""Items are split into calls: in order, completely, and with as few calls as allowed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.utils.portions import MAX_CALL_BYTES, portions

#: Items: how many bytes each has, and how many messages.
ITEMS = st.lists(
    st.tuples(st.integers(0, 2 * MAX_CALL_BYTES), st.integers(0, 7))
    | st.tuples(st.just(1000), st.just(1))
)


def of(items: list[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    return [*portions(items, most, lambda item: item[0], lambda item: item[1])]


def fits(some: list[tuple[int, int]], most: int) -> bool:
    return (
        sum(size for size, _ in some) <= MAX_CALL_BYTES
        and sum(number for _, number in some) <= most
    )


@given(ITEMS, st.integers(1, 10))
def test_each_item_is_in_one_portion_in_order_and_a_large_one_alone(
    items: list[tuple[int, int]], most: int
) -> None:
    parts = of(items, most)

    assert [item for part in parts for item in part] == items
    assert all(fits(part, most) or len(part) == 1 for part in parts)


@given(ITEMS, st.integers(1, 10))
def test_no_portion_has_room_for_the_next_item(items: list[tuple[int, int]], most: int) -> None:
    parts = of(items, most)

    for part, following in pairwise(parts):
        assert not fits([*part, following[0]], most)


def test_an_item_counts_as_one_message_by_default() -> None:
    assert [len(part) for part in portions("abcdefg", 3, lambda _: 1)] == [3, 3, 1]
