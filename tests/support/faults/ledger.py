"""Where tasks record their runs: a second Redis.

A line is one round trip, and stays even if its writer dies. Its time is Redis' clock.
"""

from __future__ import annotations

import os
from typing import cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.faults.checker import Promise, Run

_RUNS = "runs"
_STARTS = "starts"

_START = """
local t = redis.call('TIME')
local n = redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
redis.call('RPUSH', KEYS[1], string.format(
  'start %d %s %s %.0f ', n, ARGV[2], ARGV[3], t[1] * 1000000 + t[2]) .. ARGV[1])
return n
"""
_END = """
local t = redis.call('TIME')
redis.call('RPUSH', KEYS[1], string.format(
  'end %d %s %s %.0f ', ARGV[4], ARGV[2], ARGV[3], t[1] * 1000000 + t[2]) .. ARGV[1])
"""
_PROMISE = """
local t = redis.call('TIME')
redis.call('RPUSH', KEYS[1], string.format(
  'promise %d 0 0 %.0f ', ARGV[3], t[1] * 1000000 + t[2] + ARGV[2]) .. ARGV[1])
"""


class Ledger:
    """The ledger at a URL: tasks write to it, and tests read it.

    Runs have a *key*: the task's id, or ``<id>~<n>`` for its n-th retry.
    """

    def __init__(self, url: str) -> None:
        self._client = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        self._start = self._client.register_script(_START)
        self._end = self._client.register_script(_END)
        self._promise = self._client.register_script(_PROMISE)
        self._read_to = 0
        self._runs: dict[tuple[str, int], Run] = {}
        self._promises: list[Promise] = []
        self._finished: set[str] = set()
        # The worker forks its children after this line.
        self._holder = os.getpid()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._client.connection_pool.disconnect()

    # -- for tasks ----------------------------------------------------------------------------

    def started(self, key: str) -> int:
        """Record the start of a run; return the number of starts."""
        return int(self._start(keys=[_RUNS, _STARTS], args=[key, os.getpid(), self._holder]))

    def ended(self, key: str, number: int) -> None:
        """Record the end of run *number*."""
        self._end(keys=[_RUNS], args=[key, os.getpid(), self._holder, number])

    def promised(self, key: str, countdown: float, *, certain: bool = True) -> None:
        """Record that *key* will run, not before *countdown* seconds from now.

        A promise is not *certain* while sending may still fail. The task promises again when it was
        sent.
        """
        self._promise(keys=[_RUNS], args=[key, round(countdown * 1_000_000), int(certain)])

    # -- for tests ----------------------------------------------------------------------------

    def now_us(self) -> int:
        """Return Redis' clock in microseconds since 1970."""
        seconds, micros = cast("tuple[int, int]", self._client.time())
        return seconds * 1_000_000 + micros

    def finished(self) -> set[str]:
        """Return the keys of which a run has ended."""
        self._read_on()
        return self._finished

    def starts(self) -> dict[str, int]:
        """Return the number of starts of each key."""
        found = cast("dict[bytes, bytes]", self._client.hgetall(_STARTS))
        return {key.decode(): int(count) for key, count in found.items()}

    def read(self) -> tuple[list[Run], list[Promise]]:
        """Return all runs, and all promises of tasks."""
        self._read_on()
        return list(self._runs.values()), list(self._promises)

    def _read_on(self) -> None:
        """Read the lines that are new since the last read."""
        lines = cast("list[bytes]", self._client.lrange(_RUNS, self._read_to, -1))
        self._read_to += len(lines)
        for line in lines:
            kind, number, pid, holder, us, key = line.decode().split(" ", 5)
            run = key, int(number)
            if kind == "promise":
                self._promises.append(Promise(key, int(us), number == "1"))
            elif kind == "start":
                self._runs[run] = Run(key, int(pid), int(holder), int(us))
            else:
                self._runs[run] = self._runs[run]._replace(end_us=int(us))
                self._finished.add(key)
