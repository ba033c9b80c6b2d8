"""The state machine's rules about the schedule: publish, cancel, move, run now, pause, purge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from celery_delayq.model.envelope import Due, Entry, Record
from celery_delayq.model.publish_outcome import Put
from celery_delayq.model.script_values import Name, Swap
from celery_delayq.store import control
from celery_delayq.store.scripting.replies import EntriesReply
from celery_delayq.store.store import Store
from tests.lua.bench import FAR, QUEUE, repeating
from tests.lua.machine import LAYOUT, SKIP, LeaseMachine, ids, limits, steps
from tests.support.model_tracking import Label

dues = st.integers(0, 1) | st.integers(FAR, FAR + 9)
tasks = st.sampled_from(["tasks.t", "tasks.t", "tasks t2"])
uniques = st.sampled_from(["-", "-", "sk", "dk", "dk", "dl"])
policies = st.sampled_from("rrlke")
#: Most names that a call looks at. With few, messages with one id take several calls.
batches = st.sampled_from([1, 2, 3, 100])
if_dues = st.sampled_from([None, None, None, *range(1, 10), *range(FAR, FAR + 10)])


class ScheduleMachine(LeaseMachine):
    """Actions of producers, and of operators on the schedule."""

    def __init__(self) -> None:
        super().__init__()
        #: A store that makes each call twice.
        self.twice = repeating(self.store)
        #: All messages that were published through the schedule.
        self.puts: list[Entry] = []
        #: Names and records that operators have read, since then perhaps changed by others.
        self.read: list[tuple[str, bytes]] = []
        #: Whether stock workers have changed counted or tracked messages without a script.
        self.untold = False

    # -- producers

    @initialize(data=st.data(), number=st.integers(0, 6))
    def several_are_scheduled(self, data: st.DataObject, number: int) -> None:
        self.put([self.draw_entry(data) for _ in range(number)])

    @precondition(lambda self: self.model.scheduled)
    @rule(data=st.data(), due=st.integers(1, 9), limit=limits)
    def several_become_due_and_ready(self, data: st.DataObject, due: int, limit: int) -> None:
        names = sorted(self.model.scheduled)
        for name in data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)):
            self.make_due(name, due)
        self.promote(limit)

    @precondition(lambda self: self.model.scheduled)
    @rule(data=st.data(), task=tasks, resume=st.booleans())
    def a_task_is_paused_while_several_become_due(
        self, data: st.DataObject, task: str, resume: bool
    ) -> None:
        self.pause(False, task, False, False)
        self.several_become_due_and_ready(data, 5, 10)
        if resume:
            self.pause(False, task, True, False)
            if data.draw(st.booleans()):
                self.cancel(data, None, False)
            self.promote(2)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), due=dues, unique=uniques, policy=policies)
    def one_runs_and_is_sent_again(
        self, data: st.DataObject, due: int, unique: str, policy: str
    ) -> None:
        """Publish a message with the same key, perhaps the same id, while the first one runs."""
        id, policy = data.draw(ids), "" if unique == "-" else policy
        self.put([self.new_entry(id, 1, 0, unique=unique, policy=policy)])
        self.acquire(data, 10, 3, 0, False)
        again = self.new_entry(data.draw(ids), due, 0, unique=unique, policy=policy)
        self.put([again])

    @rule(
        data=st.data(),
        number=st.sampled_from([1, 1, 1, 2, 3]),
        limit=st.sampled_from([-1, 0, 0, 2, 4]),
        retry=st.sampled_from([False, False, True]),
    )
    def schedule(self, data: st.DataObject, number: int, limit: int, retry: bool) -> None:
        self.put([self.draw_entry(data) for _ in range(number)], limit, retry=retry)

    def draw_entry(self, data: st.DataObject) -> Entry:
        labelled = data.draw(st.sampled_from([True, True, True, False]))
        unique = data.draw(uniques) if labelled else "-"
        return self.new_entry(
            data.draw(ids),
            data.draw(dues),
            data.draw(steps),
            task=data.draw(tasks),
            unique=unique,
            skip=data.draw(st.sampled_from([0, 0, SKIP])) if labelled else 0,
            policy=data.draw(policies) if unique != "-" else "",
            labelled=labelled,
        )

    def put(self, entries: list[Entry], limit: int = 0, *, retry: bool = False) -> list[Put]:
        """Publish in one call; a policy of an entry is its first character."""
        call = self.store.schedule_call(QUEUE)
        call.args[3] = limit
        for each in entries:
            call.add(each._replace(policy=each.policy and f"{each.policy} 0 {retry:d}"))
        found = EntriesReply.read(self.store.run(call)).puts
        expected = [
            self.model.schedule(
                each.id, each.due.ms, record_of(each), each.policy, retry=retry, most=limit
            )
            for each in entries
        ]
        assert found == expected, (found, expected)
        self.puts += entries
        return found

    @precondition(lambda self: self.again())
    @rule(data=st.data(), limit=st.sampled_from([0, 1]))
    def schedule_again(self, data: st.DataObject, limit: int) -> None:
        assert self.put([data.draw(st.sampled_from(self.again()))], limit) == [Put("duplicate")]

    def again(self) -> list[Entry]:
        """Return messages that exist already, so that they are not stored again."""
        return [each for each in self.puts if self.model.is_known(record_of(each).message_id)]

    @precondition(lambda self: self.held_with_label())
    @rule(data=st.data(), due=dues, policy=policies)
    def retry_of_what_is_held(self, data: st.DataObject, due: int, policy: str) -> None:
        who, name, label = data.draw(st.sampled_from(self.held_with_label()))
        unique = data.draw(st.sampled_from([label.unique, label.unique, "-"]))
        policy = "" if unique == "-" else f"{policy} 0 1"
        what = self.new_entry(label.id, due, data.draw(steps), unique=unique, policy=policy)
        self.replace_held(who, name, what, "push")

    @precondition(lambda self: self.held_with_label())
    @rule(data=st.data(), policy=policies)
    def what_is_held_goes_back_unstarted(self, data: st.DataObject, policy: str) -> None:
        """A process schedules a leased message again, since its task is or was paused."""
        who, name, label = data.draw(st.sampled_from(self.held_with_label()))
        held = self.model.leased[who][name]
        record = Record(held.step, label.message_id, data.draw(tasks), held.message or b"")
        policy = "" if label.unique == "-" else f"{policy} 0 0"
        itself = Entry(label.id, Due(2), held.step, record.pack(), policy)
        self.replace_held(who, name, itself, "keep")

    def held_with_label(self) -> list[tuple[str, str, Label]]:
        """Return what live processes hold and may run: they run no cancelled message."""
        dropped = {one.message_id for one in self.model.running.values() if one.dropped}
        return [
            (who, name, label)
            for who in self.live
            for name in self.fields_of[who]
            if (held := self.model.leased.get(who, {}).get(name))
            and (label := Label.of(held.message or b""))
            and label.message_id not in dropped
        ]

    # -- operators

    def store_for(self, repeat: bool) -> Store:
        return self.twice if repeat else self.store

    @contextmanager
    def in_batches(self, size: int) -> Iterator[None]:
        """Let each call look at *size* names."""
        with pytest.MonkeyPatch.context() as patch:
            # Each call forgets messages that stock workers took; the model does so once.
            patch.setattr(control, "ID_BATCH", 100 if self.untold else size)
            yield

    def draw_ids(self, data: st.DataObject) -> list[str]:
        """Draw ids, or names that stand for one message."""
        names = sorted({*self.model.scheduled, *self.model.waiting, *self.model.running})
        some = ids
        if names:
            here = sorted({name.partition("\0")[0] for name in names})
            some = ids | st.sampled_from(here) | st.sampled_from(names).map(Name)
        return data.draw(st.lists(some, min_size=1, max_size=3))

    @rule(data=st.data(), if_due=if_dues, repeat=st.booleans(), batch=batches)
    def cancel(
        self, data: st.DataObject, if_due: int | None, repeat: bool, batch: int = 100
    ) -> None:
        some = self.draw_ids(data)
        before = len(self.model.gone)
        expected = self.model.cancel(some, if_due)
        labels = [Label.of(message) for message in self.model.gone[before:]]
        self.cancelled |= {label.message_id for label in labels if label}
        self.cancelled |= {one.message_id for one in self.model.waiting.values() if one.dropped}
        with self.in_batches(batch):
            store = self.store_for(repeat)
            assert store.control.cancel(QUEUE, LAYOUT, some, if_due=if_due) == expected

    @rule(
        data=st.data(),
        due=st.sampled_from([1, *range(FAR, FAR + 10)]),
        if_due=if_dues,
        repeat=st.booleans(),
        batch=batches,
    )
    def reschedule(
        self, data: st.DataObject, due: int, if_due: int | None, repeat: bool, batch: int
    ) -> None:
        some = self.draw_ids(data)
        expected = [self.model.reschedule(id, due, if_due) for id in some]
        moves = [(id, Due(due), if_due) for id in some]
        with self.in_batches(batch):
            assert self.store_for(repeat).control.reschedule(QUEUE, moves) == expected

    @rule(data=st.data(), if_due=if_dues, repeat=st.booleans(), batch=batches)
    def run_now(self, data: st.DataObject, if_due: int | None, repeat: bool, batch: int) -> None:
        some = self.draw_ids(data)
        with self.in_batches(batch):
            store = self.store_for(repeat)
            found = store.control.run_now(QUEUE, LAYOUT, some, if_due=if_due)
        scores = dict(self.client.zrange(self.store.keys.queue(QUEUE).due, 0, -1, withscores=True))
        dues = {name.decode(): int(score) for name, score in scores.items()}
        assert found == self.model.run_now(some, if_due, dues)

    @precondition(lambda self: self.model.scheduled)
    @rule()
    def an_operator_reads_all(self) -> None:
        found = self.client.hgetall(self.store.keys.queue(QUEUE).entries)
        self.read += sorted((name.decode(), data) for name, data in found.items())

    @precondition(lambda self: self.read)
    @rule(data=st.data(), task=tasks, if_due=if_dues, repeat=st.booleans(), batch=batches)
    def update(
        self, data: st.DataObject, task: str, if_due: int | None, repeat: bool, batch: int
    ) -> None:
        """Swap records that were read now or before: others may have come first."""
        some = data.draw(st.lists(st.sampled_from(self.read[::-1]), min_size=1, max_size=3))
        swaps, expected = [], []
        for name, before in some:
            record = Record.unpack(before)
            label = Label.of(record.message)
            id, skip = name.partition("\0")[0], label.skip if label else 0
            new = self.new_entry(
                id,
                0,
                data.draw(steps),
                task=task,
                unique=data.draw(uniques),
                skip=skip,
                message_id=record.message_id,
            )
            swaps.append(Swap(name, before, new.data, if_due))
            expected.append(self.model.swap(name, record, record_of(new), if_due))
        with self.in_batches(batch):
            assert self.store_for(repeat).control.swap(QUEUE, swaps) == expected
        self.read += [(each.name, each.after) for each in swaps]

    @rule(data=st.data(), batch=batches)
    def find(self, data: st.DataObject, batch: int) -> None:
        some = self.draw_ids(data)
        with self.in_batches(batch):
            found = [(each.name, each.state) for each in self.store.control.find(QUEUE, some)]
        states = {"scheduled": "scheduled", "waiting": "ready", "running": "running"}
        expected = []
        for name, place in (each for id in some for each in self.model.find(id)):
            paused_due = place == "scheduled" and self.model.scheduled[name].paused_due
            expected.append((name, "paused" if paused_due else states[place]))
        assert sorted(found) == sorted(expected)

    @rule(
        queue=st.sampled_from([False, False, False, True]),
        task=tasks,
        resume=st.sampled_from([False, True, True]),
        repeat=st.booleans(),
    )
    def pause(self, queue: bool, task: str, resume: bool, repeat: bool) -> None:
        changed = self.model.pause(queue=queue, task=task, resume=resume)
        which: Any = {"queue": QUEUE} if queue else {"task": task}
        found = self.store_for(repeat).control.pause([QUEUE], resume=resume, **which)
        assert found == changed

    @rule(chance=st.integers(0, 9))
    def purge(self, chance: int) -> None:
        """Purge the queue, seldom."""
        if chance:
            return
        expected = self.model.purge()
        assert self.store.purge(QUEUE) == expected
        self.untold = True

    @precondition(lambda self: any(self.model.ready.values()))
    @rule(data=st.data(), chance=st.integers(0, 4))
    def a_stock_worker_takes_one(self, data: st.DataObject, chance: int) -> None:
        """Let a stock worker take a message, seldom."""
        if chance:
            return
        step = data.draw(st.sampled_from([s for s, there in self.model.ready.items() if there]))
        self.model.stock_takes(step)
        self.client.rpop(self.store.keys.ready(QUEUE, step, LAYOUT))
        self.untold = True


def record_of(what: Entry) -> Record:
    """Return the record of an entry."""
    return Record.unpack(what.data)
