"""The judge of the fault tests reports each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.faults.checker import (
    Harm,
    Promise,
    Rollback,
    Run,
    Verdict,
    judge,
    most_at_once,
)
from tests.support.faults.stage import MakeStage

SECOND = 1_000_000
WORKER, CHILD, OTHER = 100, 101, 200


def run(key: str, start: float, end: float | None, holder: int = WORKER, pid: int = CHILD) -> Run:
    return Run(key, pid, holder, int(start * SECOND), None if end is None else int(end * SECOND))


def killed(pid: int, at: float) -> Harm:
    return Harm(pid, int(at * SECOND), int(at * SECOND))


def stopped(pid: int, since: float, until: float) -> Harm:
    return Harm(pid, int(since * SECOND), int(until * SECOND), fatal=False)


def test_what_ran_once_in_time_is_right() -> None:
    verdict = judge([Promise("a", SECOND)], [run("a", 1, 2)], {})

    assert verdict.violations == {}
    assert verdict.counts["published"] == verdict.counts["runs"] == 1


def test_what_never_ran_and_is_nowhere_is_lost() -> None:
    verdict = judge([Promise("a"), Promise("b")], [run("a", 1, 2)], {})

    assert verdict.violations == {"lost": {"b": "never started"}}
    assert "lost: b: never started" in verdict.report()


def test_what_was_killed_while_it_ran_and_did_not_run_again_is_lost() -> None:
    verdict = judge([Promise("a")], [run("a", 1, None)], {}, [killed(WORKER, 2)])

    assert list(verdict.lost) == ["a"]


def test_what_is_still_in_the_broker_is_left_and_not_lost() -> None:
    promises = [Promise("a"), Promise("b"), Promise("c")]

    verdict = judge(promises, [run("c", 1, 2)], {"ready": ["a"], "leased": ["b", "c"]})

    assert verdict.violations == {
        "left": {"a": "is still ready", "b": "is still leased", "c": "is still leased"}
    }


def test_what_nobody_sent_and_is_left_is_reported() -> None:
    """Such as a lease on nothing. Bytes that are no message rightly become a dead letter."""
    verdict = judge([], [], {"leased": ["1:1"], "dead": ["undecodable-1"]})

    assert verdict.violations == {"left": {"1:1": "is still leased, and was never sent"}}


def test_a_dead_letter_is_reported() -> None:
    verdict = judge([Promise("a")], [run("a", 1, None)], {"dead": ["a"]})

    assert list(verdict.violations) == ["dead"]


def test_a_retry_is_promised_by_the_task_and_may_be_lost_on_its_own() -> None:
    verdict = judge([Promise("a"), Promise("a~1", 3 * SECOND)], [run("a", 1, 2)], {})

    assert list(verdict.lost) == ["a~1"]
    assert not verdict.twice


def test_a_publish_that_failed_may_have_come_to_nothing() -> None:
    assert judge([Promise("a", certain=False)], [], {}).violations == {}
    assert judge([Promise("a", certain=False)], [run("a", 1, None)], {}).lost


def test_a_run_before_its_time_is_early_be_it_by_a_microsecond() -> None:
    promises = [Promise("a", SECOND), Promise("b", SECOND + 1)]

    verdict = judge(promises, [run("a", 1, 2), run("b", 1, 2)], {})

    assert list(verdict.violations) == ["early"]
    assert list(verdict.early) == ["b"]


def test_a_task_that_was_promised_twice_may_run_after_the_earlier_promise() -> None:
    promises = [Promise("a~1", 5 * SECOND), Promise("a~1", SECOND)]

    assert judge(promises, [run("a~1", 1, 2)], {}).violations == {}


def test_a_second_run_is_twice_while_nobody_was_killed() -> None:
    runs = [run("a", 1, 2), run("a", 5, 6, OTHER, OTHER)]

    verdict = judge([Promise("a")], runs, {})

    assert list(verdict.violations) == ["twice"]
    assert "after 4.000 s though its worker lived" in verdict.twice["a"]


@pytest.mark.parametrize(
    ("harm", "excused"),
    [
        (killed(CHILD, 1.5), True),
        (killed(WORKER, 1.5), True),
        (killed(WORKER, 2.5), True),  # it had ended, and its acknowledgement might be missing
        (killed(WORKER, 4.5), False),  # its acknowledgement must be there
        (killed(WORKER, 0.5), True),  # its children live on for a while
        (killed(WORKER, 5.5), False),  # the second run had started before
        (killed(OTHER, 1.5), False),
        (Harm(WORKER, int(1.2 * SECOND), int(4.5 * SECOND), fatal=False), True),
        (Harm(WORKER, int(1.2 * SECOND), int(1.9 * SECOND), fatal=False), False),
    ],
)
def test_a_second_run_is_excused_by_harm_to_its_holder_and_by_nothing_else(
    harm: Harm, excused: bool
) -> None:
    runs = [run("a", 1, 2), run("a", 5, 6, OTHER, OTHER)]

    verdict = judge([Promise("a")], runs, {}, [harm], lease=2.0)

    assert bool(verdict.twice) is not excused
    assert verdict.again == excused


def test_a_third_run_is_not_excused_by_what_excused_the_second() -> None:
    runs = [run("a", 1, None), run("a", 5, 6, OTHER, OTHER), run("a", 8, 9, OTHER, OTHER)]

    verdict = judge([Promise("a")], runs, {}, [killed(WORKER, 2)])

    assert "after 3.000 s" in verdict.twice["a"]
    assert verdict.again == 1


def test_a_publish_that_was_repeated_excuses_one_run_more() -> None:
    promise = Promise("a", repeated=True)

    twice = judge([promise], [run("a", 1, 2), run("a", 3, 4)], {})
    thrice = judge([promise], [run("a", 1, 2), run("a", 3, 4), run("a", 5, 6)], {})

    assert (twice.again, twice.twice) == (1, {})
    assert list(thrice.twice) == ["a"]


def test_what_ran_and_was_never_sent_is_reported() -> None:
    assert list(judge([], [run("a", 1, 2)], {}).violations) == ["unknown"]


def test_what_redis_forgot_is_counted_and_nothing_else_is_excused_by_it() -> None:
    promises = [Promise("kept"), Promise("gone"), Promise("before"), Promise("after")]
    runs = [
        *(run("before", start, start + 1) for start in (1, 22)),
        *(run("after", start, start + 1) for start in (11, 23)),
    ]

    verdict = judge(promises, runs, {}, rollback=Rollback(10 * SECOND, {"gone"}))

    assert verdict.forgotten == 1
    assert list(verdict.lost) == ["kept"]
    assert list(verdict.twice) == ["before"]


@pytest.mark.parametrize(
    ("runs", "harms", "most"),
    [
        ([], [], 0),
        ([run("a", 1, 2), run("b", 2, 3)], [], 1),
        ([run("a", 1, 4), run("b", 2, 3), run("c", 3, 5)], [], 2),
        # One that never ended lasts on, unless its process was killed.
        ([run("a", 1, None), run("b", 3, 4)], [], 2),
        ([run("a", 1, None), run("b", 3, 4)], [killed(WORKER, 2)], 1),
        ([run("a", 1, None), run("b", 3, 4)], [killed(CHILD, 2)], 1),
        ([run("a", 1, None), run("b", 3, 4)], [killed(OTHER, 2)], 2),
        # The kill of its process had begun before the run.
        ([run("a", 1, None), run("b", 3, 4)], [Harm(WORKER, 0, 2 * SECOND)], 1),
        # A child may finish what it runs after the kill of its worker.
        ([run("a", 1, 5), run("b", 3, 4)], [killed(WORKER, 2)], 2),
        # A worker that was stopped for most of its lease may have lost it.
        ([run("a", 1, 9), run("b", 3, 4, OTHER)], [stopped(WORKER, 2, 8)], 1),
        ([run("a", 1, 9), run("b", 3, 4, OTHER)], [stopped(WORKER, 2, 4)], 2),
    ],
)
def test_runs_at_once_are_counted_while_leases_last(
    runs: list[Run], harms: list[Harm], most: int
) -> None:
    assert most_at_once(runs, harms, lease=5.0) == most


def test_a_report_names_a_few_of_many() -> None:
    report = Verdict(lost={f"task-{n}": "never started" for n in range(50)}).report(most=3)

    assert "task-2" in report
    assert "task-3" not in report
    assert "and 47 more" in report


@pytest.mark.parametrize("place", ["list", "leased", "dead", "nowhere"])
def test_the_whole_way_from_the_broker_to_the_verdict(make_stage: MakeStage, place: str) -> None:
    """A message is in each place in which it may be left; no worker can run it."""
    stage = make_stage()
    later = stage.producer.send("faults.work", after=60)
    key = stage.producer.send("faults.work")
    [message] = stage.redis.lrange("celery", 0, -1)
    stage.redis.delete("celery")
    put: dict[str, Callable[[], object]] = {
        "list": lambda: stage.redis.lpush("celery\x06\x169", message),
        "leased": lambda: stage.redis.hset("{celery}:leased:x", "1:1", b"0\n" + message),
        "dead": lambda: stage.redis.hset("{celery}:dead", "x", b"1 2 3 reason\n" + message),
        "nowhere": lambda: None,
    }
    put[place]()

    verdict = stage.judge()

    assert verdict.left.pop(later) == "is still scheduled"
    expected = {
        "list": {"left": {key: "is still ready"}},
        "leased": {"left": {key: "is still leased"}},
        "dead": {"dead": {key: "became a dead letter, 0 runs started"}},
        "nowhere": {"lost": {key: "never started"}},
    }
    assert verdict.violations == expected[place]


def test_the_ledger_keeps_every_run_with_its_process_and_times(make_stage: MakeStage) -> None:
    stage = make_stage()
    before = stage.ledger.now_us()
    first = stage.ledger.started("a")
    stage.ledger.promised("a~1", 0.5)
    second = stage.ledger.started("a")
    stage.ledger.ended("a", second)

    runs, promises = stage.ledger.read()

    assert (first, second) == (1, 2)
    assert [run.end_us is None for run in runs] == [True, False]
    assert before <= runs[0].start_us <= runs[1].start_us <= (runs[1].end_us or 0)
    assert runs[0].pid == runs[0].holder
    assert promises[0].key == "a~1"
    assert 500_000 <= promises[0].due_us - before < 5_000_000
    assert stage.ledger.finished() == {"a"}
    assert stage.ledger.starts() == {"a": 2}
