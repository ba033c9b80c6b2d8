"""Faults and kills directly before and after each script."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from celery_delayq.store.scripting import scripts
from celery_delayq.testing import ManagedProcess, ProcessFailed
from tests.support import TIMEOUT
from tests.support.faults.checker import Verdict
from tests.support.faults.killer import Killer, restart
from tests.support.faults.scale import SEED, scaled, some
from tests.support.faults.stage import MakeStage, Passes, Stage
from tests.support.proxy import Fault, Proxy

Step = Callable[[], None]

#: Seconds by which a reply is late.
STALL = 0.3


@dataclass
class Traffic:
    """Gives work to a process behind a proxy; each step is more unusual than the last.

    Parameters
    ----------
    victim
        The worker or dispatcher behind *proxy*. It is started again whenever it has ended.
    worker
        The worker that runs the tasks: the victim, or another one.
    """

    stage: Stage
    proxy: Proxy
    victim: ManagedProcess
    worker: ManagedProcess
    killer: Killer
    hits: list[str] = field(default_factory=list)
    _killed: int | None = None

    def __post_init__(self) -> None:
        self._stock = self.stage.new_producer(stock=True)

    def steps(self, script: str = "") -> list[Step]:
        """Return the steps; the first one makes the worker call *script*."""
        rare = {
            "leases/extend": self.hold,
            "leases/requeue": self.term,
            "leases/reclaim_expired": self.crash,
        }.get(script, self.load)
        return [rare, *(s for s in (self.load, self.cut, self.crash, self.term) if s != rare)]

    def load(self) -> None:
        """Send tasks of all kinds, also of stock producers, and bytes that are no message."""
        send = self.stage.producer.send
        for n in range(4):
            send("faults.work", 0.02)
            send("faults.work", 0.02, after=0.1 + 0.1 * n)
            # Longer than any stall: a call that is repeated after its entry has run runs it again.
            send("faults.relay", n % 2)
        for _ in range(2):
            send("faults.flaky", 0.2)
            self._stock.send("faults.work", after=0.5)
            self.stage.redis.lpush("celery", b"no message")

    def hold(self) -> None:
        """Send tasks that run for a part of a lease."""
        self.stage.producer.send_many(2, "faults.work", self.stage.lease / 2)

    def cut(self) -> None:
        """Send tasks, and cut all connections while they run."""
        self.load()
        self.proxy.cut_all()

    def crash(self) -> None:
        """Send tasks, and kill their worker while they run."""
        self._fill()
        self.killer.power_cut(self.worker)
        self.replay_in_place()

    def term(self) -> None:
        """Send more tasks than the worker can start before its stop."""
        self._fill()
        self.worker.term()
        with suppress(ProcessFailed):
            self.worker.wait(TIMEOUT)
        self.replay_in_place()

    def _fill(self) -> None:
        """Send the worker more tasks than it can run at once, and wait until it has leased them."""
        keys = set(self.stage.producer.send_many(20, "faults.work", 0.1))
        self.stage.wait_for(
            lambda: len(keys & self.stage.unfinished().get("leased", set())) > 3, 20
        )

    def kill_victim(self) -> None:
        """Kill the process; `replay` waits for its end."""
        self._killed = self.victim.pid
        self.killer.kill_at_once(self.victim)

    def hit(self, script: str, fault: Fault, nth: int, *, kill: bool = False) -> None:
        """Do one step after the other until *fault* has hit a call of *script*.

        With *kill* the victim is killed at that moment, and started again.
        """
        then = {"then": self.kill_victim} if kill else {}
        rule = self.proxy.on(script, fault, nth=nth, seconds=STALL, **then)
        # On a slow machine a step may come too late for its effect.
        for step in 3 * self.steps(script):
            step()
            self.stage.wait_for(lambda: rule.fired.is_set() or self.stage.finished(), TIMEOUT)
            if rule.fired.is_set():
                self.replay_in_place()
                self.hits.append(
                    f"{fault.name} {'and kill ' * kill}at call {nth} after {step.__name__}"
                )
                return
        raise AssertionError(f"{script} was not called {nth} times")

    def verdict(self) -> Verdict:
        """Wait for the end of all tasks, and judge."""
        verdict = self.stage.verdict()
        verdict.notes["hit"] = "; ".join(self.hits)
        return verdict

    def replay_in_place(self) -> None:
        """Start the ended process again; the victim may also be killed at its start."""
        while True:
            killed, self._killed = self._killed, None
            if killed == self.victim.pid:
                self.victim.wait()
            with suppress(ProcessFailed):
                restart(self.worker)
                restart(self.victim)
            if self._killed is None:
                return


pytestmark = pytest.mark.full

#: Scripts that each process calls while tasks are sent and run. Tests check that none is missing.
CALLED_BY = {
    "worker": (
        "leases/ack",
        "dispatch/next_queue",
        "leases/extend",
        "dispatch/promote",
        "schedule/push_ready",
        "leases/reclaim_expired",
        "leases/dead_letter",
        "leases/requeue",
        "leases/acquire",
        "leases/filled_lists",
        "leases/replace",
        "schedule/add",
        "periodic/claim_due",
        "repair/types",
    ),
    "dispatcher": (
        "dispatch/next_queue",
        "dispatch/promote",
        "leases/reclaim_expired",
        "periodic/claim_due",
        "repair/types",
    ),
    "producer": ("schedule/push_ready", "schedule/add"),
}
#: Scripts that are called rarely.
RARE = {
    "dispatch/next_queue",
    "leases/extend",
    "leases/reclaim_expired",
    "leases/dead_letter",
    "leases/requeue",
    "leases/replace",
    "repair/types",
}
#: Scripts that are called only when a lease has ended.
SLOW = {"leases/reclaim_expired"}
CALLS = [(who, name) for who in ("worker", "dispatcher") for name in CALLED_BY[who]]
ROUNDS = scaled(1, 4)

a_call = pytest.mark.parametrize(("who", "name"), CALLS, ids=[f"{w}-{n}" for w, n in CALLS])


def traffic_of(make_stage: MakeStage, who: str, seed: int) -> Traffic:
    """Put one process behind a proxy: a worker, or a dispatcher beside a worker without one."""
    alone = who == "worker"
    stage = make_stage(delayq={"dispatch": alone, "block_timeout": 0.1})
    proxy = stage.proxy()
    worker = stage.worker(pool="threads", through=proxy if alone else None)
    victim = worker if alone else stage.dispatchers(1, through=proxy)[0]
    return Traffic(stage, proxy, victim, worker, Killer(stage, seed))


def turns(name: str) -> Iterator[int]:
    """Yield the numbers of the next calls to hit."""
    chosen = random.Random(f"{SEED} {name}")
    while True:
        yield 1 if name in RARE else chosen.randint(1, 3)


@pytest.mark.parametrize("who", ["worker", "dispatcher"])
def test_every_script_that_is_called_is_listed_here(make_stage: MakeStage, who: str) -> None:
    traffic = traffic_of(make_stage, who, SEED)
    for step in traffic.steps():
        step()
    verdict = traffic.stage.verdict()
    assert not verdict.violations, verdict.report()

    # Left out, because no task may run in their call: scripts that run once in ten seconds (see
    # tests/lua/deadletters/test_trim.py and tests/lua/periodic/test_announce_version.py), scripts
    # of the audit or at the start that only read, hints at the end, and looks at ready lists that
    # happen to find messages.
    known = set(scripts.names()) - {
        "deadletters/trim",
        "dispatch/planned_looks",
        "dispatch/resign",
        "dispatch/wake_ready",
        "periodic/announce_version",
        "scan/hash_scan",
    }
    assert set(traffic.proxy.traffic) & known == set(CALLED_BY[who])


@a_call
def test_faults_and_kills_at_a_script_lose_nothing_and_repeat_nothing_else(
    make_stage: MakeStage, passes: Passes, who: str, name: str
) -> None:
    """First a connection fails at the script, then the process is killed there.

    Each happens before the request has reached Redis, and after Redis has run it.
    """
    traffic = traffic_of(make_stage, who, SEED)
    turn = turns(name)
    before_and_after = [Fault.DROP_REQUEST, Fault.DROP_REPLY]
    others = some([Fault.RESET, Fault.STALL, Fault.DELAY], int(name not in SLOW), name)
    for _ in range(ROUNDS):
        for fault in [*before_and_after, *others]:
            traffic.hit(name, fault, next(turn))
        for moment in before_and_after:
            traffic.hit(name, moment, next(turn), kill=True)

    passes(traffic.verdict())


@pytest.mark.parametrize("name", CALLED_BY["producer"])
def test_a_fault_on_the_way_of_a_publish_loses_nothing(
    make_stage: MakeStage, passes: Passes, name: str
) -> None:
    """A call with an ETA is repeated until the task is stored, and it is stored once."""
    stage = make_stage()
    stage.worker(pool="threads")
    proxy = stage.proxy()
    producer = stage.new_producer(through=proxy)
    producer.send("faults.work")
    for fault in list(Fault) * ROUNDS:
        for nth in (1, 2):
            rule = proxy.on(name, fault, nth=nth, seconds=0.1)
            for _ in range(3):
                producer.send("faults.work", after=1.0 if name == "schedule/add" else None)
            assert rule.fired.is_set()

    passes(stage.verdict())
    if name == "schedule/add":
        assert all(promise.certain for promise in producer.promises)
