"""Made-up runs, and the figures of a report about them in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest

from celery_delayq.model.history import RunRecord

#: Not at a full hour, and the day changes meanwhile.
NIGHT = datetime(2026, 3, 28, 21, 17, 3, 250_000, tzinfo=timezone.utc)
BEGINS = int(NIGHT.timestamp() * 1000)
HOUR, MINUTE = 3_600_000, 60_000

HOSTILE = "<script>alert('a')</script>\n&"
STATES = ["SUCCESS", "FAILURE", "RETRY", "REJECTED", "REVOKED", "IGNORED"]
ENDINGS = ["succeeded", "failed", "retried", "rejected", "revoked", "ignored"]


def made_up(number: int) -> list[RunRecord]:
    """Return runs of four hours that differ in all columns of a report."""
    random = Random(7)
    runs = []
    for n in range(number):
        due = BEGINS + random.randrange(4 * HOUR)
        promoted = due + random.randrange(50)
        started = promoted + random.randrange(-20, random.choice([20, 2000, 900_000]))
        ended = started + random.randrange(3000)
        state = random.choices(STATES, [80, 6, 6, 2, 4, 2])[0]
        kind = random.choices(["as planned", "immediate", "advanced", "unknown"], [80, 8, 4, 8])[0]
        if kind == "advanced":
            due = started + random.randrange(1, 5 * HOUR)
        runs.append(
            RunRecord(
                f"id {n if state != 'RETRY' else n % 5}",
                random.choice(["mail.remind", "billing.charge", HOSTILE]),
                random.choice(["mail", "a\nb", "<b>"]),
                "w@h",
                None if kind == "immediate" else due,
                promoted if kind == "as planned" else None,
                None if state == "REVOKED" and n % 2 else started,
                ended,
                state,
                0,
                random.choices([1, 2, 3], [90, 9, 1])[0],
                random.choice(["KeyError: 'gate'", "<b>&"]) if state != "SUCCESS" else "",
            )
        )
    return sorted(runs, key=lambda run: run.ended)


def iso(ms: float) -> str:
    time = datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=ms)
    return time.isoformat().replace("+00:00", "Z")


def quantiles(found: Iterable[int | None]) -> dict[str, Any]:
    known = sorted(each for each in found if each is not None)
    of = {
        f"p{p}": known[math.ceil(p * len(known) / 100) - 1] if known else None for p in (50, 90, 99)
    }
    early = sum(each < 0 for each in known)
    return {"runs": len(known), "early": early, **of, "max": known[-1] if known else None}


def is_advanced(run: RunRecord) -> bool:
    if run.due is None or run.started is None or run.started >= run.due:
        return False
    return run.promoted is None or run.promoted < run.due


def is_planned(run: RunRecord) -> bool:
    return run.due is not None and run.started is not None and not is_advanced(run)


def less(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


def promotion(run: RunRecord) -> int | None:
    found = less(run.promoted, run.due)
    return None if found is None or found < 0 else found


def bounds(runs: list[RunRecord]) -> tuple[int, int]:
    return min(run.started or run.ended for run in runs), max(run.ended for run in runs)


def figures(some: list[RunRecord], ms: int) -> dict[str, Any]:
    ends = Counter(run.state for run in some)
    return {
        "runs": len(some),
        **{name: ends[state] for name, state in zip(ENDINGS, STATES, strict=True)},
        "redelivered": sum(run.deliveries > 1 for run in some),
        "immediate": sum(run.due is None for run in some),
        "advanced": sum(map(is_advanced, some)),
        "failure_rate": pytest.approx(ends["FAILURE"] / len(some)),
        "per_minute": pytest.approx(len(some) * MINUTE / ms),
        "peak_minute": max(Counter(run.ended // MINUTE for run in some).values()),
        "promotion": quantiles(map(promotion, some)),
        "wait": quantiles(less(run.started, run.promoted) for run in some),
        "lateness": quantiles(less(r.started, r.due) for r in some if is_planned(r)),
        "runtime": quantiles(less(run.ended, run.started) for run in some),
    }


def by(key: str, runs: list[RunRecord], of: Callable[[RunRecord], Any]) -> list[dict[str, Any]]:
    first, last = bounds(runs)
    found: dict[Any, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(of(run), []).append(run)
    rows = [{key: name, **figures(some, last - first)} for name, some in found.items()]
    return sorted(rows, key=lambda row: (-row["runs"], row[key]))


def hours(runs: list[RunRecord]) -> list[dict[str, Any]]:
    first, last = bounds(runs)
    rows = []
    for begins in sorted({run.ended // HOUR * HOUR for run in runs}):
        some = [run for run in runs if run.ended // HOUR * HOUR == begins]
        length = min(begins + HOUR, last) - max(begins, first)
        rows.append({"hour": iso(begins), **figures(some, length)})
    return rows


def timeline(runs: list[RunRecord], width: int) -> Iterator[dict[str, Any]]:
    planned = [run for run in runs if is_planned(run)]
    dues = sorted(run.due for run in planned if run.due is not None)
    first, last = bounds(runs)
    low = min(first, dues[math.ceil(len(dues) / 100) - 1]) // width
    behind = 0

    def place(ms: int | None) -> int:
        return min(max((ms or 0) // width, low), last // width)

    for at in range(low, last // width + 1):
        due = [run for run in planned if place(run.due) == at]
        started = [run for run in planned if place(run.started) == at]
        ended = [run.state for run in runs if place(run.ended) == at]
        behind += len(due) - len(started)
        yield {
            "at": iso(at * width),
            "planned": len(due),
            "started": len(started),
            "difference": len(started) - len(due),
            "behind": behind,
            "ended": len(ended),
            "failed": ended.count("FAILURE"),
            "retried": ended.count("RETRY"),
            "lateness": quantiles(less(run.started, run.due) for run in due),
        }


def attempts(runs: list[RunRecord]) -> list[dict[str, Any]]:
    by_id = Counter((run.task, run.id) for run in runs)
    counts = Counter((task, number) for (task, _), number in by_id.items())
    return [
        {"task": task, "attempts": number, "ids": ids}
        for (task, number), ids in sorted(counts.items())
    ]


def reasons(runs: list[RunRecord]) -> list[dict[str, Any]]:
    bad = [run for run in runs if run.state not in ("SUCCESS", "IGNORED")]
    found = Counter((run.task, run.state, run.reason) for run in bad)
    rows = []
    for (task, state, reason), number in found.items():
        last = max(r.ended for r in bad if (r.task, r.state, r.reason) == (task, state, reason))
        row = {"task": task, "state": state, "reason": reason, "runs": number, "last": iso(last)}
        rows.append((-number, -last, row))
    return [row for *_, row in sorted(rows, key=lambda each: each[:2])]


def expected(runs: list[RunRecord], step: int) -> dict[str, Any]:
    """Return the expected report of runs."""
    first, last = bounds(runs)
    return {
        "first": iso(first),
        "last": iso(last),
        "total": figures(runs, last - first),
        "tasks": by("task", runs, lambda run: run.task),
        "queues": by("queue", runs, lambda run: run.queue),
        "hours": hours(runs),
        "attempts": attempts(runs),
        "reasons": reasons(runs),
        "step": step,
        "timeline": [*timeline(runs, step * 1000)],
    }
