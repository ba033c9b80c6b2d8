"""When a delay or a cancellation becomes known. Policy only: the data has what, and not when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from example_project.flights import Flight
from example_project.plan import Kind

#: Below this a flight is on time in the statistics that the data comes from.
LATE_FROM = timedelta(minutes=15)

#: A storm is forecast: flights are cancelled well before their departure.
CANCELLED_BEFORE = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class News:
    """At `known` flight time it is known that `flight` is cancelled, or when it departs instead."""

    flight: Flight
    known: datetime


def news_of(flights: Iterable[Flight]) -> list[News]:
    """Give the news of all cancelled and late flights, the earliest first.

    A delay is known as long beforehand as it is long: one of two hours two hours before the
    scheduled departure, since the aircraft is late where it comes from. So long delays are known
    in time for a reminder, and short ones when it has been sent.
    """
    return sorted(_news(flights), key=lambda news: (news.known, news.flight.id))


def changes_after(news: Iterable[News]) -> Counter[str]:
    """Count the reminders that the news asks to cancel and to move."""
    actions = Counter("cancel" if each.flight.cancelled else "move" for each in news)
    return Counter({action: number * len(Kind) for action, number in actions.items()})


def _news(flights: Iterable[Flight]) -> Iterator[News]:
    for flight in flights:
        if flight.delay is None:
            yield News(flight, flight.scheduled - CANCELLED_BEFORE)
        elif flight.delay >= LATE_FROM:
            yield News(flight, flight.scheduled - flight.delay)
