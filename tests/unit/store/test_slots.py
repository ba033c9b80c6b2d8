"""When the slots of a Redis Cluster are read again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.store.cluster.slots import REREAD_SECONDS, Address, SlotRange, SlotTable

FIRST, SECOND, THIRD = (Address("redis", port) for port in (1, 2, 3))
REPLICA = Address("redis", 4)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> SlotTable:
    """Return a table that has just been read; no node has the slots above 300."""
    ranges = [
        SlotRange(0, 99, FIRST, (REPLICA,)),
        SlotRange(100, 199, SECOND),
        SlotRange(200, 300, THIRD),
    ]
    return SlotTable(ranges, is_stale=False, monotonic=clock)


def read(table: SlotTable) -> None:
    """Read the same slots again."""
    assert table.is_stale
    table.is_stale = False


def test_the_table_names_masters_and_all_nodes(table: SlotTable) -> None:
    assert [*map(table.master_of, (0, 99, 100, 300, 301))] == [FIRST, FIRST, SECOND, THIRD, None]
    assert table.masters() == {FIRST, SECOND, THIRD}
    assert table.nodes() == {FIRST, SECOND, THIRD, REPLICA}


@pytest.mark.parametrize("slot", [100, None])
def test_a_node_that_says_it_is_no_master_has_the_table_read_each_time(
    table: SlotTable, slot: int | None
) -> None:
    for _ in range(3):  # the node that was asked did not know yet
        table.note_moved(SECOND, slot)
        read(table)


@pytest.mark.parametrize(
    ("node", "slot"), [(SECOND, 99), (REPLICA, 0), (REPLICA, None)], ids=lambda each: f"{each}"
)
@pytest.mark.parametrize("tell", [SlotTable.note_moved, SlotTable.note_away])
def test_what_the_table_knows_already_does_not_have_it_read(
    table: SlotTable, tell: Callable[..., None], node: Address, slot: int | None
) -> None:
    tell(table, node, slot)

    assert not table.is_stale


def test_a_master_that_note_away_has_the_table_read_now_and_then(
    table: SlotTable, clock: Clock
) -> None:
    for _ in range(3):
        table.note_away(FIRST, 0)
        read(table)
        for _ in range(100):
            clock.now += REREAD_SECONDS / 101
            table.note_away(FIRST, 0)
            assert not table.is_stale
        clock.now += REREAD_SECONDS


def test_another_master_that_goes_has_the_table_read_at_once(table: SlotTable) -> None:
    table.note_away(FIRST, 0)
    read(table)

    table.note_away(SECOND, 100)

    assert table.is_stale


def test_a_slot_without_a_master_has_the_table_read_now_and_then(
    table: SlotTable, clock: Clock
) -> None:
    table.note_missing(400)
    read(table)
    table.note_missing(400)
    assert not table.is_stale

    clock.now += REREAD_SECONDS
    table.note_missing(400)

    assert table.is_stale
