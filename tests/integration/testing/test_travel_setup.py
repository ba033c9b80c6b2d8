"""After travel the process is as before, also where the setup or the test has failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import freezegun
import pytest
import time_machine
from celery import Celery, current_app
from celery.result import AsyncResult
from kombu import Connection
from kombu.utils.uuid import uuid

from celery_delayq import DelayQ, Limit
from celery_delayq.errors import CommandRefused, ConfigError, InvalidLimit, TravelError
from celery_delayq.integration import worker
from celery_delayq.store.scripting.scripts import has_test_clock
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.testing.travel.traveller import TimeTravel
from tests.support.celery_changes import Snapshot

ELSEWHERE = "delayq+redis://production.example.org:6379/0"

#: What an app, its tasks and Python keep from the first call on.
KEPT_BY_CELERY = ("_after_fork_registered", "app.timezone", "_exec_options", "__slotnames__")


class AppWithItsOwnBroker(Celery):
    """An app whose broker no setting chooses."""

    def connection_for_write(self, *_: Any, **__: Any) -> Any:
        """Return a connection to production."""
        return Connection(ELSEWHERE)


def new_app(kind: type[Celery] = Celery, *, has_extension: bool = True, **conf: Any) -> Celery:
    app = kind("setup", broker="amqp://nobody:1//", set_as_current=False)
    app.conf.update(result_backend="redis://nobody:1/0", **conf)
    if has_extension:
        DelayQ(app)
    app.task(shared=False, name="note")(note)
    return app


def note(name: str = "") -> str:
    """Do nothing."""
    return name


def with_limits(*rates: str) -> Celery:
    app = new_app()
    for rate in rates:
        app.task(shared=False, name=f"limited {rate}", limit=Limit("api", rate=rate))(note)
    return app


def settings(**own: Any) -> Celery:
    return new_app(broker_transport_options={"delayq": own})


#: What makes a setup fail: the app, the error, and what is so meanwhile.
FAILING: dict[
    str, tuple[Callable[[], Celery], type[BaseException], Callable[[], AbstractContextManager[Any]]]
] = {
    "no such module": (lambda: new_app(imports=["nowhere"]), ModuleNotFoundError, nullcontext),
    "an unknown setting": (lambda: settings(leese=1), ConfigError, nullcontext),
    "a setting out of range": (lambda: settings(lease=-1), ConfigError, nullcontext),
    "two limits of one name": (lambda: with_limits("1/h", "2/h"), InvalidLimit, nullcontext),
    "another broker": (lambda: new_app(AppWithItsOwnBroker), TravelError, nullcontext),
    "freezegun": (new_app, TravelError, lambda: freezegun.freeze_time("2031-01-01")),
    "time-machine": (new_app, TravelError, lambda: time_machine.travel("2031-01-01", tick=False)),
}


class World:
    """What travel may change in this process."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        app.finalize()
        _ = app.amqp, app.events, app.control, app.steps["consumer"]  # made at their first use
        self._of_celery = Snapshot(app=app, **{f"task {name}": t for name, t in app.tasks.items()})
        self._others = self._take()

    def _take(self) -> dict[str, Any]:
        conf = self._app.conf
        return {
            "environment": dict(os.environ),
            "settings": {name: conf.get(name) for name in (*conf.changes, "result_backend")},
            "current app": current_app._get_current_object(),
            "makers of ids": uuid.__defaults__,
            "worker": worker.is_here(),
            "scripts read the clock of the test": has_test_clock(),
            "Python's clock is moved": time_machine.escape_hatch.is_travelling(),
            "travel": TimeTravel.active,
            "waits": AsyncResult.get,
        }

    def differences(self) -> list[Any]:
        found = self._take()
        return [
            *(
                path
                for path in self._of_celery.differences()
                if not any(name in path for name in KEPT_BY_CELERY)
            ),
            *((name, found[name]) for name in found if found[name] != self._others[name]),
        ]


@pytest.fixture
def travelled(delayq_redis: RedisUnderTest) -> Iterator[None]:
    """All that is imported or cached at the first travel is there."""
    app = new_app()
    with freezegun.freeze_time("2031-01-01"):
        pass
    with TimeTravel(app, delayq_redis.server) as travel:
        app.tasks["note"].apply_async(countdown=1)
        travel.travel(seconds=1)
    yield
    with TimeTravel(app, delayq_redis.server) as travel:
        app.tasks["note"].apply_async(countdown=1)
        assert travel.travel(seconds=1) == 1


@pytest.mark.parametrize("kind", FAILING)
def test_a_failing_setup_changes_nothing(
    kind: str, delayq_redis: RedisUnderTest, travelled: None
) -> None:
    make, error, meanwhile = FAILING[kind]
    app = make()
    world = World(app)

    with meanwhile(), pytest.raises(error), TimeTravel(app, delayq_redis.server):
        pass

    assert world.differences() == []


def test_a_key_of_another_type_changes_nothing(
    delayq_redis: RedisUnderTest, travelled: None
) -> None:
    app = with_limits("1/h")
    delayq_redis.client.set("delayq:limits", "foreign")
    world = World(app)

    with pytest.raises(CommandRefused, match="WRONGTYPE"), TimeTravel(app, delayq_redis.server):
        pass

    assert world.differences() == []
    delayq_redis.client.delete("delayq:limits")


@pytest.mark.parametrize("has_extension", [False, True], ids=["plain", "extended"])
@pytest.mark.parametrize(
    "ends_server",
    [False, pytest.param(True, marks=pytest.mark.full)],
    ids=["with a server", "without"],
)
def test_a_failing_test_changes_nothing(
    ends_server: bool, has_extension: bool, delayq_redis: RedisUnderTest, travelled: None
) -> None:
    app = with_limits("1/h") if has_extension else new_app(has_extension=False)
    world = World(app)

    def body() -> None:
        with TimeTravel(app, delayq_redis.server) as travel:
            app.tasks["note"].apply_async(("ada",), countdown=60).revoke()
            app.tasks["note"].delay()
            travel.travel(minutes=1)
            if ends_server:
                delayq_redis.server.stop()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()

    assert world.differences() == []
    delayq_redis.server.start()
