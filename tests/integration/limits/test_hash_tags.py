"""Two people who change a limit at once on a Redis Cluster: each interleaving of their calls, each
with one of them killed. All hash tags end with the same.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from celery import Celery
from greenlet import getcurrent, greenlet
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.limits.client import TaskLimits
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.session import Session
from celery_delayq.store.store import Store
from celery_delayq.store.stores import Stores
from celery_delayq.store.task_limits import LimitStore, StoredLimit
from tests.integration.conftest import MakeApp

pytestmark = pytest.mark.full

#: The first hash tag decides; two others follow it in the same way, so one of them is enough.
TAGS = ("first", "other")
CODE = Limit("api", rate="100/m", burst=20, concurrency=8)
#: What people had set before; "former rate" sets the same again.
FORMER_RATE = "50/m"

Call = Callable[["Scene"], object]


def _nothing() -> None:
    """Stand for any task."""


def setting(**options: Any) -> Call:
    return lambda scene: scene.limits.set("api", **options)


def unset(scene: Scene) -> object:
    return scene.limits.unset("api")


def unset_code(scene: Scene) -> object:
    return scene.limits_of_newer_code.unset("api", code=True)


CALLS: dict[str, Call] = {
    "rate": setting(rate="7/m"),
    "former rate": setting(rate=FORMER_RATE),
    "concurrency": setting(concurrency=3),
    "off": setting(off=True),
    "unset": unset,
    "unset code": unset_code,
}

#: A person whose call goes on after that of another one, and the other.
PAIRS = [
    ("rate", "concurrency"),
    ("rate", "former rate"),
    ("concurrency", "unset"),
    ("unset", "rate"),
    ("off", "unset"),
    ("unset code", "rate"),
    ("rate", "unset code"),
]


class Scene:
    """Hash tags in one Redis, with a limit of the code that people have changed."""

    def __init__(self, redis: Redis, stores: Stores, limits: TaskLimits, newer: TaskLimits) -> None:
        self._redis, self._stores = redis, stores
        self.limits = limits
        #: Those of an app whose code does not have the limit any more.
        self.limits_of_newer_code = newer

        for store in stores:
            store.task_limits.announce({"api": CODE.definition.text})
        self.limits.set("api", rate=FORMER_RATE)
        self._first = {key: redis.dump(key) for key in redis.keys("*")}

    def reset(self) -> None:
        with self._redis.pipeline() as pipe:
            pipe.flushdb()
            for key, value in self._first.items():
                pipe.restore(key, 0, value)
            pipe.execute()

    def stored(self) -> list[StoredLimit]:
        return [store.task_limits.stored("api") for store in self._stores]

    def outcomes(self, one: Call, other: Call) -> set[StoredLimit]:
        """Return what is stored after one call and then the other, in both orders."""
        found = set()
        for calls in ((one, other), (other, one)):
            self.reset()
            for call in calls:
                call(self)
            found.update(self.stored())
        return found

    def person(self, call: Call) -> greenlet:
        """Return one who waits before each call of Redis that concerns definitions."""
        return greenlet(lambda: call(self))

    def count_steps(self, call: Call) -> int:
        self.reset()
        person, steps = self.person(call), 0
        while not go(person, 1):
            steps += 1
        return steps


def go(person: greenlet, steps: int | None = None) -> bool:
    """Let a person do some calls of Redis, or all. Return whether the person is done."""
    while not person.dead and steps != 0:
        person.switch()
        steps = None if steps is None else steps - 1
    return bool(person.dead)


@pytest.fixture
def scene(
    app: Celery,
    delayq: DelayQ,
    redis: Redis,
    make_app: MakeApp,
    monkeypatch: pytest.MonkeyPatch,
) -> Scene:
    app.task(name="shop.pay", limit=CODE, acks_late=True, shared=False)(_nothing)
    stores = Stores({tag: Store(redis, Keys().of_tag(tag), Layout()) for tag in TAGS})
    test = getcurrent()

    def with_a_turn(method: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_call(*args: Any) -> Any:
            if getcurrent() is not test:
                test.switch()
            return method(*args)

        return wait_and_call

    for name in ("stored", "change"):
        monkeypatch.setattr(LimitStore, name, with_a_turn(getattr(LimitStore, name)))
    monkeypatch.setattr(Session, "new_stores", lambda _: stores)
    return Scene(redis, stores, delayq.limits, DelayQ.of(make_app()).limits)


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("killed", [None, "one", "other"])
def test_all_hash_tags_have_the_same_in_the_end(
    one: str, other: str, killed: str | None, scene: Scene
) -> None:
    expected = scene.outcomes(CALLS[one], CALLS[other])
    most, most_of_other = (scene.count_steps(CALLS[each]) for each in (one, other))

    for at, then, on in product(range(most), range(1, most_of_other + 1), range(most)):
        if at + on > most or (killed == "other" and on):
            continue  # the same as another case
        scene.reset()
        first, second = scene.person(CALLS[one]), scene.person(CALLS[other])
        go(first, at)
        go(second, then)
        go(first, on)
        if killed != "other":
            go(second)
        if killed != "one":
            go(first)
        if killed is not None:
            # Whoever changes the limit next completes what was begun.
            scene.limits.set("api", burst=2)

        stored = scene.stored()
        if killed is None:
            assert stored[0] in expected, (at, then, on)
        # A killed `unset --code` has to be repeated: each worker stores what its own code says.
        assert len({each.override for each in stored}) == 1, (at, then, on, stored)
        if killed is None:
            assert len({*stored}) == 1, (at, then, on, stored)
