"""A new epoch for counters that have become smaller. No I/O."""

from __future__ import annotations

from collections.abc import Container, Sequence


class Epochs:
    """Names the epoch of counters, so that none gets smaller under one name.

    Prometheus takes a counter that became smaller for one that began at 0, and ``increase()`` adds
    its whole value. After a failover to an old replica that would be all that was counted before.
    """

    def __init__(self) -> None:
        #: By owner and source: the epoch and the values that were last exported.
        self._known: dict[str, dict[str, tuple[str, Sequence[int]]]] = {}

    def name(self, owner: str, source: str, values: Sequence[int], now: int) -> str:
        """Return the epoch under which to export *values*.

        Parameters
        ----------
        owner : str
            Whose counters these are.
        source : str
            Where they come from: another text after they have begun anew.
        now : int
            A time, for the name of a new epoch.
        """
        known = self._known.setdefault(owner, {})
        name, last = known.get(source, (source, values))
        if any(value < before for value, before in zip(values, last, strict=True)):
            name = f"{source}.{now}"
        known[source] = name, values
        return name

    def keep(self, owners: Container[str]) -> None:
        """Forget all other owners."""
        self._known = {owner: each for owner, each in self._known.items() if owner in owners}
