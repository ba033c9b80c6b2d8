"""The example's sums: a wrong one is found, whatever is wrong, and ends the demo with an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from celery_delayq.model.scheduled import Outcome
from example_project import demo
from example_project.command import WrongSums
from example_project.ledger import (
    Action,
    Books,
    Change,
    Part,
    Published,
    Run,
    Sums,
    add_up,
    lateness,
    percentile,
    problems,
)

EXPECTED = {"check-in": 2, "boarding": 2}
PUBLISHED = [
    Published("check-in:A", "check-in", eta_ms=10_000, published_ms=1_000.0),
    Published("check-in:B", "check-in", eta_ms=20_000, published_ms=1_001.0),
    Published("boarding:A", "boarding", eta_ms=30_000, published_ms=1_002.0),
    Published("boarding:B", "boarding", eta_ms=40_000, published_ms=1_003.0),
]
RUNS = [
    Run("check-in:A", eta_ms=10_000, started_ms=10_001.5),
    Run("check-in:B", eta_ms=20_000, started_ms=20_000.0),
    Run("boarding:A", eta_ms=30_000, started_ms=30_004.0),
    Run("boarding:B", eta_ms=40_000, started_ms=40_100.0),
]


def sums_of(
    published: list[Published] = PUBLISHED,
    runs: list[Run] = RUNS,
    changes: Sequence[Change] = (),
) -> Sums:
    return add_up(Books(published, [*changes], runs))


def wrong_with(sums: Sums, expected: dict[str, int] | None = None) -> list[str]:
    """Give the problems where as many changes were asked for as were tried."""
    tried: dict[str, int] = {action: outcomes.total() for action, outcomes in sums.outcomes.items()}
    return problems(sums, expected or EXPECTED, changes=tried)


def cancelled(task_id: str, outcome: Outcome = Outcome.DONE) -> Change:
    return Change(task_id, "cancel", outcome.value, eta_ms=None, made_ms=25_000.0)


def moved(task_id: str, eta_ms: int, outcome: Outcome = Outcome.DONE) -> Change:
    return Change(task_id, "move", outcome.value, eta_ms, made_ms=25_000.0)


def test_a_day_without_fault_has_no_problems() -> None:
    sums = sums_of()

    assert wrong_with(sums) == []
    assert (sums.total.planned, sums.total.run) == (4, 4)
    assert (sums.total.early, sums.total.lost, sums.total.twice) == (0, 0, 0)
    assert sums.lateness[Part.ALL] == (4, 1.5, 100.0, 100.0)


def test_a_task_that_never_ran_is_lost() -> None:
    sums = sums_of(runs=RUNS[:-1])

    assert (sums.total.run, sums.total.lost) == (3, 1)
    assert (sums.per_kind["boarding"].lost, sums.per_kind["check-in"].lost) == (1, 0)
    assert wrong_with(sums) == ["1 tasks were not cancelled and never ran"]


def test_a_task_that_started_before_its_eta_is_early_by_however_little() -> None:
    sums = sums_of(runs=[replace(RUNS[0], started_ms=9_999.999), *RUNS[1:]])

    assert sums.total.early == 1
    assert wrong_with(sums) == ["1 tasks ran before they were due"]


def test_a_task_that_started_again_counts_as_twice_and_still_as_one_that_ran() -> None:
    again = [replace(RUNS[0], started_ms=50_000.0), replace(RUNS[0], started_ms=60_000.0)]
    sums = sums_of(runs=[*RUNS, *again])

    assert (sums.total.run, sums.total.twice) == (4, 1)
    assert sums.lateness[Part.ALL] == (4, 1.5, 100.0, 100.0), "lateness is that of the first start"
    assert wrong_with(sums) == ["1 tasks ran more than once"]


def test_an_early_second_start_is_early_too() -> None:
    sums = sums_of(runs=[*RUNS, replace(RUNS[3], started_ms=1.0)])

    assert (sums.total.early, sums.total.twice) == (1, 1)


LOST = "1 tasks were not cancelled and never ran"
OTHER_ETA = "1 tasks started with another ETA than they were published with"
KINDS_WRONG = "boarding: 2 tasks were planned, {} were scheduled"


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"runs": [*RUNS[:-1], RUNS[0]]}, [LOST, "1 tasks ran more than once"]),
        ({"published": PUBLISHED[:-1], "runs": RUNS[:-1]}, [KINDS_WRONG.format(1)]),
        ({"published": PUBLISHED[:2], "runs": RUNS[:2]}, [KINDS_WRONG.format(0)]),
        (
            {"runs": [*RUNS, Run("check-in:Z", 1, 2.0)]},
            ["1 tasks ran without having been published"],
        ),
        ({"runs": [replace(RUNS[0], eta_ms=None), *RUNS[1:]]}, [OTHER_ETA]),
        ({"runs": [replace(RUNS[0], eta_ms=10_001), *RUNS[1:]]}, [OTHER_ETA]),
        (
            {"changes": [cancelled("boarding:B")]},
            ["1 tasks ran although they had been cancelled"],
        ),
        ({"runs": RUNS[:2], "changes": [cancelled("boarding:B")]}, [LOST]),
    ],
    ids=[
        "one lost, another one twice",
        "fewer scheduled than planned",
        "a kind that nobody published",
        "a run without publication",
        "no ETA",
        "another ETA",
        "cancelled, but ran",
        "cancelled, and another one lost",
    ],
)
def test_what_is_wrong_is_found(given: dict[str, Any], wrong: list[str]) -> None:
    assert wrong_with(sums_of(**given)) == wrong


@pytest.mark.parametrize(
    ("set_aside", "wrong"),
    [
        (["boarding:A", "boarding:B"], 0),
        (["boarding:A"], 1),
        (["boarding:A", "boarding:A", "boarding:B"], 1),
        (["check-in:A", "boarding:B"], 2),
    ],
)
def test_where_the_old_time_of_a_changed_task_comes_too_it_is_set_aside_once(
    set_aside: list[str], wrong: int
) -> None:
    changes = [moved("boarding:A", 50_000), cancelled("boarding:B")]
    runs = [*RUNS[:2], Run("boarding:A", eta_ms=50_000, started_ms=50_001.0)]
    found = wrong_with(add_up(Books(PUBLISHED, changes, runs, set_aside=set_aside)))

    what = "tasks were moved or cancelled and not set aside once, or the other way round"
    assert found == ([f"{wrong} {what}"] if wrong else [])


def test_a_kind_that_nobody_planned_is_found() -> None:
    assert wrong_with(sums_of(), {"check-in": 2}) == [
        "boarding: 0 tasks were planned, 2 were scheduled"
    ]


def test_a_task_that_was_due_when_it_was_published_is_shown() -> None:
    sums = sums_of(published=[replace(PUBLISHED[0], published_ms=10_000.0), *PUBLISHED[1:]])

    assert sums.overdue == 1
    assert wrong_with(sums) == [
        "1 tasks were due when they were published: this machine needs more --seconds-before"
    ]


def test_what_redis_still_holds_is_found() -> None:
    assert problems(sums_of(), EXPECTED, changes={}, left_in_broker=3) == [
        "3 tasks were still in the broker after the workers had ended"
    ]


def test_what_publishing_again_has_added_is_found() -> None:
    assert problems(sums_of(), EXPECTED, changes={}, added=2) == [
        "2 tasks were added by publishing all of them again"
    ]


def test_a_cancelled_task_is_neither_run_nor_lost() -> None:
    sums = sums_of(runs=RUNS[:-1], changes=[cancelled("boarding:B")])

    assert wrong_with(sums) == []
    assert sums.total.planned == sums.total.run + sums.total.cancelled == 4
    assert (sums.total.run, sums.total.cancelled, sums.total.lost) == (3, 1, 0)


def test_the_lateness_of_a_moved_task_counts_from_its_new_time() -> None:
    at_its_new_time = replace(RUNS[3], started_ms=60_002.0)
    sums = sums_of(runs=[*RUNS[:3], at_its_new_time], changes=[moved("boarding:B", 60_000)])

    assert wrong_with(sums) == []
    assert (sums.per_kind["boarding"].moved, sums.per_kind["check-in"].moved) == (1, 0)
    assert sums.lateness[Part.ALL] == (4, 1.5, 4.0, 4.0)


def test_a_moved_task_that_runs_at_its_old_time_is_early() -> None:
    sums = sums_of(changes=[moved("boarding:B", 60_000)])

    assert sums.total.early == 1
    assert wrong_with(sums) == ["1 tasks ran before they were due"]


def test_a_moved_task_that_runs_at_both_times_is_early_and_ran_twice() -> None:
    at_both_times = [*RUNS, replace(RUNS[3], started_ms=60_002.0)]
    sums = sums_of(runs=at_both_times, changes=[moved("boarding:B", 60_000)])

    assert wrong_with(sums) == ["1 tasks ran before they were due", "1 tasks ran more than once"]


@pytest.mark.parametrize("outcome", [Outcome.READY, Outcome.RUNNING, Outcome.PAST])
def test_a_task_that_was_moved_too_late_runs_at_its_old_time(outcome: Outcome) -> None:
    sums = sums_of(changes=[moved("boarding:B", 60_000, outcome)])

    assert wrong_with(sums) == []
    assert sums.total.moved == 0
    assert sums.outcomes["move"] == {outcome.value: 1}


def test_a_task_that_was_cancelled_too_late_has_to_run() -> None:
    too_late = [cancelled("boarding:B", Outcome.RUNNING)]

    assert wrong_with(sums_of(changes=too_late)) == []
    assert wrong_with(sums_of(runs=RUNS[:-1], changes=too_late)) == [
        "1 tasks were not cancelled and never ran"
    ]


def test_a_task_that_was_gone_when_it_was_to_be_changed_must_have_run_by_then() -> None:
    has_run = [moved("check-in:A", 60_000, Outcome.UNKNOWN)]
    has_not_run_yet = [moved("boarding:B", 60_000, Outcome.UNKNOWN)]

    assert wrong_with(sums_of(changes=has_run)) == []
    assert wrong_with(sums_of(changes=has_not_run_yet)) == [
        "1 tasks were not found when they were to be changed, and had not run"
    ]


@pytest.mark.parametrize("action", ["move", "cancel"])
def test_news_that_nobody_took_in_is_found(action: Action) -> None:
    assert problems(sums_of(), EXPECTED, changes={action: 2}) == [
        f"{action}: 2 were asked for, 0 were tried"
    ]


def test_nothing_ran_gives_no_lateness_and_everything_lost() -> None:
    sums = sums_of(runs=[])

    assert sums.lateness == dict.fromkeys(Part, (0, None, None, None))
    assert wrong_with(sums) == ["4 tasks were not cancelled and never ran"]


def test_lateness_is_of_the_first_start_of_what_was_published() -> None:
    again = [replace(RUNS[0], started_ms=50_000.0), Run("check-in:Z", None, 1.0)]

    late = lateness(Books(PUBLISHED[:1], [], [*again, *RUNS], {"check-in:A": 10_001}))

    assert late == {
        Part.DISPATCH: {"check-in:A": 1},
        Part.WAIT: {"check-in:A": 0.5},
        Part.ALL: {"check-in:A": 1.5},
    }


def test_the_parts_of_lateness_count_from_the_new_time_of_a_moved_task() -> None:
    runs = [*RUNS[:2], Run("boarding:B", eta_ms=40_000, started_ms=60_009.0)]
    changes = [moved("boarding:B", 60_000)]

    late = lateness(Books(PUBLISHED, changes, runs, ready_ms={"boarding:B": 60_004}))

    assert late[Part.DISPATCH] == {"boarding:B": 4}
    assert late[Part.WAIT] == {"boarding:B": 5.0}
    assert late[Part.ALL] == {"check-in:A": 1.5, "check-in:B": 0.0, "boarding:B": 9.0}


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (50, 50.0), (99, 99.0), (99.1, 100.0), (100, 100.0)]
)
def test_percentiles_are_values_that_occurred(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(100, 0, -1)], percent) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 50) is None


def test_the_command_fails_and_says_which_sums_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_with_a_loss(*_: Any) -> None:
        raise WrongSums(wrong_with(sums_of(runs=RUNS[:-1])))

    monkeypatch.setattr(demo, "run", run_with_a_loss)
    # The real handler would outlive the test.
    monkeypatch.setattr("signal.signal", lambda *_: None)

    result = CliRunner().invoke(demo.main, [])

    assert result.exit_code == 1
    assert "the sums are wrong:\n  1 tasks were not cancelled and never ran" in result.output
