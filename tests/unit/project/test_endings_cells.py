"""The matrix of endings leaves nothing out that it does not name."""

from __future__ import annotations

from tests.support.endings.backend_calls import LED_TO, LEFT_OUT, calls
from tests.support.endings.cells import IMPOSSIBLE, cells, expected, why_impossible, worlds


def test_each_ending_is_played_in_each_world_or_there_is_a_reason() -> None:
    for world in worlds():
        played = {cell.ending for cell in cells(world)}
        assert played == {each for each in world.endings if why_impossible(world, each) is None}


def test_each_reason_applies_somewhere_and_leaves_most_cells() -> None:
    reasons = [why_impossible(world, ending) for world in worlds() for ending in world.endings]

    assert {*IMPOSSIBLE} >= {*reasons} - {None}
    assert 2 * reasons.count(None) > 2500  # alone and in a chord


def test_each_cell_comes_to_one_of_the_known_ends() -> None:
    known = ("done", "ignored", "retried", "requeued", "revoked", "unreported", "dead: ")
    for world in worlds():
        for cell in cells(world):
            wanted = expected(world, cell)
            assert wanted.result.startswith(known)
            assert bool(wanted.body) == cell.in_chord


def test_each_call_of_the_result_backend_is_played_or_there_is_a_reason() -> None:
    found = {call.name for call in calls()}

    assert found - {*LED_TO, *LEFT_OUT} == set()
    assert {*LED_TO}.isdisjoint(LEFT_OUT)
    endings = {cell.ending for world in worlds() if world.results for cell in cells(world)}
    assert {each for of, _ in LED_TO.values() for each in of} <= endings
