"""Look at a whole Redis database, so that tests compare all of it."""

from __future__ import annotations

from typing import Any

from redis import Redis


def is_answer(key: bytes) -> bool:
    """Return whether a key keeps what was answered to a call, for a minute."""
    return b"}:answer:" in key


def snapshot(client: Redis) -> dict[str, Any]:
    """Return every key with its value: lists, sets, dicts of hashes and of scores.

    Answers that are kept for repeated calls are left out.
    """
    read = {
        b"string": client.get,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"hash": client.hgetall,
        b"zset": lambda key: dict(client.zrange(key, 0, -1, withscores=True)),
    }
    types = {key: client.type(key) for key in sorted(client.keys()) if not is_answer(key)}
    # A key may go while others write.
    return {key.decode(): read[kind](key) for key, kind in types.items() if kind != b"none"}
