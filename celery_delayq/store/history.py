"""The history of runs in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from celery_delayq.store.scripting.runner import StorePart

#: Most runs among which one call searches those of a task, and most of these runs that it returns.
#: The call reads less than 1 MB of the index.
LOOKED_RUNS, FOUND_RUNS = 25_000, 100


def joined(runs: Iterable[bytes]) -> bytes:
    """Return lines as one argument of a script: many arguments take client and Redis longer."""
    return b"\n".join([*runs, b""])


class HistoryStore(StorePart):
    """The part of the store for the history: a stream, whose oldest runs are deleted.

    If a message is acknowledged after its run, the script that acknowledges the message also writes
    the run: :class:`~celery_delayq.store.leases.LeaseStore`.
    """

    def add(self, worker_id: str, number: int, history_size: int, runs: Sequence[bytes]) -> int:
        """Add runs whose messages were acknowledged before them. Return the number of new runs.

        *number* grows with each call of a worker id; a repeated call has the same number.
        *history_size* is the approximate number of runs to keep.
        """
        args = [history_size, number, joined(runs)]
        return int(self._run("history/add", None, args, worker_id=worker_id))

    def read(self, after: str, upto: str, limit: int) -> list[tuple[str, bytes]]:
        """Return offset and bytes of the first *limit* runs after *after*, up to *upto*."""
        found = self._runner.client.xrange(self._keys.history, f"({after}", upto, limit)
        return [_entry(item) for item in cast("list[Any]", found)]

    def backwards(self, page: int, since: str = "-") -> Iterator[tuple[str, bytes]]:
        """Yield offset and bytes of all runs from offset *since* on, the newest first; *page* runs
        are read at once.
        """
        upto = "+"
        while found := cast(
            "list[Any]", self._runner.client.xrevrange(self._keys.history, upto, since, page)
        ):
            yield from map(_entry, found)
            upto = f"({_offset(found[-1:])}"

    def newest_of(self, id: bytes, count: int) -> list[tuple[str, bytes]]:
        """Return offset and bytes of the newest *count* runs of a task, the newest first.

        *id* is spelled as in the runs (:func:`~celery_delayq.model.history.id_field`).
        """
        found: dict[bytes, bytes] = {}  # runs that end meanwhile shift those that were looked at
        skipped = 0
        while len(found) < count:
            wanted = min(count - len(found), FOUND_RUNS)
            args = [id, skipped, LOOKED_RUNS, wanted]
            reply, *runs = self._run("history/find", None, args)
            looked = int(reply)
            skipped += looked
            found.update(zip(runs[::2], runs[1::2], strict=True))
            if looked < LOOKED_RUNS and len(runs) < 2 * wanted:
                break
        return [(offset.decode(), line) for offset, line in found.items()]

    def count(self) -> int:
        """Return the number of stored runs."""
        return cast(int, self._runner.client.xlen(self._keys.history))

    def oldest_offset(self) -> str | None:
        """Return the offset of the oldest run; None if there is none."""
        return _offset(self._runner.client.xrange(self._keys.history, count=1))

    def newest_offset(self) -> str | None:
        """Return the offset of the newest run; None if there is none."""
        return _offset(self._runner.client.xrevrange(self._keys.history, count=1))


def _entry(item: Any) -> tuple[str, bytes]:
    offset, fields = item
    return offset.decode(), (fields or {}).get(b"r", b"")


def _offset(found: Any) -> str | None:
    return found[0][0].decode() if found else None
