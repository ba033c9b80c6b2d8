"""Dead letters as Redis stores them, and calls that change them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery_delayq.model.envelope import Entry
from celery_delayq.model.script_values import StatusCode
from celery_delayq.store.dead_letters import Replay, digest_of, read_codes
from celery_delayq.store.keys import Layout
from tests.lua.bench import LAYOUT, QUEUE, Bench

#: When dead letters died, ms.
DIED = 1_700_000_000_000

DETAILS = b'{"exception": "ValueError"}'


def stored(message: bytes, died_ms: int = DIED, *, details: bytes = b"") -> bytes:
    """Return a dead letter as Redis stores it."""
    if details:
        return b"2 %d 0 %d failed\n%b%b" % (died_ms, len(details), details, message)
    return b"1 %d 0 failed\n%b" % (died_ms, message)


def seed(store: Bench, *ids: str, died_ms: int = DIED, queue: str = QUEUE, **more: Any) -> None:
    """Store dead letters, each one millisecond after the earlier one."""
    for n, id in enumerate(ids):
        message = more.get("message", b'{"dead": "%b"}' % id.encode())
        data = stored(message, died_ms + n, details=more.get("details", b""))
        store.client.hset(f"{{{queue}}}:dead", id, data)
        store.client.zadd(f"{{{queue}}}:dead_at", {id: died_ms + n})
    store.client.hset("delayq:queues", queue, LAYOUT)


def dead(*ids: str, died_ms: int = DIED) -> dict[str, Any]:
    """Return the keys that have such dead letters."""
    times = {id: died_ms + n for n, id in enumerate(ids)}
    return as_dead({id: stored(b'{"dead": "%b"}' % id.encode(), at) for id, at in times.items()})


def as_dead(dead_letters: dict[str, bytes]) -> dict[str, Any]:
    """Return the keys that have dead letters, from their ids and stored bytes."""
    if not dead_letters:
        return {}
    return {
        "{q}:dead": {id.encode(): data for id, data in dead_letters.items()},
        "{q}:dead_at": {id.encode(): int(data.split(b" ")[1]) for id, data in dead_letters.items()},
    }


def replay(
    store: Bench,
    *dead_letters: tuple[str, int, Entry] | tuple[str, int, Entry, str],
    queue: str = QUEUE,
    to: str = QUEUE,
    token: str = "t",
) -> list[StatusCode]:
    """Replay dead letters: their ids, when they died, their new entries, and their digests.

    Without a digest: that of the bytes that Redis has.
    """

    def digest(id: str) -> str:
        return digest_of(store.client.hget(f"{{{queue}}}:dead", id) or b"")

    replays = [
        Replay(*each) if len(each) == 4 else Replay(*each, digest(each[0])) for each in dead_letters
    ]
    return read_codes(
        store.run(store.dead_letters.replay_call(queue, to, Layout(), replays, token))
    )


def dead_letters_left(store: Bench, queue: str = QUEUE) -> set[str]:
    """Return the ids of the dead letters; both keys have them."""
    ids: Iterable[Any] = store.client.hkeys(f"{{{queue}}}:dead")
    times: Iterable[Any] = store.client.zrange(f"{{{queue}}}:dead_at", 0, -1)
    assert set(ids) == set(times)
    return {id.decode() for id in ids}
