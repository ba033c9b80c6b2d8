"""Messages that would end each worker that takes them: refused, else dead letters in the end."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Filter, Outcome
from celery_delayq.errors import InvalidOption
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.testing import FAST_START, WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.lease_tasks import held
from tests.integration.conftest import MakeApp

StartWorker = Callable[..., WorkerProcess]

#: Neither a pool's child nor a timer is needed to see most of it.
POOLS = ["prefork", "threads", "solo"]

#: Those with which Celery's main process cannot set a timer.
BAD_LIMITS: list[Any] = [
    "1h",
    {"hard": 1, "soft": 2},
    [1],
    [1, 2, 3],
    *([bad, None] for bad in ("1h", "5", [1], {"a": 1}, -1, 10**400, float("inf"))),
    *([None, bad] for bad in ("1h", -0.5, float("nan"))),
]

#: What JSON may hold and a header should not.
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 5, 1.5, float("nan"), float("inf"), 10**400),
    *("", "1h", "5", "x" * 300, "\ud800", "a\0b"),
    *([], [1], [1, 2], ["1h", None], [[1]], [None], [{"a": 1}], {}, {"a": 1}),
]


def policed(policy: Any, key: Any, **more: Any) -> dict[str, Any]:
    """Return what there is of a unique key."""
    return {"policy": policy, "key": key, **more}


#: Values of our own property, by name, that scripts cannot read.
BAD_VALUES: dict[str, list[Any]] = {
    "label": [None, 5, [], "", "a", "a b x -", "a b 0 k", "a b 0 -\n", "\ud800 b 0 -"],
    "message_id": [None, 5, "", "a b", "ü"],
    "skip_after": [None, "1", -1, 1.5, float("inf"), 10**400, True],
    "unique": [
        *(None, 5, "sx", [], {}, {"key": "sx"}, {"policy": "replace"}),
        *(policed("replace", key) for key in ("", "s", "x", "s x", "d\n", 5)),
        *(policed(policy, "sx") for policy in ("", "ruin", 5)),
        *(policed("later", "sx", max_wait=wait) for wait in ("1", -1, 1e9)),
    ],
}
BAD_OWN = [{name: value} for name, values in BAD_VALUES.items() for value in values]

HEADERS = (
    *("lang", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit"),
    *("root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "id", "task"),
    *("replaced_task_nesting", "stamped_headers", "stamps", "hostname", "properties", "utc"),
    *("delivery_info", "reply_to", "correlation_id", "groups", "is_eager", "callbacks", "errbacks"),
    *("chord", "chain", "args", "kwargs", "called_directly", "headers", "taskset", "compression"),
)
PROPERTIES = ("priority", "reply_to", "correlation_id", "delivery_mode", "delayq")
EMBEDDED = ("callbacks", "errbacks", "chain", "chord")


def message(task: str, where: str = "", value: Any = None) -> bytes:
    """Return a task message as it stands in a ready list, with a *value* put somewhere in it."""
    id = f"{where}-{uuid.uuid4()}"
    headers: dict[str, Any] = {
        "lang": "py",
        "task": task,
        "id": id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": id,
        "parent_id": None,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "origin": "producer",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties: dict[str, Any] = {
        "correlation_id": id,
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    embedded: dict[str, Any] = dict.fromkeys(EMBEDDED)
    parts = {"header": headers, "property": properties, "embedded": embedded}
    if where:
        kind, _, name = where.partition(" ")
        parts[kind][name] = value
    return _packed([[], {}, embedded], headers, properties)


def old_message(task: str, timelimit: Any) -> bytes:
    """Return a message of Celery's protocol 1, where all stands in the body."""
    id = str(uuid.uuid4())
    body = {"task": task, "id": id, "args": [], "kwargs": {}, "retries": 0, "timelimit": timelimit}
    properties = {
        "correlation_id": id,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    return _packed(body, {}, properties)


def _packed(body: Any, headers: Any, properties: Any) -> bytes:
    whole = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": properties,
    }
    return json.dumps(whole).encode()


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


def start(delayq_worker: StartWorker, pool: str, **conf: Any) -> WorkerProcess:
    return delayq_worker(
        "tests.apps.header_tasks:app",
        pool=pool,
        concurrency=1,
        extra_args=FAST_START,
        env={"HEADER_SETTINGS": json.dumps(conf)},
        wait_ready=False,
    )


def dead_letters(app: Celery) -> dict[bytes, str]:
    """Return the reasons of the dead letters by message."""
    found = list(DelayQ.of(app).store.dead_letters.all("celery"))
    by_message = {dead_letter.message: dead_letter.reason for dead_letter in found}
    assert len(by_message) == len(found), "each is dead-lettered once"
    return by_message


def wait_for_all(worker: WorkerProcess, redis: RedisUnderTest) -> None:
    """Wait until nothing is ready or held; what is due in years stays."""

    def left() -> int:
        return ready(redis) + sum(held(redis.client).values())

    wait_until(
        lambda: not left() or not worker.running, 300, lambda: f"{left()} to go:\n{worker.log}"
    )
    assert worker.running, worker.log


def ready(redis: RedisUnderTest) -> int:
    """Return how many messages are ready, of any priority."""
    keys = [b"celery", *redis.client.keys("celery\x06*")]
    return sum(redis.client.llen(key) for key in keys)


def push(redis: RedisUnderTest, messages: Iterable[bytes]) -> None:
    for one in messages:
        redis.client.lpush("celery", one)


# -- at the call

#: Options, and what is said of them.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"time_limit": "1h"}, "time_limit='1h': expected a number of seconds above 0"),
    ({"soft_time_limit": -1}, "soft_time_limit=-1: expected a number of seconds above 0"),
    ({"time_limit": float("nan")}, "time_limit=nan: expected a number of seconds"),
    ({"expires": "soon"}, "expires='soon': expected a number of seconds, a datetime"),
    ({"retries": "two"}, "retries='two': expected a whole number from 0"),
    ({"retries": -1}, "retries=-1: expected a whole number from 0"),
    ({"priority": "high"}, "priority='high': expected a whole number, 0 to 9"),
]
ACCEPTED: list[dict[str, Any]] = [
    {"time_limit": 3600, "soft_time_limit": 0.5},
    {"time_limit": 0},
    {"expires": "2030-01-31T09:00:00+00:00"},
    {"expires": 60.5},
    {"retries": 3},
    {"priority": "3"},
]


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_call_that_would_end_workers_is_refused(
    protocol: int, make_app: MakeApp, delayq_redis: RedisUnderTest
) -> None:
    add = make_app(task_protocol=protocol).tasks["tasks.add"]

    for options, says in REFUSED:
        with pytest.raises(InvalidOption) as refused:
            add.apply_async((1, 2), **options)
        assert says in str(refused.value)
    assert ready(delayq_redis) == 0

    for options in ACCEPTED:
        add.apply_async((1, 2), **options)
    assert ready(delayq_redis) == len(ACCEPTED)


# -- on hand-out


def test_a_bad_time_limit_is_a_dead_letter_and_ends_no_worker(
    app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    bad = [message("header.ok", "header timelimit", limits) for limits in BAD_LIMITS]
    bad += [message("header.rated", "header timelimit", ["1h", None])]
    bad += [old_message("header.ok", ["1h", None])]
    good = [message("header.ok", "header timelimit", limits) for limits in ([60, 30], [], None)]
    push(delayq_redis, [*bad, *good])
    worker = start(delayq_worker, "prefork")

    wait_for_all(worker, delayq_redis)

    found = dead_letters(app)
    assert found.keys() == set(bad)
    assert all("limit=" in reason and "expected" in reason for reason in found.values()), found
    ran = {id.decode() for id in delayq_redis.client.lrange("ran", 0, -1)}
    assert ran == {json.loads(one)["headers"]["id"] for one in good}
    assert DelayQ.of(app).store.dead_letters.get("celery", json.loads(bad[0])["headers"]["id"])


def test_a_text_that_no_key_can_hold_is_a_dead_letter_on_arrival(
    app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    later = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    bad = []
    for name in ("id", "task", "shadow", "root_id", "parent_id", "group"):
        for eta in (None, later):
            one = json.loads(message("header.ok", f"header {name}", "a\ud800b"))
            one["headers"]["eta"] = eta
            bad.append(json.dumps(one).encode())
    good = message("header.ok")
    push(delayq_redis, [*bad, good])
    worker = start(delayq_worker, "threads")
    wait_for_all(worker, delayq_redis)

    DelayQ.of(app).run_all_now(Filter(), everything=True)
    wait_for_all(worker, delayq_redis)

    assert len(dead_letters(app)) == len(bad)
    names = {(one.task, one.task_id) for one in DelayQ.of(app).dead_letters()}
    assert names == {
        (headers["task"], headers["id"]) for one in bad for headers in [json.loads(one)["headers"]]
    }
    ran = [id.decode() for id in delayq_redis.client.lrange("ran", 0, -1)]
    assert ran == [json.loads(good)["headers"]["id"]]


def test_what_cannot_be_decompressed_is_a_dead_letter(
    app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    """A producer compresses in a way that the worker has no package for."""
    bad = [message("header.ok", "header compression", how) for how in ("new", "zlib", True, [1])]
    good = message("header.ok")
    push(delayq_redis, [*bad, good])
    worker = start(delayq_worker, "threads")

    wait_for_all(worker, delayq_redis)

    found = dead_letters(app)
    assert found.keys() == set(bad)
    assert {reason.partition(":")[0] for reason in found.values()} == {"undecodable message"}
    ran = [id.decode() for id in delayq_redis.client.lrange("ran", 0, -1)]
    assert ran == [json.loads(good)["headers"]["id"]]


def test_our_own_data_made_up_by_others_is_a_dead_letter_that_holds_nothing_up(
    app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    later = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    bad = []
    for own in BAD_OWN:
        one = json.loads(message("header.ok", "property delayq", own))
        one["headers"]["eta"] = later
        bad.append(json.dumps(one).encode())
    good = [message("header.ok"), message("header.ok")]
    push(delayq_redis, [good[0], *bad, good[1]])
    worker = start(delayq_worker, "threads")

    wait_for_all(worker, delayq_redis)

    assert dead_letters(app).keys() == set(bad)
    assert delayq_redis.client.zcard("{celery}:due") == 0
    # None of them stops the replay of the others. A replay has a label of its own.
    renewed = sum(not own.keys().isdisjoint(("message_id", "label")) for own in BAD_OWN)
    replayed = DelayQ.of(app).replay_all(DeadFilter(), everything=True)
    assert replayed.outcomes == {Outcome.UNREADABLE: len(bad) - renewed, Outcome.DONE: renewed}
    wait_for_all(worker, delayq_redis)
    ran = [id.decode() for id in delayq_redis.client.lrange("ran", 0, -1)]
    assert len(ran) == len(good) + renewed


@pytest.mark.full
@pytest.mark.parametrize("task", ["header.ok", "header.fails", "header.rejects", "header.rated"])
@pytest.mark.parametrize("pool", POOLS)
def test_no_header_ends_a_worker(
    pool: str, task: str, app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    places = [
        *(f"header {name}" for name in HEADERS),
        *(f"property {name}" for name in PROPERTIES),
        *(f"embedded {name}" for name in EMBEDDED),
    ]
    neighbours = []
    for where in places:
        neighbours.append(message("header.ok"))
        push(delayq_redis, (message(task, where, value) for value in VALUES))
        push(delayq_redis, neighbours[-1:])
    worker = start(delayq_worker, pool)

    wait_for_all(worker, delayq_redis)

    ran = [id.decode() for id in delayq_redis.client.lrange("ran", 0, -1)]
    ids = [json.loads(one)["headers"]["id"] for one in neighbours]
    assert [ran.count(id) for id in ids] == [1] * len(ids)
    assert worker.log.count(" ready.") == 1


# -- what nobody has thought of


@pytest.mark.parametrize("pool", POOLS)
def test_what_ends_each_worker_is_a_dead_letter_in_the_end_and_its_neighbours_run(
    pool: str, app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    client = delayq_redis.client
    poison = message("header.poison")
    before, after = message("header.ok"), message("header.ok")
    options = {"delayq": {"max_deliveries": 2}}
    push(delayq_redis, [before, poison, after])
    ended = 0

    while not dead_letters(app):
        worker = start(delayq_worker, pool, broker_transport_options=options)
        worker.wait()
        ended += 1
        assert "Unrecoverable error: RuntimeError" in worker.log
    assert ended == 3
    worker = start(delayq_worker, pool, broker_transport_options=options)
    wait_for_all(worker, delayq_redis)

    reason = "its worker died 3 times, the last time with nothing else"
    assert dead_letters(app) == {poison: reason}
    ran = {id.decode() for id in client.lrange("ran", 0, -1)}
    assert ran == {json.loads(one)["headers"]["id"] for one in (before, after)}
    assert not client.exists("{celery}:deliveries", "{celery}:quarantined")


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_is_told_to_stop_counts_no_death(
    pool: str, app: Celery, delayq_worker: StartWorker, delayq_redis: RedisUnderTest
) -> None:
    client = delayq_redis.client
    # Celery itself holds these in memory: `min_delay` leaves them to it.
    options = {"delayq": {"min_delay": 60}}
    eta = (datetime.now(timezone.utc) + timedelta(seconds=55)).isoformat()
    push(delayq_redis, (message("header.ok", "header eta", eta) for _ in range(3)))
    worker = start(delayq_worker, pool, broker_transport_options=options)
    wait_until(lambda: sum(held(client).values()) == 3, 60, "all are held")

    worker.stop()

    assert client.llen("celery") == 3
    assert set(client.hvals("{celery}:deliveries")) == {b"0 0 1"}
