"""The slots of each node of a Redis Cluster, and when to read them again. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

#: Seconds between two reads for one master that is away, or for one slot without a master. Less
#: than the pause between two attempts of a publish.
REREAD_SECONDS = 0.15


class Address(NamedTuple):
    """The address of a node."""

    host: str
    port: int


class SlotRange(NamedTuple):
    """Slots with the same master, from *first* to *last* inclusive."""

    first: int
    last: int
    master: Address
    replicas: tuple[Address, ...] = ()


@dataclass(slots=True)
class SlotTable:
    """The slots of a cluster, shared by all connections of a process.

    Threads and greenlets share the table without a lock: reading it twice is harmless.
    """

    ranges: list[SlotRange] = field(default_factory=list)
    #: Whether the table must be read again.
    is_stale: bool = True
    monotonic: Callable[[], float] = time.monotonic
    #: By master or slot: the earliest time of the next read, by *monotonic*.
    _quiet: dict[Address | int, float] = field(default_factory=dict)

    def master_of(self, slot: int) -> Address | None:
        """Return the master of a slot, or None."""
        return next((each.master for each in self.ranges if each.first <= slot <= each.last), None)

    def masters(self) -> set[Address]:
        """Return all masters."""
        return {each.master for each in self.ranges}

    def nodes(self) -> set[Address]:
        """Return all nodes, including replicas: all masters may be gone at the next read."""
        return {node for each in self.ranges for node in (each.master, *each.replicas)}

    def note_moved(self, node: Address, slot: int | None) -> None:
        """Note that a node no longer has *slot* or, without *slot*, is no master any more.

        Many connections notice the same change. A table that has the change already is not read
        again.
        """
        if self._names(node, slot):
            self.is_stale = True

    def note_away(self, node: Address, slot: int | None) -> None:
        """Note that a node does not answer.

        A replica takes over after some seconds. Many connections try meanwhile, so the table is
        read again only every :data:`REREAD_SECONDS`.
        """
        if self._names(node, slot) and self._may_read_for(node):
            self.is_stale = True

    def note_missing(self, slot: int) -> None:
        """Note that a connection needs a slot without a master."""
        if self._may_read_for(slot):
            self.is_stale = True

    def _names(self, node: Address, slot: int | None) -> bool:
        """Return whether *node* is the master of *slot* in the table or, without one, of any."""
        return node == self.master_of(slot) if slot is not None else node in self.masters()

    def _may_read_for(self, what: Address | int) -> bool:
        now = self.monotonic()
        if now < self._quiet.get(what, 0.0):
            return False
        self._quiet[what] = now + REREAD_SECONDS
        return True
