"""Count calls that Redis logs as slow, and slow calls of a loop that the machine also stops."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from celery_delayq.store.scripting import scripts

from .model import Better, Figure, Row, not_above_stock

#: Longest time for which a call should block Redis (µs).
SLOW_US = 5_000

#: Calls that take longer are logged during a measurement (µs).
LOGGED_US = 100

SLOW = Row(
    "large-slow",
    "calls over 5 ms in SLOWLOG, {} (a loop of 2.5 ms and scripts)",
    "per 1,000 calls",
    Better.LOWER,
    not_above_stock(1, 1, "per 1,000"),
    2,
)

LONGEST = Row(
    "large-longest",
    "longest call of all, {} (a loop of 2.5 ms and scripts)",
    "ms",
    Better.LOWER,
    None,
    1,
)

#: A script that only counts to ARGV[1]; number of its calls after each measurement.
LOOP, LOOPS = "for _ = 1, ARGV[1] do end", 100

#: Time of the loop (ms): the wanted limit of the longest calls.
LOOP_MS = 2.5


def seconds_of(operation: Callable[[], object]) -> float:
    """Return the seconds that an operation takes."""
    began = time.perf_counter()
    operation()
    return time.perf_counter() - began


def longest_row(row: Row) -> Row:
    """Return the row of the longest call during another row."""
    title = f"longest script call: {row.title.replace(', CPU of Redis', '')}"
    return Row(f"{row.name}-longest", title, "ms", Better.LOWER, None, 1)


def _logged(client: Any) -> list[tuple[str, int]]:
    """Return the scripts in the slow log, each with the µs of its call, and empty the log."""
    names = {scripts.load(name).sha: name for name in scripts.names_with_variants()}
    seen = []
    for each in client.slowlog_get(100_000):
        command, _, rest = each["command"].decode(errors="replace").partition(" ")
        # The slow log also has the commands of a script.
        if command.startswith("EVAL"):
            seen.append((names.get(rest.partition(" ")[0], command), each["duration"]))
    client.slowlog_reset()
    return seen


def _longest(logged: Sequence[tuple[str, int]]) -> float:
    """Return the longest call, in ms."""
    return max((took for _, took in logged), default=0) / 1000


def _calls(client: Any) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


class Pauses:
    """Counts calls that Redis logs as slow, and slow calls of a loop.

    Pauses of the machine stop both.

    Parameters
    ----------
    client : Any
        The server.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        client.config_set("slowlog-max-len", 100_000)
        self._rounds = 100_000
        took = statistics.median(self._loop() for _ in range(50))
        self._rounds = round(self._rounds * LOOP_MS / took)
        #: Calls of scripts, slow calls of scripts, calls of the loop, slow calls of the loop.
        self.calls, self.slow, self.loops, self.slow_loops = 0, Counter[str](), 0, 0
        #: The longest call of a script (ms): of the last measurement, and of all; 0 if no call was
        #: logged. The longest call of the loop.
        self.longest, self.longest_of_all, self.longest_loop = 0.0, 0.0, 0.0

    def _loop(self) -> float:
        return seconds_of(lambda: self._client.eval(LOOP, 0, self._rounds)) * 1000

    def measured(self, measure: Callable[[], float]) -> float:
        """Measure an operation, and count its slow calls."""
        before = _calls(self._client)
        self._client.slowlog_reset()
        self._client.config_set("slowlog-log-slower-than", LOGGED_US)
        value = measure()
        self.calls += _calls(self._client) - before
        logged = _logged(self._client)
        self.longest = _longest(logged)
        self.longest_of_all = max(self.longest_of_all, self.longest)
        self.slow.update(name for name, took in logged if took >= SLOW_US)
        for _ in range(LOOPS):
            self._loop()
        self.loops += LOOPS
        logged = _logged(self._client)
        self.slow_loops += sum(took >= SLOW_US for _, took in logged)
        self.longest_loop = max(self.longest_loop, _longest(logged))
        self._client.config_set("slowlog-log-slower-than", SLOW_US)
        return value

    def figures(self, name: str, beside: str) -> Iterator[Figure]:
        """Yield the rows of slow calls and of the longest call, with *beside* in the title."""
        shares = 1000 * self.slow_loops / self.loops, 1000 * self.slow.total() / self.calls
        raw = {"calls": self.calls, "slow": dict(self.slow)}
        row = replace(SLOW.titled(beside), name=name)
        yield row.figure([shares[0]], [shares[1]], raw)
        row = replace(LONGEST.titled(beside), name=f"{name.removesuffix('slow')}longest")
        yield row.figure([self.longest_loop], [self.longest_of_all])
