"""Settling a message sends changes to Redis; some of them are interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection

from celery_delayq.store.schedule import Store
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest


class Killed(BaseException):
    """Ends a greenlet, as GreenletExit does."""


def test_whoever_is_killed_while_it_makes_a_dead_letter_leaves_it_to_the_keeper(
    delayq_redis: RedisUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_dead_letter = Store.add_dead_letter
    calls: list[str] = []

    def be_killed_first(self: Store, queue: str, id: str, *args: Any) -> None:
        calls.append(id)
        if len(calls) == 1:
            raise Killed
        add_dead_letter(self, queue, id, *args)

    monkeypatch.setattr(Store, "add_dead_letter", be_killed_first)
    with Connection(delayq_redis.server.url_for("delayq+redis")) as connection:
        channel: Any = connection.channel()

        with pytest.raises(Killed):
            channel.add_dead_letter_copy("tag", "q", "id", "failed", b"{}", b"")
        wait_until(lambda: list(channel.store.dead_letters.all("q")), what="the keeper makes it")

        assert [dead_letter.id for dead_letter in channel.store.dead_letters.all("q")] == ["id"]
