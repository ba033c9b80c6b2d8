"""One day of reminders: publish them, apply the news, wait until all have run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from example_project import show
from example_project.changes import NewsDesk
from example_project.plan import CompressedClock, Reminder
from example_project.publish import publish, publish_again
from example_project.records import Records, Waiting
from example_project.services import Services
from example_project.settings import is_on_rabbitmq
from example_project.tower import Tower
from example_project.waiting import waiting, waiting_by_hours

POLL_INTERVAL_S = 0.2

# Time before the begin of the day, for news that is known by then.
FIRST_NEWS_MS = 1000

# Waiting reminders are counted between these hours of the first day.
HOURS = (0, 6, 12, 18, 24)


def is_settled(records: Records, now: Waiting) -> bool:
    """Return whether no task waits, and each reminder that ran has its webhook or a dead letter."""
    return not now.total and records.count_deliveries() + now.dead >= records.count_runs()


def publish_twice(
    console: Console, reminders: Sequence[Reminder], clock: CompressedClock, records: Records
) -> int:
    """Publish all reminders twice; return how many more there are after the second time.

    The second time ends before the day begins: reminders that had run would rightly be added. It is
    left out on RabbitMQ, which has no unique keys.
    """
    with show.publishing(console, "Scheduling", len(reminders)) as advance:
        for _ in publish(reminders, clock, records):
            advance()
    added = 0
    if is_on_rabbitmq():
        show.waits(console, waiting().scheduled)
        return added
    with show.publishing(console, "And again, till the day begins", len(reminders)) as advance:
        for was_added in publish_again(_before_the_day(reminders, clock, records), clock):
            added += was_added
            advance()
    show.waiting_by_hours(console, HOURS, waiting_by_hours(clock, HOURS))
    return added


def _before_the_day(
    reminders: Iterable[Reminder], clock: CompressedClock, records: Records
) -> Iterator[Reminder]:
    for reminder in reminders:
        if records.now_ms() > clock.starts_ms - FIRST_NEWS_MS:
            return
        yield reminder


def run(
    console: Console,
    services: Services,
    records: Records,
    desk: NewsDesk,
    tower: Tower,
    clock: CompressedClock,
    *,
    planned: int,
    hours: int,
    until_ms: float,
) -> None:
    """Apply the news and show the day as it runs.

    The day ends when there is no more news, all reminders that were not cancelled have run, each
    webhook is delivered or a dead letter, each of the `hours` has a report, and no task waits; or
    at `until_ms`. On RabbitMQ all changed reminders must also have been set aside.
    """
    with show.running(console, clock) as update:
        while True:
            services.check()
            now_ms = records.now_ms()
            desk.apply_until(now_ms)
            tower.record_until(now_ms)
            remaining, done, now = planned - desk.cancelled, records.count_runs(), waiting()
            update(now_ms, done, remaining, now)
            over = desk.is_done and done >= remaining and is_settled(records, now)
            over = over and records.count_reports() >= hours
            if is_on_rabbitmq():
                over = over and records.count_set_aside() >= desk.cancelled + desk.moved
            if over or now_ms > until_ms:
                return
            # News is applied when it comes, and not at the next look.
            next_ms = min(desk.next_ms, tower.next_ms)
            time.sleep(min(POLL_INTERVAL_S, max(0.0, next_ms - records.now_ms()) / 1000))
