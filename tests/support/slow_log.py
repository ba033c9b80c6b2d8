"""Read the longest calls of Redis from its slow log, by the names of our scripts."""

from __future__ import annotations

from collections import Counter

from redis import Redis

from celery_delayq.store.scripting import scripts


def longest_calls(client: Redis) -> Counter[str]:
    """Return the longest call of each script and command since the last read, in µs."""
    known = [scripts.load(name) for name in scripts.names_with_variants()]
    # Redis keeps the first characters of a source.
    names = {first: each.name for each in known for first in (each.sha, each.source[:40])}
    longest: Counter[str] = Counter()
    for each in client.slowlog_get(1_000_000):
        command, _, rest = each["command"].decode("utf-8", "replace").partition(" ")
        name = names.get(rest[:40], command)
        longest[name] = max(longest[name], each["duration"])
    client.slowlog_reset()
    return longest
