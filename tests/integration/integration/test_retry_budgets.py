"""``retry_budget``: the retries that all members of a canvas share."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group

from celery_delayq import DeadFilter, DelayQ
from tests.apps.retry_tasks import Act, RetryScene
from tests.support import SHORT_LEASE

#: Where no process matters, the clock moves.
pytestmark = pytest.mark.run_by("test")


@pytest.fixture
def quick(scene: RetryScene) -> Any:
    """Signatures of a task with three retries of its own."""

    def signature(id: str, *acts: Act, **options: Any) -> Any:
        return scene.app.tasks["quick"].si(acts).set(task_id=id, **options)

    return signature


def retries(scene: RetryScene) -> int:
    """Return the number of retries of all tasks."""
    return sum(number > 0 for number in scene.runs("retries"))


@pytest.mark.run_by("workers")
@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_the_members_of_a_group_share_it(pool: str, quick: Any, scene: RetryScene) -> None:
    scene.start(pool)
    ids = [f"m{n}" for n in range(4)]

    group(quick(id, "OSError") for id in ids).apply_async(retry_budget=5)

    scene.wait_dead(*ids)
    scene.wait_empty()
    assert retries(scene) == 5
    assert [len(scene.attempts(id)) <= 4 for id in ids] == [True] * 4
    assert len(scene.client.keys("delayq:budget:*")) == 1


def test_two_groups_have_one_each(quick: Any, scene: RetryScene) -> None:

    for name in "ab":
        group(quick(f"{name}{n}", "OSError") for n in range(2)).apply_async(retry_budget=2)

    scene.wait_dead("a0", "a1", "b0", "b1")
    assert retries(scene) == 4


def test_the_links_of_a_chain_share_it(quick: Any, scene: RetryScene) -> None:
    links = [
        quick("first", "OSError", "OSError", "done"),
        quick("second", "done"),
        quick("third", "OSError"),
        quick("fourth", "done"),
    ]

    chain(*links).apply_async(retry_budget=3)

    scene.wait_dead("third")
    assert [len(scene.attempts(id)) - 1 for id in ("first", "second", "third")] == [2, 0, 1]
    assert scene.attempts("fourth") == []


def test_the_members_of_a_chord_and_its_body_share_it(quick: Any, scene: RetryScene) -> None:
    header = [quick("one", "OSError", "done"), quick("two", "OSError", "done")]

    chord(header)(quick("body", "OSError"), retry_budget=3)

    scene.wait_dead("body")
    assert [len(scene.attempts(id)) - 1 for id in ("one", "two", "body")] == [1, 1, 1]


@pytest.mark.parametrize("with_body", [False, True])
def test_chains_in_a_group_share_that_of_the_group(
    with_body: bool, quick: Any, scene: RetryScene
) -> None:
    links = [quick(id, "OSError", "done") for id in ("one", "two", "three")]
    members = group(chain(*links), quick("alone", "done"))

    if with_body:
        chord(members, quick("body", "OSError")).apply_async(retry_budget=3)
        scene.wait_dead("body")
    else:
        members.apply_async(retry_budget=3)
        scene.wait_runs(7)

    scene.wait_empty()
    assert [len(scene.attempts(id)) - 1 for id in ("one", "two", "three")] == [1, 1, 1]
    assert [name.decode() for name in scene.client.keys("delayq:budget:*")] == [
        f"delayq:budget:{scene.groups('alone')}"
    ]


def test_a_chord_whose_members_have_spent_it_waits_for_their_replay(
    quick: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    ids = ["one", "two", "three"]

    canvas = chord([quick(id, "OSError") for id in ids], quick("body", "done"))
    result = canvas.apply_async(retry_budget=2)

    scene.wait_dead(*ids)
    assert retries(scene) == 2
    for id in ids:
        [dead_letter] = delayq.dead_letters(task_id=id)
        assert delayq.replay(dead_letter, args=[["done"]])
    scene.wait(lambda: result.state == "SUCCESS", "the chord is complete")


def test_members_that_are_replayed_together_share_one_again(
    quick: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    ids = ["one", "two", "three"]
    canvas = group(quick(id, "OSError") for id in ids).apply_async(retry_budget=2)
    scene.wait_dead(*ids)

    for spent in (4, 6):
        delayq.replay_all(DeadFilter(group_id=canvas.id))
        scene.wait_dead(*ids)
        assert retries(scene) == spent

    names = scene.client.keys("delayq:budget:*")
    assert len(names) == 3
    assert max(map(len, names)) < 120


def test_what_a_member_sends_shares_it(app: Celery, scene: RetryScene) -> None:
    child = ["send", ["quick", "child", ["OSError"]]]

    app.tasks["quick"].apply_async((["OSError", child],), task_id="parent", retry_budget=2)

    scene.wait_dead("child")
    assert [len(scene.attempts(id)) - 1 for id in ("parent", "child")] == [1, 1]


def test_one_task_may_have_one_too(app: Celery, scene: RetryScene) -> None:

    app.tasks["quick"].apply_async((["OSError"],), task_id="two", retry_budget=2)
    app.tasks["quick"].apply_async((["OSError"],), task_id="none", retry_budget=0)
    app.tasks["quick"].apply_async((["OSError"],), task_id="many", retry_budget=99)
    app.tasks["quick"].apply_async((["retry"],), task_id="manually", retry_budget=1)

    scene.wait_dead("two", "none", "many", "manually")
    assert {id: len(scene.attempts(id)) - 1 for id in ("two", "none", "many", "manually")} == {
        "two": 2,
        "none": 0,
        "many": 3,
        "manually": 1,
    }


@pytest.mark.run_by("workers")
def test_a_retry_that_is_delivered_again_spends_it_once(app: Celery, scene: RetryScene) -> None:
    doomed = scene.start(delayq={"lease": SHORT_LEASE})
    acts: list[Act] = ["OSError", "die once", "OSError"]
    app.tasks["quick"].apply_async((acts,), task_id="a", retry_budget=2)
    assert doomed.wait() == -9
    scene.start(delayq={"lease": SHORT_LEASE})

    scene.wait(lambda: len(scene.attempts("a")) == 3, "it has come back")

    scene.wait_empty()
    assert scene.runs("retries", "deliveries") == [(0, 1), (1, 1), (1, 2)]
    assert scene.client.scard(scene.client.keys("delayq:budget:*")[0]) == 1
