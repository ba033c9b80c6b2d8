"""Count leased messages and permits of a limit during a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from celery_delayq.embedded import EmbeddedRedis

#: The leased messages of a limit in the queue ``celery``, and the permits, at one moment.
_COUNTS = """
local leased = 0
for _, worker_id in ipairs(redis.call('ZRANGE', '{celery}:leases', 0, -1)) do
  for _, value in ipairs(redis.call('HVALS', '{celery}:leased:' .. worker_id)) do
    if string.find(value, '"limit": "' .. ARGV[1] .. ': ', 1, true) then
      leased = leased + 1
    end
  end
end
return {leased, redis.call('ZCARD', 'delayq:permits')}
"""


class Counts(NamedTuple):
    """Leased messages of the limit, and permits, at one moment."""

    leased: int
    permits: int


@contextmanager
def watching(server: EmbeddedRedis, limit: str) -> Iterator[list[Counts]]:
    """Count leased messages and permits every few milliseconds during the ``with`` block.

    *limit* has no key.
    """
    found: list[Counts] = []
    stop = threading.Event()

    def watch() -> None:
        with server.client() as client:
            count = client.register_script(_COUNTS)
            while not stop.wait(0.003):
                found.append(Counts(*count(args=[limit])))

    thread = threading.Thread(target=watch, name="watch")
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
