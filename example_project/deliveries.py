"""The sums of the webhooks: sent ones, received ones, and dead letters.

Policy only; `records` has the received ones, `replay` reads the dead letters.
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
    """One request to the receiver, at `received_ms` by Redis' clock.

    `webhook_id` is empty if the signature was wrong. `task_id` is the id of the reminder in the
    payload. ``"repeated"`` means that the receiver had accepted the same id before. `at_once` is
    the number of webhooks that the receiver handled then, with this one.
    """

    webhook_id: str
    task_id: str
    status: int | None
    result: Literal["accepted", "repeated", "refused", "forged"]
    received_ms: float
    at_once: int = 1


@dataclass(frozen=True, slots=True)
class Dead:
    """A webhook that is a dead letter, with the number of attempts in the dead letter."""

    webhook_id: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Deliveries:
    """All records: `kinds` of the reminders that ran, by the id of their webhook.

    `dead` are the dead letters at the end of the day, `dead_after_replay` those after the replay of
    all.
    """

    kinds: Mapping[str, str]
    attempts: Sequence[Attempt]
    dead: Sequence[Dead]
    dead_after_replay: Sequence[Dead]

    @classmethod
    def of(
        cls,
        books: Books,
        attempts: Sequence[Attempt],
        dead: Sequence[Dead],
        dead_after_replay: Sequence[Dead],
    ) -> Deliveries:
        """Make the books; each reminder that ran has sent its webhook."""
        started = books.starts()
        kinds = {
            webhook_id(task.task_id): task.kind
            for task in books.published
            if task.task_id in started
        }
        return cls(kinds, attempts, dead, dead_after_replay)


@dataclass(frozen=True, slots=True)
class WebhookTally:
    """The webhooks of one kind of reminder.

    ``sent == sum(after) + dead + lost`` and ``dead == replayed + refused``. `after` has the number
    of webhooks that the first attempt delivered, the second attempt, and so on. `replayed` are dead
    letters that their replay delivered, `refused` the others.
    """

    sent: int
    after: tuple[int, ...]
    dead: int
    replayed: int
    refused: int
    lost: int


@dataclass(frozen=True, slots=True)
class WebhookSums:
    """Per kind and in total, the number of requests, and the errors.

    `repeated`: requests that had been accepted before. `twice`: accepted more than once. `both`:
    delivered and a dead letter. `unknown`: sent by no reminder that ran. `mixed_up`: about another
    reminder than the one that sent them. `forged`: requests with a wrong signature. `off_plan`:
    with another number of attempts than planned. `too_soon`: tried again too early.
    `dead_off_plan`, `dead_after_replay_off_plan`: wrongly a dead letter, or wrongly none.
    `wrong_attempts`: dead letters with a wrong number of attempts. `at_once`: the most webhooks
    that the receiver handled at once.
    """

    per_kind: dict[str, WebhookTally]
    total: WebhookTally
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
    dead_after_replay_off_plan: int
    wrong_attempts: int
    at_once: int


def add_up_webhooks(deliveries: Deliveries) -> WebhookSums:
    """Compare the sent webhooks with the received ones and with the dead letters."""
    sent, attempts = deliveries.kinds.keys(), _by_id(deliveries.attempts)
    courses = {id: course_of(id) for id in sent}
    results = Counter(attempt.result for attempt in deliveries.attempts)
    accepted = {id: _accepted(of_id) for id, of_id in attempts.items()}
    dead = Counter(each.webhook_id for each in deliveries.dead)
    dead_after_replay = Counter(each.webhook_id for each in deliveries.dead_after_replay)
    # A dead letter is replayed once, which is one more attempt.
    planned = {id: course.attempts + course.dies for id, course in courses.items()}
    return WebhookSums(
        per_kind={
            kind: _tally([id for id in sent if deliveries.kinds[id] == kind], deliveries)
            for kind in dict.fromkeys(deliveries.kinds.values())
        },
        total=_tally([*sent], deliveries),
        requests=len(deliveries.attempts),
        repeated=results["repeated"],
        twice=sum(len(numbers) > 1 for numbers in accepted.values()),
        both=sum(bool(accepted.get(id)) for id in dead_after_replay),
        unknown=len((attempts.keys() | dead.keys() | dead_after_replay.keys()) - sent),
        mixed_up=sum(
            webhook_id(attempt.task_id) != attempt.webhook_id
            for attempt in deliveries.attempts
            if attempt.result != "forged"
        ),
        forged=results["forged"],
        off_plan=sum(len(attempts.get(id, ())) != number for id, number in planned.items()),
        too_soon=sum(_is_too_soon(courses[id], attempts.get(id, [])) for id in sent),
        dead_off_plan=_differences(dead, [id for id in sent if courses[id].dies]),
        dead_after_replay_off_plan=_differences(
            dead_after_replay, [id for id in sent if courses[id].dies and not courses[id].passes]
        ),
        wrong_attempts=sum(
            each.attempts != courses[each.webhook_id].attempts
            for each in (*deliveries.dead, *deliveries.dead_after_replay)
            if each.webhook_id in courses
        ),
        at_once=max((attempt.at_once for attempt in deliveries.attempts), default=0),
    )


def webhook_problems(sums: WebhookSums, most_at_once: int | None = None) -> list[str]:
    """Return a sentence for each error in `sums`; an empty list means no error.

    `most_at_once` is the limit of the receiver, if there is one.
    """
    wrong = [
        f"{count} webhooks {what}"
        for count, what in (
            (sums.total.lost, "were neither delivered nor dead letters"),
            (sums.twice, "were accepted more than once"),
            (sums.both, "were delivered, and are dead letters all the same"),
            (sums.unknown, "came from no reminder that ran"),
            (sums.mixed_up, "named another reminder than the one that sent them"),
            (sums.forged, "had a wrong signature"),
            (sums.off_plan, "got another number of attempts than the plan of the failures says"),
            (sums.too_soon, "were tried again before the wait was over"),
            (sums.dead_off_plan, "were dead letters and should not be, or the other way round"),
            (
                sums.dead_after_replay_off_plan,
                "were dead letters after the replay and should not be, or the other way round",
            ),
            (sums.wrong_attempts, "are dead letters with another number of attempts"),
        )
        if count
    ]
    if most_at_once is not None and sums.at_once > most_at_once:
        wrong.append(f"{sums.at_once} webhooks came at once, and the limit is {most_at_once}")
    return wrong


def _by_id(attempts: Sequence[Attempt]) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda attempt: attempt.received_ms):
        if attempt.result != "forged":
            found[attempt.webhook_id].append(attempt)
    return dict(found)


def _accepted(attempts: Sequence[Attempt]) -> list[int]:
    """Return the numbers of a webhook's accepted attempts; the first attempt is 1."""
    return [number for number, each in enumerate(attempts, 1) if each.result == "accepted"]


def _tally(ids: Sequence[str], deliveries: Deliveries) -> WebhookTally:
    attempts = _by_id(deliveries.attempts)
    dead = {each.webhook_id for each in deliveries.dead} & {*ids}
    accepted = {id: numbers[0] for id in ids if (numbers := _accepted(attempts.get(id, [])))}
    after = Counter(number for id, number in accepted.items() if id not in dead)
    return WebhookTally(
        sent=len(ids),
        # The comparison with the plan finds surplus attempts.
        after=tuple(after[number] for number in range(1, max(ATTEMPTS, *after, 0) + 1)),
        dead=len(dead),
        replayed=len(dead & accepted.keys()),
        refused=len(dead - accepted.keys()),
        lost=len({*ids} - dead - accepted.keys()),
    )


def _is_too_soon(course: Course, attempts: Sequence[Attempt]) -> bool:
    # The attempt after the last one is the replay, which waits for nothing.
    return any(
        after.received_ms - before.received_ms < course.wait_s(number) * 1000
        for number, (before, after) in enumerate(pairwise(attempts[: course.attempts]), 1)
    )


def _differences(found: Counter[str], expected: Sequence[str]) -> int:
    """Count the items that only one of both has."""
    counts = Counter(expected)
    return (found - counts).total() + (counts - found).total()
