"""The state machine's rules about dead letters: dead-letter, replay, discard and restore.

Drawn values must not depend on Redis' clock, so the rules identify dead letters by their messages.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from celery_delayq.model.dead_letter import DeadLetterRecord
from celery_delayq.model.script_values import StatusCode
from celery_delayq.store.dead_letters import Replay, digest_of, read_codes
from tests.lua.bench import QUEUE
from tests.lua.machine import LAYOUT, details, ids, steps
from tests.lua.machine_schedule import ScheduleMachine, dues, record_of, uniques
from tests.support.model_schedule import ModelDeadLetter
from tests.support.model_tracking import Label


def rewritten(data: bytes) -> tuple[bytes, bytes]:
    """Return other bytes of the same length, and longer ones."""
    return data[:-1] + b"%", data + b"%"


class DeadLetterMachine(ScheduleMachine):
    """Actions of workers and operators on dead letters."""

    def __init__(self) -> None:
        super().__init__()
        #: Deleted dead letters, as Redis and as the model had them.
        self.forgotten: list[tuple[DeadLetterRecord, ModelDeadLetter]] = []

    # -- workers

    @initialize(data=st.data(), number=st.integers(0, 3))
    def several_are_dead(self, data: st.DataObject, number: int) -> None:
        for _ in range(number):
            self.add_dead_letter(data.draw(ids), data.draw(details), data.draw(st.booleans()))

    @rule(id=ids, details=details, labelled=st.booleans())
    def add_dead_letter(self, id: str, details: bytes, labelled: bool) -> None:
        """Dead-letter a message that failed after its acknowledgement."""
        message = record_of(self.new_entry(id, 0, 0, labelled=labelled)).message
        self.model.add_dead_letter(message, id, "failed", details)
        self.store.dead_letters.add(QUEUE, id, "failed", message, details)

    # -- operators

    def draw_dead_letters(self, data: st.DataObject) -> list[DeadLetterRecord]:
        """Draw stored dead letters, and some deleted ones whose ids others may have now."""
        there = {each.message: each for each in self.store.dead_letters.all(QUEUE)}
        choice = [there[each.message] for each in self.model.dead]
        choice += [each._replace(died_ms=1) for each, _ in self.forgotten]
        places = st.integers(0, len(choice) - 1)
        drawn = data.draw(st.lists(places, min_size=1, max_size=3, unique=True))
        return [choice[place] for place in drawn]

    def expect_none(self, dead_letter: DeadLetterRecord, taken: set[str]) -> StatusCode | None:
        """Return the reply for a missing dead letter; another one may have its id."""
        if dead_letter.died_ms == 1:
            return "c" if dead_letter.id in taken else "u"
        taken.discard(dead_letter.id)
        return None

    def taken(self) -> set[str]:
        return {each.id for each in self.store.dead_letters.all(QUEUE)}

    @precondition(lambda self: self.model.dead or self.forgotten)
    @rule(data=st.data(), repeat=st.booleans())
    def replay(self, data: st.DataObject, repeat: bool) -> None:
        replays, expected, taken = [], [], self.taken()
        for dead_letter in self.draw_dead_letters(data):
            # Another caller may have rewritten the message since this one has read it.
            read = data.draw(st.sampled_from((dead_letter.data, *rewritten(dead_letter.data))))
            label, unique = Label.of(dead_letter.message), data.draw(uniques)
            id, due, step = label.id if label else "a", data.draw(dues), data.draw(steps)
            policy = "" if unique == "-" else "e 0 0"
            entry = self.new_entry(id, due, step, unique=unique, policy=policy)
            digest = digest_of(read)
            replays.append(Replay(dead_letter.id, dead_letter.died_ms, entry, digest))
            state = self.expect_none(dead_letter, taken)
            if state is None and read != dead_letter.data:
                state = "c"
                taken.add(dead_letter.id)
            elif state is None:
                record = record_of(entry)
                state = self.model.replay(dead_letter.message, id, due, record, policy[:1])
                self.puts.append(entry)
            if state == "k":
                taken.add(dead_letter.id)
            expected.append(state)

        store, token = self.store_for(repeat), f"t{self.next()}"
        call = store.dead_letters.replay_call(QUEUE, QUEUE, LAYOUT, replays, token)
        assert read_codes(store.run(call)) == expected

    @precondition(lambda self: self.model.dead or self.forgotten)
    @rule(data=st.data(), repeat=st.booleans())
    def discard(self, data: st.DataObject, repeat: bool) -> None:
        drawn, expected, taken = self.draw_dead_letters(data), [], self.taken()
        for dead_letter in drawn:
            state = self.expect_none(dead_letter, taken)
            if state is None:
                known = self.model.dead_letter_of(dead_letter.message)
                assert known is not None
                # A dead letter may be stored under a second name; archives know its first id.
                if all(known != each for _, each in self.forgotten):
                    self.forgotten.append((dead_letter, known))
                state = self.model.discard(dead_letter.message)
            expected.append(state)

        names = [(each.id, each.died_ms) for each in drawn]
        assert self.store_for(repeat).dead_letters.delete(QUEUE, names) == expected

    @precondition(lambda self: self.forgotten)
    @rule(data=st.data(), repeat=st.booleans())
    def keep(self, data: st.DataObject, repeat: bool) -> None:
        dead_letter, known = data.draw(st.sampled_from(self.forgotten))
        expected = self.model.keep(known)
        item = (dead_letter.id, dead_letter.died_ms, dead_letter.data)
        found = self.store_for(repeat).dead_letters.restore(QUEUE, [item])
        assert found == [expected]
