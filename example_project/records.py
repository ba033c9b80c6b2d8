"""The demonstration's records in Redis: published, changed, finished, reported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from redis import Redis

from example_project.deliveries import Attempt
from example_project.ledger import Action, Books, Change, Published, Run
from example_project.settings import ledger_url
from example_project.traffic import Movement, Report

_PREFIX = "example_project:"
_PUBLISHED = _PREFIX + "published"
_CHANGES = _PREFIX + "changes"
_RUNS = _PREFIX + "runs"
_SET_ASIDE = _PREFIX + "set_aside"
_WORKERS = _PREFIX + "workers"
_ATTEMPTS = _PREFIX + "attempts"
_ATTEMPT_NUMBERS = _PREFIX + "attempt_numbers"
_DELIVERED = _PREFIX + "delivered"
_REPAIRED = _PREFIX + "repaired"
_MOVEMENTS = _PREFIX + "movements:"
_COMPLETE = _PREFIX + "complete_until"
_REPORTS = _PREFIX + "reports"
_REPORT_RUNS = _PREFIX + "report_runs"
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Waiting:
    """Number of scheduled, ready, leased and dead tasks."""

    scheduled: int
    ready: int
    leased: int
    dead: int

    @property
    def total(self) -> int:
        """All tasks that have not ended."""
        return self.scheduled + self.ready + self.leased


class Records:
    """Records in the Redis at `url`; by default the URL of the settings."""

    def __init__(self, url: str | None = None) -> None:
        self._redis = Redis.from_url(url or ledger_url(), decode_responses=True)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def now_ms(self) -> float:
        """Return the clock of Redis, in milliseconds since 1970, exact to a microsecond."""
        seconds, microseconds = self._redis.time()
        return float(seconds * 1000 + microseconds / 1000)

    def add_published(self, task_id: str, kind: str, eta_ms: int) -> None:
        """Record a task that has just been published."""
        entry = Published(task_id, kind, eta_ms, published_ms=self.now_ms())
        self._redis.rpush(_PUBLISHED, json.dumps(asdict(entry)))

    def add_change(
        self, task_id: str, action: Action, outcome: str, eta_ms: int | None = None
    ) -> None:
        """Record the outcome of moving a task to `eta_ms`, or of cancelling it."""
        entry = Change(task_id, action, outcome, eta_ms, made_ms=self.now_ms())
        self._redis.rpush(_CHANGES, json.dumps(asdict(entry)))

    def add_run(self, run: Run) -> None:
        """Record that a task has started."""
        self._redis.rpush(_RUNS, json.dumps(asdict(run)))

    def add_set_aside(self, task_id: str) -> None:
        """Record that a task came which was moved or cancelled meanwhile."""
        self._redis.rpush(_SET_ASIDE, task_id)

    def count_set_aside(self) -> int:
        """Count these tasks so far."""
        return int(self._redis.llen(_SET_ASIDE))

    def add_worker(self, name: str) -> None:
        """Record that worker `name` is ready for tasks."""
        self._redis.rpush(_WORKERS, name)

    def wait_for_worker(self, seconds: float) -> str | None:
        """Wait until one more worker is ready; return its name, `None` after `seconds`.

        At most 4: redis-py itself waits no longer than 5 for an answer.
        """
        answer = self._redis.blpop([_WORKERS], timeout=seconds)
        return None if answer is None else str(answer[1])

    def count_runs(self) -> int:
        """Count the starts so far."""
        return int(self._redis.llen(_RUNS))

    def next_attempt(self, webhook_id: str) -> int:
        """Count one more attempt at a webhook; return its number."""
        return int(self._redis.hincrby(_ATTEMPT_NUMBERS, webhook_id, 1))

    def is_delivered(self, webhook_id: str) -> bool:
        """Return whether a webhook was accepted."""
        return bool(self._redis.sismember(_DELIVERED, webhook_id))

    def add_delivery(self, webhook_id: str) -> bool:
        """Record that a webhook is accepted; `False` if it was already."""
        return bool(self._redis.sadd(_DELIVERED, webhook_id))

    def count_deliveries(self) -> int:
        """Count the webhooks that were accepted so far."""
        return int(self._redis.scard(_DELIVERED))

    def add_attempt(self, attempt: Attempt) -> None:
        """Record what the receiver did with a request."""
        self._redis.rpush(_ATTEMPTS, json.dumps(asdict(attempt)))

    def repair_receiver(self) -> None:
        """Let the receiver accept all webhooks except those whose URL is gone for ever."""
        self._redis.set(_REPAIRED, "yes")

    def is_receiver_repaired(self) -> bool:
        """Return whether the receiver is repaired."""
        return bool(self._redis.exists(_REPAIRED))

    def add_movement(self, hour: int, movement: Movement) -> None:
        """Record that a flight has left in an hour, or is cancelled."""
        self._redis.hset(f"{_MOVEMENTS}{hour}", movement.flight, json.dumps(movement.delay_min))

    def set_complete_until(self, now_ms: float) -> None:
        """Record that all movements until `now_ms` are recorded."""
        self._redis.set(_COMPLETE, repr(now_ms))

    def is_complete_until(self, moment_ms: float) -> bool:
        """Return whether all movements until `moment_ms` are recorded."""
        return float(self._redis.get(_COMPLETE) or 0) >= moment_ms

    def movements(self, hour: int) -> list[Movement]:
        """Return the records of an hour."""
        found = self._redis.hgetall(f"{_MOVEMENTS}{hour}")
        return [Movement(flight, json.loads(delay)) for flight, delay in found.items()]

    def add_report(self, report: Report) -> bool:
        """Keep the report on an hour; `False` if there is one, which stays."""
        self._redis.hincrby(_REPORT_RUNS, report.task_id, 1)
        return bool(self._redis.hsetnx(_REPORTS, str(report.hour), json.dumps(asdict(report))))

    def count_reports(self) -> int:
        """Count the hours with a report."""
        return int(self._redis.hlen(_REPORTS))

    def read_reports(self) -> list[Report]:
        """Read the reports, by the hour."""
        found = [Report(**json.loads(entry)) for entry in self._redis.hvals(_REPORTS)]
        return sorted(found, key=lambda report: report.hour)

    def read_report_runs(self) -> dict[str, int]:
        """Read how often each task has reported, by its id."""
        return {task_id: int(n) for task_id, n in self._redis.hgetall(_REPORT_RUNS).items()}

    def read(self, ready_ms: Mapping[str, int], *, sent_again: bool = False) -> Books:
        """Read all published, changed and finished tasks; `ready_ms` is from the history."""
        return Books(
            published=[Published(**entry) for entry in self._entries(_PUBLISHED)],
            changes=[Change(**entry) for entry in self._entries(_CHANGES)],
            runs=[Run(**entry) for entry in self._entries(_RUNS)],
            ready_ms=ready_ms,
            set_aside=self._redis.lrange(_SET_ASIDE, 0, -1) if sent_again else None,
        )

    def read_attempts(self) -> list[Attempt]:
        """Read the requests to the receiver."""
        return [Attempt(**entry) for entry in self._entries(_ATTEMPTS)]

    def _entries(self, key: str) -> Iterator[dict[str, Any]]:
        for start in range(0, self._redis.llen(key), _PAGE):
            yield from map(json.loads, self._redis.lrange(key, start, start + _PAGE - 1))
