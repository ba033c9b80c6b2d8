"""All keys of a Redis as JSON, and what this version reads.

``tests/format`` has the file of each released version, and of this one. ``make format-file`` writes
the one of this version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.store.keys import Keys
from tests.support.keyspace import now_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "format"

#: Replies that are kept for a minute, and the tests' own keys and results.
_LEFT_OUT = (b":answer:", b"celery-task-meta-", b"gate:", b"open:", b"_kombu.", b"unacked")


def file_of(version: str) -> Path:
    """Return the file of a version."""
    return FOLDER / f"{version}.json"


def dump(client: Redis) -> list[list[Any]]:
    """Return key, type and value of each key that does not expire."""
    found = []
    for key in sorted(client.keys("*")):
        if client.pttl(key) < 0 and key != b"log" and not any(each in key for each in _LEFT_OUT):
            kind = client.type(key).decode()
            found.append([_text(key), kind, _READERS[kind](client, key)])
    return found


def load(client: Redis, keys: list[list[Any]]) -> None:
    """Write keys into an empty Redis. Ids count as revoked now: Redis forgets them after a day."""
    for key, kind, value in keys:
        _WRITERS[kind](client, _bytes(key), value)
    revoked = Keys().revoked
    now_ms = now_of(client) * 1000
    client.zadd(revoked, dict.fromkeys(client.zrange(revoked, 0, -1), now_ms))


def read(delayq: DelayQ) -> dict[str, Any]:
    """Return what the API reads, without what changes with time."""
    scheduled = [each for each in delayq.entries() if each.task]
    paused = delayq.paused()
    return {
        "scheduled": sorted([each.id, each.task, each.queue, each.args] for each in scheduled),
        "due": sorted([each.id, each.due.isoformat()] for each in scheduled),
        "unique": sorted(each.unique_key for each in scheduled if each.unique_key),
        "dead": sorted([each.id, each.task, each.reason] for each in delayq.dead_letters()),
        "periodic": sorted(entry.name for entry in delayq.periodic.list()),
        "limits": [[each.name, each.as_dict()["definition"]] for each in delayq.limits.list()],
        "paused": [sorted(paused.queues), sorted(paused.tasks)],
        "history": sorted([run.id, run.state] for run in delayq.history()),
    }


def write(path: Path, version: str, client: Redis, read_by_it: dict[str, Any], ids: Any) -> None:
    """Write the file of a version; *ids* are the tasks that a worker runs at once."""
    content = {"version": version, "runs": ids, "read": read_by_it, "keys": dump(client)}
    path.parent.mkdir(exist_ok=True)
    # Tracebacks name folders of this machine. Some texts have their lengths before them.
    text = json.dumps(content, indent=1).replace(str(ROOT), "/app".ljust(len(str(ROOT)), "/"))
    path.write_text(text + "\n", "utf-8")


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _bytes(value: str) -> bytes:
    return value.encode("latin-1")


def _pairs(items: Any) -> list[list[Any]]:
    return [[_text(name), _text(value)] for name, value in sorted(items)]


_READERS: dict[str, Any] = {
    "string": lambda client, key: _text(client.get(key)),
    "list": lambda client, key: [*map(_text, client.lrange(key, 0, -1))],
    "set": lambda client, key: sorted(map(_text, client.smembers(key))),
    "hash": lambda client, key: _pairs(client.hgetall(key).items()),
    # As text: a number of JSON has no infinity.
    "zset": lambda client, key: [
        [_text(member), repr(score)] for member, score in client.zrange(key, 0, -1, withscores=True)
    ],
    "stream": lambda client, key: [
        [_text(id), _pairs(fields.items())] for id, fields in client.xrange(key)
    ],
}
_WRITERS: dict[str, Any] = {
    "string": lambda client, key, value: client.set(key, _bytes(value)),
    "list": lambda client, key, value: client.rpush(key, *map(_bytes, value)),
    "set": lambda client, key, value: client.sadd(key, *map(_bytes, value)),
    "hash": lambda client, key, value: client.hset(
        key, mapping={_bytes(name): _bytes(each) for name, each in value}
    ),
    "zset": lambda client, key, value: client.zadd(
        key, {_bytes(member): float(score) for member, score in value}
    ),
    "stream": lambda client, key, value: [
        client.xadd(key, {_bytes(name): _bytes(each) for name, each in fields}, id=_bytes(id))
        for id, fields in value
    ],
}
