"""Calls that Redis logs as slow, beside those of a loop that the machine stops too."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from celery_delayq.store.scripting import scripts

from .model import Better, Figure, Row, not_above_stock

#: A call should not hold Redis longer, in µs.
SLOW_US = 5_000

SLOW = Row(
    "large-slow",
    "calls over 5 ms in SLOWLOG, {:,} entries (a loop of 2.5 ms and scripts)",
    "per 1,000 calls",
    Better.LOWER,
    not_above_stock(1, 1, "per 1,000"),
    2,
)

#: A script that only counts, for so many rounds; how often it is called after each measurement.
LOOP, LOOPS = "for _ = 1, ARGV[1] do end", 100

#: For how long it does so: as long as the longest calls should take.
LOOP_MS = 2.5


def seconds_of(operation: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def _slow_calls(client: Any) -> Counter[str]:
    """Return the calls in the slow log by name of the script, and empty the log."""
    names = {scripts.load(name).sha: name for name in scripts.names()}
    seen: Counter[str] = Counter()
    for each in client.slowlog_get(100_000):
        command, _, rest = each["command"].decode(errors="replace").partition(" ")
        # The commands of a script are there too, beside the script.
        if command.startswith("EVAL"):
            seen[names.get(rest.partition(" ")[0], command)] += 1
    client.slowlog_reset()
    return seen


def _calls(client: Any) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


class Pauses:
    """Counts calls that Redis logs as slow, beside those of a loop that the machine stops too.

    Parameters
    ----------
    client : Any
        The server.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        client.config_set("slowlog-log-slower-than", SLOW_US)
        client.config_set("slowlog-max-len", 100_000)
        self._rounds = 100_000
        took = statistics.median(self._loop() for _ in range(50))
        self._rounds = round(self._rounds * LOOP_MS / took)
        _slow_calls(client)
        #: Calls of scripts, the slow ones of them, calls of the loop, the slow ones of them.
        self.calls, self.slow, self.loops, self.slow_loops = 0, Counter[str](), 0, 0

    def _loop(self) -> float:
        return seconds_of(lambda: self._client.eval(LOOP, 0, self._rounds)) * 1000

    def measured(self, measure: Callable[[], float]) -> float:
        """Measure something, and count the slow calls of it."""
        before = _calls(self._client)
        value = measure()
        self.calls += _calls(self._client) - before
        self.slow.update(_slow_calls(self._client))
        for _ in range(LOOPS):
            self._loop()
        self.loops += LOOPS
        self.slow_loops += _slow_calls(self._client).total()
        return value

    def figure(self, name: str, number: int) -> Figure:
        """Return the row of slow calls beside a number of entries."""
        shares = 1000 * self.slow_loops / self.loops, 1000 * self.slow.total() / self.calls
        raw = {"calls": self.calls, "slow": dict(self.slow)}
        row = replace(SLOW.titled(number), name=name)
        return row.figure([shares[0]], [shares[1]], raw)
