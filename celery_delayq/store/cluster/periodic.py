"""The periodic entries of all stores: each is in its queue's store, so a tick is one script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from celery_delayq.store.periodic import EntryWrite, PeriodicStore
from celery_delayq.store.stores import Stores
from celery_delayq.utils.delegation import method_of


class PeriodicStores:
    """Periodic entries of several stores, with the methods of :class:`PeriodicStore`.

    If the route of an entry has changed to another store, the entry stays in its store until a
    runner looks at it and moves it.

    Parameters
    ----------
    stores : Stores
        The stores.
    queue_of : Callable[[EntryWrite], str]
        Returns the queue of a new entry.
    """

    def __init__(self, stores: Stores, queue_of: Callable[[EntryWrite], str]) -> None:
        self._stores, self._queue_of = stores, queue_of
        self._gates = [store.periodic for store in stores]
        self._first = self._gates[0]

    def get(self, name: str) -> str | None:
        """Return the record of an entry; None if it does not exist."""
        return self._find(name)[1]

    def all(self) -> Iterator[tuple[str, str]]:
        """Yield name and record of every entry, unordered; some may come twice."""
        return chain.from_iterable(gate.all() for gate in self._gates)

    def edit(self, name: str, edit: Callable[[str | None], EntryWrite | None]) -> str | None:
        """Change an entry by a function of its record, as :meth:`PeriodicStore.edit` does."""
        while True:
            gate, before = self._find(name)
            writing = edit(before)
            if writing is None or self._write(gate, writing):
                return before

    def edit_many(
        self,
        names: Sequence[str],
        edit: Callable[[str, str | None], EntryWrite | None],
        check: Callable[[], object],
    ) -> Iterator[int]:
        """Change entries one after the other, as :meth:`PeriodicStore.edit_many` does."""
        for name in names:
            while True:
                gate, there = self._find(name)
                check()
                writing = edit(name, there)
                if writing is None or self._write(gate, writing):
                    break
            yield int(writing is not None)

    # The first store has the code versions of all stores.
    announce_version = method_of("_first", PeriodicStore.announce_version)
    announced_versions = method_of("_first", PeriodicStore.announced_versions)
    written_entries = method_of("_first", PeriodicStore.written_entries)

    def _find(self, name: str) -> tuple[PeriodicStore | None, str | None]:
        for gate in self._gates:
            record = gate.get(name)
            if record is not None:
                return gate, record
        return None, None

    def _write(self, gate: PeriodicStore | None, writing: EntryWrite) -> bool:
        """Write an entry in its store. Return whether its state was the expected one."""
        if gate is None:
            gate = self._stores.of(self._queue_of(writing)).periodic
        return gate.write([writing]) != ["changed"]
