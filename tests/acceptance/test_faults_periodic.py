"""Workers are killed repeatedly: each tick runs once and in time, none is missed, none is early."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ
from celery_delayq.periodic import policy
from celery_delayq.periodic.entries import Periodic
from celery_delayq.periodic.rrule import rrule
from celery_delayq.testing import WorkerProcess, wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.apps.periodic_tasks import Diary, start, tasks_of
from tests.integration.conftest import MakeApp
from tests.support.faults.clocks import wrong_clock
from tests.support.faults.scale import SEED, scaled
from tests.support.proxy import Fault, Proxy

SECONDS = scaled(20, 120)
ENTRIES = scaled(60, 1000)
WORKERS = 3
LEASE = 5.0
PATIENCE = 300.0

#: Seconds for which one worker acts on old data. This is longer than ticks are scheduled ahead, so
#: every tick that it would repeat has run.
LATE = 3.0

#: One of this many looks is late, the first one.
LATE_OF = 3

#: Seconds of a task whose ticks must not run at the same time.
BUSY = 0.2

KEEP: dict[str, Any] = {"catch_up": "all", "catch_up_max": 1000}

#: Seconds by which the clock of a worker is wrong.
OFF = {"fast": 300, "slow": -300, "right": 0}

pytestmark = pytest.mark.full


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return tasks_of(make_app())


class Runs:
    """The runs of each tick: when each began, and on which worker."""

    def __init__(self, diary: Diary) -> None:
        self.by_name: dict[str, dict[int, list[tuple[float, str]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for id, at, worker in diary.runs("id", "at", "worker"):
            name, _, tick = id.rpartition(":")
            self.by_name[name][int(tick)].append((at, worker))

    def ticks(self, name: str) -> list[int]:
        return sorted(self.by_name[name])

    def early(self) -> list[tuple[str, int, float]]:
        return [
            (name, tick, at)
            for name, ticks in self.by_name.items()
            for tick, runs in ticks.items()
            for at, _ in runs
            if at < tick
        ]

    def side_by_side(self, name: str, kills: dict[str, list[float]]) -> list[tuple[float, float]]:
        """Return when runs of an entry began while another tick ran, which took BUSY."""
        runs = sorted(run for runs in self.by_name[name].values() for run in runs)
        return [
            (at, later)
            for (at, worker), (later, _) in pairwise(runs)
            if later - at < BUSY * 1000 and not any(at <= kill <= later for kill in kills[worker])
        ]

    def again_without_a_kill(self, kills: dict[str, list[float]]) -> list[tuple[str, int]]:
        """Return ticks that ran again although no worker was killed that had begun them."""
        return [
            (name, tick)
            for name, ticks in self.by_name.items()
            for tick, runs in ticks.items()
            for (at, worker), (later, _) in pairwise(runs)
            if not any(at <= kill <= later for kill in kills[worker])
        ]


def kill_now_and_then(workers: list[WorkerProcess], diary: Diary) -> dict[str, list[float]]:
    """Kill workers one after the other; return the times for each worker.

    Another worker is ready each time, since ticks are late while no worker runs.
    """
    chance = random.Random(SEED)
    kills: dict[str, list[float]] = defaultdict(list)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or sum(len(each) for each in kills.values()) < SECONDS / 5:
        time.sleep(chance.uniform(0.5, 2.5))  # at a random moment
        worker, other = chance.sample(workers, 2)
        other.wait_ready()
        worker.kill()
        worker.wait()
        kills[worker.hostname].append(diary.now() * 1000)
        worker.start()
    return kills


def due_until(entries: dict[str, Periodic], until: int) -> dict[str, list[int]]:
    """Return the ticks of each entry that are due until *until* (ms)."""
    return {
        name: [tick for tick in policy.upcoming(entry, 1000, timezone.utc) if tick <= until]
        for name, entry in entries.items()
    }


def wait_all_ran(delayq: DelayQ, diary: Diary, due: dict[str, list[int]]) -> Runs:
    """Wait until all these ticks have run, stop the workers, and return the runs."""

    def missing() -> dict[str, list[int]]:
        runs = Runs(diary)
        left = {name: sorted({*ticks} - {*runs.ticks(name)}) for name, ticks in due.items()}
        return {name: ticks for name, ticks in left.items() if ticks}

    wait_until(lambda: not missing(), PATIENCE, lambda: f"all ticks: {missing()}", interval=1)
    for entry in delayq.periodic.list():
        delayq.periodic.pause(entry.name)
    wait_until(
        lambda: not diary.unfinished(), PATIENCE, lambda: f"all is done: {diary.unfinished()}"
    )
    return Runs(diary)


def wait_until_the_last(diary: Diary, name: str, tick: int) -> None:
    """Wait until this tick of an entry, or a later one, has run."""

    def ran() -> list[int]:
        return Runs(diary).ticks(name)

    wait_until(lambda: max(ran(), default=0) >= tick, PATIENCE, f"{tick} of {name}", interval=1)


def expect_each_once(runs: Runs, entries: dict[str, Periodic]) -> None:
    """Expect that each tick has run, and no other."""
    for name, entry in entries.items():
        ticks = runs.ticks(name)
        expected = policy.upcoming(entry, len(ticks), timezone.utc)
        assert ticks == expected, f"{name} {entry}, {datetime.now(timezone.utc)}"


def any_schedule(chance: random.Random) -> dict[str, Any]:
    """Return schedule and time zone of an entry, of a random kind."""
    every = chance.choice([2.0, 3.0, 5.0, 7.5, 11.0])
    secondly = f"FREQ=SECONDLY;INTERVAL={int(every)}"
    zone = chance.choice(["Europe/Berlin", "Asia/Tokyo"])
    # The current time in the entry's zone.
    now = datetime.now(ZoneInfo(zone))
    hours = ",".join(str((now.hour + n) % 24) for n in range(2))
    once = now + timedelta(seconds=chance.uniform(5, SECONDS))
    return chance.choice(
        [
            {"schedule": every},
            {"schedule": rrule(secondly)},
            {"schedule": rrule(f"{secondly};BYHOUR={hours}"), "timezone": zone},
            {"schedule": crontab(), "timezone": zone},
            {"schedule": once},
            {"schedule": 3600},
        ]
    )


@pytest.fixture
def late(delayq_redis: RedisUnderTest) -> Iterator[str]:
    """The URL of a broker that sometimes delays the reply that names the due periodic entries."""
    with Proxy(delayq_redis.port) as proxy:
        for nth in range(1, int(SECONDS * 10), LATE_OF):
            proxy.on("periodic/claim_due", Fault.DELAY, nth=nth, seconds=LATE)
        yield f"delayq+redis://127.0.0.1:{proxy.port}/0"


def test_killed_workers_fire_every_tick_once(
    app: Celery,
    delayq_redis: RedisUnderTest,
    late: str,
    delayq_worker: Callable[..., WorkerProcess],
) -> None:
    """One worker acts late on old data, when others have handled it long ago."""
    delayq, diary, chance = DelayQ.of(app), Diary(delayq_redis), random.Random(SEED)
    # Before there is old data.
    workers = [
        start(delayq_worker, delayq={"lease": LEASE}, **options)
        for options in ({"broker_url": late}, *[{}] * (WORKERS - 1))
    ]
    add, busy = delayq.periodic.add, {"seconds": BUSY}
    added = [add("second", 1.0, "note", **KEEP)]
    for n in range(ENTRIES):
        added.append(add(f"e{n}", task="note", **any_schedule(chance), **KEEP))
    for n, every in enumerate((0.5, 0.7, 2.0)):
        added.append(add(f"skip{n}", every, "note", kwargs=busy, overlap="skip"))
        added.append(add(f"queue{n}", every, "note", kwargs=busy, overlap="queue_one"))
    entries = {entry.name: entry for entry in added}

    kills = kill_now_and_then(workers, diary)
    due = due_until(entries, int(diary.now() * 1000))
    # Ticks of these are skipped while another one runs.
    alone = [name for name, entry in entries.items() if entry.definition.overlap != "allow"]
    possible = {name: (entries.pop(name), due.pop(name)) for name in alone}
    for name, (_, ticks) in possible.items():
        wait_until_the_last(diary, name, ticks[-1])

    runs = wait_all_ran(delayq, diary, due)
    assert len(due["second"]) >= SECONDS
    assert runs.early() == []
    assert runs.again_without_a_kill(kills) == []
    expect_each_once(runs, entries)
    for name, (entry, _) in possible.items():
        assert {*runs.ticks(name)} <= {*policy.upcoming(entry, 10_000, timezone.utc)}
        assert runs.side_by_side(name, kills) == []


@pytest.mark.parametrize("fires", ["fast", "slow", "all"])
def test_wrong_clocks_change_nothing(
    fires: str,
    app: Celery,
    delayq_redis: RedisUnderTest,
    delayq_worker: Callable[..., WorkerProcess],
    tmp_path: Path,
) -> None:
    """Any worker may fire, with any clock; Redis' clock decides."""
    delayq, diary = DelayQ.of(app), Diary(delayq_redis)
    kinds = {"interval": 0.5, "rule": rrule("FREQ=SECONDLY;INTERVAL=1"), "minute": crontab()}
    for name, schedule in kinds.items():
        delayq.periodic.add(name, schedule, "note", **KEEP)
    delayq.periodic.add("single", 0.5, "note", overlap="skip", **KEEP)
    entries = {entry.name: entry for entry in delayq.periodic.list()}
    workers = [
        start(
            delayq_worker,
            delayq={"dispatch": fires in (name, "all"), "lease": LEASE},
            env=wrong_clock(seconds, tmp_path / name) if seconds else {},
        )
        for name, seconds in OFF.items()
    ]
    for worker in workers:
        worker.wait_ready()
    due = due_until(entries, int(diary.now() * 1000) + scaled(3_000, 61_000))
    # A tick of this entry is skipped while the one before it runs.
    single, possible = entries.pop("single"), due.pop("single")

    runs = wait_all_ran(delayq, diary, due)

    assert runs.early() == []
    assert runs.again_without_a_kill(defaultdict(list)) == []
    expect_each_once(runs, entries)
    ran = runs.ticks("single")
    assert ran
    assert {*ran} <= {*possible, *policy.upcoming(single, 1000, timezone.utc)}
