"""Read a whole Redis database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis

from celery_delayq.store.scripting.clock import clock_us, time_command

#: Reads all keys at one moment. Between two reads a message could move to another key, and would
#: seem to be in none.
_LOOK = """
local read = {
  string = function(key) return redis.call('GET', key) end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  hash = function(key) return redis.call('HGETALL', key) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
  stream = function(key) return redis.call('XRANGE', key, '-', '+') end,
}
local found = {}
for _, pattern in ipairs(ARGV) do
  for _, key in ipairs(redis.call('KEYS', pattern)) do
    local kind = redis.call('TYPE', key).ok
    found[#found + 1] = {key, kind, read[kind](key)}
  end
end
return found
"""


def now_of(client: Redis) -> float:
    """Return Redis' clock in seconds."""
    return clock_us(client.execute_command(*time_command().args)) / 1e6


def is_answer(key: bytes) -> bool:
    """Return whether a key has the reply to a call, which is kept for a minute."""
    return b"}:answer:" in key or b"delayq:answer:" in key


def look(client: Redis, *patterns: str) -> dict[bytes, Any]:
    """Return every key that fits a pattern, with its value, all at one moment.

    Values are bytes, lists, sets, dicts of hashes, of scores in their order, and of the entries of
    streams by id.
    """
    values: dict[bytes, Callable[[Any], Any]] = {
        b"string": lambda value: value,
        b"list": lambda items: items,
        b"set": set,
        b"hash": lambda items: dict(zip(items[::2], items[1::2], strict=True)),
        b"zset": lambda items: dict(zip(items[::2], map(float, items[1::2]), strict=True)),
        b"stream": dict,
    }
    return {key: values[kind](found) for key, kind, found in client.eval(_LOOK, 0, *patterns)}


def is_total(key: bytes) -> bool:
    """Return whether a key has counters, which have tests of their own."""
    return key.endswith((b"}:totals", b"delayq:ticks"))


def snapshot(client: Redis) -> dict[str, Any]:
    """Return every key with its value, except counters and replies that are kept for repeats."""
    return {
        key.decode(): value
        for key, value in sorted(look(client, "*").items())
        if not is_answer(key) and not is_total(key)
    }
