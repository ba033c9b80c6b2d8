"""The state machine's rules about dead letters: bury, replay, discard and keep.

What is drawn must not depend on Redis' clock, so letters are known by their messages here.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from celery_delayq.model.dead_letter import Buried
from celery_delayq.model.lookup import Letter as Outcome
from celery_delayq.store.dead_letters import Replay
from tests.lua.machine import LAYOUT, QUEUE, details, ids, steps
from tests.lua.machine_schedule import ScheduleMachine, dues, record_of, uniques
from tests.support.model_schedule import Letter
from tests.support.model_tracking import Label


class LetterMachine(ScheduleMachine):
    """What is done by those who look after dead letters."""

    def __init__(self) -> None:
        super().__init__()
        #: Letters that were forgotten, as Redis had them and as the model had them.
        self.forgotten: list[tuple[Buried, Letter]] = []

    # -- workers

    @initialize(data=st.data(), number=st.integers(0, 3))
    def several_are_dead(self, data: st.DataObject, number: int) -> None:
        for _ in range(number):
            self.bury(data.draw(ids), data.draw(details), data.draw(st.booleans()))

    @rule(id=ids, details=details, labelled=st.booleans())
    def bury(self, id: str, details: bytes, labelled: bool) -> None:
        """What failed after it was acknowledged."""
        message = record_of(self.new_entry(id, 0, 0, labelled=labelled)).message
        self.model.bury(message, id, "failed", details)
        self.store.bury(QUEUE, id, "failed", message, details)

    # -- those who look after dead letters

    def draw_letters(self, data: st.DataObject) -> list[Buried]:
        """Draw letters that are there, and some that were and that others may be taken for."""
        there = {each.message: each for each in self.store.letters.all(QUEUE)}
        choice = [there[each.message] for each in self.model.dead]
        choice += [each._replace(died_ms=1) for each, _ in self.forgotten]
        places = st.integers(0, len(choice) - 1)
        drawn = data.draw(st.lists(places, min_size=1, max_size=3, unique=True))
        return [choice[place] for place in drawn]

    def expect_none(self, letter: Buried, taken: set[str]) -> Outcome | None:
        """Return what is told of a letter that is not there, but whose id may be."""
        if letter.died_ms == 1:
            return "c" if letter.id in taken else "u"
        taken.discard(letter.id)
        return None

    def taken(self) -> set[str]:
        return {each.id for each in self.store.letters.all(QUEUE)}

    @precondition(lambda self: self.model.dead or self.forgotten)
    @rule(data=st.data(), repeat=st.booleans())
    def replay(self, data: st.DataObject, repeat: bool) -> None:
        replays, expected, taken = [], [], self.taken()
        for letter in self.draw_letters(data):
            label, unique = Label.of(letter.message), data.draw(uniques)
            id, due, step = label.id if label else "a", data.draw(dues), data.draw(steps)
            policy = "" if unique == "-" else "e 0 0"
            entry = self.new_entry(id, due, step, unique=unique, policy=policy)
            replays.append(Replay(letter.id, letter.died_ms, entry))
            state = self.expect_none(letter, taken)
            if state is None:
                record = record_of(entry)
                state = self.model.replay(letter.message, id, due, record, policy[:1])
                self.puts.append(entry)
            if state == "k":
                taken.add(letter.id)
            expected.append(state)

        letters = self.store_for(repeat).letters
        assert letters.replay(QUEUE, QUEUE, LAYOUT, replays, f"t{self.next()}") == expected

    @precondition(lambda self: self.model.dead or self.forgotten)
    @rule(data=st.data(), repeat=st.booleans())
    def discard(self, data: st.DataObject, repeat: bool) -> None:
        drawn, expected, taken = self.draw_letters(data), [], self.taken()
        for letter in drawn:
            state = self.expect_none(letter, taken)
            if state is None:
                known = self.model.letter_of(letter.message)
                assert known is not None
                # It may have been kept beside another one since: archives know its first id.
                if all(known != each for _, each in self.forgotten):
                    self.forgotten.append((letter, known))
                state = self.model.discard(letter.message)
            expected.append(state)

        names = [(each.id, each.died_ms) for each in drawn]
        assert self.store_for(repeat).letters.discard(QUEUE, names) == expected

    @precondition(lambda self: self.forgotten)
    @rule(data=st.data(), repeat=st.booleans())
    def keep(self, data: st.DataObject, repeat: bool) -> None:
        letter, known = data.draw(st.sampled_from(self.forgotten))
        expected = self.model.keep(known)
        item = (letter.id, letter.died_ms, letter.data)
        found = self.store_for(repeat).letters.keep(QUEUE, [item])
        assert found == [expected]
