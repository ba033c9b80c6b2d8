"""A server refuses writes for a while, as a master without its replicas does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.exceptions import ResponseError

from celery_delayq.dispatch.acks import Changes
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import BrokerUnavailable
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.schedule import Store


def test_a_dead_letter_waits_until_a_master_has_its_replicas_again(
    delayq_redis_factory: Callable[[], EmbeddedRedis],
) -> None:
    with delayq_redis_factory().client() as client:
        store = Store(client, Keys(), Layout())
        changes = Changes(lambda: None)
        changes.add(
            lambda store: store.add_dead_letter("q", "id", "failed", b"{}"), "its message is lost"
        )
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(ResponseError, match="NOREPLICAS"):
            store.add_dead_letter("q", "other", "failed", b"{}")

        for _ in range(20):
            with pytest.raises(BrokerUnavailable, match="NOREPLICAS"):
                changes.flush(store)
        client.config_set("min-replicas-to-write", 0)
        changes.flush(store)

        assert [dead_letter.id for dead_letter in store.dead_letters.all("q")] == ["id"]
