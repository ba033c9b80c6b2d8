"""Fleets of dispatchers whose members are lost, join and leave: nothing twice, nothing early.

In the long form no entry is late either.

There is no worker: promoted entries stay in the ready list, and Redis notes the time. The clocks of
the members are minutes apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celery_delayq.settings import Limits
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.testing import ManagedProcess, wait_until
from tests.support import TIMEOUT
from tests.support.faults.clocks import wrong_clock
from tests.support.faults.killer import Killer, restart
from tests.support.faults.promoted import lateness, promoted
from tests.support.faults.scale import LONG, scaled, seeds
from tests.support.faults.stage import MakeStage, Passes, Stage

pytestmark = pytest.mark.full

#: Highest lateness (seconds) if one dispatcher is lost. Pauses of the machine are allowed in
#: addition, but not more than :data:`LIMIT` together.
MOST, LIMIT = 0.5, 1.0

#: Seconds in which entries are due.
SECONDS = scaled(8.0, 120.0)

EAGER = ("tests.support.faults.eager",)

#: Seconds between two looks at the clock, to measure pauses of the machine.
LOOK_SECONDS = 0.005

Fleet = list[ManagedProcess]


class Pauses:
    """Measures for how long the machine runs no thread of this process, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0

    def forget(self) -> None:
        """Start again with 0."""
        self.longest = 0.0

    def watch(self, stopping: threading.Event) -> None:
        """Wait repeatedly for an event that does not come."""
        began = time.monotonic()
        while not stopping.wait(LOOK_SECONDS):
            now = time.monotonic()
            self.longest = max(self.longest, now - began - LOOK_SECONDS)
            began = now


@contextmanager
def watched() -> Iterator[Pauses]:
    """Measure during the ``with`` block."""
    pauses, stopping = Pauses(), threading.Event()
    thread = threading.Thread(target=pauses.watch, args=(stopping,), daemon=True)
    thread.start()
    try:
        yield pauses
    finally:
        stopping.set()
        thread.join()


def fleet_of(stage: Stage, count: int, folder: Path) -> Fleet:
    """Start dispatchers in three groups with different clocks."""
    stage.redis.hset(Keys().queues, "celery", Layout(limits=Limits(history=1)).text)
    off = {"fast": 300, "slow": -300, "right": 0}
    groups = [
        stage.dispatchers(
            count // 3 + (n < count % 3),
            env=wrong_clock(seconds, folder / name) if seconds else None,
        )
        for n, (name, seconds) in enumerate(off.items())
    ]
    return [each for group in groups for each in group]


def on_duty(stage: Stage, fleet: Fleet) -> ManagedProcess:
    """Return the process of the dispatcher on duty, as soon as one of the fleet has the duty."""
    by_pid = {str(each.pid): each for each in fleet}

    def found() -> ManagedProcess | None:
        who = stage.redis.hget(Keys().clock, "duty")
        return None if who is None else by_pid.get(who.decode().split(".")[-2])

    member = wait_until(found, TIMEOUT, "one of the fleet is on duty")
    assert member is not None
    return member


def send(stage: Stage, pauses: Pauses) -> list[str]:
    """Send tasks that are due one after the other, and measure pauses from then on."""
    sent = stage.producer.send_spread(int(100 * SECONDS), "faults.work", 1.0, 1.0 + SECONDS)
    pauses.forget()
    return sent


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    """Pauses of the machine while tasks are due."""
    with watched() as pauses:
        yield pauses


def judge(
    stage: Stage,
    passes: Passes,
    pauses: Pauses,
    sent: list[str],
    killer: Killer,
    most: float = MOST,
) -> None:
    """Let the remaining entries be promoted; check that none was late."""
    wait_until(lambda: not stage.redis.exists("{celery}:due"), TIMEOUT, "all is promoted")
    pause = pauses.longest
    stage.stop_processes()
    late = max(lateness(stage).values())
    verdict = promoted(stage, sent, len(killer.strikes))
    verdict.notes["late"] = f"{late:.2f} s"
    verdict.notes["longest pause of the machine"] = f"{pause:.2f} s"
    passes(verdict)
    if LONG:  # a soak has its own machine
        assert late < min(most + pause, LIMIT)


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("loss", ["killed", "stopped"])
def test_losing_the_one_on_duty_again_and_again_costs_less_than_half_a_second(
    stage: Stage, passes: Passes, pauses: Pauses, tmp_path: Path, loss: str, seed: int
) -> None:
    killer = Killer(stage, seed)
    fleet = fleet_of(stage, scaled(3, 20), tmp_path)
    lose: Callable[[ManagedProcess], None] = {
        "killed": killer.power_cut,
        # longer than other members wait for it
        "stopped": lambda process: killer.stop(process, 1.5),
    }[loss]
    sent = send(stage, pauses)

    while (is_work_left := stage.redis.exists("{celery}:due")) or len({*killer.strikes}) < 2:
        if not is_work_left:  # a slow machine; without work nobody else takes the duty
            sent += send(stage, pauses)
        killer.let_pass(0.3, 0.6)
        lost = on_duty(stage, fleet)
        killer.strikes.append(lost.name)
        lose(lost)
        restart(lost)

    judge(stage, passes, pauses, sent, killer)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_members_that_come_and_go_each_second_promote_all_in_time(
    stage: Stage, passes: Passes, pauses: Pauses, tmp_path: Path, seed: int
) -> None:
    """No member knows the size of the fleet. One member stays."""
    killer = Killer(stage, seed)
    _, *others = fleet_of(stage, scaled(4, 12), tmp_path)
    sent = send(stage, pauses)

    while stage.redis.exists("{celery}:due"):
        killer.let_pass(0.8, 1.2)
        for lost in killer.random.sample(others, len(others) // 2):
            killer.strikes.append(lost.name)
            if killer.random.random() < 0.5:
                killer.power_cut(lost)
            else:
                lost.stop()
            lost.start()

    judge(stage, passes, pauses, sent, killer)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_dispatchers_that_know_nothing_of_duty_do_no_harm(
    stage: Stage, passes: Passes, pauses: Pauses, tmp_path: Path, seed: int
) -> None:
    """Two versions of the package in one fleet: some plan for each entry, even without the duty."""
    killer = Killer(stage, seed)
    fleet = [*fleet_of(stage, scaled(2, 6), tmp_path), *stage.dispatchers(2, module=EAGER)]
    sent = send(stage, pauses)

    while stage.redis.exists("{celery}:due"):
        killer.let_pass(0.3, 0.6)
        killer.strike(fleet, [killer.power_cut])

    # Two members may be lost in a row before the second one counts as silent.
    judge(stage, passes, pauses, sent, killer, LIMIT)


def test_redis_comes_back_with_all_due_at_once(
    make_stage: MakeStage, passes: Passes, tmp_path: Path
) -> None:
    """The whole fleet finds the entries at the same moment."""
    stage = make_stage(broker_options={"appendfsync": "always"})
    fleet_of(stage, scaled(3, 20), tmp_path)
    began, first = time.monotonic(), scaled(6.0, 60.0)
    sent = stage.producer.send_spread(scaled(10_000, 100_000), "faults.work", first, first + 1)

    stage.broker.kill()
    time.sleep(max(0.0, began + first + scaled(2.0, 60.0) - time.monotonic()))  # Redis is away
    stage.broker.start()

    wait_until(lambda: not stage.redis.exists("{celery}:due"), TIMEOUT, "all is promoted")
    stage.stop_processes()
    passes(promoted(stage, sent, 1))
