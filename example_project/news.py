"""When a delay or a cancellation becomes known. Policy only: the data does not have this time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from example_project.flights import Flight
from example_project.plan import Kind

#: A flight with a smaller delay is on time in the statistics of the data's source.
LATE_DELAY = timedelta(minutes=15)

#: Airlines cancel flights well before their departure, since storms are forecast.
CANCELLATION_NOTICE = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class News:
    """At `known` flight time it is known that `flight` is cancelled, or when it departs instead."""

    flight: Flight
    known: datetime


def news_of(flights: Iterable[Flight]) -> list[News]:
    """Return the news of all cancelled and late flights, the earliest first.

    A delay is known as long before the scheduled departure as the delay is: the aircraft is late at
    its previous airport. So long delays are known in time for a reminder, and short ones after it.
    """
    return sorted(_news(flights), key=lambda news: (news.known, news.flight.id))


def changes_after(news: Iterable[News]) -> Counter[str]:
    """Count the reminders that the news cancels and moves."""
    actions = Counter("cancel" if each.flight.cancelled else "move" for each in news)
    return Counter({action: number * len(Kind) for action, number in actions.items()})


def _news(flights: Iterable[Flight]) -> Iterator[News]:
    for flight in flights:
        if flight.delay is None:
            yield News(flight, flight.scheduled - CANCELLATION_NOTICE)
        elif flight.delay >= LATE_DELAY:
            yield News(flight, flight.scheduled - flight.delay)
