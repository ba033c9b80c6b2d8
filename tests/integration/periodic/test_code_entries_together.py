"""Versions of the code that write their periodic entries at the same time, or die meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from multiprocessing import get_context
from typing import Any

import pytest
from celery import Celery
from greenlet import greenlet
from kombu import pools

from celery_delayq import DelayQ
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.store import periodic as periodic_store
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.support import TIMEOUT
from tests.support.keyspace import snapshot

pytestmark = pytest.mark.full

DEPLOYS = "delayq:code_versions"

#: With a start records hold nothing of when they were written: whole states can be compared.
TASK = {"task": "note", "schedule": 600, "start": datetime(2100, 1, 1, tzinfo=timezone.utc)}


def code(version: int, size: int = 3) -> dict[str, Any]:
    """Return what a version has in its code.

    Some entries in all versions, some as each version has it, some in one only.
    """
    versioned = {f"changed-{n}": {**TASK, "args": [version]} for n in range(size)}
    own = {f"of-{version}-{n}": TASK for n in range(size)}
    same = {f"{what}-{n}": TASK for n in range(size) for what in ("same", "updated", "removed")}
    twos = {} if version == 1 else {f"not-in-1-{n}": TASK for n in range(size)}
    return {**versioned, **own, **same, **twos}


def app_of(url: str, schedule: dict[str, Any]) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    DelayQ(app)
    app.conf.beat_schedule = schedule
    return app


class Version:
    """The worker of one version of the code: its part about entries."""

    def __init__(self, url: str, version: int, size: int) -> None:
        self.app = app_of(url, code(version, size))
        self.start()

    def start(self) -> None:
        """Start, as another process."""
        self.deployment = Deployment(self.app)

    @property
    def store(self) -> Store:
        return DelayQ.of(self.app).store

    def look(self, store: Store | None = None) -> None:
        """Let it be time to say again that it is about."""
        self.deployment._kept = float("-inf")
        self.deployment.keep(Stores.single(store or self.store))


class Scene:
    """A database in which version 0 has been written, and workers of it and of later ones."""

    def __init__(self, redis: RedisUnderTest, url: str, size: int = 3) -> None:
        self._redis = redis
        self.versions = [Version(url, version, size) for version in range(3)]
        before = self.versions[0]
        before.look()
        periodic = DelayQ.of(before.app).periodic
        for n in range(size):
            periodic.update(f"updated-{n}", args=["mine"])
            periodic.remove(f"removed-{n}")
        client = redis.client
        self._dumps = {key: client.dump(key) or b"" for key in client.keys("*")}
        #: Since when version 0 is known.
        self.since = before.deployment._since or 0

    def reset(self) -> list[Version]:
        """Make all as it was; return the versions, of which none has started yet."""
        self._redis.client.flushdb()
        for key, dump in self._dumps.items():
            self._redis.client.restore(key, 0, dump)
        for each in self.versions:
            each.start()
        return self.versions

    def state(self) -> dict[str, Any]:
        """Return the whole database, without who was about, and when."""
        found = snapshot(self._redis.client)
        deploys = found[DEPLOYS]
        found[DEPLOYS] = deploys[b"code shop\0"], json.loads(deploys[b"code shop\0\0"])
        return found

    def alone(self, version: int) -> dict[str, Any]:
        """Return the state when one version alone has written its entries."""
        self.reset()[version].look()
        return self.state()

    def calls_of(self, version: int) -> int:
        """Return how many script calls it takes to write a version."""
        calls: list[None] = []
        worker = self.reset()[version]
        worker.look(watched(worker, lambda: calls.append(None)))
        return len(calls)


MakeScene = Callable[..., Scene]


@pytest.fixture
def make_scene(delayq_redis: RedisUnderTest, delayq_broker_url: str) -> Iterator[MakeScene]:
    made: list[Scene] = []

    def make(size: int = 3) -> Scene:
        made.append(Scene(delayq_redis, delayq_broker_url, size))
        return made[-1]

    yield make
    for version in (version for scene in made for version in scene.versions):
        DelayQ.of(version.app).close()
        version.app.close()
    pools.reset()


@pytest.fixture
def scene(make_scene: MakeScene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """One in which a version is written by many calls."""
    monkeypatch.setattr(periodic_store, "WRITE_BATCH", 4)
    return make_scene()


class Killed(Exception):
    """What stands for the death of a process."""


class Watched(Store):
    """A store that does something before each script call."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def run(self, call: Call) -> Any:
        self.before()
        return super().run(call)


def watched(version: Version, before: Callable[[], object]) -> Watched:
    store = version.store
    other = Watched(store.client, store.keys, store.layout)
    other.before = before
    return other


def at_call(number: int, do: Callable[[], object]) -> Callable[[], None]:
    """Return what does something at its call of that number, from 0 on."""
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            do()

    return count


def look_in_turns(first: Version, at: int, second: Version, then: int) -> None:
    """Let the first look until its call *at*, the second until *then*, and both to their ends."""

    def look(worker: Version, call: int, other: Version) -> None:
        worker.look(watched(worker, at_call(call, lambda: looks[other].switch())))

    looks = {
        first: greenlet(lambda: look(first, at, second)),
        second: greenlet(lambda: look(second, then, first)),
    }
    looks[first].switch()
    for each in looks.values():
        if not each.dead:
            each.switch()


def test_what_a_version_writes(scene: Scene) -> None:
    """What the others are compared with."""
    for version in (1, 2):
        keys = scene.alone(version)
        names = {name.decode() for name in keys["delayq:periodic"]}

        assert names == {name for name in code(version) if not name.startswith("removed")}
        assert {name.decode() for name in keys["delayq:periodic_at"]} == names
        mark, definition_hashes = keys[DEPLOYS]
        assert mark.decode() == scene.versions[version].deployment.version
        assert definition_hashes.keys() == code(version).keys()
        assert b'"mine"' in keys["delayq:periodic"][b"updated-0"]


def test_an_older_version_that_writes_while_a_newer_one_does(scene: Scene) -> None:
    """At any call of the older one the newer one starts; at any of its calls the older ends."""
    expected = scene.alone(2)
    first, second = scene.calls_of(1), scene.calls_of(2)
    assert first > 8 < second

    for at in range(first):
        for then in range(second + 1):
            _, older, newer = scene.reset()
            # So that it is the older one also where it says so later.
            older.deployment._since = scene.since + 1

            look_in_turns(older, at, newer, then)
            newer.look()
            older.look()

            assert scene.state() == expected, (at, then)


def test_one_that_is_overtaken_by_another_of_its_version_leaves_what_calls_change_then(
    scene: Scene,
) -> None:
    def overtake(slow: Version) -> None:
        Deployment(slow.app).keep(Stores.single(slow.store))
        DelayQ.of(slow.app).periodic.update("changed-0", args=["mine"])

    for at in range(scene.calls_of(1)):
        _, slow, _ = scene.reset()

        slow.look(watched(slow, at_call(at, partial(overtake, slow))))

        found = DelayQ.of(slow.app).periodic.get("changed-0")
        assert found
        assert found.definition.args == ("mine",), at


def die() -> None:
    raise Killed


@pytest.mark.parametrize("then", [0, 1, 2])
def test_one_that_dies_while_it_writes(
    then: int, scene: Scene, delayq_redis: RedisUnderTest
) -> None:
    """The next one, of its version or of a newer one, writes all of it.

    When it is not seen again, the version that was there undoes what it wrote.
    """
    expected = scene.alone(then)

    for at in range(scene.calls_of(1)):
        _, dying, _ = scene.reset()
        with suppress(Killed):
            dying.look(watched(dying, at_call(at, die)))
        if then == 0:
            delayq_redis.client.hdel(DEPLOYS, f"code shop\0{dying.deployment.version}")
        dying.start()

        scene.versions[then].look()

        assert scene.state() == expected, at


def start_with_others(url: str, schedule: dict[str, Any]) -> None:
    """Write the entries of a version when all are there; run by a process of its own."""
    app = app_of(url, schedule)
    store = DelayQ.of(app).store
    store.client.rpush("there", "")
    store.client.blpop("go", TIMEOUT)
    Deployment(app).keep(Stores.single(store))


def test_processes_of_two_versions_that_start_at_the_same_time(
    make_scene: MakeScene, delayq_redis: RedisUnderTest, delayq_broker_url: str
) -> None:
    size = 120
    scene = make_scene(size)
    expected = [scene.alone(version) for version in range(3)]
    scene.reset()
    context = get_context("spawn")
    workers = [
        context.Process(target=start_with_others, args=(delayq_broker_url, code(version, size)))
        for version in (1, 1, 2, 2)
    ]
    client = delayq_redis.client
    try:
        for worker in workers:
            worker.start()
        wait_until(lambda: client.llen("there") == len(workers), TIMEOUT, "all are there")
        client.delete("there")
        client.rpush("go", *[""] * len(workers))
        for worker in workers:
            worker.join(TIMEOUT)
            assert worker.exitcode == 0
    finally:
        for worker in workers:
            worker.kill()

    # The next look of each.
    for each in scene.versions:
        each.look()
    newest = max(range(3), key=lambda version: scene.versions[version].deployment._since or 0)
    scene.versions[newest].look()

    assert newest > 0
    assert scene.state() == expected[newest]
