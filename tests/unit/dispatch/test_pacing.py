"""When a dispatcher looks next, on a clock that the test moves."""

from __future__ import annotations

import pytest

from celery_delayq.dispatch.pacing import (
    CLOCK_DRIFT_RATE,
    EMPTY_LOOK_SECONDS,
    GATHERED_ENTRIES,
    HEARTBEAT_SECONDS,
    JITTER,
    LOOK_SECONDS_PER_DISPATCHER,
    MAX_GATHER_SECONDS,
    MAX_LOOK_SECONDS,
    MAX_SKIPPED_QUEUES,
    MIN_GATHER_SECONDS,
    MIN_LOOK_SECONDS,
    MISSED_HEARTBEATS,
    NO_CLAIM_SECONDS,
    OFF_DUTY_SECONDS,
    PollTimer,
    SkippedQueues,
)
from celery_delayq.store.scripting.replies import Look, Promoted


@pytest.fixture
def timer() -> PollTimer:
    """A timer right after its first look, at a moment that stands still, without chance."""
    timer = PollTimer(1.0, lambda: 100.0, lambda low, high: (low + high) / 2)
    timer.note_look(look(None, on_duty=True, fleet=1))
    return timer


def look(wait_ms: int | None, *, on_duty: bool | None = None, fleet: int | None = None) -> Look:
    queue, due = (None, None) if wait_ms is None else ("q", 10_000 + wait_ms)
    return Look(10_000_000, queue, due, (), on_duty, fleet)


def promoted(moved: int, wait_ms: int, *, on_duty: bool | None = None) -> Promoted:
    return Promoted(look(wait_ms, on_duty=on_duty), moved, 0)


def promote(timer: PollTimer, answer: Promoted) -> None:
    timer.note_look(answer.look, answer)


def watcher(timer: PollTimer, fleet: int) -> PollTimer:
    """Make another one be on duty, and the first look be over."""
    timer.note_look(look(None, on_duty=False, fleet=fleet))
    timer.monotonic = lambda: 200.0
    return timer


@pytest.mark.parametrize(
    ("due", "wait", "queue"),
    [(None, 1.0, None), (250, 0.25, "q"), (3_600_000, 1.0, "q"), (-500, 0, "q")],
    ids=["nothing is scheduled", "soon", "later than the interval", "overdue"],
)
def test_it_sleeps_until_the_earliest_due_but_no_longer_than_the_interval(
    timer: PollTimer, due: int | None, wait: float, queue: str | None
) -> None:
    timer.note_look(look(due))

    assert timer.wait() == pytest.approx(wait)
    assert timer.queue == queue


def test_an_entry_that_has_become_due_is_looked_at_now(timer: PollTimer) -> None:
    timer.note_look(look(250))

    assert timer.wait() == pytest.approx(0.25)
    timer.monotonic = lambda: 100.3
    assert timer.wait() == 0
    assert timer.queue == "q"


@pytest.mark.parametrize(
    ("due", "hint", "wait", "queue"), [(None, 0.1, 0.1, "other"), (100, 0.5, 0.1, "q")]
)
def test_only_a_hint_of_something_earlier_shortens_the_sleep(
    timer: PollTimer, due: int | None, hint: float, wait: float, queue: str
) -> None:
    timer.note_look(look(due))
    timer.wake_in("other", hint)

    assert timer.wait() == pytest.approx(wait)
    assert timer.queue == queue


def test_on_duty_it_looks_at_the_index_each_interval_however_much_is_due(timer: PollTimer) -> None:
    timer.note_look(look(5, on_duty=True, fleet=1))
    timer.monotonic = lambda: 100.9
    assert timer.next_queue == "q"

    timer.monotonic = lambda: 101.0

    assert timer.next_queue is None


@pytest.mark.parametrize(("fleet", "most"), [(1, 1.0), (2, HEARTBEAT_SECONDS)])
def test_promotions_do_not_put_off_the_next_look(timer: PollTimer, fleet: int, most: float) -> None:
    timer.note_look(look(None, on_duty=True, fleet=fleet))
    timer.monotonic = lambda: 100.0 + 0.8 * most

    promote(timer, promoted(1, 60_000, on_duty=True))

    assert timer.wait() == pytest.approx(0.2 * most)


@pytest.mark.parametrize(
    ("slower", "in_vain", "wait"),
    [(0.001, False, 0.249), (0.01, False, 0.25), (-0.001, False, 0.25), (0.001, True, 0.25)],
    ids=["slower", "much slower: a clock may have been set", "faster", "it came too early"],
)
def test_the_delay_of_a_reply_is_known_by_faster_ones(
    timer: PollTimer, slower: float, in_vain: bool, wait: float
) -> None:
    """The reply to the first look came when both clocks were as they are."""
    timer.monotonic = lambda: 100.0 + slower

    promote(timer, promoted(0 if in_vain else 1, 250))

    assert timer.wait() == pytest.approx(wait, abs=2e-6)


def test_two_clocks_that_drift_apart_make_no_look_come_too_early(timer: PollTimer) -> None:
    """Redis' clock is slower than ours by half of what is allowed for."""
    ours = 100.0
    timer.monotonic = lambda: ours
    for seconds in range(1, 100):
        ours = 100.0 + seconds * (1 + CLOCK_DRIFT_RATE / 2)
        now = 10_000_000 + seconds * 1_000_000
        timer.note_look(Look(now, "q", now // 1000 + 250, (), on_duty=True, fleet=1))

        assert timer.wait() == pytest.approx(0.25, abs=2e-6)


def test_a_full_batch_is_followed_by_the_next_at_once(timer: PollTimer) -> None:
    promote(timer, promoted(100, 0))

    assert timer.wait() == 0


def test_a_steady_stream_is_moved_several_at_a_time(timer: PollTimer) -> None:
    promote(timer, promoted(1, 1))

    assert timer.wait() == pytest.approx(MIN_GATHER_SECONDS)


@pytest.mark.parametrize(
    ("rate", "gathers"),
    [
        (5_000, MIN_GATHER_SECONDS),
        (1_000, GATHERED_ENTRIES / 1_000),
        (500, MAX_GATHER_SECONDS),
        (200, MIN_GATHER_SECONDS),
    ],
)
def test_the_faster_a_stream_the_shorter_it_gathers(
    timer: PollTimer, rate: int, gathers: float
) -> None:
    """A slow stream is not held up: its entries would come one by one all the same."""
    moved = max(1, round(rate * MIN_GATHER_SECONDS))
    for n in range(100):
        timer.monotonic = lambda n=n: 100.0 + n * moved / rate  # type: ignore[misc]
        promote(timer, promoted(moved, 1))

    assert timer.wait() == pytest.approx(max(gathers, 0.001), abs=2e-4)


def test_entries_of_other_queues_are_not_gathered(timer: PollTimer) -> None:
    for n in range(100):
        timer.monotonic = lambda n=n: 100.0 + n / 1_000  # type: ignore[misc]
        answer = promoted(1, 1)
        promote(timer, answer._replace(look=answer.look._replace(queue=f"q{n % 2}")))

    assert timer.wait() == pytest.approx(MIN_GATHER_SECONDS)


def test_streams_of_several_stores_are_promoted_from_at_the_same_moments(timer: PollTimer) -> None:
    timer.gather = 0.02

    for now, due_ms, moment in (
        (100.003, 5, 100.008),  # not a stream yet
        (100.008, 9, 100.02),
        (100.0201, 1, 100.04),
        (100.0412, 1, 100.06),
        (100.0615, 1, 100.08),  # its reply came late
        (100.0901, 1, 100.1),
        (100.1001, 15, 100.12),
        (100.1201, 30, 100.1501),  # later than for what it gathers
        (100.2, 1, 100.2 + MIN_GATHER_SECONDS),  # it has ended
    ):
        timer.monotonic = lambda now=now: now  # type: ignore[misc]
        promote(timer, promoted(1, due_ms))

        assert now + timer.wait() == pytest.approx(moment)


def test_what_cannot_be_promoted_is_tried_less_and_less_often(timer: PollTimer) -> None:
    timer.note_look(look(0))
    waits = []
    for _ in range(10):
        promote(timer, promoted(0, 0))
        waits.append(timer.wait())
    promote(timer, promoted(1, 5))

    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(EMPTY_LOOK_SECONDS[0] + MIN_GATHER_SECONDS)
    assert waits[-1] == pytest.approx(EMPTY_LOOK_SECONDS[1] + MIN_GATHER_SECONDS)
    assert timer.wait() == pytest.approx(0.005)


def test_names_that_are_no_queues_do_not_hold_up_those_behind_them(timer: PollTimer) -> None:
    """Anybody may have written them: each costs one call, and no wait."""
    for name in ("no queue", "nor this", None, "q"):
        promote(timer, Promoted(look(0)._replace(queue=name), 0, 0))
        assert timer.wait() == 0

    promote(timer, promoted(0, 0))
    assert timer.wait() > 0


# -- not on duty


@pytest.mark.parametrize(
    ("fleet", "wait"),
    [
        (2, MIN_LOOK_SECONDS),
        (20, 20 * LOOK_SECONDS_PER_DISPATCHER),
        (200, MAX_LOOK_SECONDS),
        (10_000, MAX_LOOK_SECONDS),
        (0, MAX_LOOK_SECONDS),
    ],
)
def test_off_duty_it_looks_less_often_the_larger_the_fleet(
    timer: PollTimer, fleet: int, wait: float
) -> None:
    watcher(timer, fleet).note_look(look(20, on_duty=False, fleet=fleet))

    assert timer.wait() == pytest.approx(wait)
    assert timer.queue is None


@pytest.mark.parametrize(
    ("fleet", "wait"),
    [
        (2, MIN_LOOK_SECONDS),
        (200, 200 * LOOK_SECONDS_PER_DISPATCHER),
        (10_000, 10_000 * LOOK_SECONDS_PER_DISPATCHER),
    ],
)
def test_a_fleet_looks_at_a_fixed_rate_for_as_long_as_the_one_on_duty_is_heard(
    timer: PollTimer, fleet: int, wait: float
) -> None:
    watcher(timer, fleet).note_look(look(20, on_duty=False, fleet=fleet))

    waits = []
    for beat in range(int(wait / HEARTBEAT_SECONDS) + 1):
        timer.monotonic = lambda at=200 + beat * HEARTBEAT_SECONDS: at  # type: ignore[misc]
        timer.note_heartbeat()
        waits.append(timer.wait())

    silent = HEARTBEAT_SECONDS * sum(MISSED_HEARTBEATS) / 2
    assert waits == pytest.approx(
        [min(silent, wait - beat * HEARTBEAT_SECONDS) for beat in range(len(waits))]
    )


def test_when_the_one_on_duty_is_lost_others_look_within_half_a_second(timer: PollTimer) -> None:
    watcher(timer, 200).note_look(look(None, on_duty=False, fleet=200))
    timer.uniform = max
    timer.note_heartbeat()

    assert HEARTBEAT_SECONDS < timer.wait() < 0.45
    assert MAX_LOOK_SECONDS * (1 + JITTER) < 1.0  # where nothing is heard


def test_the_first_look_of_a_fleet_that_starts_at_once_is_spread(timer: PollTimer) -> None:
    for at in (100.0, 200.0):
        timer.monotonic = lambda at=at: at  # type: ignore[misc]
        timer.note_look(look(None, on_duty=False, fleet=200))
        assert timer.wait() == pytest.approx(MAX_LOOK_SECONDS / 2)
        timer.note_reconnect()


def test_on_duty_in_a_fleet_it_looks_so_often_that_the_others_hear_it(timer: PollTimer) -> None:
    timer.note_look(look(None, on_duty=True, fleet=2))
    assert timer.wait() == pytest.approx(HEARTBEAT_SECONDS)

    timer.note_look(look(0, on_duty=True, fleet=2))
    timer.monotonic = lambda: 100.001 + HEARTBEAT_SECONDS

    assert timer.next_queue is None


@pytest.mark.parametrize(("due", "queue"), [(-4, None), (-5, "q")])
def test_off_duty_it_promotes_only_what_is_overdue(
    timer: PollTimer, due: int, queue: str | None
) -> None:
    watcher(timer, 3).note_look(look(due, on_duty=False, fleet=3))

    assert timer.next_queue == queue
    assert (timer.wait() == 0) == (queue is not None)


def test_off_duty_it_does_not_listen(timer: PollTimer) -> None:
    timer.note_look(look(None, on_duty=False, fleet=3))
    timer.wake_in("q", 0.001)

    assert timer.wait() > 0.1


def test_whoever_promotes_what_is_overdue_is_on_duty(timer: PollTimer) -> None:
    promote(watcher(timer, 3), promoted(1, 5, on_duty=True))

    assert timer.on_duty
    assert timer.next_queue is None  # but looks first, so that the others hear it
    assert timer.wait() == 0


def test_whoever_takes_the_duty_looks_when_the_others_expect_it(timer: PollTimer) -> None:
    watcher(timer, 3).note_heartbeat()
    timer.monotonic = lambda: 200.0 + HEARTBEAT_SECONDS / 2
    promote(timer, promoted(1, 500, on_duty=True))

    assert timer.on_duty
    assert timer.wait() == pytest.approx(HEARTBEAT_SECONDS / 2)


def test_whoever_comes_second_is_off_duty(timer: PollTimer) -> None:
    promote(timer, promoted(0, 5, on_duty=False))

    assert timer.queue is None
    assert timer.wait() > 0.1


def test_who_finds_nothing_but_is_on_duty_stays_on_duty(timer: PollTimer) -> None:
    promote(timer, promoted(0, 50, on_duty=True))

    assert timer.queue == "q"
    assert timer.wait() == pytest.approx(0.05)


# -- errors of one queue


def test_after_an_error_it_leaves_the_duty_to_others_for_a_while(timer: PollTimer) -> None:
    timer.note_look(look(5, on_duty=True, fleet=2))
    now = timer.monotonic()

    assert timer.leave_duty()
    allowed = []
    for seconds in (0.0, OFF_DUTY_SECONDS, NO_CLAIM_SECONDS):
        timer.monotonic = lambda seconds=seconds: now + seconds  # type: ignore[misc]
        allowed.append((timer.may_take_vacant_duty, timer.may_take_duty_by_promotion))

    assert not timer.on_duty
    assert allowed == [(False, False), (True, False), (True, True)]


def test_a_lone_dispatcher_stays_on_duty_after_an_error(timer: PollTimer) -> None:
    timer.note_look(look(5, on_duty=True, fleet=1))

    assert not timer.leave_duty()
    assert timer.on_duty
    assert timer.may_take_vacant_duty


def test_a_queue_is_left_to_others_for_a_while_and_told_once() -> None:
    now = 100.0
    left = SkippedQueues(lambda: now)

    assert left.add("a")
    assert "a" in left
    assert [*left] == ["a"]
    now += NO_CLAIM_SECONDS
    assert [*left] == []
    assert not left.add("a")
    left.discard("a")
    assert left.add("a")


def test_no_more_queues_are_left_to_others_than_a_call_may_name() -> None:
    left = SkippedQueues()
    for n in range(MAX_SKIPPED_QUEUES):
        assert not left.is_full
        left.add(str(n))

    assert left.is_full
