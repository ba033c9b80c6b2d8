"""The judge: compares promises, runs, tasks left and kills. No I/O.

All times are microseconds since 1970 by Redis' clock.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

#: A finished run is acknowledged within this time. If its holder dies later, it must not run again.
ACK_GRACE_US = 2_000_000

#: Heartbeats come every third of a lease. A process that was stopped for longer than this part of a
#: lease may have lost its leased messages.
HARMLESS_PART = 0.6


class Promise(NamedTuple):
    """A sent task: the key of its run, and the earliest time at which it may start.

    A task is not *certain* if its call failed: nobody knows whether it was sent. A *repeated* call
    after a lost reply may have sent the task twice, since its due had passed.
    """

    key: str
    due_us: int = 0
    certain: bool = True
    repeated: bool = False


class Run(NamedTuple):
    """One run; *end_us* is None if it has not ended. *holder* is the worker's process."""

    key: str
    pid: int
    holder: int
    start_us: int
    end_us: int | None = None


class Harm(NamedTuple):
    """A fault of a process: from when until when, and whether the process ended."""

    pid: int
    since_us: int
    until_us: int
    fatal: bool = True


class Rollback(NamedTuple):
    """A loss of data in Redis: everything that happened after *since_us*.

    *forgotten* are the keys of tasks that were published after it.
    """

    since_us: int
    forgotten: Collection[str]


@dataclass
class Verdict:
    """The errors, by key and with the reason, and other observations."""

    published: int = 0
    runs: int | None = 0
    """None if the test runs no tasks."""
    again: int = 0
    """Runs that were repeated because their holder was killed, or their publish repeated."""
    forgotten: int = 0
    """What Redis itself lost."""
    lost: dict[str, str] = field(default_factory=dict)
    twice: dict[str, str] = field(default_factory=dict)
    early: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """Figures for the report."""

    @property
    def violations(self) -> dict[str, dict[str, str]]:
        """The errors by kind."""
        kinds = ("lost", "twice", "early", "dead", "left", "unknown")
        return {kind: found for kind in kinds if (found := getattr(self, kind))}

    @property
    def counts(self) -> dict[str, int | None]:
        """The number of each kind, for tables; None for runs if the test runs no tasks."""
        seen = {
            "published": self.published,
            "runs": self.runs,
            "again": self.again,
            "forgotten": self.forgotten,
        }
        kinds = ("lost", "twice", "early", "dead", "left", "unknown")
        return seen | {kind: len(getattr(self, kind)) for kind in kinds}

    def report(self, most: int = 10) -> str:
        """Return the whole verdict as text, with at most *most* keys of each kind."""
        counts = [f"{count} {kind}" for kind, count in self.counts.items() if count is not None]
        lines = [", ".join(counts)]
        lines += [f"  {name}: {text}" for name, text in self.notes.items()]
        for kind, found in self.violations.items():
            lines += [f"  {kind}: {key}: {reason}" for key, reason in list(found.items())[:most]]
            if len(found) > most:
                lines.append(f"  {kind}: and {len(found) - most} more")
        return "\n".join(lines)


def judge(
    promises: Iterable[Promise],
    runs: Iterable[Run],
    left: Mapping[str, Collection[str]],
    harms: Collection[Harm] = (),
    *,
    lease: float = 30.0,
    rollback: Rollback | None = None,
) -> Verdict:
    """Find tasks that were lost, run twice or early, died, or are left in the broker.

    Parameters
    ----------
    left
        Ids by the state in which the broker still has them; ``"dead"`` is one of the states.
    harms
        Faults of processes. Only after a fault may a task run again.
    lease
        Seconds.
    rollback
        Data that Redis has lost in a crash.
    """
    known = _merged(promises)
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_key[run.key].append(run)
    states = {id: state for state, ids in left.items() for id in ids}
    ids = {key.partition("~")[0] for key in known}
    verdict = Verdict(published=len(known), runs=sum(map(len, by_key.values())))

    for key, promise in known.items():
        _judge_end(verdict, promise, by_key[key], states, rollback)
    for id, state in states.items():
        if id not in ids and state != "dead":
            verdict.left[id] = f"is still {state}, and was never sent"
    for key, found in by_key.items():
        found.sort(key=lambda run: run.start_us)
        if key not in known:
            if found:
                verdict.unknown[key] = f"ran, and was never sent: {_text_of(found)}"
            continue
        early = known[key].due_us - found[0].start_us if found else 0
        if early > 0:
            verdict.early[key] = f"{early / 1000:.3f} ms early: {_text_of(found)}"
        repeated = list(_repetitions(found, harms, lease, rollback))
        if known[key].repeated:
            repeated = repeated[1:]
        if repeated:
            verdict.twice[key] = f"{'; '.join(repeated)}: {_text_of(found)}"
        verdict.again += max(0, len(found) - 1 - len(repeated))
    return verdict


def most_at_once(runs: Iterable[Run], harms: Collection[Harm], *, lease: float) -> int:
    """Return the largest number of runs at one moment.

    A run without an end lasted until its process was killed. Runs of a process that was stopped for
    most of a *lease* (seconds) do not count: others may have begun what it had leased.
    """
    changes = []
    for run in runs:
        its = [harm for harm in harms if harm.pid in (run.pid, run.holder)]
        if any(_may_end_lease(harm, lease) and _is_during(harm, run) for harm in its):
            continue
        # A run may have begun while its process was killed.
        kills = [harm.since_us for harm in its if harm.fatal and harm.until_us >= run.start_us]
        end_us = min(kills, default=sys.maxsize) if run.end_us is None else run.end_us
        changes += [(run.start_us, 1), (max(run.start_us, end_us), -1)]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _may_end_lease(harm: Harm, lease: float) -> bool:
    """Return whether a stopped process may have lost its leases before it went on."""
    return not harm.fatal and harm.until_us - harm.since_us > HARMLESS_PART * lease * 1_000_000


def _is_during(harm: Harm, run: Run) -> bool:
    return harm.until_us >= run.start_us and (run.end_us is None or harm.since_us <= run.end_us)


def _merged(promises: Iterable[Promise]) -> dict[str, Promise]:
    """Return one promise for each key; a task that ran again has promised the same again."""
    known: dict[str, Promise] = {}
    for promise in promises:
        there = known.setdefault(promise.key, promise)
        known[promise.key] = there._replace(
            due_us=min(there.due_us, promise.due_us),
            certain=there.certain or promise.certain,
            repeated=there.repeated or promise.repeated,
        )
    return known


def _judge_end(
    verdict: Verdict,
    promise: Promise,
    runs: Collection[Run],
    states: Mapping[str, str],
    rollback: Rollback | None,
) -> None:
    """Judge whether a promised task has run to its end, and if not, find its state."""
    state = states.get(promise.key.partition("~")[0])
    if state == "dead":
        verdict.dead[promise.key] = f"became a dead letter, {len(runs)} runs started"
        return
    if state is not None:
        verdict.left[promise.key] = f"is still {state}"
    if state is not None or any(run.end_us is not None for run in runs):
        return
    if rollback is not None and promise.key in rollback.forgotten:
        verdict.forgotten += 1
    elif promise.certain or runs:
        verdict.lost[promise.key] = _text_of(runs) if runs else "never started"


def _repetitions(
    runs: list[Run], harms: Collection[Harm], lease: float, rollback: Rollback | None
) -> Iterator[str]:
    """Yield the runs that should not have been, in the order of their starts."""
    for before, again in pairwise(runs):
        # Tasks that were acknowledged after that moment are back.
        forgotten = rollback is not None and (
            before.end_us is None or before.end_us >= rollback.since_us - ACK_GRACE_US
        )
        if not forgotten and not any(_excuses(harm, before, again, lease) for harm in harms):
            late = (again.start_us - before.start_us) / 1_000_000
            yield f"started again after {late:.3f} s though its worker lived"


def _excuses(harm: Harm, before: Run, again: Run, lease: float) -> bool:
    """Return whether a fault of the process of *before* explains the run *again*."""
    was_leased = before.end_us is None or harm.since_us <= before.end_us + ACK_GRACE_US
    long = harm.fatal or _may_end_lease(harm, lease)
    # The children of a killed worker may start the tasks that they have received.
    during = (harm.fatal or harm.until_us >= before.start_us) and harm.since_us <= again.start_us
    return harm.pid in (before.pid, before.holder) and was_leased and long and during


def _text_of(runs: Collection[Run]) -> str:
    """Return where and when a task ran, in seconds of the minute."""

    def clock(us: int | None) -> str:
        return "…" if us is None else f"{us / 1_000_000 % 1000:.3f}"

    return ", ".join(
        f"[{clock(run.start_us)} to {clock(run.end_us)} in {run.pid} of {run.holder}]"
        for run in runs
    )
