"""Dead letters are replayed: one at a time, changed, later; each once and from the start."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.errors import ConfigError
from celery_delayq.model.dead_letter import DeadFilter, DeadLetter
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.retry_tasks import RetryScene
from tests.integration.conftest import ready, stored
from tests.support.dead_letters import fill

if TYPE_CHECKING:
    from tests.support.travelling import TravellingScene

UTC = dt.timezone.utc


def mail(to: str, text: str = "") -> None:
    """Stand for any task."""


def pay(order: int) -> None:
    """Stand for any task."""


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
@pytest.mark.parametrize("task", ["steps", "early"])
def test_a_replayed_task_starts_its_attempts_afresh_and_keeps_its_id(
    pool: str, task: str, delayq: DelayQ, scene: RetryScene
) -> None:
    scene.start(pool)
    scene.send(task, *["OSError"] * 4)
    scene.wait_dead("a")

    assert delayq.replay("a") is Outcome.DONE
    scene.wait_runs(8)
    scene.wait_dead("a")
    [dead_letter] = delayq.dead_letters()
    assert dead_letter.retries == 3
    assert delayq.replay(dead_letter, args=[["OSError", "done"]]) is Outcome.DONE

    assert scene.wait_state("a") == "done"
    scene.wait_empty()
    assert scene.attempts("a") == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert set(scene.runs("deliveries", "redelivered")) == {(1, False)}
    assert delayq.count_dead() == 0


def test_a_dead_letter_is_replayed_once(
    delayq: DelayQ, scene: RetryScene, dead_letter: DeadLetter
) -> None:
    assert delayq.replay(dead_letter) is Outcome.DONE
    assert delayq.replay(dead_letter) is Outcome.UNKNOWN
    assert delayq.replay("a") is Outcome.UNKNOWN
    assert delayq.replay("never was") is Outcome.UNKNOWN
    assert scene.ready() == ["a"]


def test_a_dead_letter_that_another_one_has_replaced_is_not_meant(
    delayq: DelayQ, scene: RetryScene, dead_letter: DeadLetter
) -> None:
    delayq.replay(dead_letter)
    scene.wait_past(scene.now() + 0.002)
    scene.dead_letter_ready()

    assert delayq.replay(dead_letter) is Outcome.CHANGED
    assert delayq.purge(dead_letter) is Outcome.CHANGED
    assert delayq.count_dead() == 1
    assert delayq.replay("a") is Outcome.DONE


def test_it_may_run_later(delayq: DelayQ, scene: RetryScene, delayq_redis: RedisUnderTest) -> None:
    eta = dt.datetime.fromtimestamp(scene.now() + 7200, UTC)
    for id in ("countdown", "eta", "text", "past"):
        scene.send("plain", "done", id=id)
    scene.dead_letter_ready()

    delayq.replay("countdown", countdown=3600)
    delayq.replay("eta", eta=eta)
    delayq.replay("text", eta=eta.isoformat())
    delayq.replay("past", eta=eta - dt.timedelta(days=1))

    found = {each.id: each for each in delayq.list()}
    assert 3590 < found["countdown"].due.timestamp() - scene.now() <= 3600
    assert abs(found["eta"].due - eta) < dt.timedelta(milliseconds=2)
    assert found["text"].due == found["eta"].due
    assert scene.ready() == ["past"]
    assert [each["headers"]["eta"] for each in stored(delayq_redis.client)] == [None] * 3


@pytest.mark.run_by("test")
def test_what_is_changed_is_what_its_retries_have_too(delayq: DelayQ, scene: RetryScene) -> None:
    scene.send("quick", "ValueError")
    scene.dead_letter_ready()

    changed = delayq.replay("a", args=[["OSError", "done"]], kwargs={"result": 5}, queue="other")

    assert changed is Outcome.DONE
    assert scene.wait_state("a") == 5
    assert scene.runs("retries", "queue") == [(0, "other"), (1, "other")]


def test_the_rest_of_a_message_stays(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, scene: RetryScene
) -> None:
    options: dict[str, Any] = {"headers": {"customer": "us"}, "retry_intervals": [5], "priority": 6}
    scene.send("plain", "done", link=app.tasks["plain"].si(), **options)
    [sent] = ready(delayq_redis.client, "celery\x06\x166")
    scene.dead_letter_ready()

    delayq.replay("a")

    [found] = ready(delayq_redis.client, "celery\x06\x166")
    assert found["body"] == sent["body"]
    assert found["headers"] == sent["headers"]
    tags = {"delivery_tag", "delayq"}
    for each in (found, sent):
        assert each["properties"]["delayq"]["retry"] == {"intervals": [5]}
        each["properties"] = {n: v for n, v in each["properties"].items() if n not in tags}
    assert found == sent


@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack", "pickle"])
def test_dead_letters_of_all_serializers_are_changed_and_replayed(
    serializer: str, delayq: DelayQ, scene: RetryScene
) -> None:
    accepted = {"accept_content": ["json", "yaml", "msgpack", "pickle"]}
    scene.send("plain", ["return", "ö" * 10], serializer=serializer, compression="zlib")
    scene.dead_letter_ready()
    [dead_letter] = delayq.dead_letters()
    assert dead_letter.args == (None if serializer == "pickle" else [[["return", "ö" * 10]]])

    told = delayq.replay(dead_letter, args=[[["return", "changed"]]])
    assert told is (Outcome.UNREADABLE if serializer == "pickle" else Outcome.DONE)
    if not told:
        changes: dict[str, Any] = {"args": [[["return", "changed"]]], "unpickle": True}
        assert delayq.replay(dead_letter, **changes) is Outcome.DONE

    scene.start(conf=accepted, env={"C_FORCE_ROOT": "1"})  # to Celery, pickle is one
    assert scene.wait_state("a") == "changed"


def test_other_parts_of_its_message_are_changed_too(
    app: Celery, delayq: DelayQ, redis: Redis
) -> None:
    app.task(name="shop.mail", unique_key="{to}", shared=False)(mail)
    fill(delayq, 2)
    changes: dict[str, Any] = {
        "priority": 7,
        "expires": 60,
        "headers": {"tenant": "a", "lang": None},
    }

    with pytest.raises(ConfigError, match="expected other names than lang"):
        delayq.replay("celery-000000", **changes)
    changes["headers"].pop("lang")
    with pytest.raises(ConfigError, match="does not take the arguments"):
        delayq.replay("celery-000000", args=[])
    assert delayq.count_dead() == 2
    assert delayq.replay("celery-000000", args=["new"], **changes) is Outcome.DONE
    bulk = delayq.replay_all(DeadFilter(), everything=True, headers={"tenant": "b"})
    assert bulk.outcomes == {Outcome.DONE: 1}

    [found] = ready(redis, "celery\x06\x166")
    assert found["headers"]["tenant"] == "a"
    assert found["headers"]["expires"] is not None
    assert json.loads(found["body"])[:2] == [["new"], {}]
    assert [each["headers"]["tenant"] for each in ready(redis)] == ["b"]


def test_its_unique_key_and_its_lane_follow_its_arguments(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    limit = Limit("api", rate=1, key="{order}")
    options: dict[str, Any] = {"unique_key": "{order}", "unique_scope": "done", "limit": limit}
    app.task(name="shop.pay", shared=False, **options)(pay)
    app.tasks["shop.pay"].apply_async((1,), task_id="a")
    scene.dead_letter_ready()
    app.tasks["shop.pay"].apply_async((2,), task_id="b", countdown=3600)

    assert delayq.replay("a", args=[2]) is Outcome.CONFLICT
    assert delayq.replay("a", args=[3], countdown=60) is Outcome.DONE

    assert sorted(scene.owners().items()) == [("2", "b"), ("3", "a")]
    found = delayq.get("a")
    assert found is not None
    assert (found.limit, found.limit_key) == ("api", "3")


@pytest.mark.run_by("test")
def test_all_arguments_may_be_changed_of_what_cannot_be_read(
    delayq: DelayQ, delayq_redis: RedisUnderTest, scene: RetryScene
) -> None:
    scene.send("plain", "OSError", compression="zlib")
    client = delayq_redis.client
    spoilt = json.loads(client.rpop("celery")) | {"body": "AAAA"}
    client.lpush("celery", json.dumps(spoilt))
    scene.dead_letter_ready()

    assert delayq.replay("a", args=[["done"]]) is Outcome.UNREADABLE
    assert delayq.replay("a", args=[["done"]], kwargs={"result": 5}) is Outcome.DONE

    assert scene.wait_state("a") == 5


@pytest.mark.run_by("test")
def test_large_dead_letters_and_any_arguments_come_back_as_they_were(
    delayq: DelayQ, scene: RetryScene
) -> None:
    text = "x\n\0é\U0001f600" * 200_000
    results = {"large": text, "number": 12345678901234567, "empty": [], "large and later": text}
    for id, result in results.items():
        scene.send("plain", ["return", result], id=id)
    scene.dead_letter_ready()

    bulk = delayq.replay_all(DeadFilter(), everything=True)

    assert bulk.outcomes == {Outcome.DONE: 4}
    assert {id: scene.wait_state(id) for id in results} == results


@pytest.mark.run_by("test")
def test_what_has_expired_runs_all_the_same(
    delayq: DelayQ, scene: RetryScene, delayq_redis: RedisUnderTest
) -> None:
    scene.send("plain", "done", id="has passed", expires=0.2)
    scene.send("plain", "done", id="to come", expires=3600)
    scene.dead_letter_ready()
    scene.wait_past(scene.now() + 0.3)

    delayq.replay_all(DeadFilter(), everything=True)
    headers = [each["headers"] for each in ready(delayq_redis.client)]
    messages = {each["id"]: each["expires"] for each in headers}
    assert messages["has passed"] is None
    assert messages["to come"] is not None

    for id in messages:
        assert scene.wait_state(id) == "done"


@pytest.mark.run_by("test")
def test_a_task_that_no_worker_knows_comes_back_as_a_dead_letter(
    app: Celery, delayq: DelayQ, scene: TravellingScene
) -> None:
    app.send_task("who.knows", task_id="a")
    scene.wait_dead("a")
    [first] = delayq.dead_letters()

    scene.run()
    assert delayq.replay(first) is Outcome.DONE
    scene.wait_empty()
    [second] = delayq.dead_letters()
    assert second.died > first.died
    assert (second.task_id, second.reason) == ("a", "unknown task 'who.knows'")


@pytest.mark.run_by("test")
def test_a_dead_letter_whose_unique_key_another_task_has_stays_until_that_has_gone(
    delayq: DelayQ, scene: RetryScene
) -> None:
    scene.send("unique", "OSError")
    scene.wait_dead("a")
    scene.send("unique", "done", id="b", countdown=3600)

    assert delayq.replay("a") is Outcome.CONFLICT
    bulk = delayq.replay_all(DeadFilter(task="unique"))
    assert bulk.outcomes == {Outcome.CONFLICT: 1}
    assert delayq.count_dead() == 1
    assert delayq.cancel("b")
    assert delayq.replay("a", args=[["OSError", "done"]]) is Outcome.DONE

    assert list(scene.owners().values()) == ["a"]
    scene.wait(lambda: scene.attempts("a") == [0, 1, 0, 1], "it has been tried again")
    scene.wait_empty()
    assert scene.wait_state("a") == "done"


@pytest.mark.run_by("test")
def test_two_dead_letters_of_one_id_are_two(delayq: DelayQ, scene: RetryScene) -> None:
    for word in ("ValueError", "KeyError"):
        scene.send("plain", word)
    scene.wait(lambda: delayq.count_dead() == 2, "both are dead")
    dead_letters = [*delayq.dead_letters(task_id="a")]

    assert {dead_letter.exception for dead_letter in dead_letters} == {"ValueError", "KeyError"}
    assert len({dead_letter.id for dead_letter in dead_letters}) == 2
    assert [delayq.replay(dead_letter.id) for dead_letter in dead_letters] == [Outcome.DONE] * 2
    assert scene.ready() == ["a", "a"]
