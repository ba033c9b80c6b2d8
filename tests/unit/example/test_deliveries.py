"""The example's sums of the webhooks: a wrong one is found, whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from example_project.deliveries import (
    Attempt,
    Dead,
    Deliveries,
    WebhookSums,
    add_up_webhooks,
    webhook_problems,
)
from example_project.faults import ATTEMPTS, Course, Trouble, course_of
from example_project.ledger import Books, Published, Run
from example_project.plan import webhook_id


def reminder(wanted: Trouble, kind: str, attempts: int = 0) -> str:
    """Give the id of a reminder whose webhook meets with that, after so many attempts if any."""
    for number in range(20_000):
        task_id = f"{kind}:{number}"
        course = course_of(webhook_id(task_id))
        if course.trouble is wanted and attempts in (0, course.attempts):
            return task_id
    raise AssertionError(f"no webhook with {wanted}")


AT_ONCE = reminder(Trouble.NONE, "check-in")
THIRD = reminder(Trouble.FAILING, "check-in", attempts=3)
BUSY = reminder(Trouble.BUSY, "check-in")
SILENT = reminder(Trouble.SILENT, "boarding")
DOWN = reminder(Trouble.DOWN, "boarding")
GONE = reminder(Trouble.GONE, "boarding")
TASKS = [AT_ONCE, THIRD, BUSY, SILENT, DOWN, GONE]


def course(task_id: str) -> Course:
    return course_of(webhook_id(task_id))


def requests_for(task_id: str) -> list[Attempt]:
    """Give what a receiver gets that fails by the plan, the attempt of the replay too."""
    found: list[Attempt] = []
    at, plan, is_accepted = 1000.0, course(task_id), False
    for number in range(1, plan.attempts + plan.dies + 1):
        replayed = number > plan.attempts
        answer = plan.answer(number, repaired=replayed)
        result = "repeated" if is_accepted else "accepted" if answer.accepted else "refused"
        is_accepted = is_accepted or answer.accepted
        found.append(Attempt(webhook_id(task_id), task_id, answer.status, result, at))  # type: ignore[arg-type]
        # The replay waits for nothing.
        at += 1 if number >= plan.attempts else plan.wait_s(number) * 1000
    return found


REQUESTS = [attempt for task_id in TASKS for attempt in requests_for(task_id)]
DEAD = [Dead(webhook_id(DOWN), ATTEMPTS), Dead(webhook_id(GONE), 1)]
GOOD = Deliveries(
    kinds={webhook_id(task_id): task_id.partition(":")[0] for task_id in TASKS},
    attempts=REQUESTS,
    dead=DEAD,
    dead_after_replay=DEAD[1:],
)


#: The report of one wrong webhook.
LOST = "1 webhooks were neither delivered nor dead letters"
OTHER_ATTEMPTS = "1 webhooks got another number of attempts than the plan of the failures says"
OTHER_DEAD = "1 webhooks were dead letters and should not be, or the other way round"
OTHER_AT_LAST = (
    "1 webhooks were dead letters after the replay and should not be, or the other way round"
)


def sums_with(
    requests: list[Attempt] = REQUESTS,
    dead: list[Dead] = DEAD,
    dead_after_replay: list[Dead] = DEAD[1:],
) -> WebhookSums:
    return add_up_webhooks(
        replace(GOOD, attempts=requests, dead=dead, dead_after_replay=dead_after_replay)
    )


def without(task_id: str) -> list[Attempt]:
    return [attempt for attempt in REQUESTS if attempt.task_id != task_id]


def changed(change: Callable[[Attempt], Attempt], task_id: str, number: int = 1) -> list[Attempt]:
    """Give all requests with one of them changed, the *number*-th about a reminder."""
    requests = requests_for(task_id)
    requests[number - 1] = change(requests[number - 1])
    return [*without(task_id), *requests]


def test_webhooks_that_fail_as_planned_have_no_problems() -> None:
    sums = add_up_webhooks(GOOD)

    assert webhook_problems(sums) == []
    total = sums.total
    assert total.sent == 6 == sum(total.after) + total.dead
    # The one whose answer was lost was accepted at once.
    assert total.after == (2, 1, 1, 0)
    assert (total.dead, total.replayed, total.refused, total.lost) == (2, 1, 1, 0)
    assert sums.requests == len(REQUESTS) == 1 + 3 + 2 + 2 + (ATTEMPTS + 1) + 2
    assert sums.repeated == 1
    check_in, boarding = sums.per_kind["check-in"], sums.per_kind["boarding"]
    assert (check_in.sent, check_in.after, check_in.dead) == (3, (1, 1, 1, 0), 0)
    assert (boarding.sent, boarding.after, boarding.dead) == (3, (1, 0, 0, 0), 2)


def test_what_was_sent_is_what_ran() -> None:
    published = [Published(task_id, task_id.partition(":")[0], 1, 0.0) for task_id in TASKS]
    runs = [Run(task_id, 1, 2.0) for task_id in [*TASKS[:-1], TASKS[0]]]

    deliveries = Deliveries.of(Books(published, [], runs), REQUESTS, DEAD, DEAD[1:])

    assert deliveries.kinds == {
        id: kind for id, kind in GOOD.kinds.items() if id != webhook_id(GONE)
    }
    assert add_up_webhooks(deliveries).unknown == 1


def test_a_webhook_that_never_came_is_lost() -> None:
    sums = sums_with(without(AT_ONCE))

    assert (sums.total.lost, sums.per_kind["check-in"].lost) == (1, 1)
    assert webhook_problems(sums) == [LOST, OTHER_ATTEMPTS]


def test_one_that_was_refused_and_is_no_dead_letter_is_lost() -> None:
    sums = sums_with(dead=DEAD[:1], dead_after_replay=[])

    assert (sums.total.dead, sums.total.lost) == (1, 1)
    assert webhook_problems(sums) == [LOST, OTHER_DEAD, OTHER_AT_LAST]


def test_an_attempt_after_acceptance_that_was_not_told_by_its_id_is_accepted_twice() -> None:
    sums = sums_with(changed(lambda each: replace(each, result="accepted"), SILENT, number=2))

    assert webhook_problems(sums) == ["1 webhooks were accepted more than once"]
    assert sums.total.after == (2, 1, 1, 0), "it counts once all the same"


def test_one_that_is_a_dead_letter_although_it_was_delivered_is_found() -> None:
    sums = sums_with(dead_after_replay=[*DEAD[1:], Dead(webhook_id(AT_ONCE), 1)])

    assert webhook_problems(sums) == [
        "1 webhooks were delivered, and are dead letters all the same",
        OTHER_AT_LAST,
    ]


@pytest.mark.parametrize("where", ["requests", "dead", "dead_after_replay"])
def test_one_that_no_reminder_has_sent_is_found(where: str) -> None:
    unknown = Attempt("webhook-check-in-X", "check-in:X", 204, "accepted", 1.0)
    dead_letter = Dead("webhook-check-in-X", 1)
    sums = {
        "requests": lambda: sums_with([*REQUESTS, unknown]),
        "dead": lambda: sums_with(dead=[*DEAD, dead_letter]),
        "dead_after_replay": lambda: sums_with(dead_after_replay=[*DEAD[1:], dead_letter]),
    }[where]()

    assert webhook_problems(sums)[0] == "1 webhooks came from no reminder that ran"


def test_one_that_tells_of_another_reminder_is_found() -> None:
    sums = sums_with(changed(lambda each: replace(each, task_id=BUSY), AT_ONCE))

    assert webhook_problems(sums) == [
        "1 webhooks named another reminder than the one that sent them"
    ]


def test_a_wrong_signature_is_found_and_is_no_attempt() -> None:
    sums = sums_with([*REQUESTS, Attempt("", "", 401, "forged", 1.0)])

    assert webhook_problems(sums) == ["1 webhooks had a wrong signature"]


def test_more_at_once_than_the_limit_are_found() -> None:
    sums = sums_with(changed(lambda each: replace(each, at_once=5), AT_ONCE))

    assert sums.at_once == 5
    assert webhook_problems(sums, most_at_once=5) == [] == webhook_problems(sums)
    assert webhook_problems(sums, most_at_once=4) == ["5 webhooks came at once, and the limit is 4"]


@pytest.mark.parametrize("task_id", [AT_ONCE, THIRD, BUSY, SILENT, DOWN, GONE])
def test_an_attempt_too_many_is_found(task_id: str) -> None:
    requests = requests_for(task_id)
    again = replace(requests[-1], result="repeated", received_ms=1e6)

    assert webhook_problems(sums_with([*REQUESTS, again])) == [OTHER_ATTEMPTS]


def test_an_attempt_too_few_is_found() -> None:
    # As if the second failure had not been one.
    sums = sums_with([*without(THIRD), *requests_for(THIRD)[1:]])

    assert OTHER_ATTEMPTS in webhook_problems(sums)


@pytest.mark.parametrize(("task_id", "number"), [(THIRD, 2), (THIRD, 3), (BUSY, 2), (SILENT, 2)])
def test_an_attempt_that_came_before_its_wait_was_over_is_found(task_id: str, number: int) -> None:
    sums = sums_with(
        changed(
            lambda each: replace(each, received_ms=each.received_ms - 0.5), task_id, number=number
        )
    )

    assert webhook_problems(sums) == ["1 webhooks were tried again before the wait was over"]


def test_a_dead_letter_too_many_is_found_though_it_was_replayed() -> None:
    assert webhook_problems(sums_with(dead=[*DEAD, DEAD[0]])) == [OTHER_DEAD]


def test_a_passing_reason_that_was_not_over_after_the_replay_is_found() -> None:
    refused = changed(
        lambda each: replace(each, status=503, result="refused"), DOWN, number=ATTEMPTS + 1
    )
    sums = sums_with(refused, dead_after_replay=DEAD)

    assert (sums.total.replayed, sums.total.refused) == (0, 2)
    assert webhook_problems(sums) == [OTHER_AT_LAST]


def test_a_dead_letter_that_was_not_replayed_is_found() -> None:
    sums = sums_with([*without(DOWN), *requests_for(DOWN)[:-1]], dead_after_replay=DEAD)

    assert webhook_problems(sums) == [OTHER_ATTEMPTS, OTHER_AT_LAST]


def test_what_was_gone_and_was_accepted_all_the_same_is_found() -> None:
    accepted = changed(lambda each: replace(each, result="accepted"), GONE, number=2)

    assert webhook_problems(sums_with(accepted, dead_after_replay=[])) == [OTHER_AT_LAST]


def test_a_dead_letter_that_tells_of_another_number_of_attempts_is_found() -> None:
    sums = sums_with(dead=[replace(DEAD[0], attempts=ATTEMPTS - 1), DEAD[1]])

    assert webhook_problems(sums) == ["1 webhooks are dead letters with another number of attempts"]


def test_one_accepted_later_than_there_should_be_attempts_still_counts() -> None:
    late = [replace(attempt, received_ms=1e6) for attempt in requests_for(AT_ONCE)]
    before = [replace(late[0], status=500, result="refused", received_ms=n) for n in range(5)]
    sums = sums_with([*without(AT_ONCE), *before, *late])

    assert sums.total.after == (1, 1, 1, 0, 0, 1)
    assert sum(sums.total.after) + sums.total.dead == sums.total.sent


def test_nothing_sent_and_nothing_got_is_no_problem() -> None:
    sums = add_up_webhooks(Deliveries({}, [], [], []))

    assert webhook_problems(sums) == []
    assert (sums.total.sent, sums.total.after) == (0, (0,) * ATTEMPTS)
