"""Commands as they go over the wire."""

from __future__ import annotations

import pytest
from redis.connection import Connection

from celery_delayq.store.scripting.calls import pack


@pytest.mark.parametrize(
    "commands",
    [
        [],
        [("PING",)],
        [("SET", "key", b"\x00\xff\r\n"), ("EVALSHA", "abc", 2, "a", "b", 10**15, -1)],
        [("BRPOP", "größe {q}\x06\x163", 0.25), ("SET", "empty", "", b"")],
    ],
)
def test_they_are_packed_as_redis_py_does(commands: list[tuple[object, ...]]) -> None:
    theirs = b"".join(Connection().pack_commands(commands))

    assert pack(commands) == theirs
