"""The sums of the webhooks: what was sent, what the receiver got, and what is a dead letter.

Policy only; `records` keeps what the receiver got, `replay` reads the dead letters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from example_project.faults import ATTEMPTS, Course, course_of
from example_project.ledger import Books
from example_project.plan import webhook_id


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request that the receiver got, at `received_ms` by the clock of Redis.

    `webhook_id` is empty where the signature was wrong. `task_id` is that of the reminder that the
    payload is about. ``"repeated"``: it had been accepted before, which the id has told.
    """

    webhook_id: str
    task_id: str
    status: int | None
    result: Literal["accepted", "repeated", "refused", "forged"]
    received_ms: float


@dataclass(frozen=True, slots=True)
class Dead:
    """A webhook that is a dead letter, after so many attempts by what the letter says."""

    webhook_id: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Deliveries:
    """All that was written down: `kinds` of the reminders that ran, by the id of their webhook.

    `dead` are the dead letters when the day was over, `dead_at_last` those that were left when all
    of them had been replayed.
    """

    kinds: Mapping[str, str]
    attempts: Sequence[Attempt]
    dead: Sequence[Dead]
    dead_at_last: Sequence[Dead]

    @classmethod
    def of(
        cls,
        books: Books,
        attempts: Sequence[Attempt],
        dead: Sequence[Dead],
        dead_at_last: Sequence[Dead],
    ) -> Deliveries:
        """Take all that ran to have sent its webhook."""
        started = books.starts()
        kinds = {
            webhook_id(task.task_id): task.kind
            for task in books.published
            if task.task_id in started
        }
        return cls(kinds, attempts, dead, dead_at_last)


@dataclass(frozen=True, slots=True)
class Told:
    """The webhooks of one kind of reminder.

    ``sent == sum(after) + dead + lost`` and ``dead == replayed + refused``. `after` has how many
    were delivered by the first attempt, the second and so on; `replayed` are dead letters that were
    delivered when they were replayed, `refused` those that were not.
    """

    sent: int
    after: tuple[int, ...]
    dead: int
    replayed: int
    refused: int
    lost: int


@dataclass(frozen=True, slots=True)
class WebhookSums:
    """Per kind and in total, the number of requests, and what must not be.

    `repeated`: requests for what had been accepted already. `twice`: were accepted more than once.
    `both`: were delivered and are dead letters. `unknown`: were sent by no reminder that ran.
    `mixed_up`: told of another reminder than the one that sent them. `forged`: requests with a
    wrong signature. `off_plan`: got another number of attempts than the plan of the failures says.
    `too_soon`: were tried again before they should. `dead_off_plan`, `dead_at_last_off_plan`: are
    dead letters and should not be, or should be and are not. `told_wrong`: dead letters that tell
    of another number of attempts than there were.
    """

    per_kind: dict[str, Told]
    total: Told
    requests: int
    repeated: int
    twice: int
    both: int
    unknown: int
    mixed_up: int
    forged: int
    off_plan: int
    too_soon: int
    dead_off_plan: int
    dead_at_last_off_plan: int
    told_wrong: int


def add_up_webhooks(deliveries: Deliveries) -> WebhookSums:
    """Compare the webhooks that were sent with what the receiver got and with the dead letters."""
    sent, attempts = deliveries.kinds.keys(), _by_id(deliveries.attempts)
    courses = {id: course_of(id) for id in sent}
    results = Counter(attempt.result for attempt in deliveries.attempts)
    accepted = {id: _accepted(of_id) for id, of_id in attempts.items()}
    dead = Counter(letter.webhook_id for letter in deliveries.dead)
    dead_at_last = Counter(letter.webhook_id for letter in deliveries.dead_at_last)
    # A dead letter is replayed once, and that is one attempt more.
    wanted = {id: course.attempts + course.dies for id, course in courses.items()}
    return WebhookSums(
        per_kind={
            kind: _told([id for id in sent if deliveries.kinds[id] == kind], deliveries)
            for kind in dict.fromkeys(deliveries.kinds.values())
        },
        total=_told([*sent], deliveries),
        requests=len(deliveries.attempts),
        repeated=results["repeated"],
        twice=sum(len(numbers) > 1 for numbers in accepted.values()),
        both=sum(bool(accepted.get(id)) for id in dead_at_last),
        unknown=len((attempts.keys() | dead.keys() | dead_at_last.keys()) - sent),
        mixed_up=sum(
            webhook_id(attempt.task_id) != attempt.webhook_id
            for attempt in deliveries.attempts
            if attempt.result != "forged"
        ),
        forged=results["forged"],
        off_plan=sum(len(attempts.get(id, ())) != number for id, number in wanted.items()),
        too_soon=sum(_is_too_soon(courses[id], attempts.get(id, [])) for id in sent),
        dead_off_plan=_differences(dead, [id for id in sent if courses[id].dies]),
        dead_at_last_off_plan=_differences(
            dead_at_last, [id for id in sent if courses[id].dies and not courses[id].passes]
        ),
        told_wrong=sum(
            letter.attempts != courses[letter.webhook_id].attempts
            for letter in (*deliveries.dead, *deliveries.dead_at_last)
            if letter.webhook_id in courses
        ),
    )


def webhook_problems(sums: WebhookSums) -> list[str]:
    """Say what is wrong with `sums`, one sentence each; an empty list means that all is right."""
    return [
        f"{count} webhooks {what}"
        for count, what in (
            (sums.total.lost, "were neither delivered nor dead letters"),
            (sums.twice, "were accepted more than once"),
            (sums.both, "were delivered, and are dead letters all the same"),
            (sums.unknown, "came from no reminder that ran"),
            (sums.mixed_up, "told of another reminder than the one that sent them"),
            (sums.forged, "had a wrong signature"),
            (sums.off_plan, "got another number of attempts than the plan of the failures says"),
            (sums.too_soon, "were tried again before the wait was over"),
            (sums.dead_off_plan, "were dead letters and should not be, or the other way round"),
            (
                sums.dead_at_last_off_plan,
                "were dead letters after the replay and should not be, or the other way round",
            ),
            (sums.told_wrong, "are dead letters that tell of another number of attempts"),
        )
        if count
    ]


def _by_id(attempts: Sequence[Attempt]) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda attempt: attempt.received_ms):
        if attempt.result != "forged":
            found[attempt.webhook_id].append(attempt)
    return dict(found)


def _accepted(attempts: Sequence[Attempt]) -> list[int]:
    """Give which attempts at one webhook were accepted; the first is 1."""
    return [number for number, each in enumerate(attempts, 1) if each.result == "accepted"]


def _told(ids: Sequence[str], deliveries: Deliveries) -> Told:
    attempts = _by_id(deliveries.attempts)
    dead = {letter.webhook_id for letter in deliveries.dead} & {*ids}
    accepted = {id: numbers[0] for id in ids if (numbers := _accepted(attempts.get(id, [])))}
    after = Counter(number for id, number in accepted.items() if id not in dead)
    return Told(
        sent=len(ids),
        # More than there may be is found by comparing with the plan.
        after=tuple(after[number] for number in range(1, max(ATTEMPTS, *after, 0) + 1)),
        dead=len(dead),
        replayed=len(dead & accepted.keys()),
        refused=len(dead - accepted.keys()),
        lost=len({*ids} - dead - accepted.keys()),
    )


def _is_too_soon(course: Course, attempts: Sequence[Attempt]) -> bool:
    # The attempt after the last one is that of the replay, which waits for nothing.
    return any(
        after.received_ms - before.received_ms < course.wait_s(number) * 1000
        for number, (before, after) in enumerate(pairwise(attempts[: course.attempts]), 1)
    )


def _differences(found: Counter[str], expected: Sequence[str]) -> int:
    """Count what is in one of both and not in the other."""
    wanted = Counter(expected)
    return (found - wanted).total() + (wanted - found).total()
