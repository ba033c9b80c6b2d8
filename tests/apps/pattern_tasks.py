"""Tasks whose attempts end by a pattern, and what is to become of them by what was promised."""

from __future__ import annotations

import logging
import os
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

from celery import Celery, signals
from redis import Redis

from celery_delayq import DelayQ

#: Writes down that an attempt begins, with Redis' clock in ms.
NOTE = """
local time = redis.call('TIME')
redis.call('RPUSH', KEYS[1], ARGV[1] .. string.format(' %.3f', time[1] * 1000 + time[2] / 1000))
"""

#: Celery's own limit and, for all tasks here, its wait in seconds.
LIMIT, WAIT = 3, 0.01


class Covered(Exception):
    """What some tasks are tried again for."""


class CoveredToo(Covered):
    """A kind of it."""


class Refused(Covered):
    """A kind of it that they are not tried again for."""


class Other(Exception):
    """Anything else."""


ERRORS: dict[str, type[Exception]] = {
    "covered": Covered,
    "covered too": CoveredToo,
    "refused": Refused,
    "other": Other,
}

#: The tasks and their options.
TASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "steps": {
        "retry_intervals": (0, 0.02, 0.05),
        "retry_for": (Covered,),
        "dont_retry_for": (Refused,),
    },
    "early": {"retry_intervals": (0.03, 0), "acks_late": False, "dont_retry_for": (Refused,)},
    "strict": {"retry_intervals": 0.01, "max_retries": 2, "false_is_failure": True},
    "auto": {
        "autoretry_for": (Covered,),
        "retry_kwargs": {"max_retries": 2, "countdown": 0.02},
        "dont_retry_for": (Refused,),
    },
    "both": {
        "autoretry_for": (Covered,),
        "dont_autoretry_for": (Refused,),
        "retry_intervals": (0.01, 0.02, 0.03, 0.04),
    },
}

#: What retries manually say, by how an attempt may end.
EXPLICIT_RETRIES: dict[str, dict[str, Any]] = {
    "hand": {},
    "hand, once": {"max_retries": 1},
    "caught": {"exc": Covered("caught")},
    "caught, once": {"exc": Covered("caught"), "max_retries": 1},
}

#: How an attempt may end that is no success.
ENDS = ("false", *ERRORS, "covered", *EXPLICIT_RETRIES)


@dataclass(frozen=True)
class Pattern:
    """One task: its name, the options of the call, and how its attempts end; the last for ever."""

    id: str
    task: str
    options: dict[str, Any]
    ends: tuple[str, ...]


def draw(id: str, chance: random.Random) -> Pattern:
    """Return a random pattern; most begin with a failure, and half of them never succeed."""
    ends = [chance.choice(ENDS) for _ in range(chance.randint(1, 5))]
    if chance.random() < 0.5:
        ends[chance.randint(0, 4) :] = ["done"]
    return Pattern(id, chance.choice([*TASKS]), _draw_options(chance), tuple(ends))


def _draw_options(chance: random.Random) -> dict[str, Any]:
    def wait() -> float:
        return chance.choice([0, chance.randint(1, 50) / 1000])

    options: dict[str, Any] = chance.choice(
        [
            {},
            {},
            {"retry_intervals": [wait() for _ in range(chance.randint(1, 4))]},
            {"retry_intervals": wait()},
            {"retry_intervals": [wait(), wait()], "max_retries": chance.randint(0, 4)},
            {"max_retries": chance.randint(0, 4)},
        ]
    )
    if options and chance.random() < 0.2:
        options["retry_jitter"] = 0.5
    return chance.choice([options] * 9 + [{"retry_intervals": False}])


# -- what is to become of it


@dataclass(frozen=True)
class Fate:
    """How many attempts there are, whether the last is a success, and the least waits (s)."""

    attempts: int
    done: bool
    waits: tuple[float, ...]


@dataclass(frozen=True)
class Rule:
    """How often something is tried again, and when; waits are repeated after the last."""

    waits: tuple[float, ...]
    limit: int

    def wait(self, retries: int) -> float | None:
        """Return the wait after so many retries, None where there is none more."""
        return self.waits[min(retries, len(self.waits) - 1)] if retries < self.limit else None


def fate_of(pattern: Pattern) -> Fate:
    """Return what was promised."""
    waits: list[float] = []
    while True:
        end = pattern.ends[min(len(waits), len(pattern.ends) - 1)]
        if end == "done" or (end == "false" and pattern.task != "strict"):
            return Fate(len(waits) + 1, True, tuple(waits))
        rule = rule_of(pattern, end)
        wait = None if rule is None else rule.wait(len(waits))
        if wait is None:
            return Fate(len(waits) + 1, False, tuple(waits))
        waits.append(wait * (1 - pattern.options.get("retry_jitter", 0)))


def rule_of(pattern: Pattern, end: str) -> Rule | None:
    """Return by which rule there is another attempt after one that has ended so."""
    task, policy = TASKS[pattern.task], policy_of(pattern)
    if end in EXPLICIT_RETRIES:
        # Without a policy as Celery does, but for a limit of the call.
        limit = pattern.options.get("max_retries", task.get("max_retries", LIMIT))
        rule = policy or Rule((WAIT,), limit)
        return Rule(rule.waits, EXPLICIT_RETRIES[end].get("max_retries", rule.limit))
    error = ERRORS.get(end, Other)
    if error is Refused and ("dont_retry_for" in task or "dont_autoretry_for" in task):
        return None
    if "autoretry_for" in task and issubclass(error, Covered):
        return celerys_rule(pattern, policy)
    return policy if issubclass(error, task.get("retry_for", Exception)) else None


def policy_of(pattern: Pattern) -> Rule | None:
    """Return the policy: that of the call or, with the limit of the call, that of the task."""
    task, call = TASKS[pattern.task], pattern.options
    own = call.get("retry_intervals")
    intervals = task.get("retry_intervals") if own is None else own
    if intervals is None or intervals is False:
        return None
    waits = tuple(intervals) if isinstance(intervals, (list, tuple)) else (intervals,)
    limit = len(waits) if isinstance(intervals, (list, tuple)) else LIMIT
    if own is None:
        limit = task.get("max_retries", limit)
    return Rule(waits, call.get("max_retries", limit))


def celerys_rule(pattern: Pattern, policy: Rule | None) -> Rule:
    """Return what ``autoretry_for`` does: what the call says, else what the task says to Celery."""
    call, said = pattern.options, TASKS[pattern.task].get("retry_kwargs")
    if policy is not None and (said is None or "retry_intervals" in call):
        return policy
    said = said or {"countdown": WAIT, "max_retries": LIMIT}
    return Rule((said["countdown"],), call.get("max_retries", said["max_retries"]))


# -- the app


@cache
def client_of(_pid: int, url: str) -> Redis:
    """Return a client of this process."""
    return Redis.from_url(url)


def run(self: Any, ends: list[str]) -> bool:
    """Write down that it runs, and end as the pattern says."""
    request = self.request
    end = ends[min(request.retries, len(ends) - 1)]
    client = client_of(os.getpid(), self.app.conf.result_backend)
    client.eval(NOTE, 1, "attempts", f"{request.id} {request.retries}")
    if end in EXPLICIT_RETRIES:
        raise self.retry(**EXPLICIT_RETRIES[end])
    if end in ERRORS:
        raise ERRORS[end](end)
    return bool(end == "done")


def tasks_of(app: Celery) -> Celery:
    """Give *app* the tasks."""
    app.conf.task_ignore_result = True
    app.conf.task_store_errors_even_if_ignored = False
    for name, options in TASKS.items():
        # Not shared: other tests give other apps tasks of these names.
        app.task(name=name, bind=True, shared=False, default_retry_delay=WAIT, **options)(run)
    return app


@signals.worker_ready.connect
def be_quiet(**_: Any) -> None:
    """To log each attempt with its traceback takes half of the time."""
    for name in ("celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


app = Celery("patterns")
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = 16
DelayQ(app, at_least_once=True)
tasks_of(app)
