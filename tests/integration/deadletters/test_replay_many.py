"""Many dead letters are replayed or purged: by filter, with a rate, by several at once."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Bulk, Filter, Outcome
from celery_delayq.store.keys import Layout
from celery_delayq.testing import wait_until
from tests.apps.retry_tasks import RetryScene
from tests.support import TIMEOUT


def dead_letter_many(scene: RetryScene, number: int) -> list[str]:
    """Make so many dead letters at once, and return their ids in order."""
    ids = [f"{n:03}" for n in range(number)]
    for id in ids:
        scene.send("plain", "done", id=id)
    assert scene.dead_letter_ready() == ids
    return ids


def test_dead_letters_are_replayed_by_what_they_tell(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    worker = scene.start()
    for word in ("ValueError", "KeyError", "OSError"):
        scene.send("plain", word, id=word)
        scene.send("exempt", word, id=f"exempt {word}")
    app.send_task("who.knows", task_id="unknown", queue="celery")
    wait_until(lambda: delayq.count_dead() == 7, TIMEOUT, "all are dead")
    worker.stop()
    times = [dead_letter.died for dead_letter in delayq.dead_letters()]

    for fields, number in (
        ({}, 7),
        ({"task": "exempt"}, 3),
        ({"reason": "AS TOLD"}, 6),
        ({"exception": "KeyError"}, 2),
        ({"task": "plain", "exception": "KeyError"}, 1),
        ({"task_id": "OSError"}, 1),
        ({"queue": "other"}, 0),
        ({"died_from": times[0], "died_to": times[-1]}, 7),
        ({"died_to": times[0] - dt.timedelta(seconds=1)}, 0),
    ):
        assert delayq.count_dead(DeadFilter(**fields)) == number, fields
    assert times == sorted(times)

    dry = delayq.replay_all(DeadFilter(task="exempt"), dry_run=True)
    assert (dry.total, dry.outcomes, scene.ready()) == (3, {Outcome.DONE: 3}, [])
    bulk = delayq.replay_all(DeadFilter(task="exempt", exception="OSError"))
    assert bulk.outcomes == {Outcome.DONE: 1}
    assert scene.ready() == ["exempt OSError"]
    assert delayq.purge_all(DeadFilter(exception="ValueError")).outcomes == {Outcome.DONE: 2}
    assert {dead_letter.task_id for dead_letter in delayq.dead_letters()} == {
        "KeyError",
        "exempt KeyError",
        "OSError",
        "unknown",
    }


@pytest.mark.usefixtures("dead_letter")
def test_a_filter_that_leaves_nothing_out_must_be_meant(delayq: DelayQ) -> None:
    for change in (delayq.replay_all, delayq.purge_all):
        with pytest.raises(ConfigError, match="everything=True"):
            change(DeadFilter())
        assert change(DeadFilter(), dry_run=True).total == 1
    assert delayq.purge_all(DeadFilter(), everything=True).outcomes == {Outcome.DONE: 1}
    assert delayq.count_dead() == 0


@pytest.mark.parametrize(
    "fields", [{"queue": ""}, {"task": 5}, {"reason": b"x"}, {"exception": ""}, {"root_id": ""}]
)
def test_a_filter_that_is_none_is_refused(fields: dict[str, Any], delayq: DelayQ) -> None:
    with pytest.raises(InvalidFilter, match=next(iter(fields))):
        DeadFilter(**fields)
    with pytest.raises(InvalidFilter, match=next(iter(fields))):
        delayq.dead_letters(**fields)


def test_a_filter_of_another_kind_is_refused(delayq: DelayQ) -> None:
    other: Any = Filter(task="shop.mail")
    for change in (delayq.purge_all, delayq.count_dead):
        with pytest.raises(InvalidFilter, match=r"expected a DeadFilter"):
            change(other)
    with pytest.raises(InvalidFilter, match=r"give one of them"):
        delayq.count_dead(DeadFilter(task="shop.mail"), queue="celery")
    dead_letters: Any = DeadFilter(task="shop.mail")
    with pytest.raises(InvalidFilter, match=r"expected a Filter"):
        delayq.cancel_all(dead_letters)


@pytest.mark.usefixtures("dead_letter")
def test_what_is_no_time_and_no_rate_is_refused(delayq: DelayQ) -> None:
    with pytest.raises(InvalidETA, match="died_from='yesterday'"):
        DeadFilter(died_from="yesterday")
    with pytest.raises(InvalidETA):
        delayq.replay("a", countdown=float("nan"))
    with pytest.raises(InvalidETA, match="give one of them"):
        delayq.replay("a", countdown=5, eta="2030-01-01")
    for rate in (0, -1, float("nan"), "fast", True):
        with pytest.raises(ConfigError, match="rate="):
            delayq.replay_all(DeadFilter(task="plain"), rate=rate)  # type: ignore[arg-type]
    assert delayq.count_dead() == 1


def test_with_a_rate_they_come_one_after_the_other(delayq: DelayQ, scene: RetryScene) -> None:
    dead_letter_many(scene, 250)
    before = scene.now()

    bulk = delayq.replay_all(DeadFilter(task="plain"), rate=1)

    assert bulk.outcomes == {Outcome.DONE: 250}
    entries = [*delayq.entries()]
    dues = [entry.due.timestamp() - before for entry in entries]
    assert len(dues) + len(scene.ready()) == 250
    assert len(scene.ready()) < 50
    steps = {round(later - sooner, 3) for sooner, later in pairwise(dues)}
    assert steps == {1.0}
    assert 248 < dues[-1] < 249 + TIMEOUT
    assert [int(entry.id) for entry in entries] == [*range(250)][-len(entries) :]


def test_more_than_one_batch_is_replayed_with_its_progress(
    delayq: DelayQ, scene: RetryScene
) -> None:
    ids = dead_letter_many(scene, 450)  # in the order of ids where several died at once
    told: list[int] = []

    def note(bulk: Bulk) -> None:
        told.append(bulk.outcomes.total())

    bulk = delayq.replay_all(DeadFilter(), everything=True, queue="other", progress=note)

    assert (bulk.total, bulk.outcomes) == (450, {Outcome.DONE: 450})
    assert told == sorted(told)
    assert told[-1] == 450
    assert scene.ready("other") == ids
    assert delayq.count_dead() == 0


def test_what_dies_while_others_are_replayed_is_left_alone(
    delayq: DelayQ, scene: RetryScene
) -> None:
    dead_letter_many(scene, 300)

    def add_dead_letter_again(bulk: Bulk) -> None:
        scene.wait_past(scene.now() + 0.002)
        scene.dead_letter_ready()

    bulk = delayq.replay_all(DeadFilter(), everything=True, progress=add_dead_letter_again)

    assert bulk.outcomes == {Outcome.DONE: 300}


@pytest.mark.parametrize("purging", [False, True])
def test_dead_letters_that_four_replay_at_once_run_once(
    purging: bool, app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    number = 600
    dead_letter_many(scene, number)

    def change(who: int) -> Counter[Outcome]:
        with DelayQ(app) as mine:
            if purging and who == 3:
                return Counter(mine.purge_all(DeadFilter(), everything=True).outcomes)
            return Counter(mine.replay_all(DeadFilter(), everything=True).outcomes)

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(change, range(4))]

    done = [each[Outcome.DONE] for each in found]
    assert sum(done) == number
    assert delayq.count_dead() == 0
    assert set(sum(found, Counter())) <= {Outcome.DONE, Outcome.UNKNOWN}
    waiting = Counter(scene.ready())
    assert len(waiting) == waiting.total() == sum(done) - (done[3] if purging else 0)
    scene.start("threads", concurrency=4, conf={"worker_prefetch_multiplier": 20})
    scene.wait_empty()
    assert Counter(scene.runs("id")) == waiting


def test_dead_letters_of_a_queue_with_a_layout_of_its_own_go_to_its_lists(
    delayq: DelayQ, scene: RetryScene
) -> None:
    scene.send("plain", "done", priority=9)
    scene.dead_letter_ready()
    scene.client.hset("delayq:queues", "other", Layout(":", (0, 5)).text)

    delayq.replay("a", queue="other")

    assert scene.ready("other:5") == ["a"]
