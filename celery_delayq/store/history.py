"""The history of runs in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from celery_delayq.store.scripting.runner import StorePart


def joined(runs: Iterable[bytes]) -> bytes:
    """Return lines as one argument of a script: each takes a client, and Redis, its time."""
    return b"\n".join([*runs, b""])


class HistoryStore(StorePart):
    """The part of the gateway for the history: a stream, the oldest runs of which are forgotten.

    Runs whose messages are acknowledged after them are written by the scripts that do that:
    :class:`~celery_delayq.store.leases.LeaseStore`.
    """

    def add(self, worker_id: str, number: int, most: int, runs: Sequence[bytes]) -> int:
        """Note runs whose messages were acknowledged before them; return how many were new.

        *number* grows with each call that a worker id makes, and is the same when one is
        repeated; *most* is about how many runs to keep.
        """
        keys = [self._keys.history, self._keys.worker_id(worker_id)]
        args = [most, number, joined(runs)]
        return int(self._run("history/add", keys, args))

    def read(self, after: str, upto: str, limit: int) -> list[tuple[str, bytes]]:
        """Return offset and bytes of the next *limit* runs after one offset, up to another one."""
        found = self._runner.client.xrange(self._keys.history, f"({after}", upto, limit)
        return [_entry(item) for item in cast("list[Any]", found)]

    def count(self) -> int:
        """Return how many runs are kept."""
        return cast(int, self._runner.client.xlen(self._keys.history))

    def first(self) -> str | None:
        """Return the offset of the oldest run that is kept, None when there is none."""
        return _offset(self._runner.client.xrange(self._keys.history, count=1))

    def last(self) -> str | None:
        """Return the offset of the newest run, None when there is none."""
        return _offset(self._runner.client.xrevrange(self._keys.history, count=1))


def _entry(item: Any) -> tuple[str, bytes]:
    offset, fields = item
    return offset.decode(), (fields or {}).get(b"r", b"")


def _offset(found: Any) -> str | None:
    return found[0][0].decode() if found else None
