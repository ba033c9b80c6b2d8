"""The model of dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from celery_delayq.model.envelope import Record
from celery_delayq.model.script_values import StatusCode
from celery_delayq.model.totals import kind_of
from tests.support.model_schedule import ModelDeadLetter, ScheduleModel


@dataclass(kw_only=True)
class DeadLetterModel(ScheduleModel):
    """One queue whose dead letters are known by their messages, which all differ."""

    def dead_letter_of(self, message: bytes) -> ModelDeadLetter | None:
        """Return the dead letter with this message."""
        return next((each for each in self.dead if each.message == message), None)

    def add_dead_letter(self, message: bytes, id: str, reason: str, details: bytes) -> None:
        """Dead-letter a message that no other key has."""
        self.registered = True
        self.published.append(message)
        self.counted[f"dead:{kind_of(reason)}"] += 1
        self.counted["aside"] += 1
        self._add_dead_letter(message, reason, id, details)

    def replay(self, message: bytes, id: str, due: int, record: Record, policy: str) -> StatusCode:
        """Publish a message in place of a dead letter."""
        dead_letter = self.dead_letter_of(message)
        if dead_letter is None:
            return "u"
        if self.schedule(id, due, record, policy, counted="replayed").state == "conflict":
            return "k"
        self._forget_dead_letter(dead_letter)
        return "d"

    def discard(self, message: bytes) -> StatusCode:
        """Delete a dead letter."""
        dead_letter = self.dead_letter_of(message)
        if dead_letter is None:
            return "u"
        self._forget_dead_letter(dead_letter)
        return "d"

    def _forget_dead_letter(self, dead_letter: ModelDeadLetter) -> None:
        self.dead.remove(dead_letter)
        self.gone.append(dead_letter.message)

    def keep(self, dead_letter: ModelDeadLetter) -> StatusCode:
        """Restore a deleted dead letter."""
        self.registered = True
        if dead_letter in self.dead:
            return "k"
        self.gone.remove(dead_letter.message)
        self.dead.append(dead_letter)
        return "d"
