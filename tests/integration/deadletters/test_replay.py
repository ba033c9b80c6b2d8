"""Dead letters are replayed: one, many, by filter, changed, later; each once and from the start."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError, InvalidETA, InvalidFilter
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.scheduled import Bulk, Filter, Outcome
from celery_delayq.store.keys import Layout
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.retry_tasks import TIMEOUT, Act, RetryScene, StartWorker, start, tasks_of
from tests.integration.conftest import MakeApp, ready, stored

# Celery's result backend, with the newest redis-py.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

UTC = dt.timezone.utc

#: Of requests to lease, all different.
MESSAGE_IDS = map(str, count(1))


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


@pytest.fixture
def scene(delayq_redis: RedisUnderTest) -> RetryScene:
    return RetryScene(delayq_redis)


def send(app: Celery, task: str, *acts: Act, id: str = "a", **options: Any) -> AsyncResult:
    return app.tasks[task].apply_async((acts,), task_id=id, **options)


def add_dead_letter_ready(
    delayq: DelayQ, queue: str = "celery", reason: str = "failed"
) -> list[str]:
    """Make dead letters of all that is ready, as a worker does it; return their ids."""
    store, ids = delayq.store, []
    while messages := store.leases.acquire(queue, "me", 600, next(MESSAGE_IDS), 100).messages:
        for field, message, _ in messages:
            ids.append(str(json.loads(message)["headers"]["id"]))
            store.leases.dead_letter(queue, "me", field, ids[-1], reason)
    return ids


def result_of(app: Celery, id: str) -> Any:
    """Wait until a task has succeeded that may have failed before, and return its result."""

    def succeeded() -> bool:
        return bool(AsyncResult(id, app=app).state == "SUCCESS")  # each keeps what it was told

    wait_until(succeeded, TIMEOUT, f"{id} has succeeded")
    return AsyncResult(id, app=app).result


# -- one


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
@pytest.mark.parametrize("task", ["steps", "early"])
def test_a_replayed_task_starts_its_attempts_afresh_and_keeps_its_id(
    pool: str,
    task: str,
    app: Celery,
    delayq: DelayQ,
    scene: RetryScene,
    delayq_worker: StartWorker,
) -> None:
    start(delayq_worker, pool)
    acts: list[Act] = ["OSError", "OSError", "OSError", "OSError"]
    send(app, task, *acts)
    scene.wait_dead(delayq, "a")

    assert delayq.replay("a") is Outcome.DONE
    scene.wait_runs(8)
    scene.wait_dead(delayq, "a")
    [dead_letter] = delayq.dead_letters()
    assert dead_letter.retries == 3
    assert delayq.replay(dead_letter, args=[["OSError", "done"]]) is Outcome.DONE

    assert result_of(app, "a") == "done"
    scene.wait_empty()
    assert scene.attempts("a") == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert set(scene.runs("deliveries", "redelivered")) == {(1, False)}
    assert delayq.count_dead() == 0


def test_a_dead_letter_is_replayed_once(app: Celery, delayq: DelayQ, scene: RetryScene) -> None:
    send(app, "plain", "done")
    add_dead_letter_ready(delayq)
    [dead_letter] = delayq.dead_letters()

    assert delayq.replay(dead_letter) is Outcome.DONE
    assert delayq.replay(dead_letter) is Outcome.UNKNOWN
    assert delayq.replay("a") is Outcome.UNKNOWN
    assert delayq.replay("never was") is Outcome.UNKNOWN
    assert scene.ready() == ["a"]


def test_a_dead_letter_that_another_one_has_replaced_is_not_meant(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    send(app, "plain", "done")
    add_dead_letter_ready(delayq)
    [dead_letter] = delayq.dead_letters()
    delayq.replay(dead_letter)
    scene.wait_past(scene.now() + 0.002)
    add_dead_letter_ready(delayq)

    assert delayq.replay(dead_letter) is Outcome.CHANGED
    assert delayq.purge(dead_letter) is Outcome.CHANGED
    assert delayq.count_dead() == 1
    assert delayq.replay("a") is Outcome.DONE


def test_it_may_run_later(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_redis: RedisUnderTest
) -> None:
    eta = dt.datetime.fromtimestamp(scene.now() + 7200, UTC)
    for id in ("countdown", "eta", "text", "past"):
        send(app, "plain", "done", id=id)
    add_dead_letter_ready(delayq)

    delayq.replay("countdown", countdown=3600)
    delayq.replay("eta", eta=eta)
    delayq.replay("text", eta=eta.isoformat())
    delayq.replay("past", eta=eta - dt.timedelta(days=1))

    found = {each.id: each for each in delayq.list()}
    assert 3590 < found["countdown"].due.timestamp() - scene.now() <= 3600
    assert abs(found["eta"].due - eta) < dt.timedelta(milliseconds=2)
    assert found["text"].due == found["eta"].due
    assert scene.ready() == ["past"]
    assert [each["headers"]["eta"] for each in stored(delayq_redis)] == [None] * 3


def test_what_is_changed_is_what_its_retries_have_too(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    send(app, "quick", "ValueError")
    add_dead_letter_ready(delayq)
    start(delayq_worker, queues=["celery", "other"])

    changed = delayq.replay("a", args=[["OSError", "done"]], kwargs={"result": 5}, queue="other")

    assert changed is Outcome.DONE
    assert result_of(app, "a") == 5
    assert scene.runs("retries", "queue") == [(0, "other"), (1, "other")]


def test_the_rest_of_a_message_stays(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest
) -> None:
    options: dict[str, Any] = {"headers": {"customer": "us"}, "retry_intervals": [5], "priority": 6}
    send(app, "plain", "done", link=app.tasks["plain"].si(), **options)
    [sent] = ready(delayq_redis, "celery\x06\x166")
    add_dead_letter_ready(delayq)

    delayq.replay("a")

    [found] = ready(delayq_redis, "celery\x06\x166")
    assert found["body"] == sent["body"]
    assert found["headers"] == sent["headers"]
    tags = {"delivery_tag", "delayq"}
    for each in (found, sent):
        assert each["properties"]["delayq"]["retry"] == {"intervals": [5]}
        each["properties"] = {n: v for n, v in each["properties"].items() if n not in tags}
    assert found == sent


@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack", "pickle"])
def test_dead_letters_of_all_serializers_are_replayed_and_only_json_is_changed(
    serializer: str, app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    accepted = {"accept_content": ["json", "yaml", "msgpack", "pickle"]}
    send(app, "plain", ["return", "ö" * 10], serializer=serializer, compression="zlib")
    add_dead_letter_ready(delayq)
    [dead_letter] = delayq.dead_letters()
    assert dead_letter.args == (None if serializer == "pickle" else [[["return", "ö" * 10]]])

    told = delayq.replay(dead_letter, args=[[["return", "changed"]]])
    assert told is (Outcome.DONE if serializer == "json" else Outcome.UNREADABLE)
    assert told or delayq.replay(dead_letter) is Outcome.DONE

    start(delayq_worker, conf=accepted, env={"C_FORCE_ROOT": "1"})  # to Celery, pickle is one
    assert result_of(app, "a") == ("changed" if serializer == "json" else "ö" * 10)


def test_all_arguments_may_be_changed_of_what_cannot_be_read(
    app: Celery, delayq: DelayQ, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    send(app, "plain", "OSError", compression="zlib")
    client = delayq_redis.client
    spoilt = json.loads(client.rpop("celery")) | {"body": "AAAA"}
    client.lpush("celery", json.dumps(spoilt))
    add_dead_letter_ready(delayq)

    assert delayq.replay("a", args=[["done"]]) is Outcome.UNREADABLE
    assert delayq.replay("a", args=[["done"]], kwargs={"result": 5}) is Outcome.DONE

    start(delayq_worker)
    assert result_of(app, "a") == 5


def test_large_dead_letters_and_any_arguments_come_back_as_they_were(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    text = "x\n\0é\U0001f600" * 200_000
    send(app, "plain", ["return", text], id="large")
    send(app, "plain", ["return", 12345678901234567], id="number")
    send(app, "plain", ["return", []], id="empty")
    send(app, "plain", ["return", text], id="large and later")
    add_dead_letter_ready(delayq)

    bulk = delayq.replay_all(DeadFilter(), everything=True)

    assert bulk.outcomes == {Outcome.DONE: 4}
    start(delayq_worker)
    found = {id: result_of(app, id) for id in ("large", "number", "empty")}
    assert found == {"large": text, "number": 12345678901234567, "empty": []}


def test_what_has_expired_runs_all_the_same(
    app: Celery,
    delayq: DelayQ,
    scene: RetryScene,
    delayq_redis: RedisUnderTest,
    delayq_worker: StartWorker,
) -> None:
    send(app, "plain", "done", id="has passed", expires=0.2)
    send(app, "plain", "done", id="to come", expires=3600)
    add_dead_letter_ready(delayq)
    scene.wait_past(scene.now() + 0.3)

    delayq.replay_all(DeadFilter(), everything=True)
    messages = {each["headers"]["id"]: each["headers"]["expires"] for each in ready(delayq_redis)}
    assert messages["has passed"] is None
    assert messages["to come"] is not None

    start(delayq_worker)
    for id in messages:
        assert result_of(app, id) == "done"


def test_a_task_that_no_worker_knows_comes_back_as_a_dead_letter(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    app.send_task("who.knows", task_id="a")
    start(delayq_worker)
    scene.wait_dead(delayq, "a")
    [first] = delayq.dead_letters()

    assert delayq.replay(first) is Outcome.DONE
    wait_until(
        lambda: [each.died for each in delayq.dead_letters() if each.died > first.died],
        TIMEOUT,
        "it has come back",
    )

    scene.wait_empty()
    [second] = delayq.dead_letters()
    assert (second.task_id, second.reason) == ("a", "unknown task 'who.knows'")


def test_a_dead_letter_whose_unique_key_another_task_has_stays_until_that_has_gone(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    worker = start(delayq_worker)
    send(app, "unique", "OSError")
    scene.wait_dead(delayq, "a")
    send(app, "unique", "done", id="b", countdown=3600)

    assert delayq.replay("a") is Outcome.CONFLICT
    bulk = delayq.replay_all(DeadFilter(task="unique"))
    assert bulk.outcomes == {Outcome.CONFLICT: 1}
    assert delayq.count_dead() == 1
    assert delayq.cancel("b")
    worker.stop()
    assert delayq.replay("a", args=[["OSError", "done"]]) is Outcome.DONE

    assert list(scene.owners().values()) == ["a"]
    start(delayq_worker)
    wait_until(lambda: scene.attempts("a") == [0, 1, 0, 1], TIMEOUT, "it has been tried again")
    scene.wait_empty()
    assert result_of(app, "a") == "done"


def test_two_dead_letters_of_one_id_are_two(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    for word in ("ValueError", "KeyError"):
        send(app, "plain", word)
    worker = start(delayq_worker)
    wait_until(lambda: delayq.count_dead() == 2, TIMEOUT, "both are dead")
    worker.stop()
    dead_letters = [*delayq.dead_letters(task_id="a")]

    assert {dead_letter.exception for dead_letter in dead_letters} == {"ValueError", "KeyError"}
    assert len({dead_letter.id for dead_letter in dead_letters}) == 2
    assert [delayq.replay(dead_letter.id) for dead_letter in dead_letters] == [Outcome.DONE] * 2
    assert scene.ready() == ["a", "a"]


# -- many


def test_dead_letters_are_replayed_by_what_they_tell(
    app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    worker = start(delayq_worker)
    for word in ("ValueError", "KeyError", "OSError"):
        send(app, "plain", word, id=word)
        send(app, "exempt", word, id=f"exempt {word}")
    app.send_task("who.knows", task_id="unknown", queue="celery")
    wait_until(lambda: delayq.count_dead() == 7, TIMEOUT, "all are dead")
    worker.stop()
    times = [dead_letter.died for dead_letter in delayq.dead_letters()]

    counts = {
        "all": delayq.count_dead(),
        "task": delayq.count_dead(DeadFilter(task="exempt")),
        "reason": delayq.count_dead(DeadFilter(reason="AS TOLD")),
        "exception": delayq.count_dead(DeadFilter(exception="KeyError")),
        "both": delayq.count_dead(DeadFilter(task="plain", exception="KeyError")),
        "id": delayq.count_dead(DeadFilter(task_id="OSError")),
        "another queue": delayq.count_dead(DeadFilter(queue="other")),
        "time": delayq.count_dead(DeadFilter(died_from=times[0], died_to=times[-1])),
        "before": delayq.count_dead(DeadFilter(died_to=times[0] - dt.timedelta(seconds=1))),
    }
    assert counts == {
        "all": 7,
        "task": 3,
        "reason": 6,
        "exception": 2,
        "both": 1,
        "id": 1,
        "another queue": 0,
        "time": 7,
        "before": 0,
    }
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


def test_a_filter_that_leaves_nothing_out_must_be_meant(app: Celery, delayq: DelayQ) -> None:
    send(app, "plain", "done")
    add_dead_letter_ready(delayq)

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
    with pytest.raises(InvalidFilter, match=r"expected a DeadFilter"):
        delayq.purge_all(other)
    with pytest.raises(InvalidFilter, match=r"expected a DeadFilter"):
        delayq.count_dead(other)
    with pytest.raises(InvalidFilter, match=r"give one of them"):
        delayq.count_dead(DeadFilter(task="shop.mail"), queue="celery")
    dead_letters: Any = DeadFilter(task="shop.mail")
    with pytest.raises(InvalidFilter, match=r"expected a Filter"):
        delayq.cancel_all(dead_letters)


def test_what_is_no_time_and_no_rate_is_refused(app: Celery, delayq: DelayQ) -> None:
    send(app, "plain", "done")
    add_dead_letter_ready(delayq)

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


def test_with_a_rate_they_come_one_after_the_other(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    for n in range(250):
        send(app, "plain", "done", id=f"{n:03}")
    add_dead_letter_ready(delayq)
    before = scene.now()

    bulk = delayq.replay_all(DeadFilter(task="plain"), rate=10)

    assert bulk.outcomes == {Outcome.DONE: 250}
    entries = [*delayq.entries()]
    dues = [entry.due.timestamp() - before for entry in entries]
    assert len(dues) + len(scene.ready()) == 250
    assert len(scene.ready()) < 50
    steps = {round(later - sooner, 3) for sooner, later in pairwise(dues)}
    assert steps == {0.1}
    assert 24 < dues[-1] < 30
    assert [int(entry.id) for entry in entries] == [*range(250)][-len(entries) :]


def test_more_than_one_batch_is_replayed_with_its_progress(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    ids = [f"{n:03}" for n in range(450)]  # of those that died together the first by id
    for id in ids:
        send(app, "plain", "done", id=id)
    assert add_dead_letter_ready(delayq) == ids
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
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    for n in range(300):
        send(app, "plain", "done", id=f"{n}")
    add_dead_letter_ready(delayq)

    def add_dead_letter_again(bulk: Bulk) -> None:
        scene.wait_past(scene.now() + 0.002)
        add_dead_letter_ready(delayq)

    bulk = delayq.replay_all(DeadFilter(), everything=True, progress=add_dead_letter_again)

    assert bulk.outcomes == {Outcome.DONE: 300}


@pytest.mark.parametrize("purging", [False, True])
def test_dead_letters_that_four_replay_at_once_run_once(
    purging: bool, app: Celery, delayq: DelayQ, scene: RetryScene, delayq_worker: StartWorker
) -> None:
    number = 600
    for n in range(number):
        send(app, "plain", "done", id=f"{n}")
    add_dead_letter_ready(delayq)

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
    start(delayq_worker, "threads", concurrency=4, conf={"worker_prefetch_multiplier": 20})
    scene.wait_empty()
    assert Counter(scene.runs("id")) == waiting


def test_dead_letters_of_a_queue_with_a_layout_of_its_own_go_to_its_lists(
    app: Celery, delayq: DelayQ, scene: RetryScene
) -> None:
    send(app, "plain", "done", priority=9)
    add_dead_letter_ready(delayq)
    scene.client.hset("delayq:queues", "other", Layout(":", (0, 5)).text)

    delayq.replay("a", queue="other")

    assert scene.ready("other:5") == ["a"]
