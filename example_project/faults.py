"""How the receiver fails: sometimes, and in the same way in each run of the demonstration.

Policy only, without I/O. The id of a webhook and the number of attempts determine the answer, so
the sums know the expected result.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from example_project.plan import RETRY_INTERVALS

SEED = 2013

#: Most attempts at a webhook.
ATTEMPTS = 1 + len(RETRY_INTERVALS)

#: Seconds that a busy receiver asks for: longer than the sender would wait by itself.
RETRY_AFTER = 1


class Trouble(str, Enum):
    """What the receiver does with a webhook."""

    NONE = "accepted at once"
    FAILING = "500 or 503, once or several times"
    BUSY = "429 with Retry-After, once"
    SILENT = "accepted, but the answer is lost"
    DOWN = "503 until the receiver is repaired"
    GONE = "404 or 410 for ever"


#: About how many of a thousand webhooks get each kind of trouble.
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
    """The answer to one attempt. `status` is `None` if the connection ends without an answer."""

    status: int | None
    accepted: bool = False
    retry_after: int | None = None


ACCEPTED = Answer(204, accepted=True)


@dataclass(frozen=True, slots=True)
class Course:
    """The answers to one webhook in turn; the last one is repeated."""

    trouble: Trouble
    answers: tuple[Answer, ...]

    @property
    def attempts(self) -> int:
        """Number of attempts until the sender knows that it is delivered, or it is dead."""
        return 1 if self.trouble is Trouble.GONE else min(len(self.answers), ATTEMPTS)

    @property
    def dies(self) -> bool:
        """Whether it ends as a dead letter."""
        return not self.answers[-1].accepted

    @property
    def passes(self) -> bool:
        """Whether it is delivered after the repair of the receiver."""
        return self.trouble is not Trouble.GONE

    def answer(self, attempt: int, *, repaired: bool = False) -> Answer:
        """Return the answer to the `attempt`-th attempt; the first is 1.

        A repair of the receiver does not bring back a URL that is gone.
        """
        if repaired and self.passes:
            return ACCEPTED
        return self.answers[min(attempt, len(self.answers)) - 1]

    def wait_s(self, attempt: int) -> float:
        """Return the least seconds from the `attempt`-th attempt to the next."""
        asked = self.answer(attempt).retry_after
        return RETRY_INTERVALS[attempt - 1] if asked is None else asked


def course_of(webhook_id: str) -> Course:
    """Return the answers to a webhook."""
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
