"""All scripts in random order, with several processes that crash and repeat, compared with a model.

After every step all keys are equal to the model, every message is in one place, no cancelled
message runs, and each unique key belongs to one message. ``DELAYQ_EXAMPLES`` is the number of
sequences. With this variable, and in a soak, the sequences differ between runs.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from celery_delayq.testing.fixtures import RedisUnderTest
from tests.lua.bench import QUEUE
from tests.lua.machine import LAYOUT
from tests.lua.machine_dead_letters import DeadLetterMachine
from tests.support.faults.scale import LONG, scaled
from tests.support.keyspace import snapshot
from tests.support.lease_time import lease_now, relative
from tests.support.leases import ack
from tests.support.model_state import messages_in, observed, state_of
from tests.support.totals import present_by, totals_of

WANTED = int(os.environ.get("DELAYQ_EXAMPLES", "0"))
EXAMPLES = WANTED or scaled(80, 500)
#: Enough sequences for a change, and for the full tier.
FEW, HALF = min(25, EXAMPLES), min(40, EXAMPLES)


class Machine(DeadLetterMachine):
    """All rules, and the invariants that are checked after each rule."""

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        state = relative(snapshot(self.client), lease_now(self.client))
        shown, expected = observed(QUEUE, state), state_of(self.model)
        different = {key for key in shown | expected if shown.get(key) != expected.get(key)}
        assert not different, [(key, shown.get(key), expected.get(key)) for key in different]

        # Independent of the model: each message is in one place.
        found = messages_in(QUEUE, LAYOUT, state)
        known = Counter(self.model.done) + Counter(self.model.gone)
        assert found + known == Counter(self.model.published)
        assert max(found.values(), default=1) == 1

        # The marker exists while a message is ready, unless a consumer has popped it.
        self.popped = self.popped and "{q}:wake" not in state
        ready = state.keys() & set(self.store.keys.ready_lists(QUEUE, LAYOUT))
        paused = self.model.queue_paused or self.was_paused
        assert "{q}:wake" in state or not ready or self.popped or paused
        self.was_paused = paused and "{q}:wake" not in state

    @invariant()
    def each_is_counted_once(self) -> None:
        totals = totals_of(self.client, QUEUE)
        found = totals.counts | {f"dead:{name}": n for name, n in totals.dead_lettered.items()}
        assert +Counter(found) == +self.model.counted

        # Independent of the model: every message that came and has not gone is there.
        present = messages_in(QUEUE, LAYOUT, snapshot(self.client)).total() - len(self.model.dead)
        assert present_by(totals) + self.model.unseen == present

    @invariant()
    def each_unique_key_is_that_of_one_message(self) -> None:
        there = {*self.model.with_key()}
        owners: dict[str, tuple[str, str]] = {}
        for key, id, message_id in there:
            if message_id not in self.model.disowned:
                assert key not in owners, "two messages with one key"
                owners[key] = id, message_id
        for key, message in owners.items():
            assert self.model.owners[key][:2] == message, "it was let go too early"
        for key, owner in self.model.owners.items():
            assert (key, *owner[:2]) in there or self.untold, "it is never let go"

    @invariant()
    def what_may_be_due_is_on_the_next_due(self) -> None:
        if self.model.next_due is None and not self.model.queue_paused:
            assert all(one.paused_due for one in self.model.scheduled.values())
            paused_due = {one.record.task for one in self.model.scheduled.values()}
            assert paused_due <= self.model.paused

    def teardown(self) -> None:
        """All processes have died. A new one handles all messages, and no key is left."""
        if sys.exc_info()[0] is not None:
            return  # a failure is reported already
        for task in sorted(self.model.paused):
            self.pause(False, task, True, False)
        self.pause(True, "", True, False)
        self.lease_time_passes(60)
        while who := self.model.first_ended_lease():
            self.reclaim_expired(who, 100, 3)
        assert self.store.leases.first_ended_lease(QUEUE) is None
        for name in sorted(self.model.scheduled):
            self.make_due(name, 1)
        self.promote(1000)
        while self.model.quarantined or any(self.model.ready.values()):
            message_id = str(self.next())
            number = len(self.ask("last", message_id, 10, len(LAYOUT.steps), 0).messages)
            fields = [f"{message_id}:{n}" for n in range(1, number + 1)]
            if fields:
                self.model.ack("last", fields)
                assert ack(self.store, QUEUE, "last", fields) == number
        self.lease_time_passes(60)
        self.reclaim_expired("last", 1, 0)
        self.ask("last", str(self.next()), 1, 1, 0)

        self.redis_is_as_the_model_says()
        finished = len(self.model.done) + len(self.model.dead) + len(self.model.gone)
        assert finished == len(self.model.published)
        kept = {"delayq:clock", "delayq:control", "delayq:queues", "{q}:dead", "{q}:dead_at"}
        if self.untold:
            # fsck repairs counts of deliveries, names and keys; a turn expires
            kept |= {"{q}:deliveries", "{q}:duplicate_ids", "{q}:unique", "{q}:quarantine_turn"}
        left = snapshot(self.client)
        assert set(left) <= kept, {key: left[key] for key in set(left) - kept}


@pytest.mark.timeout(max(1800, 3 * EXAMPLES))
@pytest.mark.parametrize(
    "examples",
    [
        FEW,
        pytest.param(HALF, marks=pytest.mark.full),
        pytest.param(EXAMPLES, marks=[pytest.mark.full, pytest.mark.nightly]),
    ],
    ids=["few", "half", "all"],
)
def test_no_sequence_loses_a_message_or_has_it_in_two_places(
    delayq_redis: RedisUnderTest, examples: int
) -> None:
    class OnThisRedis(Machine):
        redis = delayq_redis

    run_state_machine_as_test(
        OnThisRedis,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            database=None,
            derandomize=not (WANTED or LONG),
            suppress_health_check=list(HealthCheck),
        ),
    )
