"""Which node of a Redis Cluster has which slots, and when to read that again. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

#: Seconds between two reads for one master that is away, or for one slot that no master has. Less
#: than the pause between two attempts of a publish.
REREAD_SECONDS = 0.15


class Address(NamedTuple):
    """Where a node is."""

    host: str
    port: int


class SlotRange(NamedTuple):
    """Slots with the same master, both ends included."""

    first: int
    last: int
    master: Address
    replicas: tuple[Address, ...] = ()


@dataclass(slots=True)
class SlotTable:
    """The slots of a cluster, shared by all connections of a process.

    Without a lock: threads and greenlets share it, and a second reading does no harm.
    """

    ranges: list[SlotRange] = field(default_factory=list)
    #: Whether to read it again.
    is_stale: bool = True
    monotonic: Callable[[], float] = time.monotonic
    #: By master or slot: the earliest next read for it, in the time of *monotonic*.
    _quiet: dict[Address | int, float] = field(default_factory=dict)

    def master_of(self, slot: int) -> Address | None:
        """Return the master of a slot, or None."""
        return next((each.master for each in self.ranges if each.first <= slot <= each.last), None)

    def masters(self) -> set[Address]:
        """Return all masters."""
        return {each.master for each in self.ranges}

    def nodes(self) -> set[Address]:
        """Return all nodes. Replicas too: all masters may have gone when they are needed."""
        return {node for each in self.ranges for node in (each.master, *each.replicas)}

    def note_moved(self, node: Address, slot: int | None) -> None:
        """Note that a node no longer has *slot* or, without one, is no master any more.

        Many connections notice one change. A table that is right already is not read again.
        """
        if self._names(node, slot):
            self.is_stale = True

    def note_away(self, node: Address, slot: int | None) -> None:
        """Note that a node does not answer now. A replica takes over after some seconds, and many
        connections try meanwhile.
        """
        if self._names(node, slot) and self._may_read_for(node):
            self.is_stale = True

    def note_missing(self, slot: int) -> None:
        """Note that a connection needs a slot without a master."""
        if self._may_read_for(slot):
            self.is_stale = True

    def _names(self, node: Address, slot: int | None) -> bool:
        """Return whether the table names *node* as the master of *slot*, or of any slot."""
        return node == self.master_of(slot) if slot is not None else node in self.masters()

    def _may_read_for(self, what: Address | int) -> bool:
        now = self.monotonic()
        if now < self._quiet.get(what, 0.0):
            return False
        self._quiet[what] = now + REREAD_SECONDS
        return True
