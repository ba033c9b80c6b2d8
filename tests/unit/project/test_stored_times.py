"""Each place in Redis where a time is stored is known, with how it is judged after a jump."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stored_times import (
    JUDGED,
    SHOWN_OR_BRIEF,
    WITHOUT_TIME,
    places_in_python,
    places_in_scripts,
)


def test_every_place_that_is_written_is_known_and_no_other() -> None:
    found = places_in_scripts().keys() | places_in_python().keys()
    assert found == JUDGED.keys() | SHOWN_OR_BRIEF.keys() | WITHOUT_TIME


def test_no_place_is_judged_in_two_ways() -> None:
    kinds = [{*JUDGED}, {*SHOWN_OR_BRIEF}, WITHOUT_TIME]
    assert sum(map(len, kinds)) == len(set.union(*kinds))


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("redis.call('HSET', KEYS.clock, 'began', now)", "clock began"),
        ("redis.call('ZADD', KEYS.due, 'NX', now, queue)", "due score"),
        ("redis.call('SET', KEYS.turn, who, 'PX', lease, 'NX')", "turn expires"),
        ("redis.pcall(\n  'PEXPIREAT', KEYS.turn, now + 5)", "turn expires"),
        ("note('late', queue, repair, 'ZADD', newly_named, now, queue)", "newly_named score"),
    ],
)
def test_a_new_place_is_found(tmp_path: Path, line: str, place: str) -> None:
    (tmp_path / "new.lua").write_text(f"{line}\n")
    assert place in places_in_scripts(tmp_path)
