"""When an idle consumer looks at the ready lists itself, on a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_delayq.store.keys import Keys, Layout
from celery_delayq.transport import idle
from celery_delayq.transport.idle import (
    IDLE_LOOK_SECONDS,
    LONG_WAIT_SECONDS,
    MIN_LONG_WAIT_SECONDS,
    STOCK_PUSH_SECONDS,
    IdleWait,
)


class Clock:
    """Stands for the module ``time``."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(idle, "time", clock)
    return clock


def wait_of(*, fleet_looks: bool = True, looks_when_idle: bool = True) -> IdleWait:
    store: Any = SimpleNamespace(keys=Keys(), layout=Layout())
    settings: Any = SimpleNamespace(block_timeout=MIN_LONG_WAIT_SECONDS)
    return IdleWait(store, settings, lambda: fleet_looks, looks_when_idle=looks_when_idle)


@pytest.mark.parametrize(
    ("seconds", "from_others", "fleet_looks", "looks"),
    [
        (0.0, False, True, False),
        (2 * IDLE_LOOK_SECONDS, False, True, True),
        (0.0, True, True, True),
        (0.0, False, False, True),
    ],
    ids=["soon", "after some work", "a stock producer pushes", "nobody else looks"],
)
def test_a_worker_looks_for_messages_that_came_while_it_worked(
    clock: Clock, seconds: float, from_others: bool, fleet_looks: bool, looks: bool
) -> None:
    wait = wait_of(fleet_looks=fleet_looks)
    wait.note_messages(from_others=from_others)
    clock.now += seconds

    assert (wait.look(["q"]) is not None) is looks
    assert wait.look(["q"]) is None  # it has just looked, or worked


def test_a_stock_producer_that_has_stopped_is_forgotten(clock: Clock) -> None:
    wait = wait_of()
    wait.note_messages(from_others=True)
    clock.now += STOCK_PUSH_SECONDS
    wait.note_messages(from_others=False)

    assert wait.look(["q"]) is None


def test_a_shard_leaves_it_to_the_fleet(clock: Clock) -> None:
    wait = wait_of(looks_when_idle=False)
    wait.note_messages(from_others=True)
    clock.now += LONG_WAIT_SECONDS / 2

    assert wait.look(["q"]) is None


def lists_of(command: bytes | None) -> list[bytes]:
    """Return the keys of a BRPOP."""
    assert command is not None
    return [each for each in command.split(b"\r\n") if each.endswith((b"wake", b":interrupt"))]


@pytest.mark.parametrize("limited", [None, "mail", "other"])
def test_a_consumer_that_has_heard_of_limits_waits_for_the_lanes_of_all_queues(
    clock: Clock, limited: str | None
) -> None:
    one = wait_of()
    for queue in ("mail", "other"):
        one.note_limits(queue, has_limits=queue == limited)

    found = lists_of(one.wait(["mail", "other"], [], briefly=False))

    waits_for_lanes = [name for name in found if name.endswith(b"lanes_wake")]
    assert len(waits_for_lanes) == (2 if limited else 0)
    assert len([name for name in found if name.endswith(b"}:wake")]) == 2
    assert one.wait_seconds == LONG_WAIT_SECONDS  # limits cost no further commands


def test_a_look_of_a_consumer_is_at_lanes_too(clock: Clock) -> None:
    look = wait_of(fleet_looks=False).look(["q"])

    assert look is not None
    assert len(look.lists) == 6
