"""How the shards of a cluster share the messages that a worker may still take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.integration import worker
from celery_delayq.transport.prefetch import Prefetch


def asked(credit: int, has_more: list[bool]) -> list[int]:
    """Return for how many messages each shard asks, one after the other."""
    prefetch = Prefetch(qos=None)
    found = []
    for number, more in enumerate(has_more):
        prefetch.asking = len(has_more) - number
        found.append(prefetch.part_of(credit, has_more=more) if credit else 0)
        credit -= found[-1]
    return found


@pytest.mark.parametrize(
    ("credit", "has_more", "expected"),
    [
        (8, [True], [8]),
        (8, [False] * 4, [2, 2, 2, 2]),
        (8, [True] * 4, [4, 3, 1, 0]),
        (4, [True] * 4, [3, 1, 0, 0]),
        (32, [True] * 4, [16, 8, 4, 4]),
        (8, [False, True, False], [2, 4, 2]),
        (2, [True] * 4, [1, 1, 0, 0]),
    ],
)
def test_a_shard_leaves_room_to_the_next_one(
    credit: int, has_more: list[bool], expected: list[int]
) -> None:
    assert asked(credit, has_more) == expected


@given(st.integers(1, 1000), st.lists(st.booleans(), min_size=1, max_size=16))
def test_all_that_may_be_taken_is_asked_for_and_no_more(credit: int, has_more: list[bool]) -> None:
    assert sum(asked(credit, has_more)) == credit


@pytest.mark.parametrize(
    ("begun", "fetched", "asked", "scarce", "free"),
    [
        (0, 0, 0, 0, 4),
        (1, 0, 0, 0, 3),
        (1, 2, 0, 0, 1),
        (1, 6, 4, 0, 1),
        (9, 0, 0, 0, 0),
        (0, 0, 0, 3, 1),
        (1, 0, 0, 3, 1),
        (4, 5, 5, 4, 0),
    ],
    ids=[
        "an idle worker",
        "a task runs",
        "fetched ones come before",
        "the request itself takes no slot",
        "prefetched ones fill the pool",
        "after a lost connection only leases are known",
        "a task with a permit runs",
        "all have permits",
    ],
)
def test_a_process_leases_as_many_messages_with_permits_as_it_can_run_now(
    monkeypatch: pytest.MonkeyPatch, begun: int, fetched: int, asked: int, scarce: int, free: int
) -> None:
    monkeypatch.setattr(worker, "slots", lambda: 4)
    monkeypatch.setattr(worker, "begun", lambda: begun)
    prefetch = Prefetch(qos=None)
    prefetch.add(SimpleNamespace(fetched=fetched, scarce=scarce))

    assert prefetch.free_slots(asked) == free


class OneShard:
    """Stands for the consumer of a shard."""

    fetched = scarce = 0


def test_no_shard_takes_others_ahead_while_messages_of_limits_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "slots", lambda: 2)
    monkeypatch.setattr(worker, "begun", lambda: 1)
    prefetch = Prefetch(SimpleNamespace(can_consume_max_estimate=lambda: 8))
    busy, other = OneShard(), OneShard()
    prefetch.add(busy)
    prefetch.add(other)
    assert prefetch.credit(1) == 8

    prefetch.note_waiting(other, "b", waits=True)
    assert prefetch.credit(1) == 1
    busy.fetched = 1
    assert prefetch.credit(1) == 0

    prefetch.keep_waiting(busy, ())
    prefetch.note_waiting(other, "c", waits=True)
    prefetch.note_waiting(other, "b", waits=False)
    assert prefetch.waiting == {(other, "c")}
    prefetch.keep_waiting(other, ["b"])
    assert prefetch.credit(1) == 7


@pytest.mark.parametrize(("begun", "credit"), [(1, 1), (2, 0)])
def test_a_worker_without_prefetch_takes_no_others_ahead_either(
    monkeypatch: pytest.MonkeyPatch, begun: int, credit: int
) -> None:
    """Celery has its own idea of a free place: see ``worker_disable_prefetch``."""
    monkeypatch.setattr(worker, "slots", lambda: 2)
    monkeypatch.setattr(worker, "begun", lambda: begun)
    prefetch, shard = Prefetch(SimpleNamespace(can_consume=lambda: True)), OneShard()
    prefetch.add(shard)
    assert prefetch.credit(1) == 1

    prefetch.note_waiting(shard, "q", waits=True)

    assert prefetch.credit(1) == credit
