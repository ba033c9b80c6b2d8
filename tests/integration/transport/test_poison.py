"""Messages that would end each worker that takes them: refused, else dead letters in the end."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import product
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Filter, Outcome
from celery_delayq.errors import InvalidOption
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.lease_tasks import held
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.dead_letters import packed, reasons
from tests.support.scene import AppScene, StartWorker

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


#: Makes messages as Celery does; without the extension, which would refuse them.
MAKER = Celery("poison", set_as_current=False).amqp


def message(task: str, where: str = "", value: Any = None) -> bytes:
    """Return a task message as it stands in a ready list, with a *value* put somewhere in it."""
    id = f"{where}-{uuid.uuid4()}"
    headers, properties, body, _ = MAKER.as_task_v2(id, task)
    properties |= added_by_kombu()
    if where:
        kind, _, name = where.partition(" ")
        {"header": headers, "property": properties, "embedded": body[2]}[kind][name] = value
    return packed(body, headers, properties)


def old_message(task: str, time_limit: Any) -> bytes:
    """Return a message of Celery's protocol 1, where all stands in the body."""
    headers, properties, body, _ = MAKER.as_task_v1(str(uuid.uuid4()), task, time_limit=time_limit)
    return packed(body, headers, properties | added_by_kombu())


def added_by_kombu() -> dict[str, Any]:
    """Return the properties that Celery leaves to kombu."""
    return {
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "celery"},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }


#: Tasks that end in different ways, and the pool on which `make test-full` runs each of them.
TELLING = {
    "header.ok": "solo",
    "header.fails": "threads",
    "header.rejects": "prefork",
    "header.rated": "prefork",
}


def pools_and_tasks() -> Iterator[Any]:
    """Yield each task on each pool: the telling ones for `make test-full`, the rest for nightly."""
    for pool, task in product(POOLS, TELLING):
        mark = pytest.mark.full if pool == TELLING[task] else pytest.mark.nightly
        yield pytest.param(pool, task, marks=mark)


class Poisoned(AppScene):
    """Starts workers, and gives them messages that nobody should send."""

    module, prefetch = "header_tasks", 4

    def push(self, messages: Iterable[bytes]) -> None:
        """Send messages as they are."""
        for one in messages:
            self.client.lpush("celery", one)

    def count_ready(self) -> int:
        """Return how many messages are ready, of any priority."""
        return sum(self.client.llen(key) for key in [b"celery", *self.client.keys("celery\x06*")])

    def dead_letters(self) -> dict[bytes, str]:
        """Return the reasons of the dead letters by message."""
        return reasons(DelayQ.of(self.app))

    def ran(self) -> list[str]:
        """Return the ids of the tasks that ran."""
        return [id.decode() for id in self.client.lrange("ran", 0, -1)]

    def run_all(self, pool: str, **options: Any) -> WorkerProcess:
        """Start a worker, and wait until nothing is ready or held."""
        worker = self.start(pool, wait_ready=False, **options)
        self.wait_all(worker)
        return worker

    def wait_all(self, worker: WorkerProcess) -> None:
        """Wait until nothing is ready or held; what is due in years stays."""

        def left() -> int:
            return self.count_ready() + sum(held(self.client).values())

        wait_until(
            lambda: not left() or not worker.running, 300, lambda: f"{left()} to go:\n{worker.log}"
        )
        assert worker.running, worker.log


@pytest.fixture
def scene(app: Celery, delayq_redis: RedisUnderTest, delayq_worker: StartWorker) -> Poisoned:
    return Poisoned(delayq_redis, app, delayq_worker)


def id_of(message: bytes) -> str:
    return str(json.loads(message)["headers"]["id"])


# -- at the call

#: Options, and what is said of them.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"time_limit": "1h"}, "time_limit='1h': expected a number of seconds above 0"),
    ({"soft_time_limit": -1}, "soft_time_limit=-1: expected a number of seconds above 0"),
    ({"time_limit": float("nan")}, "time_limit=nan: expected a number of seconds"),
    ({"expires": "soon"}, "expires='soon': expected a number of seconds, a datetime"),
    *(({"expires": bad}, f"expires={bad!r}: expected a number") for bad in (1e12, 10**400, -1e12)),
    ({"expires": float("nan")}, "expires=nan: expected a number of seconds"),
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
    protocol: int, make_app: MakeApp, scene: Poisoned
) -> None:
    add = make_app(task_protocol=protocol).tasks["tasks.add"]

    for options, says in REFUSED:
        with pytest.raises(InvalidOption) as refused:
            add.apply_async((1, 2), **options)
        assert says in str(refused.value)
    assert scene.count_ready() == 0

    for options in ACCEPTED:
        add.apply_async((1, 2), **options)
    assert scene.count_ready() == len(ACCEPTED)


# -- on hand-out


def test_a_bad_time_limit_is_a_dead_letter_and_ends_no_worker(
    delayq: DelayQ, scene: Poisoned
) -> None:
    bad = [message("header.ok", "header timelimit", limits) for limits in BAD_LIMITS]
    bad += [message("header.rated", "header timelimit", ["1h", None])]
    bad += [old_message("header.ok", "1h")]
    good = [message("header.ok", "header timelimit", limits) for limits in ([60, 30], [], None)]
    scene.push([*bad, *good])

    scene.run_all("prefork")

    found = scene.dead_letters()
    assert found.keys() == set(bad)
    assert all("limit=" in reason and "expected" in reason for reason in found.values()), found
    assert sorted(scene.ran()) == sorted(map(id_of, good))
    assert delayq.store.dead_letters.get("celery", id_of(bad[0]))


def with_eta(message: bytes, seconds: float) -> bytes:
    """Return a message that is due in *seconds*."""
    whole = json.loads(message)
    eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    whole["headers"]["eta"] = eta.isoformat()
    return json.dumps(whole).encode()


def test_a_text_that_no_key_can_hold_is_a_dead_letter_on_arrival(
    delayq: DelayQ, scene: Poisoned
) -> None:
    names = ("id", "task", "shadow", "root_id", "parent_id", "group")
    bad = [message("header.ok", f"header {name}", "a\ud800b") for name in names]
    bad += [with_eta(one, 3600) for one in bad]
    good = message("header.ok")
    scene.push([*bad, good])
    worker = scene.run_all("threads")

    delayq.run_all_now(Filter(), everything=True)
    scene.wait_all(worker)

    assert len(scene.dead_letters()) == len(bad)
    names_of_bad = {(h["task"], h["id"]) for h in (json.loads(one)["headers"] for one in bad)}
    assert {(one.task, one.task_id) for one in delayq.dead_letters()} == names_of_bad
    assert scene.ran() == [id_of(good)]


def test_what_cannot_be_decompressed_is_a_dead_letter(scene: Poisoned) -> None:
    """A producer compresses in a way that the worker has no package for."""
    bad = [message("header.ok", "header compression", how) for how in ("new", "zlib", True, [1])]
    good = message("header.ok")
    scene.push([*bad, good])

    scene.run_all("threads")

    found = scene.dead_letters()
    assert found.keys() == set(bad)
    assert {reason.partition(":")[0] for reason in found.values()} == {"undecodable message"}
    assert scene.ran() == [id_of(good)]


def test_our_own_data_made_up_by_others_is_a_dead_letter_that_holds_nothing_up(
    delayq: DelayQ, scene: Poisoned
) -> None:
    bad = [with_eta(message("header.ok", "property delayq", own), 3600) for own in BAD_OWN]
    good = [message("header.ok"), message("header.ok")]
    scene.push([good[0], *bad, good[1]])

    worker = scene.run_all("threads")

    assert scene.dead_letters().keys() == set(bad)
    assert scene.client.zcard("{celery}:due") == 0
    # None of them stops the replay of the others. A replay has a label of its own.
    renewed = sum(not own.keys().isdisjoint(("message_id", "label")) for own in BAD_OWN)
    replayed = delayq.replay_all(DeadFilter(), everything=True)
    assert replayed.outcomes == {Outcome.UNREADABLE: len(bad) - renewed, Outcome.DONE: renewed}
    scene.wait_all(worker)
    assert len(scene.ran()) == len(good) + renewed


@pytest.mark.parametrize(("pool", "task"), [*pools_and_tasks()])
def test_no_header_ends_a_worker(pool: str, task: str, scene: Poisoned) -> None:
    places = [
        *(f"header {name}" for name in HEADERS),
        *(f"property {name}" for name in PROPERTIES),
        *(f"embedded {name}" for name in EMBEDDED),
    ]
    neighbours = [message("header.ok") for _ in places]
    for where, neighbour in zip(places, neighbours, strict=True):
        scene.push([*(message(task, where, value) for value in VALUES), neighbour])

    worker = scene.run_all(pool)

    ran = scene.ran()
    assert [ran.count(id_of(one)) for one in neighbours] == [1] * len(neighbours)
    assert worker.log.count(" ready.") == 1


# -- what nobody has thought of


@pytest.mark.parametrize("pool", POOLS)
def test_what_ends_each_worker_is_a_dead_letter_in_the_end_and_its_neighbours_run(
    pool: str, scene: Poisoned
) -> None:
    poison, *neighbours = map(message, ("header.poison", "header.ok", "header.ok"))
    scene.push([neighbours[0], poison, neighbours[1]])
    ended = 0

    while not scene.dead_letters():
        worker = scene.start(pool, wait_ready=False, delayq={"max_deliveries": 2})
        worker.wait()
        ended += 1
        assert "Unrecoverable error: MemoryError" in worker.log
    assert ended == 3
    scene.run_all(pool, delayq={"max_deliveries": 2})

    reason = "its worker died 3 times, the last time with no other message"
    assert scene.dead_letters() == {poison: reason}
    assert set(scene.ran()) == set(map(id_of, neighbours))
    assert not scene.client.exists("{celery}:deliveries", "{celery}:quarantined")


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_is_stopped_counts_no_death(pool: str, scene: Poisoned) -> None:
    scene.push(with_eta(message("header.ok"), 55) for _ in range(3))
    # Celery itself holds these in memory: `min_delay` leaves them to it.
    worker = scene.start(pool, delayq={"min_delay": 60})
    wait_until(lambda: sum(held(scene.client).values()) == 3, TIMEOUT, "all are held")

    worker.stop()

    assert scene.client.llen("celery") == 3
    assert set(scene.client.hvals("{celery}:deliveries")) == {b"0 0 1"}
