"""The demonstration's books in Redis: what was published, what ran, which workers are up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from redis import Redis

from example_project.ledger import Published, Run
from example_project.settings import ledger_url

_PREFIX = "example_project:"
_PUBLISHED = _PREFIX + "published"
_RUNS = _PREFIX + "runs"
_WORKERS = _PREFIX + "workers"
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many tasks wait for their time (`scheduled`) and how many for a worker (`ready`)."""

    scheduled: int
    ready: int

    @property
    def total(self) -> int:
        """All that has not been handed to a worker."""
        return self.scheduled + self.ready


class Records:
    """The three lists, in the Redis at `url`; by default that of the settings."""

    def __init__(self, url: str | None = None) -> None:
        self._redis = Redis.from_url(url or ledger_url(), decode_responses=True)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def now_ms(self) -> float:
        """Give the clock of Redis, in milliseconds since 1970, exact to a microsecond."""
        seconds, microseconds = self._redis.time()
        return float(seconds * 1000 + microseconds / 1000)

    def add_published(self, task_id: str, kind: str, eta_ms: int) -> None:
        """Write down a task that has just been published."""
        entry = Published(task_id, kind, eta_ms, published_ms=self.now_ms())
        self._redis.rpush(_PUBLISHED, json.dumps(asdict(entry)))

    def add_run(self, run: Run) -> None:
        """Write down that a task has started."""
        self._redis.rpush(_RUNS, json.dumps(asdict(run)))

    def add_worker(self, name: str) -> None:
        """Say that worker `name` is ready for tasks."""
        self._redis.rpush(_WORKERS, name)

    def wait_for_worker(self, seconds: float) -> str | None:
        """Wait until one more worker is ready and give its name, `None` after `seconds`."""
        answer = self._redis.blpop([_WORKERS], timeout=seconds)
        return None if answer is None else str(answer[1])

    def count_runs(self) -> int:
        """Count the starts so far."""
        return int(self._redis.llen(_RUNS))

    def published(self) -> list[Published]:
        """Read back all that was published."""
        return [Published(**json.loads(line)) for line in self._lines(_PUBLISHED)]

    def runs(self) -> list[Run]:
        """Read back all that has run."""
        return [Run(**json.loads(line)) for line in self._lines(_RUNS)]

    def _lines(self, key: str) -> Iterator[str]:
        for start in range(0, self._redis.llen(key), _PAGE):
            yield from map(str, self._redis.lrange(key, start, start + _PAGE - 1))
