"""How the receiver fails: at times, and in the same way each time the demonstration runs.

Policy only, without I/O. What becomes of a webhook follows from its id and from how many attempts
there were, so that the sums can say beforehand what has to come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from example_project.plan import RETRY_INTERVALS

SEED = 2013

#: Most attempts at a webhook.
ATTEMPTS = 1 + len(RETRY_INTERVALS)

#: What a busy receiver asks for, in seconds: longer than the sender would wait by itself.
RETRY_AFTER = 1


class Trouble(str, Enum):
    """What the receiver makes of a webhook."""

    NONE = "accepted at once"
    FAILING = "500 or 503, once or several times"
    BUSY = "429 with Retry-After, once"
    SILENT = "accepted, but the answer is lost"
    DOWN = "503 until the receiver is repaired"
    GONE = "404 or 410 for ever"


#: How many of a thousand webhooks, more or less, meet with which.
PER_THOUSAND = {
    Trouble.NONE: 835,
    Trouble.FAILING: 80,
    Trouble.BUSY: 25,
    Trouble.SILENT: 20,
    Trouble.DOWN: 30,
    Trouble.GONE: 10,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What one attempt gets. `status` is `None` where the connection ends without an answer."""

    status: int | None
    accepted: bool = False
    retry_after: int | None = None


ACCEPTED = Answer(204, accepted=True)


@dataclass(frozen=True, slots=True)
class Course:
    """What one webhook meets with: these answers one after the other, the last one for ever."""

    trouble: Trouble
    answers: tuple[Answer, ...]

    @property
    def attempts(self) -> int:
        """How many attempts it takes until it is delivered and the sender knows, or is dead."""
        return 1 if self.trouble is Trouble.GONE else min(len(self.answers), ATTEMPTS)

    @property
    def dies(self) -> bool:
        """Whether it ends as a dead letter."""
        return not self.answers[-1].accepted

    @property
    def passes(self) -> bool:
        """Whether it is delivered once the receiver is repaired."""
        return self.trouble is not Trouble.GONE

    def answer(self, attempt: int, *, repaired: bool = False) -> Answer:
        """Give what the `attempt`-th one gets; the first is 1.

        Repairing the receiver does not bring back what is gone.
        """
        if repaired and self.passes:
            return ACCEPTED
        return self.answers[min(attempt, len(self.answers)) - 1]

    def wait_s(self, attempt: int) -> float:
        """Give the seconds that have to pass after the `attempt`-th one before the next."""
        asked = self.answer(attempt).retry_after
        return RETRY_INTERVALS[attempt - 1] if asked is None else asked


def course_of(webhook_id: str) -> Course:
    """Give what the webhook meets with."""
    chance = Random(f"{SEED} {webhook_id}")
    trouble = chance.choices([*PER_THOUSAND], [*PER_THOUSAND.values()])[0]
    return Course(trouble, tuple(_answers(trouble, chance)))


def _answers(trouble: Trouble, chance: Random) -> list[Answer]:
    if trouble is Trouble.DOWN:
        return [Answer(503)] * ATTEMPTS
    if trouble is Trouble.GONE:
        return [Answer(chance.choice((404, 410)))]
    if trouble is Trouble.FAILING:
        times = chance.randint(1, ATTEMPTS - 1)
        return [*(Answer(chance.choice((500, 503))) for _ in range(times)), ACCEPTED]
    if trouble is Trouble.BUSY:
        return [Answer(429, retry_after=RETRY_AFTER), ACCEPTED]
    if trouble is Trouble.SILENT:
        return [Answer(None, accepted=True), ACCEPTED]
    return [ACCEPTED]
