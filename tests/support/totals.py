"""Read the counters in Redis, as the exporter reads them."""

from __future__ import annotations

from redis import Redis

from celery_delayq.model.totals import Totals
from celery_delayq.store.keys import Keys


def totals_of(client: Redis, queue: str) -> Totals:
    """Return the counters of a queue; a key of another type has none."""
    name = Keys().queue(queue).totals
    return Totals.read(client.hgetall(name) if client.type(name) == b"hash" else {})
