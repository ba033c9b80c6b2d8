"""Read the counters in Redis, as the exporter reads them."""

from __future__ import annotations

from redis import Redis

from celery_delayq.model.totals import Totals
from celery_delayq.store.keys import Keys


def gone_by(totals: Totals) -> int:
    """Return the number of messages that have left the queue by the counters."""
    ended = totals.acked + totals.cancelled + totals.replaced
    ended += totals.moved + totals.purged + totals.taken
    return ended + sum(totals.dead_lettered.values()) - totals.aside


def present_by(totals: Totals) -> int:
    """Return the number of messages that are scheduled, ready or leased by the counters."""
    return totals.accepted + totals.replayed - gone_by(totals)


def totals_of(client: Redis, queue: str) -> Totals:
    """Return the counters of a queue; a key of another type has none."""
    name = Keys().queue(queue).totals
    return Totals.read(client.hgetall(name) if client.type(name) == b"hash" else {})
