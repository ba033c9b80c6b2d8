"""Limits in random order: messages of three lanes in two queues, and limits that change.

After each step every message is in one place, each leased message of a limit has a permit and
nothing else has, the lanes are those of the entries that wait in them, and no lane is forgotten.
The rules call every script that makes a message ready (:data:`~tests.lua.test_doors.DOORS`).
"""

from __future__ import annotations

import math
import os
import re
import sys
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from celery_delayq.model.script_values import PAUSED_OFFSET_MS
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import DEFAULT
from tests.lua.machine_limits import LIMITS, QUEUES, TASKS, LimitMachine, held_entries
from tests.lua.test_doors import DOORS
from tests.support.faults.scale import LONG, scaled
from tests.support.lease_time import pass_time

WANTED = int(os.environ.get("DELAYQ_EXAMPLES", "0"))
EXAMPLES = WANTED or scaled(80, 500)
FEW, SOME = min(12, EXAMPLES), min(20, EXAMPLES)

#: Most ms until a queue gets a look for a permit that has come back: the other queue has its turn.
TURN_MS = 100

#: Keys that stay when all messages are done, or until they expire. Messages that older code and
#: stock workers push leave some that fsck repairs.
KEPT = re.compile(
    r":(limits|queues|clock|control|slots|leases|lease_ends|request_numbers|wake|lanes_wake)$"
    r"|:(dead|dead_at|totals|unique|duplicate_ids|deliveries|pace|answer:.*)$"
)


class Machine(LimitMachine):
    """All rules, and the invariants that are checked after each rule."""

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        found = self.found_places()
        lost = self.places.keys() - found.keys() - self.may_go
        assert not lost, [(each, self.places[each], self.sent[each]) for each in lost]
        for message_id in self.places.keys() - found.keys():
            self.may_go.discard(message_id)
        self.places = found

    @invariant()
    def the_leased_messages_of_limits_have_permits(self) -> None:
        leased = {each for each, place in self.found_places().items() if place.state == "leased"}
        self.permits &= leased
        found = {
            each.split(b"\0")[-1].decode() for each in self.client.zrange("delayq:permits", 0, -1)
        }
        assert found == self.permits
        for each in self.client.zrange("delayq:permits", 0, -1):
            lane, queue, _, message_id = each.decode().split("\0")
            place = self.found_places()[message_id]
            assert (place.queue, self.sent[message_id].lane) == (queue, lane)

    @invariant()
    def lanes_are_those_of_the_entries_that_wait(self) -> None:
        for queue in QUEUES:
            key = self.store.keys.queue(queue)
            wanted = {
                f"{self.sent[record.message_id].lane}\0{record.priority:03d}\0{due:015d}\0".encode()
                + name
                for name, due, record in held_entries(self, queue)
            }
            members = {*self.client.zrange(key.held, 0, -1)}
            assert members == wanted
            lanes = {each.partition(b"\0")[0] for each in members}
            assert {*self.client.zrange(key.lanes, 0, -1)} == lanes

    @invariant()
    def no_lane_is_forgotten(self) -> None:
        blocked = {*self.client.zrange("delayq:blocked_lanes", 0, -1)}
        freed = {*self.client.zrange("delayq:freed_lanes", 0, -1)}
        now = self.store.now_ms()
        for queue in QUEUES:
            key, name = self.store.keys.queue(queue), queue.encode()
            look = self.client.zscore("delayq:next_due", queue)
            is_paused = self.paused(queue)
            freed_here = {each.partition(b"\0")[2] for each in freed if each[:2] == name + b"\0"}
            if freed_here & {*self.client.zrange(key.lanes, 0, -1)}:
                assert is_paused or (look is not None and look <= now + TURN_MS)
            may_go = False
            for lane, moment in self.client.zrange(key.lanes, 0, -1, withscores=True):
                if moment == math.inf:
                    assert lane + b"\0" + name in blocked or name + b"\0" + lane in freed
                elif moment <= now * 1000:
                    may_go = True
                else:
                    assert is_paused or (look is not None and look <= moment / 1000 + 1)
            if self.client.exists(key.lanes_wake):
                self.signless.discard(queue)
            elif may_go and not is_paused and queue not in self.signless:
                assert look is not None
                assert look <= now

    def teardown(self) -> None:
        """All processes have died, and all signs and planned looks are lost. New processes, which
        wait for signs, handle all messages, and no key is left.
        """
        if sys.exc_info()[0] is not None:
            return  # a failure is reported already
        for which in (*QUEUES, *TASKS):
            self.pause(which, True)
        for name in LIMITS:
            self.define(name, "o", (0, 1, 1, False))
        pass_time(self.client, 3600)
        for queue in QUEUES:
            while who := self.store.leases.first_ended_lease(queue):
                self.store.leases.reclaim_expired(queue, DEFAULT, who, 100, 0)
        self.the_leased_messages_of_limits_have_permits()
        self.each_message_is_in_one_place()
        self.no_lane_is_forgotten()
        for queue in QUEUES:
            self.make_all_due(queue)
        for queue in QUEUES:
            self.store.promote(queue)
        self.may_go |= {*self.places}
        idle = 0
        while idle < 3:
            idle += 1
            for queue in QUEUES:
                key = self.store.keys.queue(queue)
                self.client.delete(key.quarantine_turn, key.wake, key.lanes_wake)
                self.client.zrem(self.store.keys.next_due, queue)
                self.look_at_ready()
                more = self.client.delete(key.wake, key.lanes_wake)
                while more:
                    acquired = self.lease(queue, "last", 10, 10, False)
                    more = acquired.first_list
                    self.the_leased_messages_of_limits_have_permits()
                    if acquired.messages:
                        idle = 0
                        self.ack(queue, "last", [field for field, _, _ in acquired.messages])
                    self.the_leased_messages_of_limits_have_permits()
                    self.each_message_is_in_one_place()
        assert {place.state for place in self.places.values()} <= {"dead"}
        for queue in QUEUES:
            self.store.promote(queue)
        left = {key for key in map(bytes.decode, self.client.keys("*")) if not KEPT.search(key)}
        assert not left, left

    def make_all_due(self, queue: str) -> None:
        due = self.store.keys.queue(queue).due
        names = self.client.zrangebyscore(due, 0, f"({PAUSED_OFFSET_MS}")
        self.store.control.run_now(
            queue, DEFAULT, sorted({each.decode().partition("\0")[0] for each in names})
        )


@pytest.mark.timeout(max(1800, 3 * EXAMPLES))
@pytest.mark.parametrize(
    "examples",
    [
        FEW,
        pytest.param(SOME, marks=pytest.mark.full),
        pytest.param(EXAMPLES, marks=[pytest.mark.full, pytest.mark.nightly]),
    ],
    ids=["few", "some", "all"],
)
def test_no_sequence_breaks_a_limit_or_forgets_a_lane(
    delayq_redis: RedisUnderTest, examples: int
) -> None:
    class OnThisRedis(Machine):
        redis = delayq_redis
        called: ClassVar[set[str]] = set()

    run_state_machine_as_test(
        OnThisRedis,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            database=None,
            derandomize=not (WANTED or LONG),
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert {*DOORS} <= OnThisRedis.called
