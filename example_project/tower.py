"""Record departures when they happen: the data of the traffic reports."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from example_project.flights import Flight
from example_project.plan import CompressedClock
from example_project.records import Records
from example_project.traffic import hour_of, moment_of, movement_of


class Tower:
    """Records each flight when it has left, or at its scheduled time if it is cancelled."""

    def __init__(self, flights: Iterable[Flight], clock: CompressedClock, records: Records) -> None:
        self._flights = deque(sorted(flights, key=lambda each: moment_of(each, clock.begins)))
        self._clock = clock
        self._records = records

    @property
    def next_ms(self) -> float:
        """Time of the next record in real ms since 1970; infinite: never."""
        if not self._flights:
            return math.inf
        return self._clock.real_ms(moment_of(self._flights[0], self._clock.begins))

    def record_until(self, now_ms: float) -> None:
        """Record all flights until now, and then that they are complete."""
        begins = self._clock.begins
        while self.next_ms <= now_ms:
            flight = self._flights.popleft()
            self._records.add_movement(hour_of(flight, begins), movement_of(flight))
        # A report on an hour waits for this mark, so that it misses no flight.
        self._records.set_complete_until(now_ms)
