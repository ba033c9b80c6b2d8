"""After each script, in random order: arrivals are equal to departures plus present messages."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

import pytest

from celery_delayq.store.dead_letters import Replay, digest_of
from celery_delayq.store.periodic import EntryTicks, EntryWrite
from celery_delayq.store.scripting.replies import Unacked
from tests.lua.bench import DEFAULT, FAR, QUEUE, Bench, labelled, repeating
from tests.lua.totals.counting import MESSAGE, present
from tests.support.drift import look
from tests.support.totals import gone_by, present_by, totals_of

STEPS = 250


class Walk:
    """Does random actions; some calls are made twice."""

    def __init__(self, store: Bench, random: Random) -> None:
        self.random, self.stores = random, (store, repeating(store))
        self.numbers = count(1)
        self.store: Bench = store
        self.client = store.client
        self.line = "line 0\n{}"
        store.periodic.write([EntryWrite("tick", "", self.line, 7)])

    def step(self) -> str:
        """Do one action; return its name."""
        self.store = self.random.choice(self.stores)
        name = self.random.choice(THINGS)
        getattr(self, name)()
        return name

    def new(self, due: int | None = None) -> Any:
        due = self.random.choice([1, FAR]) if due is None else due
        unique = self.random.choice(["-", "dk", "sk"])
        return labelled(f"t{next(self.numbers)}", due, unique=unique)

    def held(self, share: float = 0.5) -> list[str]:
        fields = [field.decode() for field in self.client.hkeys("{q}:leased:me")]
        return [each for each in fields if self.random.random() < share]

    def scheduled(self) -> list[str]:
        names: list[bytes] = self.client.zrange("{q}:due", 0, -1)
        return [each.decode() for each in self.random.sample(names, min(2, len(names)))]

    # -- actions

    def publish(self) -> None:
        self.store.put(self.new(), self.new())

    def push(self) -> None:
        self.store.push(b"message %d" % next(self.numbers), step=self.random.choice([0, 3]))

    def fire(self) -> None:
        line, self.line = self.line, f"line {next(self.numbers)}\n{{}}"
        ticks = EntryTicks("tick", line[:-3], self.line[:-3], 7, line[:-3], 7, [self.new()])
        if self.store.run(self.store.periodic.fire_call(QUEUE, [ticks])) == [b"-"]:
            self.line = self.client.hget("delayq:periodic", "tick").decode()

    def import_some(self) -> None:
        entries = [self.new(), self.new()]
        self.store.run(self.store.import_call(QUEUE, entries, f"t{next(self.numbers)}"))

    def give_back(self) -> None:
        some = [self.store.read(name) for name in self.scheduled()]
        self.store.release(*some, token=f"t{next(self.numbers)}")

    def take_from_unacked(self) -> None:
        self.client.hset("unacked", "tag", "[]")
        self.store.take_from_unacked(QUEUE, self.new(), Unacked("unacked", "index", "tag"))

    def promote(self) -> None:
        for name in self.scheduled():
            self.stores[0].become_due(name)
        self.store.promote()

    def cancel(self) -> None:
        self.store.cancel(*self.scheduled())

    def run_now(self) -> None:
        self.store.run_now(*self.scheduled())

    def acquire(self) -> None:
        self.store.acquire(str(next(self.numbers)), self.random.randint(1, 3))

    def ack(self) -> None:
        self.store.ack(*self.held())

    def requeue(self) -> None:
        how = self.random.choice(["nothing", "requeued", "crashed", "died"])
        self.store.requeue(*self.held(), counted=how, max_deliveries=2)

    def replace(self) -> None:
        for field in self.held(0.3):
            self.store.replace(self.new(), field=field)

    def dead_letter(self) -> None:
        for field in self.held(0.3):
            self.store.leases.dead_letter(QUEUE, "me", field, f"t{next(self.numbers)}", "rejected")

    def reclaim(self) -> None:
        self.store.pass_time()
        self.store.reclaim_expired(max_deliveries=2)

    def replay(self) -> None:
        for dead in self.store.dead_letters.all(QUEUE):
            some = [Replay(dead.id, dead.died_ms, self.new(), digest_of(dead.data))]
            token = f"t{next(self.numbers)}"
            self.store.run(self.store.dead_letters.replay_call(QUEUE, QUEUE, DEFAULT, some, token))

    def replay_in_place(self) -> None:
        self.store.dead_letters.add(QUEUE, f"t{next(self.numbers)}", "rejected", MESSAGE)
        token = f"t{next(self.numbers)}"
        self.store.dead_letters.replay_in_place(QUEUE, DEFAULT, "-inf", "+inf", b"", token)

    def purge(self) -> None:
        if self.random.random() < 0.2:
            self.store.purge(QUEUE)

    def repair(self) -> None:
        """Lose or damage data, and repair them."""
        for name in self.scheduled()[:1]:
            spoil = self.random.choice(
                [
                    ("HDEL", "{q}:entries", name),
                    ("ZREM", "{q}:due", name),
                    ("DEL", "{q}:tasks", "{q}:ready_index"),
                ]
            )
            self.client.execute_command(*spoil)
        look(self.stores[0], repair=True, queue=QUEUE)


THINGS = [name for name in vars(Walk) if name[0] != "_"][4:]


@pytest.mark.parametrize("seed", range(3))
def test_the_counters_add_up_after_each_step(store: Bench, seed: int) -> None:
    walk, done = Walk(store, Random(seed)), list[str]()

    for _ in range(STEPS):
        done.append(walk.step())
        assert present_by(totals_of(store.client, QUEUE)) == present(store), done[-5:]

    assert {*done} == {*THINGS}
    assert gone_by(totals_of(store.client, QUEUE)) > 30
