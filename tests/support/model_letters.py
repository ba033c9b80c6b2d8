"""The model of a queue's dead letters: bury, replay, forget and keep them again."""

from __future__ import annotations

from dataclasses import dataclass

from celery_delayq.model.envelope import Record
from celery_delayq.model.lookup import Letter as Outcome
from tests.support.model_schedule import Letter, ScheduleModel


@dataclass(kw_only=True)
class LetterModel(ScheduleModel):
    """One queue whose dead letters are known by their messages, of which no two are alike."""

    def letter_of(self, message: bytes) -> Letter | None:
        """Return the dead letter with that message."""
        return next((each for each in self.dead if each.message == message), None)

    def bury(self, message: bytes, id: str, reason: str, details: bytes) -> None:
        """Keep a message that is nowhere else."""
        self.registered = True
        self.published.append(message)
        self._bury(message, reason, id, details)

    def replay(self, message: bytes, id: str, due: int, record: Record, policy: str) -> Outcome:
        """Publish a message in place of a dead letter."""
        letter = self.letter_of(message)
        if letter is None:
            return "u"
        if self.schedule(id, due, record, policy).state == "conflict":
            return "k"
        self._forget_letter(letter)
        return "d"

    def discard(self, message: bytes) -> Outcome:
        """Forget a dead letter."""
        letter = self.letter_of(message)
        if letter is None:
            return "u"
        self._forget_letter(letter)
        return "d"

    def _forget_letter(self, letter: Letter) -> None:
        self.dead.remove(letter)
        self.gone.append(letter.message)

    def keep(self, letter: Letter) -> Outcome:
        """Keep a letter again that was forgotten."""
        self.registered = True
        if letter in self.dead:
            return "k"
        self.gone.remove(letter.message)
        self.dead.append(letter)
        return "d"
