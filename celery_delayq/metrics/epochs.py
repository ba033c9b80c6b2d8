"""A new epoch for counters that have become smaller. No I/O."""

from __future__ import annotations

from collections.abc import Container, Sequence


class Epochs:
    """Names epochs of counters: a counter that gets smaller gets a new epoch.

    To Prometheus, a counter that gets smaller has begun again at 0, so ``increase()`` adds its full
    value. After a failover to an old replica, ``increase()`` would count everything a second time.
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
            Where the counters come from. The text changes when they begin again at 0.
        now : int
            The time, for the name of a new epoch.
        """
        known = self._known.setdefault(owner, {})
        name, last_values = known.get(source, (source, values))
        if any(value < before for value, before in zip(values, last_values, strict=True)):
            name = f"{source}.{now}"
        known[source] = name, values
        return name

    def keep(self, owners: Container[str]) -> None:
        """Forget all other owners."""
        self._known = {owner: each for owner, each in self._known.items() if owner in owners}
