"""The cells of the matrix, and the outcome of each. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import product
from typing import Any, NamedTuple

from celery import Task

from celery_delayq.integration.endings.request import CELERY_NOTIFIES_CHORDS
from celery_delayq.testing.workers import POOLS

ACKS = ("late", "early")
#: Before the task starts, while it runs, between its end and its acknowledgement.
CUTS = ("before", "running", "ended")
#: When Redis is reachable again: at once, after the lease, or while the worker ends.
BACKS = ("at once", "after the lease", "at the end")
#: The part of the result backend that is away: each call, or only the counters of chords.
RESULTS = ("away", "counters")
ENDINGS = (
    "success",
    "retry",
    "failure",
    "exhausted",
    "reject",
    "requeue",
    "ignore",
    "soft_limit",
    "hard_limit",
    "terminate",
    "killed",
    "unserialisable",
    "before_start",
)
#: Endings in which the process is killed.
KILLED = ("killed", "retried_killed")
#: Other endings for which Celery calls the result backend.
REPORTED = ("unknown", "expired", "retried_killed")


#: Whether Celery retries a task whose process was lost: 5.7 and newer.
RETRIES_KILLED = hasattr(Task, "retry_on_worker_lost")


class World(NamedTuple):
    """Common values of all tasks of a run; *cut* and *back* are "" without a cut.

    *results* is "" if the result backend is available.
    """

    pool: str
    acks: str
    cut: str = ""
    back: str = ""
    results: str = ""

    @property
    def endings(self) -> tuple[str, ...]:
        """The ways in which tasks may end."""
        return ENDINGS + (REPORTED if self.results else ())

    @property
    def is_late(self) -> bool:
        """Whether a message is acknowledged after its task has ended."""
        return self.acks == "late"

    @property
    def acks_after_end(self) -> bool:
        """Whether a message is leased while its task runs."""
        # With solo, Celery also sends an early acknowledgement after the task has ended.
        return self.is_late or self.pool == "solo"

    @property
    def loses_leases(self) -> bool:
        """Whether other processes get messages while their tasks run."""
        return (
            self.acks_after_end
            and self.cut in ("running", "ended")
            and self.back == "after the lease"
        )

    def __str__(self) -> str:
        """Return a name for tests."""
        return "-".join(part.replace(" ", "_") for part in self if part)


class Cell(NamedTuple):
    """One task: how it ends, alone or as a member of a chord."""

    ending: str
    in_chord: bool

    @property
    def id(self) -> str:
        """The id of the task."""
        return f"{self.ending}-{'member' if self.in_chord else 'alone'}"

    @property
    def options(self) -> dict[str, Any]:
        """The options with which the task is sent."""
        long_ago = datetime(2020, 1, 1, tzinfo=timezone.utc)
        return {"task_id": self.id, **({"expires": long_ago} if self.ending == "expired" else {})}

    @property
    def beside(self) -> str:
        """The id of the other member of the chord."""
        return f"{self.ending}-beside"

    @property
    def body(self) -> str:
        """The id of the chord's body."""
        return f"{self.ending}-body"


class Outcome(NamedTuple):
    """The outcome of a task.

    Attributes
    ----------
    result : str
        ``done``, ``ignored``, ``retried``, ``requeued`` (done when it ran again), ``revoked``, or
        ``dead: `` and the beginning of the reason.
    runs : int
        How often the task has started.
    body : str
        The state of the chord's body, "" without a chord.
    """

    result: str
    runs: int
    body: str = ""


# -- impossible cells

_NO_LIMITS = {"soft_limit": {"threads", "solo", "gevent", "eventlet"}}
_NO_LIMITS["hard_limit"] = {"threads", "solo", "eventlet"}

#: Why a cell is left out.
IMPOSSIBLE: dict[str, Callable[[World, str], bool]] = {
    "this pool has no such time limit": lambda world, ending: (
        world.pool in _NO_LIMITS.get(ending, ())
    ),
    "this pool cannot end a running task": lambda world, ending: (
        ending == "terminate" and world.pool in ("threads", "solo")
    ),
    "only prefork has processes to kill": lambda world, ending: (
        ending in KILLED and world.pool != "prefork"
    ),
    "this Celery has no `retry_on_worker_lost`": lambda world, ending: (
        ending == "retried_killed" and world.pool == "prefork" and not RETRIES_KILLED
    ),
    "a worker that ends without a connection takes no commands": lambda world, ending: (
        ending == "terminate" and world.cut == "running" and world.back == "at the end"
    ),
    "billiard signals a limit twice that passes as a worker ends": lambda world, ending: (
        ending == "soft_limit" and world.cut == "ended" and world.back == "at the end"
    ),
    "of two runs of one id Celery can end only the second": lambda world, ending: (
        ending == "terminate" and world.cut == "running" and world.loses_leases
    ),
}


def why_impossible(world: World, ending: str) -> str | None:
    """Return why a task cannot end in this way, None if it can."""
    return next((why for why, applies in IMPOSSIBLE.items() if applies(world, ending)), None)


def worlds() -> Iterator[World]:
    """Yield all worlds."""
    for pool, acks in product(POOLS, ACKS):
        yield World(pool, acks)
        for results in RESULTS:
            yield World(pool, acks, results=results)
        for cut, back in product(CUTS, BACKS):
            yield World(pool, acks, cut, back)


def cells(world: World) -> list[Cell]:
    """Return the possible cells of a world."""
    return [
        Cell(ending, in_chord)
        for ending, in_chord in product(world.endings, (False, True))
        if why_impossible(world, ending) is None
    ]


# -- expected outcomes of the others

_REASONS = {
    "failure": "failed: Failed: no luck",
    "exhausted": "failed: Failed: no luck",
    "reject": "not mine",
    "requeue": "not now",  # with early acks there is no message to requeue
    "soft_limit": "failed: SoftTimeLimitExceeded: ",
    "hard_limit": "failed: TimeLimitExceeded: ",
    "killed": "failed: WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL)",
    "unserialisable": "failed: EncodeError: ",
    "before_start": "failed: Failed: no start",
    "unknown": "unknown task 'outcome.unknown'",
}


def expected(world: World, cell: Cell) -> Outcome:
    """Return the expected outcome of a task.

    A cut has only one effect: a message whose lease has ended runs again.
    """
    result, runs = _result(world, cell.ending)
    body = _body(cell.ending, result) if cell.in_chord else ""
    if not world.results:
        return Outcome(result, runs, body)
    body = "PENDING" if cell.in_chord else ""
    if world.results == "counters" and not cell.in_chord:
        return Outcome(result, runs, body)
    return Outcome(_unreported(world, cell.ending, result), runs, body)


def _unreported(world: World, ending: str, result: str) -> str:
    """Return the outcome of a task whose end the result backend does not accept."""
    if result in ("done", "requeued"):
        return "dead: failed: ConnectionError: "
    if world.results == "counters":
        return result
    if ending == "unserialisable":  # Celery does not try to store it
        return "dead: failed: ConnectionError: "
    return "unreported" if result == "revoked" else result


def _result(world: World, ending: str) -> tuple[str, int]:
    runs = 2 if world.loses_leases else 1
    if ending == "expired":
        return "revoked", 0
    if ending == "unknown":
        return f"dead: {_REASONS[ending]}", 0
    if ending == "retried_killed":
        return "retried", runs
    if ending == "terminate":
        # A revoked task is refused when it comes again, or has not started.
        return "revoked", 0 if world.cut == "before" else 1
    if ending in ("requeue", "killed") and (world.is_late or world.loses_leases):
        return "requeued", 2
    if ending == "success":
        return ("done" if runs == 1 else "requeued"), runs
    if ending == "ignore":
        return "ignored", runs
    if ending == "retry":
        return "retried", runs
    return f"dead: {_REASONS[ending]}", runs


def _body(ending: str, result: str) -> str:
    if result in ("done", "requeued"):
        return "SUCCESS"
    if result in ("retried", "ignored") or ending in ("exhausted", "requeue"):
        return "PENDING"  # it waits for a retry or a replay
    if ending == "reject" and not CELERY_NOTIFIES_CHORDS:
        return "PENDING"
    return "FAILURE"
