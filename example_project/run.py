"""The steps of the demonstration: start, publish, tell the news, watch, add up, end."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Literal

from rich.console import Console

from celery_delayq.embedded import (
    EmbeddedRabbitMQ,
    EmbeddedRedis,
    EmbeddedRedisCluster,
    free_port,
)
from example_project import show
from example_project.command import WrongSums, log_folder
from example_project.deliveries import Deliveries, add_up_webhooks, webhook_problems
from example_project.flights import load_flights, midnight, thin_out
from example_project.ledger import add_up, problems
from example_project.news import changes_after, news_of
from example_project.picture import Story, draw
from example_project.plan import WEBHOOKS_AT_ONCE, CompressedClock, in_whole_hours, plan
from example_project.records import Records
from example_project.services import ServiceError, Services
from example_project.settings import (
    BROKER_URL_VARIABLE,
    LEDGER_URL_VARIABLE,
    WEBHOOK_SECRET_VARIABLE,
    WEBHOOK_URL_VARIABLE,
    webhook_url,
)
from example_project.traffic import hours_of, traffic_problems

START_TIMEOUT_S = 60.0
TIMEOUT_AFTER_LAST_DUE_S = 120.0
POLL_INTERVAL_S = 0.2

# Tasks published a second on a slow machine. The flight day begins when all are published, so that
# every ETA is in the future. On a slower machine the sums report it, and `--seconds-before` helps.
PUBLISHED_PER_S = {"redis": 300, "cluster": 200, "rabbitmq": 150}
PUBLISH_MARGIN_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    day: date
    days: int = 1
    broker: Literal["redis", "cluster", "rabbitmq"] = "redis"
    flights: int | None = None
    seconds_per_day: float = 60.0
    seconds_before: float | None = None
    workers: int = 2
    concurrency: int = 4
    picture: Path
    flower: bool = True
    keep: bool = False


def run(options: Options, console: Console) -> None:
    """Run the demonstration.

    Raises `WrongSums`, `ServiceError` if a process did not start or ended too early, and
    `FlightDataError` for days without data.
    """
    flights = load_flights(options.day, options.days)
    if options.flights is not None:
        flights = thin_out(flights, options.flights)
    begins = midnight(options.day)
    reminders, news = plan(flights, begins), news_of(flights)
    hours = hours_of(flights, begins)
    show.plan(console, options.day, options.days, flights, reminders)
    on_rabbitmq = options.broker == "rabbitmq"
    with (
        log_folder(console, "flight-reminders-", options.keep) as logs,
        EmbeddedRedis() as server,
        closing(Records(server.url)) as records,
        ExitStack() as stack,
    ):
        rabbitmq = stack.enter_context(EmbeddedRabbitMQ()) if on_rabbitmq else None
        broker_url = server.url_for("delayq+redis")
        if rabbitmq is not None:
            show.rabbitmq(console)
            broker_url = rabbitmq.url("delayq+amqp")
        elif options.broker == "cluster":
            broker_url = stack.enter_context(EmbeddedRedisCluster()).url_for()
        environment = {
            BROKER_URL_VARIABLE: broker_url,
            LEDGER_URL_VARIABLE: server.url,
            WEBHOOK_URL_VARIABLE: f"http://127.0.0.1:{free_port()}/reminders",
            WEBHOOK_SECRET_VARIABLE: secrets.token_urlsafe(32),
        }
        # Not earlier: the app reads the environment when it is imported.
        os.environ.update(environment)
        from example_project import day, replay
        from example_project.changes import NewsDesk
        from example_project.publish import publish_report, ticks_fired
        from example_project.tower import Tower
        from example_project.waiting import ready_ms, waiting

        with Services(environment, logs) as services:
            more = [f"--broker-api={rabbitmq.api_url()}"] if rabbitmq is not None else []
            flower = _start(options, console, services, records, more)
            clock = _clock(options, records, begins, len(reminders))
            show.report_plan(console, hours, clock, periodic=not on_rabbitmq)
            publish_report(clock, hours)
            added = day.publish_twice(console, reminders, clock, records)
            last_ms = clock.real_ms(max(flight.departed or flight.scheduled for flight in flights))
            day.run(
                console,
                services,
                records,
                NewsDesk(news, clock, records),
                Tower(flights, clock, records),
                clock,
                planned=len(reminders),
                hours=hours,
                until_ms=last_ms + TIMEOUT_AFTER_LAST_DUE_S * 1000,
            )
            dead, dead_after_replay = replay.replay(console, services, records)
            if not options.keep:
                services.stop()
            books = records.read(ready_ms(), sent_again=on_rabbitmq)
            sums, most_at_once = add_up(books), None if on_rabbitmq else WEBHOOKS_AT_ONCE
            webhooks = add_up_webhooks(
                Deliveries.of(books, records.read_attempts(), dead, dead_after_replay)
            )
            reports = records.read_reports()
            wrong = [
                *problems(
                    sums,
                    Counter(reminder.kind.value for reminder in reminders),
                    changes=changes_after(news),
                    added=added,
                    left_in_broker=waiting().total,
                ),
                *webhook_problems(webhooks, most_at_once),
                *traffic_problems(
                    reports,
                    records.read_report_runs(),
                    flights,
                    clock,
                    ticks=hours if on_rabbitmq else ticks_fired(),
                ),
            ]
            story = Story(
                title=show.title(options.day, options.days),
                subtitle=show.subtitle(flights, sums, webhooks, options.seconds_per_day),
                clock=clock,
                ends=_end(options, clock.flight_time(max(books.due_ms().values()))),
                books=books,
                sums=sums,
            )
            draw(story, options.picture)
            show.reports(console, reports, begins, options.days)
            show.result(console, sums, webhooks, reports, wrong, options.picture, most_at_once)
            if options.keep:
                _hold(console, services, flower)
            if wrong:
                raise WrongSums(wrong)


def _clock(options: Options, records: Records, begins: datetime, reminders: int) -> CompressedClock:
    wait_s = options.seconds_before
    if wait_s is None:
        wait_s = PUBLISH_MARGIN_S + reminders / PUBLISHED_PER_S[options.broker]
    starts_ms = math.ceil(records.now_ms() + wait_s * 1000)
    return CompressedClock(begins, starts_ms, in_whole_hours(options.seconds_per_day))


def _end(options: Options, latest: datetime) -> datetime:
    """Return the last midnight, or the full hour after `latest`: some flights leave at night."""
    ends = midnight(options.day + timedelta(days=options.days))
    while ends < latest:
        ends += timedelta(hours=1)
    return ends


def _start(
    options: Options,
    console: Console,
    services: Services,
    records: Records,
    flower_options: Sequence[str],
) -> str | None:
    """Start all processes; return the URL of Flower."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with console.status("Starting workers" + (" and Flower" if options.flower else "")):
        services.start_receiver()
        for number in range(1, options.workers + 1):
            services.start_worker(f"worker{number}", options.concurrency)
        flower = services.start_flower(*flower_options) if options.flower else None
        missing = options.workers
        while missing:
            if records.wait_for_worker(seconds=1):
                missing -= 1
                continue
            services.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"{missing} workers were not ready after {START_TIMEOUT_S:g} s")
        for url in (webhook_url(), flower):
            if url:
                services.wait_until_reachable(url, deadline)
    show.started(console, options.workers, options.concurrency, flower)
    return flower


def _hold(console: Console, services: Services, flower: str | None) -> None:
    console.print("All is left running; press Ctrl-C to end it.")
    if flower:
        console.print(f"Delayed tasks: {flower}/delayed")
    try:
        while True:
            services.check()
            time.sleep(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        console.print()
