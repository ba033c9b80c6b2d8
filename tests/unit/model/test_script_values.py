"""Places of tasks and entries of the message index."""

from __future__ import annotations

import pytest

from celery_delayq.errors import RecordError
from celery_delayq.model.script_values import IndexEntry, Position


def test_an_index_entry_may_hold_any_bytes() -> None:
    found = IndexEntry.unpack(b"!m1 5 d\xff t\xfe w")

    assert found == IndexEntry(True, b"m1", 5, "d\udcff", "t\udcfe", "w")


@pytest.mark.parametrize("task", [None, "shop.remind"])
def test_a_position_gives_back_key_and_name(task: str | None) -> None:
    assert Position.of(1_000, "id\0message", task).key_and_name == (1_000, "id\0message")


@pytest.mark.parametrize("member", [b"t", b"t\0junk", b"t\0junk\0id"])
def test_a_member_of_the_index_that_no_script_wrote_is_named(member: bytes) -> None:
    with pytest.raises(RecordError, match="fsck"):
        Position(b"", member).key_and_name  # noqa: B018  a property
