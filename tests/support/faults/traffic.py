"""Tasks and calls that make a worker use every script, the rare ones too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from celery_delayq.testing import ManagedProcess, ProcessFailed
from tests.support import TIMEOUT
from tests.support.faults.checker import Verdict
from tests.support.faults.killer import Killer, restart
from tests.support.faults.stage import Stage
from tests.support.proxy import Fault, Proxy

Step = Callable[[], None]

#: Seconds for which a reply is late.
STALL = 0.3


@dataclass
class Traffic:
    """Gives a process behind a proxy something to do, step by step more unusual.

    Parameters
    ----------
    victim
        The worker or dispatcher behind *proxy*; it is started again whenever it has ended.
    worker
        Who runs the tasks: the victim, or another one.
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
        """Return what may be done, first what makes the worker call *script*."""
        rare = {
            "leases/extend": self.hold,
            "leases/requeue": self.term,
            "leases/reclaim_expired": self.crash,
        }.get(script, self.load)
        return [rare, *(s for s in (self.load, self.cut, self.crash, self.term) if s != rare)]

    def load(self) -> None:
        """Tasks of all kinds, of stock producers too, and messages that are none."""
        send = self.stage.producer.send
        for n in range(4):
            send("faults.work", 0.02)
            send("faults.work", 0.02, after=0.1 + 0.1 * n)
            # Longer than any stall: what is sent again after its entry has run would run again.
            send("faults.relay", n % 2)
        for _ in range(2):
            send("faults.flaky", 0.2)
            self._stock.send("faults.work", after=0.5)
            self.stage.redis.lpush("celery", b"no message")

    def hold(self) -> None:
        """Tasks that are held for a part of a lease."""
        self.stage.producer.send_many(2, "faults.work", self.stage.lease / 2)

    def cut(self) -> None:
        """Tasks, and all connections cut while they run."""
        self.load()
        self.proxy.cut_all()

    def crash(self) -> None:
        """Tasks, and a kill of their worker while they run."""
        self._fill()
        self.killer.power_cut(self.worker)
        self.replay_in_place()

    def term(self) -> None:
        """More tasks than the worker can begin before it is to stop."""
        self._fill()
        self.worker.term()
        with suppress(ProcessFailed):
            self.worker.wait(TIMEOUT)
        self.replay_in_place()

    def _fill(self) -> None:
        """Give the worker more than it can do at once, and wait until it has taken it."""
        keys = set(self.stage.producer.send_many(20, "faults.work", 0.1))
        self.stage.wait_for(lambda: len(keys & self.stage.left().get("leased", set())) > 3, 20)

    def kill_victim(self) -> None:
        """Kill the process at once; `replay` waits for its end."""
        self._killed = self.victim.pid
        self.killer.kill_at_once(self.victim)

    def hit(self, script: str, fault: Fault, nth: int, *, kill: bool = False) -> None:
        """Do one step after the other until *fault* has hit a call of *script*.

        With *kill* the victim is killed at that moment; it is alive again afterwards.
        """
        then = {"then": self.kill_victim} if kill else {}
        rule = self.proxy.on(script, fault, nth=nth, seconds=STALL, **then)
        # On a slow machine a step may come too late for what it is to bring about.
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
        """Let everything come to its end, and judge."""
        verdict = self.stage.verdict()
        verdict.notes["hit"] = "; ".join(self.hits)
        return verdict

    def replay_in_place(self) -> None:
        """Start who has ended; the victim may be killed at its start, too."""
        while True:
            killed, self._killed = self._killed, None
            if killed == self.victim.pid:
                self.victim.wait()
            with suppress(ProcessFailed):
                restart(self.worker)
                restart(self.victim)
            if self._killed is None:
                return
