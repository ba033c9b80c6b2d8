"""Scheduling the reminders, by plain ``apply_async(eta=…)``, and the hourly report.

Each reminder is written down once it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

from example_project.app import delayq
from example_project.plan import HOUR, CompressedClock, Kind, Reminder, as_datetime
from example_project.records import Records
from example_project.settings import is_on_rabbitmq
from example_project.tasks import call_boarding, remind_check_in, traffic_report
from example_project.traffic import NAME, tick_id

TASKS: dict[Kind, Any] = {Kind.CHECK_IN: remind_check_in, Kind.BOARDING: call_boarding}


def publish(
    reminders: Iterable[Reminder], clock: CompressedClock, records: Records
) -> Iterator[Reminder]:
    """Schedule the reminders one by one and give each after it was sent."""
    for reminder in reminders:
        send(reminder, clock, task_id=reminder.task_id)
        records.add_published(
            reminder.task_id, reminder.kind.value, clock.real_ms(reminder.planned)
        )
        yield reminder


def publish_again(reminders: Iterable[Reminder], clock: CompressedClock) -> Iterator[bool]:
    """Schedule them as someone who knows nothing of the first time; say of each if it was added.

    It is not where the id that comes back is that of the first one.
    """
    for reminder in reminders:
        yield send(reminder, clock).id != reminder.task_id


def publish_report(clock: CompressedClock, hours: int) -> None:
    """Have the workers report on each of the `hours` when it has ended; there is no beat.

    To be called before the first of them has: an entry has no ticks before it is made. RabbitMQ
    keeps no entries: each report is a task with an ETA there.
    """
    kwargs = {"starts_ms": clock.starts_ms, "hour_ms": clock.hour_ms}
    if is_on_rabbitmq():
        for hour in range(hours):
            ends = as_datetime(clock.real_ms(clock.begins + (hour + 1) * HOUR))
            traffic_report.apply_async(kwargs=kwargs, eta=ends, task_id=tick_id(hour, clock))
        return
    delayq.periodic.add(
        NAME,
        timedelta(milliseconds=clock.hour_ms),
        traffic_report,
        kwargs=kwargs,
        # An interval counts from its start, so the first tick is an hour later.
        start=as_datetime(clock.starts_ms),
        end=as_datetime(clock.real_ms(clock.begins + hours * HOUR)),
        # One for each hour: also for those that passed while no worker was there, and while the
        # report on another hour waits or runs. "skip" and "queue_one" would leave some out.
        catch_up="all",
        catch_up_max=1000,
        overlap="allow",
    )


def ticks_fired() -> int:
    """Give how often that entry was fired, by what it says itself."""
    entry = delayq.periodic.get(NAME)
    return 0 if entry is None else entry.total_run_count


def send(reminder: Reminder, clock: CompressedClock, task_id: str | None = None) -> Any:
    """Schedule a reminder; give its result."""
    # The flight waits with the reminder, and goes on to the webhook that the reminder sends.
    with delayq.context(flight=reminder.flight.id):
        return TASKS[reminder.kind].apply_async(
            kwargs={
                "flight": reminder.flight.id,
                "departs": reminder.flight.scheduled.isoformat(timespec="minutes"),
            },
            eta=as_datetime(clock.real_ms(reminder.planned)),
            task_id=task_id,
        )
