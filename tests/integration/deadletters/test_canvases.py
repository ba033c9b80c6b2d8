"""A canvas waits for its dead letters: replayed, it goes on as if they had not died."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.integration.endings.request import CELERY_NOTIFIES_CHORDS
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Outcome
from tests.apps.retry_tasks import Act, RetryScene

#: Where no process matters, the clock moves.
pytestmark = pytest.mark.run_by("test")


@pytest.fixture
def sig(scene: RetryScene) -> Any:
    """Signatures of tasks that end as told; their results are their ids unless told otherwise."""

    def signature(id: str, *acts: Act, task: str = "quick", **options: Any) -> Any:
        return scene.app.tasks[task].si(acts or ("done",), id).set(task_id=id, **options)

    return signature


@pytest.fixture
def together(scene: RetryScene) -> Any:
    """The body of a chord, whose result are those of all members."""
    return scene.app.tasks["together"].s().set(task_id="body")


def wait_for_dead(scene: RetryScene, *ids: str) -> None:
    """Wait until all has ended but the body of a chord, which waits for these dead letters."""
    scene.wait_only_dead(*ids)
    assert scene.state("body") == "PENDING"


def end_of(scene: RetryScene, id: str, purged: bool, results: list[Any], **changes: Any) -> None:
    """Purge a dead letter, or replay it, and check the body of the chord that waits for it."""
    delayq = DelayQ.of(scene.app)
    if purged:
        assert delayq.purge(id)
        assert "a dead letter was purged" in str(scene.wait_state("body", "FAILURE"))
    else:
        assert delayq.replay(id, **(changes or AGAIN))
        assert scene.wait_state("body") == results


DIES: list[Act] = ["OSError"]
AGAIN: dict[str, Any] = {"args": [["done"], "again"]}


# -- chords


@pytest.mark.run_by("workers")
@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_a_chord_whose_members_died_is_completed_by_replaying_them(
    pool: str, late: bool, sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    # One at a time: Celery notes RETRY when the retry is sent already, which in another process may
    # have failed by then; its FAILURE would be overwritten.
    scene.start(pool, concurrency=1, conf={"at_least_once": late})
    chord([sig("one", *DIES), sig("two"), sig("three", *DIES)])(together)
    scene.wait_only_dead("one", "three")
    states = [scene.state(id) for id in ("one", "two", "three", "body")]
    assert states == ["FAILURE", "SUCCESS", "FAILURE", "PENDING"]

    assert delayq.replay("three", **AGAIN) is Outcome.DONE
    scene.wait_state("three")
    scene.wait_empty()
    assert scene.state("body") == "PENDING"
    assert delayq.replay("one", **AGAIN) is Outcome.DONE

    assert scene.wait_state("body") == ["again", "two", "again"]
    scene.wait_empty()
    assert delayq.count_dead() == 0


def test_a_chord_whose_member_dies_again_still_waits(
    sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    chord([sig("one", *DIES), sig("two")])(together)
    for attempts in (4, 8, 12):
        scene.wait(lambda: bool(scene.attempts("one")), "it runs")
        assert len(scene.attempts("one")) == attempts
        scene.wait_only_dead("one")
        delayq.replay("one")

    scene.wait_runs(17)
    scene.wait_dead("one")
    assert scene.state("body") == "PENDING"
    delayq.replay("one", **AGAIN)
    assert scene.wait_state("body") == ["again", "two"]


def test_a_chord_fails_when_the_dead_letter_that_it_waits_for_is_purged(
    sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    chord([sig("one", *DIES), sig("two")])(together)
    wait_for_dead(scene, "one")

    assert delayq.purge("one") is Outcome.DONE

    error = scene.wait_state("body", "FAILURE")
    assert type(error).__name__ == "ChordError"
    assert "a dead letter was purged: failed after 3 retries: OSError: as told" in str(error)
    assert delayq.count_dead() == 0


@pytest.mark.parametrize("died", ["first", "second", "last"])
@pytest.mark.parametrize("purged", [False, True], ids=["replayed", "purged"])
def test_a_member_may_be_a_chain(
    died: str, purged: bool, sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    links = [sig(id, *(DIES if id == died else ["done"])) for id in ("first", "second", "last")]
    chord([chain(*links), sig("beside")])(together)
    wait_for_dead(scene, died)

    end_of(scene, died, purged, ["last", "beside"], args=[["done"], died])

    scene.wait_empty()
    assert not purged or "last" not in scene.runs("id") or died == "last"


@pytest.mark.parametrize("purged", [False, True], ids=["replayed", "purged"])
def test_a_member_may_be_a_chain_that_ends_in_a_chord(
    purged: bool, app: Celery, sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    inner = chord([sig("one"), sig("two")], app.tasks["together"].s().set(task_id="inner"))
    chord([chain(sig("first", *DIES), inner), sig("beside")])(together)
    wait_for_dead(scene, "first")

    end_of(scene, "first", purged, [["one", "two"], "beside"])


def test_a_chord_in_a_chord_is_completed_too(
    app: Celery, sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    inner = chord([sig("one", *DIES), sig("two")], app.tasks["together"].s().set(task_id="inner"))
    chord([inner, sig("three")])(together)
    scene.wait_only_dead("one")

    assert delayq.replay("one", **AGAIN)

    assert scene.wait_state("body") == [["again", "two"], "three"]


@pytest.mark.run_by("workers")
@pytest.mark.parametrize("purged", [False, True], ids=["replayed", "purged"])
@pytest.mark.parametrize(
    "how",
    ["rejected", "unknown", pytest.param("killed", marks=pytest.mark.full), "lost", "too late"],
)
def test_members_that_die_in_other_ways_are_waited_for_too(
    how: str, purged: bool, app: Celery, sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    members = {
        "rejected": sig("one", "reject"),
        "unknown": app.signature("who.knows").set(task_id="one"),
        "killed": sig("one", "die", task="plain"),
        "lost": sig("one", "die"),
        "too late": sig("one", task="brief", countdown=0.01),
    }
    conf = {"task_reject_on_worker_lost": how == "killed"}
    chord([members[how], sig("two")])(together)
    scene.wait_past(scene.now() + 0.6)
    scene.start("prefork", conf=conf, delayq={"max_deliveries": 1})
    wait_for_dead(scene, "one")

    if how == "unknown" and not purged:
        assert delayq.replay("one")  # by now a worker may know it; this one does not
        scene.wait(lambda: delayq.count_dead() == 1, "it has come back")
    else:
        end_of(scene, "one", purged, ["again", "two"])


@pytest.mark.parametrize(
    "does",
    [
        "OSError",
        pytest.param(
            "reject", marks=pytest.mark.skipif(not CELERY_NOTIFIES_CHORDS, reason="new there")
        ),
    ],
)
def test_a_chord_fails_at_once_and_once_if_a_member_has_no_policy(
    does: str, app: Celery, sig: Any, together: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    """As on stock Celery, where nobody can replay it."""
    chord([sig("one", does, task="plain"), sig("two")])(together)
    scene.wait_dead("one")
    error = scene.wait_state("body", "FAILURE")
    assert type(error).__name__ == "ChordError"

    assert delayq.purge("one")

    assert str(AsyncResult("body", app=app).result) == str(error)


# -- chains


def test_a_chain_goes_on_after_the_replay_of_a_link(
    sig: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    links = [sig("first"), sig("second", *DIES), sig("third"), sig("fourth")]
    chain(*links).apply_async()
    scene.wait_only_dead("second")
    assert scene.attempts("third") == []
    assert scene.state("fourth") == "FAILURE"  # as on stock Celery

    assert delayq.replay("second", **AGAIN)

    assert scene.wait_state("fourth") == "fourth"
    assert scene.wait_state("third") == "third"
    assert scene.attempts("fourth") == [0]


def test_what_is_linked_to_a_task_runs_after_its_replay(
    sig: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    sig("one", *DIES).apply_async(link=sig("linked"), link_error=sig("error"))
    scene.wait_dead("one")
    scene.wait_state("error")

    delayq.replay("one", **AGAIN)

    scene.wait_state("linked")
    scene.wait_empty()
    assert scene.attempts("error") == [0]


# -- by their ids


def test_all_of_a_group_or_of_a_tree_are_replayed_together(
    sig: Any, delayq: DelayQ, scene: RetryScene
) -> None:
    group([sig("a", *DIES), chain(sig("b", *DIES), sig("c2")), sig("c")]).apply_async()
    chain(sig("root"), group([sig("d", *DIES), sig("e", *DIES)])).apply_async()
    sig("alone", *DIES).apply_async()
    scene.wait_only_dead("a", "b", "d", "e", "alone")
    [together] = {
        dead_letter.group_id
        for dead_letter in delayq.dead_letters()
        if dead_letter.task_id in ("a", "b")
    }
    assert {dead_letter.root_id for dead_letter in delayq.dead_letters(task_id="d")} == {"root"}

    by_group = delayq.replay_all(DeadFilter(group_id=together), **AGAIN)
    by_root = delayq.purge_all(DeadFilter(root_id="root"))

    assert (by_group.outcomes, by_root.outcomes) == ({Outcome.DONE: 2}, {Outcome.DONE: 2})
    for id in "ab":
        assert scene.wait_state(id) == "again"
    assert [dead_letter.task_id for dead_letter in delayq.dead_letters()] == ["alone"]
