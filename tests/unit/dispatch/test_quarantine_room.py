"""When a process stops taking messages to make room for a quarantined one."""

from __future__ import annotations

import inspect
import re

import pytest

from celery_delayq.dispatch.quarantine_room import WAIT_LEASES, QuarantineRoom, RoomState

LEASE = 7.0
ALL = QuarantineRoom()
MAKES = QuarantineRoom(RoomState.MAKES_ROOM, 100.0)
LEAVES = QuarantineRoom(RoomState.LEAVES_TO_OTHERS, 100.0)
AT_LAST = QuarantineRoom(RoomState.LEAVES_TO_OTHERS, 101.0 + WAIT_LEASES * LEASE)

#: Before, when, whether nothing is held, and after.
STEPS = [
    (ALL, 101.0, True, ALL),
    (ALL, 101.0, False, ALL),
    (MAKES, 100.0, False, MAKES),
    (MAKES, 100.0, True, ALL),
    (MAKES, 101.0, True, ALL),
    (MAKES, 101.0, False, AT_LAST),
    (LEAVES, 100.0, False, LEAVES),
    (LEAVES, 100.0, True, LEAVES),
    (LEAVES, 101.0, False, ALL),
    (LEAVES, 101.0, True, ALL),
]


@pytest.mark.parametrize(("before", "now", "is_empty", "after"), STEPS)
def test_what_follows(
    before: QuarantineRoom, now: float, is_empty: bool, after: QuarantineRoom
) -> None:
    found = before.at(now, LEASE, is_empty=is_empty)

    assert found == after
    assert (found is before) == (after == before)


def test_the_table_of_transitions_is_true() -> None:
    rows = re.findall(r"^([A-Z_]+) .* ([A-Z_]+)$", inspect.getdoc(RoomState) or "", re.MULTILINE)

    assert {*rows} == {
        (before.state.name, after.state.name) for before, _, _, after in STEPS if before != after
    }
