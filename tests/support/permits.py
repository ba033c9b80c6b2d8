"""Count hand-outs, leased messages and permits of a limit during a test."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from celery_delayq.embedded import EmbeddedRedis

#: The time, the permits, and the leased messages of a limit in the queue ``celery`` with their
#: processes and fields, at one moment.
_COUNTS = """
local time = redis.call('TIME')
local found = {time[1] * 1000000 + time[2], redis.call('ZCARD', 'delayq:permits')}
for _, worker_id in ipairs(redis.call('ZRANGE', '{celery}:leases', 0, -1)) do
  local leased = redis.call('HGETALL', '{celery}:leased:' .. worker_id)
  for i = 1, #leased, 2 do
    if string.find(leased[i + 1], '"limit": "' .. ARGV[1] .. ': ', 1, true) then
      found[#found + 1] = worker_id .. ' ' .. leased[i]
    end
  end
end
return found
"""


class Counts(NamedTuple):
    """Leased messages of the limit, permits, and hand-outs since the begin, at one moment.

    *at_us* is the time by Redis' clock. A message that came and went between two counts is none of
    the hand-outs.
    """

    at_us: int
    permits: int
    leased: int
    handed_out: int


def most_above(samples: Iterable[tuple[float, int]], rate: float) -> float:
    """Return the most hand-outs of any window beyond its length times the rate (per second).

    *samples* are times in seconds, and the hand-outs up to then.
    """
    most, least = 0.0, float("inf")
    begin: float | None = None
    for seconds, number in samples:
        # From the first sample on: a time since 1970 would cost digits.
        begin = seconds if begin is None else begin
        above = number - rate * (seconds - begin)
        least = min(least, above)
        most = max(most, above - least)
    return most


@contextmanager
def watching(server: EmbeddedRedis, limit: str) -> Iterator[list[Counts]]:
    """Count leased messages and permits every few milliseconds during the ``with`` block.

    *limit* has no key.
    """
    found: list[Counts] = []
    handed_out: set[bytes] = set()
    stop = threading.Event()

    def watch() -> None:
        with server.client() as client:
            count = client.register_script(_COUNTS)
            while not stop.wait(0.003):
                at_us, permits, *leased = count(args=[limit])
                handed_out.update(leased)
                found.append(Counts(at_us, permits, len(leased), len(handed_out)))

    thread = threading.Thread(target=watch, name="watch")
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
