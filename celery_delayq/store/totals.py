"""The counters in Redis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from redis.exceptions import ResponseError

from celery_delayq.model.totals import TickTotals, Totals
from celery_delayq.store.scripting.runner import StorePart
from celery_delayq.utils.portions import batches

#: Queues whose counters are read in one round trip.
QUEUES = 500


class TotalsStore(StorePart):
    """The part of the gateway for the counters that the scripts keep."""

    def read(self, queues: Iterable[str]) -> dict[str, Totals]:
        """Return the counters of each queue; all 0 where nothing was counted.

        A key of another type counts as nothing: ``fsck`` finds it.
        """
        found: dict[str, Totals] = {}
        for some in batches(queues, QUEUES):
            with self._runner.client.pipeline(transaction=False) as pipe:
                for queue in some:
                    pipe.hgetall(self._keys.queue(queue).totals)
                replies = pipe.execute(raise_on_error=False)
            for queue, reply in zip(some, replies, strict=True):
                found[queue] = Totals.read(_fields(reply))
        return found

    def ticks(self) -> TickTotals:
        """Return the counters of ticks."""
        return TickTotals.read(
            cast("dict[bytes, bytes]", self._runner.client.hgetall(self._keys.ticks))
        )

    def last_dispatch(self) -> float | None:
        """Return when a dispatcher last had nothing left to move, or moved something.

        In seconds since 1970, at most 5 s old while one works; None before the first one.
        """
        at = cast("bytes | None", self._runner.client.hget(self._keys.clock, "dispatched"))
        return int(at) / 1000 if at else None


def _fields(reply: Any) -> dict[bytes, bytes]:
    if isinstance(reply, ResponseError) and not str(reply).startswith("WRONGTYPE"):
        raise reply
    return reply if isinstance(reply, dict) else {}
