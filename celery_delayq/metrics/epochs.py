"""A new epoch for counters that have become smaller. No I/O."""

from __future__ import annotations

from collections.abc import Sequence


class Epochs:
    """Names the epoch of counters, so that none gets smaller under one name.

    Prometheus takes a counter that became smaller for one that began at 0, and ``increase()`` adds
    its whole value. After a failover to an old replica that would be all that was counted before.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._exported: dict[tuple[str, str], Sequence[int]] = {}

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
        name = self._names.get((owner, source), source)
        last = self._exported.get((owner, name), values)
        if any(value < before for value, before in zip(values, last, strict=True)):
            name = f"{source}.{now}"
        self._names[owner, source] = name
        self._exported[owner, name] = values
        return name
